"""Broken requests to every method of a node, made from the descriptors of its reflection.

Calls are made out of order, cancelled, and with others' metadata. None may end INTERNAL, UNKNOWN or
DATA_LOSS.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from chaos.attacks.http2 import Target
from chaos.attacks.requests import Requests
from reconcile.ids import END, LOWEST, SyncIds
from reconcile.index import IndexView, MemoryView
from reconcile.session import ReconcileSession, Role, SessionConfig, SessionStep
from reconcile.view import proceed
from storenode.wire.storenode.v1.peer_pb2 import ReconcileFrame

LISTENERS: Final = ("listen", "peer", "admin")
"""The listeners that serve methods of gRPC, by their names in the ready line."""

_AT_ONCE: Final = 48
_CHANNELS: Final = 4
_HASTE_S: Final = 0.3
_ONE_ANSWER_S: Final = 30.0
_MAX_FRAMES: Final = 8
_MAX_ANSWERS: Final = 4
_SHOWN_BYTES: Final = 4_096
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
_Method: TypeAlias = Any
"""A `MethodDescriptor`, which is of another class where protobuf is compiled."""


class FaultFoundError(Exception):
    """A call ended in a way in which no call should; the text has what was sent."""


def list_methods(target: Target) -> list[tuple[str, _Method]]:
    """Return all methods that the reflection of any listener lists, with the listener's address."""
    found: list[tuple[str, _Method]] = []
    for address in [target[name] for name in LISTENERS]:
        with grpc.insecure_channel(address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            pool = DescriptorPool(database)
            for name in sorted(database.get_services()):
                found += [(address, each) for each in pool.FindServiceByName(name).methods]
    return found


async def broken_requests(target: Target, rng: random.Random, count: int) -> str:
    """Send requests with usual, extreme and learned values, broken or not.

    Raises:
        FaultFoundError: a call ended in one of the ways that show a fault of the node.
    """
    methods = await asyncio.to_thread(list_methods, target)
    async with AsyncExitStack() as stack:
        # Else channels with the same address and options share one connection.
        own = [("grpc.use_local_subchannel_pool", 1)]
        channels = {
            address: [
                await stack.enter_async_context(grpc.aio.insecure_channel(address, own))
                for _ in range(_CHANNELS)
            ]
            for address, _ in methods
        }
        fuzzer = Fuzzer(methods, channels, rng.randrange(2**32))
        await fuzzer.send(count)
    ends = ", ".join(f"{number:,} {code}" for code, number in fuzzer.codes.most_common())
    return f"{fuzzer.requests:,} requests to {len(methods)} methods; calls: {ends}"


class Fuzzer:
    """A maker of calls of some methods; ``channels`` are by the address of a listener.

    Attributes:
        requests: how many requests were sent.
        codes: how many calls ended with each status; `left`: by the fuzzer.
    """

    def __init__(
        self,
        methods: Sequence[tuple[str, _Method]],
        channels: dict[str, list[Any]],
        seed: int,
    ) -> None:
        self.requests = 0
        self.codes: Counter[str] = Counter()
        self._methods = methods
        self._channels = channels
        self._seed = seed
        self._source = Requests(time.time_ns())
        for _, method in methods:
            if method.name == "Reconcile":
                # A valid request that is unlikely to be made at random.
                self._source.add_samples(GetMessageClass(method.input_type), [_opening()])

    async def send(self, count: int) -> None:
        """Send ``count`` requests."""
        numbers = itertools.count()

        async def work() -> None:
            while self.requests < count:
                await self._call(next(numbers))

        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))

    async def _call(self, number: int) -> None:
        """Make the call of this number; it uses values of earlier answers."""
        rng = random.Random(f"{self._seed}/{number}")
        address, method = self._methods[number % len(self._methods)]
        takes_many, kind = method.client_streaming, GetMessageClass(method.input_type)
        count = rng.randrange(1, _MAX_FRAMES + 1) if takes_many else 1
        frames = [self._source.request(kind, rng) for _ in range(count)]
        channel = rng.choice(self._channels[address])
        make = channel.stream_stream if takes_many else channel.unary_stream
        path = f"/{method.containing_service.full_name}/{method.name}"
        call = make(path)(*(() if takes_many else frames), metadata=rng.choice(_METADATA))
        code: grpc.StatusCode | None = None
        is_answered = False
        # A stream may be without end.
        haste_s = _HASTE_S if takes_many or method.server_streaming else _ONE_ANSWER_S
        with suppress(TimeoutError):
            async with asyncio.timeout(haste_s):
                is_answered = await self._converse(call, method, frames if takes_many else (), rng)
                code = await call.code()
        call.cancel()
        self.requests += len(frames)
        if code in _FAULTS and (details := await call.details()) != _OWN_DETAILS:
            shown = " ".join(each[:_SHOWN_BYTES].hex() or "-" for each in frames)
            raise FaultFoundError(f"{path} ended {code.name} ({details}): {shown}")
        self.codes["left" if code is None else code.name] += 1
        if is_answered or code is grpc.StatusCode.OK:
            self._source.add_samples(kind, frames)

    async def _converse(
        self,
        call: Any,  # noqa: ANN401 - grpc.aio's
        method: _Method,
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

    async def _answer(self, call: Any, method: _Method) -> bool:  # noqa: ANN401 - grpc.aio's
        data: object = await call.read()
        if not isinstance(data, bytes):
            return False
        with suppress(DecodeError):
            self._source.learn(GetMessageClass(method.output_type).FromString(data))
        return True


def _opening() -> bytes:
    """Return the first frame of a reconciliation of an empty store."""
    config = SessionConfig(cluster=1, shards=(), window=(LOWEST, (END[0], LOWEST[1])))
    view = MemoryView(IndexView.of(SyncIds.of(())))
    step = proceed(ReconcileSession(Role.INITIATOR, config).begin(view))
    assert isinstance(step, SessionStep)
    assert step.frame is not None
    frame = ReconcileFrame(ranges_data=step.frame.payload, count=step.frame.count)
    return frame.SerializeToString()
