"""Send broken requests to every method of a node, made from the descriptors of reflection.

The node has an embedded Postgres and default options; a count and a seed decide what is sent. Calls
are made out of order, cancelled, and with others' metadata. A run fails when a call ends INTERNAL,
UNKNOWN or DATA_LOSS, when the node dies, logs an error, does not serve an honest client, or has
more memory at the end than after a tenth of the requests by more than its caches explain. A finding
is printed with what was sent.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import psutil
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from chaos.attacks.__main__ import run_node
from chaos.attacks.honest import HonestClient
from chaos.fuzz.requests import Requests
from chaos.node import PROGRAM, NodeProcess
from chaos.tasks import Waiter
from reconcile.ids import END, LOWEST, SyncIds
from reconcile.index import IndexView, MemoryView
from reconcile.session import ReconcileSession, Role, SessionConfig, SessionStep
from reconcile.view import proceed
from storenode.wire.storenode.v1.peer_pb2 import ReconcileFrame

MIB: Final = 1024 * 1024
MOST_GROWTH_MIB: Final = 256
"""The index, the topics, and what gossip and the allocator keep grow with what is stored."""

_SHOWN_BYTES: Final = 4_096
_MOST_SHOWN: Final = 5
_AT_ONCE: Final = 48
_CHANNELS: Final = 4
_ROUND: Final = 5_000
_HONEST_CALLS: Final = 6
_PATIENCE_S: Final = 120.0
_HASTE_S: Final = 0.3
_ONE_ANSWER_S: Final = 30.0
_MAX_FRAMES: Final = 8
_MAX_ANSWERS: Final = 4
_OPTIONS: Final = ("--log-level", "warning", "--log-format", "json", "--gossip", "on")
_FAULTS: Final = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)
_OWN_DETAILS: Final = "Internal error from Core"
"""The text of gRPC's client when a frame is written after the node has ended the call."""

_METADATA: Final[tuple[tuple[tuple[str, str | bytes], ...], ...]] = (
    (),
    (),
    (("storenode-node-id", "fuzz"), ("storenode-store-id", "fuzz"), ("storenode-version", "1")),
    (("storenode-node-id", "fuzz"),),
    (("storenode-node-id", "a"), ("storenode-node-id", "b"), ("storenode-store-id", "x" * 900)),
    (("authorization", "Bearer nobody's"),),
    (("authorization", "Basic e30="), ("authorization", "Bearer")),
    (("x-request-id", "\x7e" * 300), ("traceparent", "00-zz")),
    (("grpc-accept-encoding", "nothing"), ("storenode-proof-bin", b"\0\xff")),
)


@dataclass(slots=True)
class Result:
    """The outcome of a run: ``faults`` are sentences, memory is in MiB of the node's process."""

    requests: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Method:
    """A method: the address of its listener, HOST:PORT, and its path in HTTP/2."""

    address: str
    path: str
    request: type[Message]
    response: type[Message]
    takes_many: bool
    gives_many: bool


def list_methods(address: str) -> list[Method]:
    """Return all methods of a listener, as its reflection lists them, by their paths."""
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(database)
        found = [
            Method(
                address,
                f"/{name}/{each.name}",
                GetMessageClass(each.input_type),
                GetMessageClass(each.output_type),
                each.client_streaming,
                each.server_streaming,
            )
            for name in database.get_services()
            for each in pool.FindServiceByName(name).methods
        ]
    return sorted(found, key=lambda each: each.path)


def _opening() -> bytes:
    """Return the first frame of a reconciliation of an empty store."""
    config = SessionConfig(cluster=1, shards=(), window=(LOWEST, END))
    view = MemoryView(IndexView.of(SyncIds.of(())))
    step = proceed(ReconcileSession(Role.INITIATOR, config).begin(view))
    assert isinstance(step, SessionStep)
    assert step.frame is not None
    frame = ReconcileFrame(ranges_data=step.frame.payload, count=step.frame.count)
    return frame.SerializeToString()


