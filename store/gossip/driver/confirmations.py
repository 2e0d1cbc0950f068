"""Publishers that wait until other stores confirm what this node has stored.

A wait ends when each of its messages has enough confirmations, when its time is up, or at once
where they cannot come: this node is alone on its database, and calls fewer peers. Confirmations
reach this node as gossip; nodes on the same database write theirs into its table of unread events,
which is polled while a request waits for long. Source: the contract, "Confirmations".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Final

from store.domain.ports import NotServingError
from store.domain.unread import Confirmation
from store.gossip.driver.ports import Messages, UnreadTable
from store.gossip.limits import MAX_PEERS
from storenode.common.bounded_dict import BoundedDict

DEFAULT_TIMEOUT_S: Final = 5.0
MAX_TIMEOUT_S: Final = 300.0
"""The default and the longest time that a publisher waits for confirmations."""

MAX_WAITS: Final = 4_096
MAX_AWAITED: Final = 262_144
"""Requests that wait, and messages that they wait for; those beyond are answered at once."""

MAX_REMEMBERED: Final = 65_536
"""Confirmed messages whose number of confirmations is remembered."""

POLL_S: Final = 0.25
"""The interval at which the database is polled for waits that are at least as old."""

STOPPING: Final = "the node is stopping"


@dataclass(slots=True, eq=False)
class _Wait:
    """A request; ``lacking``: messages that have too few confirmations as yet."""

    min_confirms: int
    lacking: set[bytes]
    began_s: float
    ended: asyncio.Future[str]


class ConfirmationWaits:
    """Implements `store.domain.unread.Confirmations`; all on the event loop's thread.

    ``reach``: how many other stores may confirm; None: unknown, since peers may yet call.
    ``unread_hashes``: messages that certainly have a row in the table. ``want``: requests
    confirmations by a number of stores for what was stored before.
    """

    def __init__(
        self,
        table: UnreadTable,
        messages: Messages,
        *,
        reach: Callable[[], int | None],
        unread_hashes: Container[bytes],
        want: Callable[[Sequence[bytes], int, Sequence[bytes]], None],
    ) -> None:
        self._table = table
        self._messages = messages
        self._reach = reach
        self._unread_hashes = unread_hashes
        self._want = want
        self._loop = asyncio.get_running_loop()
        self._counts = BoundedDict[bytes, int](MAX_REMEMBERED)
        self._waits: dict[bytes, list[_Wait]] = {}
        self._open: dict[_Wait, None] = {}
        self._poll: asyncio.Task[None] | None = None
        self._stopped = False

    def stop(self) -> None:
        """End all waits."""
        self._stopped = True
        for wait in list(self._open):
            self._end(wait, STOPPING)
        if self._poll is not None:
            self._poll.cancel()

    def confirm(self, hashes: Sequence[bytes], counts: Sequence[int]) -> None:
        """Note how many stores have confirmed each message."""
        for digest, count in zip(hashes, counts, strict=True):
            if count <= self._counts.get(digest, 0):
                continue
            self._counts[digest] = count
            self._counts.move_to_end(digest)
            for wait in self._waits.get(digest, ()):
                if count >= wait.min_confirms:
                    wait.lacking.discard(digest)
                    if not wait.lacking:
                        self._end(wait, "")

    async def confirmed(
        self,
        hashes: Sequence[bytes],
        content_digests: Sequence[bytes],
        stored: Sequence[bool],
        min_confirms: int,
        timeout_s: float | None,
    ) -> list[Confirmation]:
        """Wait for confirmations (see `store.domain.unread.Confirmations`)."""
        given_s = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
        limit_s = min(max(given_s, 0.0), MAX_TIMEOUT_S)
        columns = zip(hashes, content_digests, stored, strict=True)
        again = {digest: content for digest, content, is_new in columns if not is_new}
        repeated = list(again)
        if repeated:
            self._want(repeated, min_confirms, list(again.values()))

        def lacking() -> set[bytes]:
            return {each for each in hashes if self._counts.get(each, 0) < min_confirms}

        try:
            async with asyncio.timeout(limit_s):
                reason = await self._hopeless(lacking(), frozenset(repeated), min_confirms)
                # More may have confirmed since.
                if not reason and (awaited := lacking()):
                    reason = await self._wait(awaited, min_confirms)
        except TimeoutError:
            reason = f"no more have within {limit_s:g} s"
        return [self._confirmation(digest, min_confirms, reason) for digest in hashes]

    async def _hopeless(
        self, lacking: set[bytes], stored: frozenset[bytes], min_confirms: int
    ) -> str:
        """Return the reason not to wait; empty if the wait may succeed.

        Messages that were ``stored`` before may have been confirmed by stores that are away. Those
        that have confirmed a new message already are within reach, unless they are more than these.
        """
        if not lacking:
            return ""
        reach, hopeless = self._reach(), ""
        if reach is not None:
            confirmed = {digest: self._counts.get(digest, 0) for digest in lacking}
            away = [n for digest, n in confirmed.items() if digest in stored or n > reach]
            few = reach + max(away, default=0) < min_confirms
            if few and not await self._is_shared():
                stores = "1 other store" if reach == 1 else f"{reach} other stores"
                hopeless = f"this node exchanges messages with {stores}"
        if self._stopped:  # maybe while it looked for other nodes
            return STOPPING
        if hopeless:
            return hopeless
        awaited = sum(len(wait.lacking) for wait in self._open)
        if len(self._open) >= MAX_WAITS or awaited + len(lacking) > MAX_AWAITED:
            return "too many publishers wait for confirmations already"
        return ""

    async def _is_shared(self) -> bool:
        try:
            return await self._table.is_shared()
        except NotServingError:
            return True

    async def _wait(self, lacking: set[bytes], min_confirms: int) -> str:
        """Wait, and return the reason for the end; empty: all have been confirmed."""
        ended: asyncio.Future[str] = self._loop.create_future()
        wait = _Wait(min_confirms, set(lacking), self._loop.time(), ended)
        self._open[wait] = None
        for digest in lacking:
            self._waits.setdefault(digest, []).append(wait)
        if self._poll is None or self._poll.done():
            self._poll = asyncio.create_task(self._keep_polling(), name="confirmations")
        try:
            return await wait.ended
        finally:
            del self._open[wait]
            for digest in lacking:
                waits = self._waits[digest]
                waits.remove(wait)
                if not waits:
                    del self._waits[digest]

    def _confirmation(self, digest: bytes, min_confirms: int, reason: str) -> Confirmation:
        count = self._counts.get(digest, 0)
        if count >= min_confirms:
            return Confirmation(count)
        reason = f"{count} of {min_confirms} stores confirmed: {reason}; the message is stored here"
        return Confirmation(count, reason)

    @staticmethod
    def _end(wait: _Wait, reason: str) -> None:
        if not wait.ended.done():
            wait.ended.set_result(reason)

    async def _keep_polling(self) -> None:
        """Poll for confirmations that other nodes on the database receive."""
        while self._open:
            await asyncio.sleep(POLL_S)
            oldest_s = self._loop.time() - POLL_S
            lacking = sorted(
                {each for wait in self._open if wait.began_s <= oldest_s for each in wait.lacking}
            )
            if lacking:
                with contextlib.suppress(NotServingError):
                    await self._ask(lacking)

    async def _ask(self, hashes: Sequence[bytes]) -> None:
        """Read how many have confirmed messages.

        A row is deleted when as many stores have confirmed it as any request wants, or with its
        message, which a database may lose. Of a row that this node does not track that is unknown.
        """
        found = {event.message_hash: len(event.stores) for event in await self._table.of(hashes)}
        gone = [each for each in hashes if each not in found and each in self._unread_hashes]
        if gone:
            stored = await self._messages.content_digests(gone)
            gone = [each for each, content in zip(gone, stored, strict=True) if content is not None]
        for digest in gone:
            wanted = (wait.min_confirms for wait in self._waits.get(digest, ()))
            found[digest] = min(max(wanted, default=0), MAX_PEERS)
        self.confirm(list(found), list(found.values()))
