"""Processes under test: their logs, metrics and memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from chaos.node import NodeProcess
from storenode.client.node import connect
from storenode.connection.errors import NodeError
from tests.integration.run.helpers import get
from tests.support import polling


async def logged(node: NodeProcess, text: str, after: int = 0) -> None:
    """Wait for a text in a node's log, beyond a number of bytes."""
    await until(lambda: text.encode() in node.log_path.read_bytes()[after:])


async def event(node: NodeProcess, name: str, after: int = 0, **fields: object) -> dict[str, Any]:
    """Wait for an event with these fields in a node's JSON log, beyond a number of bytes."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        *lines, _ = node.log_path.read_bytes()[after:].split(b"\n")
        events = [json.loads(line) for line in lines if line.startswith(b"{")]
        found.extend(
            each for each in events if each["event"] == name and fields.items() <= each.items()
        )
        return bool(found)

    await until(look)
    return found[0]


def log_size(node: NodeProcess) -> int:
    return node.log_path.stat().st_size


def memory_bytes(node: NodeProcess) -> int:
    """Return the memory of a node, without its Postgres."""
    return int(psutil.Process(node.process.pid).memory_info().rss)


async def is_refused(node: NodeProcess, cursor: bytes) -> bool:
    """Return True if a node refuses to follow from a cursor, as one of commits that it lacks."""
    async with connect(node.listen) as client:
        try:
            await anext(client.follow(cursor=cursor))
        except NodeError as error:
            return error.code == "OUT_OF_RANGE"
    return False


async def until(check: Callable[[], object]) -> None:
    """Poll a process or a database until the answer is true."""
    await polling.until(lambda: asyncio.to_thread(check))


def metrics(node: NodeProcess) -> dict[tuple[str, ...], float]:
    """Return the node's metrics by name and label values, in the order of the labels."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(get(node.metrics, "/metrics")[1])
        for sample in family.samples
    }
