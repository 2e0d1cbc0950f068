"""Processes of a server that are looked at and killed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import grpc
import psutil
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.run.helpers import get
from tests.support import polling
from tests.support.acknowledged import PATIENCE_S
from tests.support.node import NodeProcess


def postmaster_of(node: NodeProcess) -> psutil.Process:
    """The embedded server of a node."""
    (found,) = [
        child
        for child in psutil.Process(node.process.pid).children()
        if child.name().startswith("postgres")
    ]
    return found


class Readiness:
    """Every change of a node's readiness, as its health service tells it."""

    def __init__(self, node: NodeProcess) -> None:
        self._channel = grpc.insecure_channel(node.listen)
        self._changes: list[bool] = []
        self._changed = threading.Condition()
        self._watch = HealthStub(self._channel).Watch(health_pb2.HealthCheckRequest())
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            for answer in self._watch:
                with self._changed:
                    self._changes.append(answer.status == health_pb2.HealthCheckResponse.SERVING)
                    self._changed.notify_all()
        except grpc.RpcError:
            return

    async def is_ready(self) -> None:
        """Wait until the node is ready."""
        await self._wait(lambda: self._changes[-1:] == [True])

    async def was_away(self) -> None:
        """Wait until the node has been not ready, and is ready again, since the last call."""
        await self._wait(lambda: False in self._changes and self._changes[-1])
        with self._changed:
            del self._changes[:-1]

    async def _wait(self, check: Callable[[], bool]) -> None:
        def wait() -> None:
            with self._changed:
                assert self._changed.wait_for(check, PATIENCE_S), self._changes

        await asyncio.to_thread(wait)

    def close(self) -> None:
        """End the watching."""
        self._watch.cancel()
        self._channel.close()
        self._reader.join()


async def logged(node: NodeProcess, text: str, after: int = 0) -> None:
    """Wait until a line of the node's log beyond some bytes holds a text."""
    command = ["tail", "--follow", f"--bytes=+{after + 1}", str(node.log_path)]
    tail = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert tail.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while text.encode() not in await tail.stdout.readline():
                pass
    finally:
        tail.kill()
        await tail.wait()


async def until(check: Callable[[], object]) -> None:
    """Ask a process or a database, which takes its time, until the answer is yes."""
    await polling.until(lambda: asyncio.to_thread(check))


def metrics(node: NodeProcess) -> dict[tuple[str, ...], float]:
    """The node's metrics: value by name and the values of the labels, in the labels' order."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(get(node.metrics, "/metrics")[1])
        for sample in family.samples
    }
