"""Clients of a node that use the generated stubs only: a publisher, a follower, and reads."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from random import Random
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration

from chaos.checker.history import Ack, History, Published, fingerprint, message_hash
from chaos.checker.stores import Holding, Served
from storenode.wire.storenode.v1 import store_pb2, store_pb2_grpc
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, WakuMessageKeyValue
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

PUBSUB: Final = "/waku/2/rs/1/0"
TOPICS: Final = tuple(f"/chaos/1/topic-{number}/proto" for number in range(5))
OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
)
"""Options of channels that reconnect soon after a node is back."""

CONFIRM_TIMEOUT_S: Final = 2
TRY_S: Final = 5.0
GIVE_UP_S: Final = 12.0
"""Time for which a batch is retried: nodes refuse messages that are 20 s old."""

MAX_IN_FLIGHT: Final = 8
_CALL_S: Final = 60.0
_READ_S: Final = 300.0
_PAUSE_S: Final = 0.25
_QUERY_HASHES: Final = 1_000
_OK: Final = 200
_NOT_READY: Final = 503
_MAX_PAYLOAD_BYTES: Final = 400
_STORED: Final = (
    store_pb2.PublishResult.STORED,
    store_pb2.PublishResult.DUPLICATE,
    store_pb2.PublishResult.UNCONFIRMED,
)
_RETRYABLE: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
)
_T = TypeVar("_T")


class NoAnswerError(Exception):
    """A node gave no answer in time; the text is its last error."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A node's client listener, HOST:PORT, and the credentials of TLS; None: in clear."""

    address: str
    credentials: grpc.ChannelCredentials | None = None

    def open(self) -> grpc.aio.Channel:
        """Open a channel of its own, which connects when it is used."""
        if self.credentials is None:
            return grpc.aio.insecure_channel(self.address, OPTIONS)
        return grpc.aio.secure_channel(self.address, self.credentials, OPTIONS)


async def ask(
    endpoint: Endpoint, call: Callable[[Any], Awaitable[_T]], patience_s: float = _CALL_S
) -> _T:
    """Make a call with a stub until it succeeds; the node may be down meanwhile.

    Raises:
        NoAnswerError: It did not succeed within ``patience_s``, or failed for good.
    """
    deadline = time.monotonic() + patience_s
    async with endpoint.open() as channel:
        while True:
            try:
                return await call(store_pb2_grpc.StoreStub(channel))
            except (grpc.aio.AioRpcError, NoAnswerError) as error:
                is_final = isinstance(error, grpc.aio.AioRpcError) and (
                    error.code() not in _RETRYABLE[:2]
                )
                if is_final or time.monotonic() > deadline:
                    raise NoAnswerError(f"{endpoint.address}: {error}") from error
                await asyncio.sleep(_PAUSE_S)


async def query(stub: store_pb2_grpc.StoreAsyncStub, digests: Iterable[bytes]) -> list[Served]:
    """Look messages up by hash, a thousand at a time."""
    found: list[Served] = []
    rest = iter(digests)
    while some := list(islice(rest, _QUERY_HASHES)):
        request = StoreQueryRequest(
            request_id="chaos",
            include_data=True,
            message_hashes=some,
            pagination_limit=_QUERY_HASHES,
        )
        while True:
            answer = await stub.Query(request, timeout=_CALL_S)
            if answer.status_code == _NOT_READY:
                raise NoAnswerError(answer.status_desc)
            assert answer.status_code == _OK, answer.status_desc
            found += map(_served, answer.messages)
            if not answer.HasField("pagination_cursor"):
                break
            request.pagination_cursor = answer.pagination_cursor
    return found


async def scan(
    stub: store_pb2_grpc.StoreAsyncStub, content_topics: Iterable[str] = (), timeout_s: float = 60.0
) -> list[Served]:
    """Return all messages of a node, or those of some topics, in the order of its scan."""
    topics = store_pb2.ContentFilter(content_topics=content_topics)
    request = store_pb2.ScanRequest(filter=topics, include_data=True)
    pages = stub.Scan(request, timeout=timeout_s)
    return [_served(entry) async for page in pages for entry in page.messages]


def _served(entry: WakuMessageKeyValue) -> Served:
    return Served(
        entry.message_hash,
        message_hash(entry.message, entry.pubsub_topic),
        fingerprint(entry.message, entry.pubsub_topic),
        entry.message.timestamp,
    )


