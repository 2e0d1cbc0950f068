"""The feed of new messages from the node, by `Store.Follow`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from store.gateway.faults import StatusError
from store.gateway.limits import (
    FEED_TIMEOUT_S,
    FIRST_NODE_PAUSE_S,
    LONGEST_NODE_PAUSE_S,
)
from store.gateway.node import UpstreamNode
from store.gateway.wire import parse, require
from store.observe.logging import get_logger
from storenode.common.backoff import Backoff
from storenode.wire.storenode.internal.v1.message_raw_pb2 import RawEntry, RawMessage, RawScanPage

_REFUSED_CURSOR: Final = 400
_EMPTY_PAYLOAD: Final = RawMessage(payload=b"").SerializeToString()
_log = get_logger("store.gateway")


@dataclass(frozen=True, slots=True)
class FollowedMessage:
    """A message of the node; ``encoded`` has a field ``payload``, as nwaku requires."""

    message_hash: bytes
    pubsub_topic: str
    content_topic: str
    timestamp_ns: int
    encoded: bytes


def parse_page(page: bytes) -> tuple[list[FollowedMessage], bytes]:
    """Return the messages of a ``FollowPage``, and its cursor.

    Raises:
        ValueError: It is malformed.
    """
    parsed = parse(RawScanPage, page)
    return list(map(followed, parsed.messages)), parsed.cursor


def followed(entry: RawEntry) -> FollowedMessage:
    """Return a message of a page; raise ValueError if it is malformed."""
    require(entry, "message", "pubsub_topic")
    found = parse(RawMessage, entry.message)
    encoded = entry.message if found.HasField("payload") else _EMPTY_PAYLOAD + entry.message
    topics = entry.pubsub_topic.decode(), found.content_topic.decode()
    return FollowedMessage(entry.message_hash, *topics, found.timestamp, encoded)


class NodeFeed:
    """A call that follows the node while it has users, and passes new messages to `listeners`."""

    def __init__(self, node: UpstreamNode) -> None:
        self._node = node
        self.listeners: list[Callable[[FollowedMessage], None]] = []
        self._users = 0
        self._wanted = asyncio.Event()
        self._live = asyncio.Event()
        self._cursor = b""

    def acquire(self) -> None:
        """Add a user; `release` must follow."""
        self._users += 1
        self._wanted.set()

    def release(self) -> None:
        """Remove a user; without any the call ends at its next page."""
        self._users -= 1
        assert self._users >= 0, "the feed was released more often than acquired"
        if not self._users:
            self._wanted.clear()

    async def is_live(self) -> bool:
        """Wait until new messages arrive; False if the node cannot be followed."""
        try:
            async with asyncio.timeout(FEED_TIMEOUT_S):
                await self._live.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Follow while messages are wanted, until cancelled."""
        backoff = Backoff(FIRST_NODE_PAUSE_S, LONGEST_NODE_PAUSE_S)
        while True:
            await self._wanted.wait()
            reason = "the node ended the call"
            try:
                await self._follow(backoff)
            except (StatusError, ValueError) as error:
                reason = str(error)
                if isinstance(error, StatusError) and error.status_code == _REFUSED_CURSOR:
                    self._cursor = b""
            self._live.clear()
            if self._wanted.is_set():
                _log.warning("feed_ended", reason=reason)
                await asyncio.sleep(backoff.take())
            else:
                self._cursor = b""

    async def _follow(self, backoff: Backoff) -> None:
        async with aclosing(self._node.follow(self._cursor)) as pages:
            async for page in pages:
                messages, cursor = parse_page(page)
                self._cursor = cursor or self._cursor
                self._live.set()
                backoff.reset()
                for message in messages:
                    for listener in self.listeners:
                        listener(message)
                if not self._wanted.is_set():
                    return
