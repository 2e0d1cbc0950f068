"""Calls with fuzzed requests: out of order, cancelled, with the metadata of others."""

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
from google.protobuf.message import DecodeError

from chaos.fuzz.methods import Method
from chaos.fuzz.requests import Requests

SHOWN: Final = 4_096
"""Bytes of a request that are shown."""

_HASTE_S: Final = 0.3
_PATIENCE_S: Final = 5.0
_ONE_ANSWER_S: Final = 30.0
_PATIENT_SHARE: Final = 0.002
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
class Finding:
    """A call that ended with a forbidden code; ``frames`` are what it sent."""

    number: int
    path: str
    code: str
    details: str
    frames: Sequence[bytes]

    def __str__(self) -> str:
        sent = " ".join(each[:SHOWN].hex() or "-" for each in self.frames)
        return f"request {self.number}: {self.path} ended {self.code} ({self.details}): {sent}"


@dataclass(slots=True)
class Results:
    """The results of all calls; ``slow`` counts those that had not ended after the patience."""

    requests: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    slow: Counter[str] = field(default_factory=Counter)


class Caller:
    """A maker of calls; ``channels`` are by the address of a listener."""

    def __init__(self, channels: dict[str, list[Any]], seed: str, results: Results) -> None:
        self._channels = channels
        self._seed = seed
        self._requests = Requests(time.time_ns())
        self.results = results

    def add_sample(self, method: Method, frame: bytes) -> None:
        """Add a valid request that is unlikely to be made at random."""
        self._requests.add_samples(method.request, [frame])

    async def call(self, method: Method, number: int) -> None:
        """Make the call of this number; it uses values of earlier answers."""
        rng = random.Random(f"{self._seed}/{number}")
        frames = self._frames(method, rng)
        patient = rng.random() < _PATIENT_SHARE
        channel = rng.choice(self._channels[method.address])
        make = channel.stream_stream if method.takes_many else channel.unary_stream
        call = make(method.path)(
            *(() if method.takes_many else (frames[0],)), metadata=rng.choice(_METADATA)
        )
        code: grpc.StatusCode | None = None
        answered = False
        try:
            async with asyncio.timeout(_PATIENCE_S if patient else self._haste_s(method)):
                sent = frames if method.takes_many else ()
                answered = await self._converse(call, method, sent, rng)
                code = await call.code()
        except TimeoutError:
            if patient:
                self.results.slow[method.path] += 1
        finally:
            call.cancel()
        self.results.requests += len(frames)
        if code in _FAULTS:
            details = await call.details()
            if details != _OWN_DETAILS:
                self.results.findings.append(
                    Finding(number, method.path, code.name, details, frames)
                )
            else:
                code = None
        self.results.codes["left" if code is None else code.name] += 1
        if answered or code is grpc.StatusCode.OK:
            self._requests.add_samples(method.request, frames)

    @staticmethod
    def _haste_s(method: Method) -> float:
        """Return when a call is left: soon if it may be a stream without end."""
        return _HASTE_S if method.takes_many or method.gives_many else _ONE_ANSWER_S

    def _frames(self, method: Method, rng: random.Random) -> list[bytes]:
        count = rng.randrange(1, _MAX_FRAMES + 1) if method.takes_many else 1
        return [self._requests.request(method.request, rng) for _ in range(count)]

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
