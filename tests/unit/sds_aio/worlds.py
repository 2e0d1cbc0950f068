"""Participants on a bus in memory, and messages of others to put on it."""

from __future__ import annotations

import asyncio
from time import time_ns
from typing import Any

from storenode.message.hashing import message_hash
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.cipher import CipherError
from storenode.sds.aio.transport import Fetched, Route
from storenode.sds.bloom import FilterShape
from storenode.sds.codec import Entry, SdsMessage, encode_message
from storenode.sds.config import ChannelConfig
from tests.support.bus import BusTransport

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
            raise CipherError("another key")
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
