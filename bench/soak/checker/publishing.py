"""Clients that publish at a steady rate, and note what was sent and what was answered."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import grpc
from google.protobuf.duration_pb2 import Duration

from bench.soak.checker.asking import OPTIONS, ask
from bench.soak.checker.hashing import fingerprint, message_hash
from bench.soak.checker.history import Ack, History, Published
from storenode.wire.storenode.v1 import store_pb2, store_pb2_grpc
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

PUBSUB: Final = "/waku/2/rs/1/0"
TOPICS: Final = tuple(f"/soak/1/topic-{number}/proto" for number in range(5))
CONFIRM_TIMEOUT_S: Final = 2
TRY_S: Final = 5.0
GIVE_UP_S: Final = 12.0
"""From a message's time on: nodes refuse what is 20 s old."""

MAX_IN_FLIGHT: Final = 8
_PAUSE_S: Final = 0.25
_HELD: Final = (
    store_pb2.PublishResult.STORED,
    store_pb2.PublishResult.DUPLICATE,
    store_pb2.PublishResult.UNCONFIRMED,
)
_PASSING: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
)
_BATCH: Final = 10
_PAYLOAD_BYTES: Final = 400


@dataclass(slots=True)
class Tally:
    """What publishers were told, and how long answers took."""

    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    strange: list[str] = field(default_factory=list)
    held_back: int = 0
    unanswered: int = 0
    seconds: list[float] = field(default_factory=list)


def new_messages(dice: Random, times_ns: Sequence[int]) -> list[WakuMessageAndTopic]:
    """Random messages of these times, with and without the fields that are optional."""
    made = []
    for time_ns in times_ns:
        message = WakuMessage(
            payload=dice.randbytes(dice.randint(16, _PAYLOAD_BYTES)),
            content_topic=dice.choice(TOPICS),
            timestamp=time_ns,
            version=dice.choice((None, 0, 1, 7)),
            meta=dice.choice((None, None, b"", dice.randbytes(12))),
            rate_limit_proof=dice.choice((None, None, None, dice.randbytes(40))),
        )
        made.append(WakuMessageAndTopic(message=message, pubsub_topic=PUBSUB))
    return made


def note(history: History, publisher: str, messages: Sequence[WakuMessageAndTopic]) -> list[bytes]:
    """Note messages that are about to be sent; their hashes, in order."""
    digests = [message_hash(each.message, each.pubsub_topic) for each in messages]
    history.publish(
        (
            digest,
            Published(
                fingerprint(each.message, each.pubsub_topic), each.message.timestamp, publisher
            ),
        )
        for digest, each in zip(digests, messages, strict=True)
    )
    return digests


@dataclass(slots=True)
class Publisher:
    """One client of the node at ``address``; ``store`` tells which store answers there now.

    It begins a batch every ``interval_s``, whether or not the last one was answered; with
    `MAX_IN_FLIGHT` unanswered it waits for its next turn. A batch is sent again until it is
    answered or too old.
    """

    name: str
    address: str
    store: Callable[[], str]
    history: History
    tally: Tally
    dice: Random
    min_confirms: int
    interval_s: float

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until ``stop`` is set, then wait for what is under way."""
        async with grpc.aio.insecure_channel(self.address, OPTIONS) as channel:
            stub: store_pb2_grpc.StoreAsyncStub = store_pb2_grpc.StoreStub(channel)
            under_way: set[asyncio.Task[None]] = set()
            due_s = time.monotonic() + self.dice.random() * self.interval_s
            while not await _set_by(stop, due_s - time.monotonic()):
                due_s += self.interval_s
                if len(under_way) >= MAX_IN_FLIGHT:
                    self.tally.held_back += 1
                    continue
                task = asyncio.create_task(self._batch(stub))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            await asyncio.gather(*under_way)

    async def _batch(self, stub: store_pb2_grpc.StoreAsyncStub) -> None:
        now_ns = time.time_ns()
        times_ns = [now_ns + number for number in range(self.dice.randint(1, _BATCH))]
        messages = new_messages(self.dice, times_ns)
        digests = note(self.history, self.name, messages)
        request = store_pb2.PublishRequest(
            messages=messages,
            min_confirms=self.min_confirms,
            confirm_timeout=Duration(seconds=CONFIRM_TIMEOUT_S),
        )
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + GIVE_UP_S:
            # A call that was begun at one store is never answered by the next, but by a retry of
            # the transport, which is then put down to the former.
            store = self.store()
            try:
                answer = await stub.Publish(request, timeout=TRY_S)
            except grpc.aio.AioRpcError as error:
                self._failed(error)
                await asyncio.sleep(_PAUSE_S)
                continue
            self.tally.seconds.append(time.monotonic() - begun_s)
            self._answered(store, digests, answer)
            return
        self.tally.unanswered += len(messages)

    def _failed(self, error: grpc.aio.AioRpcError) -> None:
        self.tally.errors[error.code().name] += 1
        if error.code() not in _PASSING:
            self.tally.strange.append(f"{self.name}: {error.code().name}: {error.details()}")

    def _answered(
        self, store: str, digests: Sequence[bytes], answer: store_pb2.PublishResponse
    ) -> None:
        now_s = time.monotonic()
        if [result.message_hash for result in answer.results] != list(digests):
            self.tally.strange.append(
                f"{self.name}: the answer names other messages than were sent"
            )
            return
        for digest, result in zip(digests, answer.results, strict=True):
            self.tally.outcomes[store_pb2.PublishResult.Outcome.Name(result.outcome)] += 1
            if result.outcome in _HELD:
                self.history.acknowledge([digest], Ack(store, now_s, result.confirms))
            stored = result.outcome in _HELD[:2]
            if stored and result.confirms < self.min_confirms:
                self.tally.strange.append(
                    f"{self.name}: {digest.hex()} is stored with {result.confirms} confirmations"
                    f" and {self.min_confirms} were asked for"
                )


async def _set_by(stop: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, so long at most; whether it came."""
    try:
        await asyncio.wait_for(stop.wait(), max(0.0, seconds))
    except TimeoutError:
        return stop.is_set()
    return True


def publish_history(
    address: str, store: str, history: History, dice: Random, times_ns: Sequence[int]
) -> None:
    """Publish messages of these times at once; every one must be stored."""
    messages = new_messages(dice, times_ns)
    digests = note(history, "history", messages)

    def question(stub: store_pb2_grpc.StoreStub) -> store_pb2.PublishResponse:
        return stub.Publish(store_pb2.PublishRequest(messages=messages), timeout=60.0)

    answer = ask(address, question, 60.0)
    outcomes = {result.outcome for result in answer.results}
    assert outcomes <= set(_HELD[:2]), f"the history was not stored: {outcomes}"
    history.acknowledge(digests, Ack(store, time.monotonic(), 0))
