"""A bus in memory: participants of one process exchange messages without a node.

With ``remembers`` it is also a store that serves scans and lookups. Timestamps and hashes are
those of the messages.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from time import time_ns
from typing import Any

from storenode.message.hashing import message_hash
from storenode.message.limits import MAX_QUERY_HASHES
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.transport import (
    FeedCursorRefusedError,
    FeedPage,
    Fetched,
    Link,
    Outbound,
    PublishResult,
    Route,
    TransportError,
)
from storenode.sds.bloom import FilterShape
from storenode.sds.codec import Entry, MessageError, SdsMessage, decode_message, encode_message
from storenode.sds.config import ChannelConfig
from storenode.sds.limits import MAX_CLOSURE_MESSAGES


class Bus:
    """An ordered log of published messages.

    ``drops`` returns True for the messages that the feed of a transport loses.
    """

    def __init__(
        self,
        *,
        remembers: bool = True,
        drops: Callable[[str, Fetched], bool] = lambda _name, _message: False,
    ) -> None:
        self.remembers = remembers
        self.drops = drops
        self._log: list[tuple[Route, Fetched]] = []
        self._hints: set[bytes] = set()
        self._news = asyncio.Event()

    def transport(self, name: str = "bus") -> BusTransport:
        """Create a transport on the bus; ``drops`` receives its name."""
        return BusTransport(self, name)

    def add(self, route: Route, message: Fetched) -> None:
        """Add a message to the bus, unless the bus remembers it."""
        if not (self.remembers and message.hint and message.hint in self._hints):
            self._hints.add(message.hint)
            self._log.append((route, message))
            self.stir()

    def stored(self, route: Route) -> list[Fetched]:
        """Return the stored messages of a channel in the order of arrival."""
        found = self._log if self.remembers else []
        return [message for on, message in found if on == route and message.hint]

    def after(self, route: Route, place: int) -> list[Fetched]:
        """Return the messages of a channel from a position on, which counts all channels."""
        return [message for on, message in self._log[place:] if on == route]

    @property
    def place(self) -> int:
        """The number of messages of all channels."""
        return len(self._log)

    async def news(self) -> None:
        """Wait for the next message, or for a change of `BusTransport.away`."""
        await self._news.wait()

    def stir(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class BusTransport:
    """A participant's transport on a bus; every call fails while it is ``away``.

    A scan breaks after its first page while the transport ``cuts_scans``. ``offered`` are the
    messages to be published, and ``scans`` the times from which there was a scan.
    """

    def __init__(self, bus: Bus, name: str = "bus") -> None:
        self.bus = bus
        self.name = name
        self._away = False
        self.cuts_scans = False
        self.calls: Counter[str] = Counter()
        self.offered: list[Outbound] = []
        self.scans: list[int] = []

    @property
    def away(self) -> bool:
        """The state of the connection: True if the bus is out of reach."""
        return self._away

    @away.setter
    def away(self, value: bool) -> None:
        self._away = value
        self.bus.stir()

    def open(self, route: Route) -> BusLink:
        return BusLink(self, route)

    async def refusal(self, message: Outbound) -> str:
        """Return why a message is not stored: "", unless it has one word."""
        return "That word is not allowed." if b"forbidden" in message.payload else ""


class BusLink(Link):
    """A link to one channel of a bus, as in `storenode.sds.aio.transport.Link`."""

    def __init__(self, transport: BusTransport, route: Route) -> None:
        self._transport = transport
        self._bus = transport.bus
        self._route = route

    @property
    def name(self) -> str:
        return self._transport.name

    async def close(self) -> None:
        """Close nothing: no resource is open between calls."""

    async def publish(self, batch: Sequence[Outbound]) -> Sequence[PublishResult]:
        self._check("publish")
        self._transport.offered += batch
        return [await self._publish(each) for each in batch]

    async def _publish(self, message: Outbound) -> PublishResult:
        if reason := await self._transport.refusal(message):
            return PublishResult(stored=False, hint=b"", reason=reason)
        hint = b"" if message.ephemeral else self._hash(message)
        self._bus.add(self._route, Fetched(message.payload, hint, message.timestamp_ns))
        return PublishResult(stored=True, hint=hint)

    async def follow(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """Yield pages of new messages after a cursor, which is a position on the bus.

        Raises:
            FeedCursorRefusedError: The bus does not remember the messages after the cursor.
        """
        self._check("follow")
        if cursor and (not self._bus.remembers or int.from_bytes(cursor) > self._bus.place):
            raise FeedCursorRefusedError("The bus does not remember what came after this cursor.")
        place = int.from_bytes(cursor) if cursor else self._bus.place
        while True:
            self._check()
            found = self._bus.after(self._route, place)
            place = self._bus.place
            kept = [each for each in found if not self._bus.drops(self.name, each)]
            yield FeedPage(kept, place.to_bytes(8), live=True)
            while place == self._bus.place:
                await self._bus.news()
                self._check()

    async def scan(self, since_ns: int) -> AsyncGenerator[Sequence[Fetched], None]:
        self._check("scan")
        self._transport.scans.append(since_ns)
        found = [each for each in self._bus.stored(self._route) if each.timestamp_ns >= since_ns]
        found.sort(key=lambda each: (each.timestamp_ns, each.hint))
        for start in range(0, len(found), MAX_QUERY_HASHES):
            yield found[start : start + MAX_QUERY_HASHES]
            if self._transport.cuts_scans:
                raise TransportError("The line is cut.")

    async def by_hint(self, hints: Sequence[bytes]) -> AsyncGenerator[Sequence[Fetched], None]:
        self._check("by_hint")
        wanted = set(hints)
        found = [each for each in self._bus.stored(self._route) if each.hint in wanted]
        if found:
            yield found

    async def by_id(self, entries: Sequence[Entry]) -> AsyncGenerator[Sequence[Fetched], None]:
        self._check("by_id")
        known = self._readable()
        found = [known[entry.message_id][0] for entry in entries if entry.message_id in known]
        if found:
            yield found

    async def closure(
        self, heads: Sequence[Entry], known_ids: Sequence[str]
    ) -> AsyncGenerator[Sequence[Fetched], None]:
        self._check("closure")
        known, stop = self._readable(), set(known_ids)
        ids = [entry.message_id for entry in heads]
        found: dict[str, tuple[Fetched, SdsMessage]] = {}
        while ids and len(found) < MAX_CLOSURE_MESSAGES:
            message_id = ids.pop()
            if message_id in known and message_id not in found and message_id not in stop:
                found[message_id] = known[message_id]
                ids += [entry.message_id for entry in known[message_id][1].history]
        ordered = sorted(found.values(), key=lambda pair: pair[1].lamport or 0)
        for start in range(0, len(ordered), MAX_QUERY_HASHES):
            yield [message for message, _ in ordered[start : start + MAX_QUERY_HASHES]]

    def _readable(self) -> dict[str, tuple[Fetched, SdsMessage]]:
        found: dict[str, tuple[Fetched, SdsMessage]] = {}
        for each in self._bus.stored(self._route):
            try:
                message = decode_message(each.payload)
            except MessageError:
                continue
            if message.channel_id == self._route.channel_id:
                found.setdefault(message.message_id, (each, message))
        return found

    def _hash(self, each: Outbound) -> bytes:
        route = self._route
        return message_hash(
            route.pubsub_topic, each.payload, route.content_topic, None, each.timestamp_ns
        )

    def _check(self, call: str | None = None) -> None:
        if call is not None:
            self._transport.calls[call] += 1
        if self._transport.away:
            raise TransportError(f"{self.name} is away.")


# Participants on a bus, and messages of others to put on it

PATIENCE_S = 60.0
SHAPE = FilterShape(200, 0.01)
PUBSUB, CONTENT = "/waku/2/rs/1/0", "/sds/1/room/proto"
ROUTE = Route("room", PUBSUB, CONTENT)


def config_of(sender: str, **chosen: Any) -> ChannelConfig:  # noqa: ANN401 - its options
    usual: dict[str, Any] = {
        "filter": SHAPE,
        "resend_ms": 200,
        "resend_possible_ms": 400,
        "sync_min_ms": 100,
        "sync_max_ms": 200,
        "max_sends": 1_000,
    }
    return ChannelConfig("room", sender, **{**usual, **chosen})


def joined(transport: BusTransport | list[BusTransport], sender: str, **more: Any) -> Any:  # noqa: ANN401
    config = more.pop("config", None) or config_of(sender)
    return Channel.join(transport, "room", sender, config=config, **more)


async def has(channel: Channel, length: int) -> None:
    """Wait until its log is so long."""
    async with asyncio.timeout(PATIENCE_S), channel.events() as events:
        while len(await channel.log(1_000)) < length:
            await anext(events)


async def logs_are_equal(*channels: Channel, length: int) -> None:
    for channel in channels:
        await has(channel, length)
        async with asyncio.timeout(PATIENCE_S):
            await channel.wait_for(lambda status: status.synced)
    found = [[each.message_id for each in await channel.log(1_000)] for channel in channels]
    assert all(each == found[0] for each in found)
    assert len(found[0]) == length


class Reversing:
    """A cipher without security, whose output differs from its input."""

    def __init__(self, *, whole: bool, mark: bytes = b"sealed:") -> None:
        self.whole = whole
        self._mark = mark

    def seal(self, clear: bytes) -> bytes:
        return self._mark + clear[::-1]

    def open(self, sealed: bytes) -> bytes:
        if not sealed.startswith(self._mark):
            raise LookupError("another key")
        return sealed.removeprefix(self._mark)[::-1]


def now_ms() -> int:
    """Return Unix time in milliseconds.

    A participant's scans begin ten minutes ago, which the whole test run may take: a time that is
    read at import is too old for them.
    """
    return time_ns() // 1_000_000


def of_peer(name: str, causes: list[str]) -> Fetched:
    history = tuple(map(Entry, causes))
    lamport = now_ms() + len(causes)
    return fetched(SdsMessage("room", name, "peer", lamport, history, content=b"text"))


def fetched(message: SdsMessage) -> Fetched:
    payload, timestamp_ns = encode_message(message), (message.lamport or 0) * 1_000_000
    hint = message_hash(PUBSUB, payload, CONTENT, None, timestamp_ns)
    return Fetched(payload, hint, timestamp_ns)