async def read_holding(
    follower: Follower, store: str, history: History, patience_s: float = _READ_S
) -> Holding:
    """Read everything from the node of a follower, in all three ways."""
    topics, published = follower.content_topics, list(history.published)
    return Holding(
        follower.node,
        store,
        await ask(
            follower.endpoint,
            partial(scan, content_topics=topics, timeout_s=patience_s),
            patience_s,
        ),
        await ask(follower.endpoint, partial(query, digests=published), patience_s),
        list(follower.received),
    )


@dataclass(slots=True)
class Follower:
    """A client that follows a node from the beginning and resumes at its cursor.

    When a node refuses the cursor (``OUT_OF_RANGE``: an empty store, or commits that a failover
    lost), it starts from the beginning with nothing received.

    Attributes:
        node: the node's name.
        endpoint: its address.
        content_topics: what is followed; empty: everything.
        received: the messages in the order of their arrival.
        stored: the hashes of those that are not ephemeral.
        cursor: the last cursor.
        refusals: how often a cursor was refused.
        failures: errors that no client should ever get.
    """

    node: str
    endpoint: Endpoint
    content_topics: Sequence[str] = ()
    received: list[Served] = field(default_factory=list)
    stored: set[bytes] = field(default_factory=set)
    cursor: bytes = b""
    refusals: int = 0
    failures: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Follow without end."""
        async with self.endpoint.open() as channel:
            stub: store_pb2_grpc.StoreAsyncStub = store_pb2_grpc.StoreStub(channel)
            while True:
                try:
                    await self._follow(stub)
                except grpc.aio.AioRpcError as error:
                    self._handle(error)
                await asyncio.sleep(_PAUSE_S)

    def start_over(self) -> None:
        """Forget everything, and follow from the beginning at the next connection."""
        self.received, self.stored, self.cursor = [], set(), b""

    async def _follow(self, stub: store_pb2_grpc.StoreAsyncStub) -> None:
        request = store_pb2.FollowRequest(
            filter=store_pb2.ContentFilter(content_topics=self.content_topics),
            cursor=self.cursor,
            from_beginning=not self.cursor,
            include_data=True,
        )
        async for page in stub.Follow(request):
            self.received += map(_served, page.messages)
            self.stored.update(
                each.message_hash for each in page.messages if not each.message.ephemeral
            )
            self.cursor = page.cursor

    def _handle(self, error: grpc.aio.AioRpcError) -> None:
        if error.code() is grpc.StatusCode.OUT_OF_RANGE:
            self.start_over()
            self.refusals += 1
        elif error.code() is not grpc.StatusCode.UNAVAILABLE:
            text = f"follower of {self.node}: {error.code().name}: {error.details()}"
            self.failures.append(text)


@dataclass(slots=True)
class Publisher:
    """A client that publishes random messages and records what is sent and acknowledged.

    ``store`` returns the store that is behind the endpoint now. `run` begins a batch every
    ``interval_s``, answered or not, and skips a turn with `MAX_IN_FLIGHT` unanswered ones. A batch
    is sent again until it is answered, or for ``give_up_s``.

    Attributes:
        outcomes: how often each outcome of a message was answered.
        errors: how often a call ended with each status.
        failures: answers that no client should ever get.
        seconds: the times until the answers.
    """

    name: str
    endpoint: Endpoint
    store: Callable[[], str]
    history: History
    rng: Random
    interval_s: float
    batch_messages: int = 10
    min_confirms: int = 0
    try_s: float = TRY_S
    give_up_s: float = GIVE_UP_S
    max_payload_bytes: int = _MAX_PAYLOAD_BYTES
    content_topics: Sequence[str] = TOPICS
    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until ``stop`` is set, then wait for open calls."""
        async with self.endpoint.open() as channel:
            stub: store_pb2_grpc.StoreAsyncStub = store_pb2_grpc.StoreStub(channel)
            open_calls: set[asyncio.Task[None]] = set()
            due_s = time.monotonic() + self.rng.random() * self.interval_s
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(due_s - time.monotonic()):
                        await stop.wait()
                        break
                due_s += self.interval_s
                if len(open_calls) >= MAX_IN_FLIGHT:
                    continue
                task = asyncio.create_task(self._publish(stub, self._make_batch()))
                open_calls.add(task)
                task.add_done_callback(open_calls.discard)
            await asyncio.gather(*open_calls)

    async def publish(self, messages: Sequence[WakuMessageAndTopic]) -> None:
        """Publish messages, one batch after the other."""
        async with self.endpoint.open() as channel:
            stub: store_pb2_grpc.StoreAsyncStub = store_pb2_grpc.StoreStub(channel)
            for start in range(0, len(messages), _QUERY_HASHES):
                await self._publish(stub, messages[start : start + _QUERY_HASHES])

    async def attempt(self) -> grpc.aio.AioRpcError | None:
        """Publish a random batch once, and return the error if it was not answered."""
        messages = self._make_batch()
        digests = self._record(messages)
        async with self.endpoint.open() as channel:
            return await self._try(store_pb2_grpc.StoreStub(channel), messages, digests)

    def _make_batch(self) -> list[WakuMessageAndTopic]:
        count = self.rng.randint(1, self.batch_messages)
        return new_messages(
            self.rng, count, topics=self.content_topics, max_bytes=self.max_payload_bytes
        )

    async def _publish(
        self, stub: store_pb2_grpc.StoreAsyncStub, messages: Sequence[WakuMessageAndTopic]
    ) -> None:
        digests = self._record(messages)
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + self.give_up_s:
            if await self._try(stub, messages, digests) is None:
                self.seconds.append(time.monotonic() - begun_s)
                return
            await asyncio.sleep(_PAUSE_S)

    async def _try(
        self,
        stub: store_pb2_grpc.StoreAsyncStub,
        messages: Sequence[WakuMessageAndTopic],
        digests: Sequence[bytes],
    ) -> grpc.aio.AioRpcError | None:
        request = store_pb2.PublishRequest(
            messages=messages,
            min_confirms=self.min_confirms,
            confirm_timeout=Duration(seconds=CONFIRM_TIMEOUT_S),
        )
        # A call that began at one store is not answered by the next one, except by a retry of the
        # transport, which then counts for the former.
        store = self.store()
        try:
            answer = await stub.Publish(request, timeout=self.try_s)
        except grpc.aio.AioRpcError as error:
            self.errors[error.code().name] += 1
            if error.code() not in _RETRYABLE:
                self.failures.append(f"{self.name}: {error.code().name}: {error.details()}")
            return error
        self._take_answer(store, digests, answer)
        return None

    def _record(self, messages: Sequence[WakuMessageAndTopic]) -> list[bytes]:
        digests = [message_hash(each.message, each.pubsub_topic) for each in messages]
        prints = [fingerprint(each.message, each.pubsub_topic) for each in messages]
        self.history.publish(
            (digest, Published(mark, each.message.timestamp, self.name))
            for digest, mark, each in zip(digests, prints, messages, strict=True)
        )
        return digests

    def _take_answer(
        self, store: str, digests: Sequence[bytes], answer: store_pb2.PublishResponse
    ) -> None:
        now_s = time.monotonic()
        if [result.message_hash for result in answer.results] != list(digests):
            self.failures.append(f"{self.name}: the answer names other messages")
            return
        for digest, result in zip(digests, answer.results, strict=True):
            self.outcomes[store_pb2.PublishResult.Outcome.Name(result.outcome)] += 1
            if result.outcome in _STORED:
                self.history.acknowledge([digest], Ack(store, now_s, result.confirms))
            if result.outcome in _STORED[:2] and result.confirms < self.min_confirms:
                self.failures.append(
                    f"{self.name}: {digest.hex()} is stored with {result.confirms} of"
                    f" {self.min_confirms} confirmations"
                )


def new_messages(
    rng: Random,
    count: int,
    times_ns: Sequence[int] = (),
    *,
    topics: Sequence[str] = TOPICS,
    max_bytes: int = _MAX_PAYLOAD_BYTES,
) -> list[WakuMessageAndTopic]:
    """Make random messages, with and without optional fields; by default of the current time."""
    now_ns = time.time_ns()
    return [
        WakuMessageAndTopic(
            message=WakuMessage(
                payload=rng.randbytes(rng.randint(16, max_bytes)),
                content_topic=rng.choice(topics),
                timestamp=time_ns,
                version=rng.choice((None, 0, 1, 7)),
                meta=rng.choice((None, None, b"", rng.randbytes(12))),
                rate_limit_proof=rng.choice((None, None, None, rng.randbytes(40))),
            ),
            pubsub_topic=PUBSUB,
        )
        for time_ns in times_ns or range(now_ns, now_ns + count)
    ]
