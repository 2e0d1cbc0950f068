"""The feed: one node is followed at a time, and nothing falls between two of them.

A cursor belongs to a store and is kept under its node's name. With one, the feed continues exactly
where it was. Without, or when the node refuses it, something may be missing since a node was last
followed: that gap is kept in the state until it has been scanned. The feed is opened first and
read after the scan, so that messages stored meanwhile are in one of the two; those in both are
recognized when they come again.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import aclosing
from typing import TYPE_CHECKING

from storenode.common.backoff import Backoff
from storenode.sds.aio.transport import FeedCursorRefusedError, FeedPage, TransportError
from storenode.sds.events import Connected, Disconnected
from storenode.sds.limits import CATCH_UP_OVERLAP_NS, FIRST_DELAY_S, MAX_DELAY_S, SEARCH_EVERY_S

if TYPE_CHECKING:
    from storenode.sds.aio.participant import Participant
    from storenode.sds.aio.transport import Link


class ChannelFeed:
    """The feed of a participant, and scans for what it has missed.

    ``node`` is the name of the node whose feed is read, and ``live`` is True when its backlog is
    through; ``quiet`` is set while no gap is scanned: what that brings need not be asked for.
    """

    def __init__(self, participant: Participant) -> None:
        self._participant = participant
        self._ledger = participant.ledger
        self._rotation = participant.rotation
        self._to_search = deque(participant.links)
        self._search_ns: int | None = None
        self._searching = asyncio.Event()
        self.quiet = asyncio.Event()
        self.quiet.set()
        self.node: str | None = None
        self.live = False
        self.calls: Counter[str] = Counter()

    async def run(self) -> None:
        """Follow for ever, one node after the other."""
        while True:
            link = self._rotation.link
            try:
                await self._follow(link)
            except TransportError as error:
                is_refused = isinstance(error, FeedCursorRefusedError)
                if is_refused and link.name in self._ledger.cursors:
                    self._ledger.stand(link.name, None)
                else:
                    await self._failed(link, error)

    async def _failed(self, link: Link, error: TransportError) -> None:
        if self.node is not None:
            self._participant.notify((Disconnected(link.name, error.sentence),))
        self.node, self.live = None, False
        self._participant.trouble("feed", error)
        await asyncio.sleep(self._rotation.failed())

    def search(self, since_ns: int) -> None:
        """Request a scan of what is stored from a time on, since something in it was missed."""
        known = self._search_ns
        self._search_ns = since_ns if known is None else min(known, since_ns)
        self._searching.set()

    async def searches(self) -> None:
        """Run the scans that `search` requests; each ends when one node was read to its end."""
        backoff = Backoff(FIRST_DELAY_S, MAX_DELAY_S)
        while True:
            await self._searching.wait()
            self._searching.clear()
            since_ns, self._search_ns = self._search_ns or 0, None
            left_ns = await self._search(since_ns)
            if left_ns is None or left_ns > since_ns:
                backoff.reset()
            if left_ns is not None:
                self.search(left_ns)
            await asyncio.sleep(SEARCH_EVERY_S if left_ns is None else backoff.take())

    async def _search(self, since_ns: int) -> int | None:
        """Scan from a time on; return where to continue, None at the end."""
        self.calls["scan"] += 1
        self._to_search.rotate(-1)  # a node may have what the last one lacks
        try:
            async with aclosing(self._to_search[-1].scan(since_ns)) as pages:
                async for messages in pages:
                    refused_ns = await self._participant.take(messages)
                    if refused_ns is not None:
                        since_ns = max(since_ns, refused_ns)
                        break
                    since_ns = max(since_ns, messages[-1].timestamp_ns)
                else:
                    return None
        except TransportError:
            return since_ns
        await self._participant.relieve()
        return since_ns

    async def _follow(self, link: Link) -> None:
        cursor = self._ledger.cursors.get(link.name)
        if cursor is None:
            self._widen_gap(max(self._ledger.online_ns - CATCH_UP_OVERLAP_NS, 0))
        self.calls["follow"] += 1
        async with aclosing(link.follow(cursor or b"")) as pages:
            async for page in pages:
                if self.node is None:
                    self.node = link.name
                    self._participant.notify((Connected(link.name),))
                    self._participant.trouble("feed", None)
                await self._read(link, page)

    async def _read(self, link: Link, page: FeedPage) -> None:
        if page.messages:
            refused_ns = await self._participant.take(page.messages)
            if refused_ns is not None:
                self._widen_gap(refused_ns)
        self._ledger.stand(link.name, page.cursor)
        await self._participant.relieve()
        if self._ledger.gap_from_ns is not None:
            await self._close_gap(link, self._ledger.gap_from_ns)
        if page.live:
            self._ledger.online(self._participant.clock())
        self.live = page.live
        # Not before: a node that is followed and cannot be scanned has failed.
        self._rotation.worked()
        self._participant.trouble("feed", None)

    async def _close_gap(self, link: Link, since_ns: int) -> None:
        """Scan what may have been missed, from where an earlier scan has come to."""
        self.live = False
        self._participant.trouble("feed", None)
        self.quiet.clear()
        try:
            refused_ns = await self._scan(link, since_ns)
        finally:
            self.quiet.set()
        self._ledger.gap(refused_ns)
        if refused_ns is not None:
            raise TransportError("Too much waits for what is missing: trying again.")

    async def _scan(self, link: Link, since_ns: int) -> int | None:
        """Return the time of the first message for which there was no room."""
        self.calls["scan"] += 1
        first_refused_ns: int | None = None
        async with aclosing(link.scan(since_ns)) as pages:
            async for messages in pages:
                refused_ns = await self._participant.take(messages)
                if first_refused_ns is None:
                    first_refused_ns = refused_ns
                reached_ns = messages[-1].timestamp_ns
                self._ledger.gap(reached_ns if first_refused_ns is None else first_refused_ns)
                await self._participant.relieve()
        return first_refused_ns

    def _widen_gap(self, from_ns: int) -> None:
        known = self._ledger.gap_from_ns
        self._ledger.gap(from_ns if known is None else min(known, from_ns))
