"""The methods of a node, and calls of them: out of order, cancelled, with others' metadata."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from chaos.fuzz.requests import Requests

SHOWN: Final = 4_096
"""Bytes of a request that are shown."""

_HASTE_S: Final = 0.3
_ONE_ANSWER_S: Final = 30.0
_MAX_FRAMES: Final = 8
_MAX_ANSWERS: Final = 4
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


@dataclass(slots=True)
class Results:
    """The results of all calls; ``findings`` describe those that ended with a forbidden code."""

    requests: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)


class Caller:
    """A maker of calls; ``channels`` are by the address of a listener."""

    def __init__(self, channels: dict[str, list[Any]], seed: str) -> None:
        self.results = Results()
        self._channels = channels
        self._seed = seed
        self._requests = Requests(time.time_ns())

    def add_sample(self, method: Method, frame: bytes) -> None:
        """Add a valid request that is unlikely to be made at random."""
        self._requests.add_samples(method.request, [frame])

    async def call(self, method: Method, number: int) -> None:
        """Make the call of this number; it uses values of earlier answers."""
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
        self.results.requests += len(frames)
        if code in _FAULTS and (details := await call.details()) != _OWN_DETAILS:
            shown = " ".join(each[:SHOWN].hex() or "-" for each in frames)
            self.results.findings.append(
                f"request {number}: {method.path} ended {code.name} ({details}): {shown}"
            )
        self.results.codes["left" if code is None else code.name] += 1
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
