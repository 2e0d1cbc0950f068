"""Participants of channels for tests: a past that they said, a transport that loses."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, cast

from storenode.message.hashing import message_hash
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.transport import FeedPage, Fetched, Link, Route
from storenode.sds.bloom import FilterShape, RollingFilter
from storenode.sds.codec import Entry, SdsMessage, encode_message
from storenode.sds.config import ChannelConfig, RepairConfig
from storenode.sds.proofs import content_id

NS_PER_MS = 1_000_000
CONTENT_BYTES = 100


@dataclass(frozen=True, slots=True)
class Said:
    """A message of a channel as it was published."""

    message_id: str
    payload: bytes
    timestamp_ns: int
    hint: bytes


def conversation(
    channel_id: str,
    count: int,
    *,
    pubsub_topic: str,
    content_topic: str,
    newest_ns: int,
    shape: FilterShape,
    senders: int = 4,
    hints: bool = True,
) -> Iterator[Said]:
    """Yield messages one millisecond apart; each names the two before it, and has a filter."""
    seen = RollingFilter(shape)
    rng = random.Random(count)
    last: list[Entry] = []
    for number in range(count):
        timestamp_ns = newest_ns - (count - 1 - number) * NS_PER_MS
        lamport, sender = timestamp_ns // NS_PER_MS, f"participant-{number % senders}"
        history, content = tuple(last[-2:]), rng.randbytes(CONTENT_BYTES)
        name = content_id(channel_id, sender, lamport, history, content)
        message = SdsMessage(
            channel_id, name, sender, lamport, history, seen.encode(), content=content
        )
        payload = encode_message(message)
        hint = message_hash(pubsub_topic, payload, content_topic, None, timestamp_ns)
        seen.add(name)
        last = [*last[-1:], Entry(name, hint if hints else None, sender)]
        yield Said(name, payload, timestamp_ns, hint)


@dataclass(frozen=True)
class Lossy:
    """A transport, or a link of it, that loses what ``loses`` selects, in its feed and in scans."""

    inner: Any
    loses: Callable[[Fetched], bool]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it has
        return getattr(self.inner, name)

    @property
    def name(self) -> str:
        return str(self.inner.name)

    def open(self, route: Route) -> Link:
        return cast("Link", Lossy(self.inner.open(route), self.loses))

    async def follow(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        async with aclosing(self.inner.follow(cursor)) as pages:
            async for page in pages:
                yield replace(page, messages=self._kept(page.messages))

    async def scan(self, since_ns: int) -> AsyncGenerator[Sequence[Fetched], None]:
        async with aclosing(self.inner.scan(since_ns)) as pages:
            async for messages in pages:
                if kept := self._kept(messages):
                    yield kept

    def _kept(self, messages: Sequence[Fetched]) -> list[Fetched]:
        return [each for each in messages if not self.loses(each)]


SHAPE = FilterShape(500, 0.01)


def config_of(channel_id: str, sender_id: str) -> ChannelConfig:
    """Return small filters, and resends and repair among participants before patience is lost."""
    return ChannelConfig(
        channel_id,
        sender_id,
        filter=SHAPE,
        resend_ms=2_000,
        resend_possible_ms=4_000,
        max_sends=100,
        sync_min_ms=1_000,
        sync_max_ms=2_000,
        repair=RepairConfig(500, 2_000),
    )


async def until(channel: Channel, length: int) -> None:
    """Wait until the log has ``length`` messages, and nothing is missing."""
    found = 0
    async for _ in channel.messages():
        found += 1
        if found >= length:
            break
    await channel.wait_for(lambda status: status.synced)


# A genuine SDS message, and others that claim its ID

SENDER = "alice"
CLOCK = 7


def genuine_id(channel_id: str, content: bytes) -> str:
    """Return the ID that proves Alice's message of a content."""
    return content_id(channel_id, SENDER, CLOCK, (), content)


def claiming(channel_id: str, message_id: str, content: bytes) -> bytes:
    """Return a message of Alice, under whatever ID."""
    return encode_message(SdsMessage(channel_id, message_id, SENDER, CLOCK, content=content))


def genuine(channel_id: str, content: bytes) -> bytes:
    """Return Alice's message with a content."""
    return claiming(channel_id, genuine_id(channel_id, content), content)
