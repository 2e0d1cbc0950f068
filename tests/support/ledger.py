"""A ledger of published and acknowledged messages, and the check of a node against it.

The oracle is two sets of hashes: whatever is stored was published, and whatever was acknowledged is
stored, once. What was sent and never answered may be stored or not.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

from storenode.client.messages import hash_of, new_message, new_request
from storenode.client.node import NodeClient, connect
from storenode.client.retry import Retry
from storenode.client.types import FollowPage, PublishRequest, PublishResult, ScanPage
from storenode.connection.channel import TlsIdentity
from storenode.connection.errors import NodeError
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest

PUBSUB: Final = "/waku/2/rs/1/0"
TOPICS: Final = tuple(f"/faults/1/topic-{number}/proto" for number in range(5))
PATIENCE_S: Final = 120.0
"""How long anything may take that is waited for."""

PATIENT: Final = Retry(attempts=600, first_delay_s=0.02, max_delay_s=0.1, at_start=True)
"""A client that outlasts every restart in these tests."""

_QUERY_HASHES: Final = 1_000
_AS_GOOD_AS_STORED: Final = (PublishResult.STORED, PublishResult.DUPLICATE)


@dataclass
class Ledger:
    """Hashes that were sent, those that were acknowledged, and how often each outcome came."""

    sent: set[bytes] = field(default_factory=set)
    acknowledged: set[bytes] = field(default_factory=set)
    outcomes: Counter[int] = field(default_factory=Counter)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def sending(self, request: PublishRequest) -> PublishRequest:
        """Note a request before anybody can have seen it."""
        self.sent.update(hash_of(message) for message in request.messages)
        return request

    def answered(self, request: PublishRequest, results: Iterable[PublishResult]) -> None:
        """Note the answer to a request; nothing that was sent here is ever refused."""
        for message, result in zip(request.messages, results, strict=True):
            assert result.outcome in _AS_GOOD_AS_STORED, result
            assert result.message_hash == hash_of(message)
            self.acknowledged.add(result.message_hash)
            self.outcomes[result.outcome] += 1
        self._changed.set()

    async def reached(self, count: int) -> None:
        """Wait until so many messages are acknowledged."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.acknowledged) < count:
                self._changed.clear()
                await self._changed.wait()

    async def more(self, count: int) -> None:
        """Wait until so many more messages are acknowledged."""
        await self.reached(len(self.acknowledged) + count)

    def check(self, stored: Iterable[bytes]) -> None:
        """Compare with every hash that is stored, in any order."""
        times = Counter(stored)
        twice = sum(count > 1 for count in times.values())
        assert not twice, f"{twice} messages are stored more than once"
        lost = self.acknowledged - times.keys()
        assert not lost, f"{len(lost)} of {len(self.acknowledged)} acknowledged messages are lost"
        invented = times.keys() - self.sent
        assert not invented, f"{len(invented)} messages are stored that were never published"


@dataclass
class Publisher:
    """A client that publishes by `PublishStream` until an event is set.

    Every request is sent again until it is answered, so that all that was sent is acknowledged
    when `publishing` has ended.
    """

    node: str
    ledger: Ledger
    rng: Random
    payload_bytes: int = 100
    messages: int = 50
    token: str | None = None
    tls: TlsIdentity | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until `stop` is set, and be answered."""
        async with connect(self.node, token=self.token, tls=self.tls, retry=PATIENT) as client:
            async for request, response in client.publish_stream(self._requests(stop)):
                self.ledger.answered(request, response.results)

    def _requests(self, stop: asyncio.Event) -> Iterator[PublishRequest]:
        while not stop.is_set():
            yield self.ledger.sending(self.request())

    def request(self) -> PublishRequest:
        """Return a request with random messages of now, on some topics."""
        now_ns = time.time_ns()
        return new_request(
            new_message(
                self.rng.randbytes(self.payload_bytes),
                self.rng.choice(TOPICS),
                PUBSUB,
                now_ns + number,
            )
            for number in range(self.rng.randint(1, self.messages))
        )


@asynccontextmanager
async def publishing(publishers: Iterable[Publisher]) -> AsyncIterator[None]:
    """Let publishers run for the length of the block, then wait until each is answered."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as running:
        for each in publishers:
            running.create_task(each.run(stop))
        yield
        stop.set()


@dataclass
class Follower:
    """Follows everything from a cursor on, and remembers what came and how far."""

    node: str
    cursor: bytes = b""
    hashes: list[bytes] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Follow from the beginning, or from where the last run ended; without end."""
        async with connect(self.node, retry=PATIENT) as client:
            pages = client.follow(
                cursor=self.cursor, from_beginning=not self.cursor, include_data=False
            )
            async for page in pages:
                self.take(page)

    def take(self, page: FollowPage) -> None:
        """Note a page."""
        self.hashes += [message.message_hash for message in page.messages]
        self.cursor = page.cursor
        self._changed.set()

    async def has_all(self, wanted: set[bytes]) -> None:
        """Wait until all of these have come; fails on the first that comes twice."""
        async with asyncio.timeout(PATIENCE_S):
            while not wanted.issubset(self.hashes):
                self._changed.clear()
                await self._changed.wait()
        assert len(self.hashes) == len(set(self.hashes)), "a message came twice"


@asynccontextmanager
async def following(*followers: Follower) -> AsyncIterator[None]:
    """Let followers run for the length of the block; one that fails, fails the block."""
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(each.run()) for each in followers]
        yield
        for task in running:
            task.cancel()


async def scanned(client: NodeClient) -> list[bytes]:
    """Return the hashes of all messages of a node, by `Scan`, each compared with its bytes."""
    found: list[bytes] = []
    async for page in client.scan():
        found += hashes_of(page)
    return found


def hashes_of(page: ScanPage) -> list[bytes]:
    """Return the hashes of a page with data, each compared with its message."""
    for entry in page.messages:
        assert hash_of(entry) == entry.message_hash
    return [entry.message_hash for entry in page.messages]


async def found_by_hash(client: NodeClient, wanted: Iterable[bytes]) -> set[bytes]:
    """Return which of some messages a node finds by hash."""
    rest, found = list(wanted), set[bytes]()
    while rest:
        some, rest = rest[:_QUERY_HASHES], rest[_QUERY_HASHES:]
        answer = await client.query(
            StoreQueryRequest(
                request_id="found", message_hashes=some, pagination_limit=_QUERY_HASHES
            )
        )
        found |= {entry.message_hash for entry in answer.messages}
    return found


async def check_node(
    node: str, ledger: Ledger, token: str | None = None, tls: TlsIdentity | None = None
) -> set[bytes]:
    """Compare a node with the ledger, by time and by hash; returns what it holds."""
    async with connect(node, token=token, tls=tls, retry=PATIENT) as client:
        stored = await scanned(client)
        ledger.check(stored)
        assert await found_by_hash(client, ledger.acknowledged) == ledger.acknowledged
    return set(stored)


async def attempted(publisher: Publisher) -> NodeError | None:
    """Publish one batch, once; the error if there was no acknowledgement."""
    request = publisher.ledger.sending(publisher.request())
    async with connect(publisher.node) as client:
        with suppress(TimeoutError):
            try:
                results = await client.publish(request.messages, timeout_s=PATIENCE_S)
            except NodeError as error:
                return error
            publisher.ledger.answered(request, results)
    return None