class Fuzzer:
    """A maker of calls of some methods; ``channels`` are by the address of a listener."""

    def __init__(
        self, methods: Sequence[Method], channels: dict[str, list[Any]], seed: str
    ) -> None:
        self.result = Result()
        self._methods = methods
        self._channels = channels
        self._seed = seed
        self._numbers = itertools.count()
        self._requests = Requests(time.time_ns())
        for each in methods:
            if each.path.endswith("/Reconcile"):
                # A valid request that is unlikely to be made at random.
                self._requests.add_samples(each.request, [_opening()])

    async def send(self, count: int) -> None:
        """Send so many requests more."""
        last = self.result.requests + count

        async def work() -> None:
            while self.result.requests < last:
                await self._call(next(self._numbers))

        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))

    async def _call(self, number: int) -> None:
        """Make the call of this number; it uses values of earlier answers."""
        method = self._methods[number % len(self._methods)]
        rng = random.Random(f"{self._seed}/{number}")
        count = rng.randrange(1, _MAX_FRAMES + 1) if method.takes_many else 1
        frames = [self._requests.request(method.request, rng) for _ in range(count)]
        channel = rng.choice(self._channels[method.address])
        make = channel.stream_stream if method.takes_many else channel.unary_stream
        given = () if method.takes_many else (frames[0],)
        call = make(method.path)(*given, metadata=rng.choice(_METADATA))
        code: grpc.StatusCode | None = None
        is_answered = False
        # A stream may be without end.
        haste_s = _HASTE_S if method.takes_many or method.gives_many else _ONE_ANSWER_S
        with suppress(TimeoutError):
            async with asyncio.timeout(haste_s):
                sent = frames if method.takes_many else ()
                is_answered = await self._converse(call, method, sent, rng)
                code = await call.code()
        call.cancel()
        self.result.requests += len(frames)
        if code in _FAULTS and (details := await call.details()) != _OWN_DETAILS:
            shown = " ".join(each[:_SHOWN_BYTES].hex() or "-" for each in frames)
            self.result.faults.append(
                f"request {number}: {method.path} ended {code.name} ({details}): {shown}"
            )
        self.result.codes["left" if code is None else code.name] += 1
        if is_answered or code is grpc.StatusCode.OK:
            self._requests.add_samples(method.request, frames)

    async def _converse(
        self,
        call: Any,  # noqa: ANN401 - grpc.aio's
        method: Method,
        frames: Sequence[bytes],
        rng: random.Random,
    ) -> bool:
        """Send the frames, and read some answers; return False if there was none."""
        answers = 0
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for each in frames:
                await call.write(each)
                if rng.random() < 0.5:
                    if not await self._answer(call, method):
                        return answers > 0
                    answers += 1
            if frames and rng.random() < 0.8:
                await call.done_writing()
            while answers < _MAX_ANSWERS and await self._answer(call, method):
                answers += 1
            call.cancel()
        return answers > 0

    async def _answer(self, call: Any, method: Method) -> bool:  # noqa: ANN401 - grpc.aio's
        data: object = await call.read()
        if not isinstance(data, bytes):
            return False
        with suppress(DecodeError):
            self._requests.learn(method.response.FromString(data))
        return True


async def fuzz(
    count: int,
    seed: str,
    only: Sequence[str] = (),
    program: Sequence[str] = PROGRAM,
    options: Sequence[str] = (),
) -> Result:
    """Send requests to a node of its own.

    Args:
        count: the number of requests.
        seed: decides what is sent.
        only: parts of the paths of methods; by default all methods.
        program: the node's command.
        options: further options of the node.
    """
    async with run_node((*_OPTIONS, *options), program) as node, AsyncExitStack() as stack:
        addresses = (node.ready["listen"], node.ready["admin"])
        found = [
            each for address in addresses for each in await asyncio.to_thread(list_methods, address)
        ]
        channels = {
            address: [
                # Else channels with the same address and options share one connection.
                await stack.enter_async_context(
                    grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
                )
                for _ in range(_CHANNELS)
            ]
            for address in addresses
        }
        chosen = [each for each in found if not only or any(part in each.path for part in only)]
        fuzzer, process = Fuzzer(chosen, channels, seed), psutil.Process(node.pid)
        result, memory = fuzzer.result, fuzzer.result.memory_mib
        while result.requests < count and not result.faults:
            await fuzzer.send(min(_ROUND, count - result.requests))
            result.faults += await _find_wrong(node)
            if node.running:
                memory.append(process.memory_info().rss / MIB)
            sys.stderr.write(f"{result.requests:,} requests, {memory[-1:]} MiB\n")
    if memory and (growth_mib := memory[-1] - memory[len(memory) // 10]) > MOST_GROWTH_MIB:
        result.faults.append(f"the node's memory grew by {growth_mib:,.0f} MiB")
    return result


async def _find_wrong(node: NodeProcess) -> list[str]:
    """Return what is wrong with the node."""
    if not node.running:
        return [f"the node died: {node.log_tail()}"]
    lines = [line for line in node.log_path.read_text().splitlines() if line.strip()]
    wrong = [line for line in lines if not line.startswith("{") or _is_error(line)]
    if wrong:
        return [f"the node logged: {line[:2_000]}" for line in wrong[:_MOST_SHOWN]]
    honest, ended = HonestClient(node.ready), asyncio.Event()
    asking = asyncio.create_task(honest.run(ended))
    waiter = Waiter(_PATIENCE_S)
    await waiter.until_none("honest calls", lambda: max(0, _HONEST_CALLS - honest.calls))
    ended.set()
    await asking
    failures = [f"an honest call failed: {what}" for what in honest.failures]
    return failures + [str(each) for each in await honest.judge()]


def _is_error(line: str) -> bool:
    fields: dict[str, Any] = json.loads(line)
    return fields.get("level") in ("error", "critical") or "exception" in fields


def main() -> int:
    """Run, and print the outcome."""
    parser = argparse.ArgumentParser(description=__doc__, prog="make fuzz")
    parser.add_argument("--count", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument(
        "--seed", default=str(random.randrange(10**6)), help="anything; default: a random one"
    )
    parser.add_argument(
        "--method", action="append", default=[], help="a part of its path; repeatable; default: all"
    )
    given, began_s = parser.parse_args(), time.monotonic()
    result = asyncio.run(fuzz(given.count, given.seed, given.method))
    codes = ", ".join(f"{count:,} {code}" for code, count in result.codes.most_common())
    print(
        f"seed {given.seed}: {result.requests:,} requests in {time.monotonic() - began_s:,.0f} s;"
        f" calls: {codes}; memory {result.memory_mib[:1]} to {result.memory_mib[-1:]} MiB;"
        f" faults: {len(result.faults)}"
    )
    for each in result.faults[:_MOST_SHOWN]:
        print(each)
    return int(bool(result.faults))


if __name__ == "__main__":
    raise SystemExit(main())
