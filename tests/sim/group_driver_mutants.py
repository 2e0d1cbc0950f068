"""Faults such as somebody might make around the core of SDS: simulated groups must find them.

Each stands in for a part of the shipped participant, `storenode.sds.aio`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from storenode.sds.aio import publisher, revive, saver
from storenode.sds.aio.events import ChannelEvent, Connected, Events
from storenode.sds.aio.feed import Feed
from storenode.sds.aio.ledger import Batch, Ledger, OutboxItem
from storenode.sds.aio.participant import Participant
from storenode.sds.aio.publisher import Publisher
from storenode.sds.aio.rotation import Rotation
from storenode.sds.aio.saver import Saver
from storenode.sds.aio.state import StateError
from storenode.sds.aio.transport import FeedPage, Link, Outbound, TransportError
from storenode.sds.channel import MessageChannel
from storenode.sds.events import Acknowledged, Broadcast, Reason
from storenode.sds.incoming import Waiting
from tests.sim.group_mutants import GroupMutant

# Transactions


def _nothing(*_: object) -> None:
    return None


def _release_at_once(self: Saver, things: Sequence[Any]) -> None:
    self._release(self._ledger.commits + 1, list(things))
    self._wake.set()


def _send_and_publish(self: Participant, content: bytes, message_id: str | None) -> str:
    sent = _SEND(self, content, message_id)
    self.publisher.offer(max(self.ledger.outbox))
    return sent


_SEND = Participant.send


async def _commit_or_not(self: Saver, batch: Batch) -> None:
    loop = asyncio.get_running_loop()
    try:
        await loop.run_in_executor(self._thread, self._state.commit, batch)
    except StateError as error:
        self._troubled(str(error))


def _queue_all(self: Events[ChannelEvent], commit: int, events: Sequence[ChannelEvent]) -> None:
    del commit
    self._queue.extend(events)


def _forget_the_outbox(self: Ledger, items: Sequence[OutboxItem]) -> None:
    self._next_item = items[-1].number + 1 if items else 0


def _note_nothing(self: Ledger, event: Acknowledged) -> None:
    del self, event


def _since_it_came(core: MessageChannel, waiting: Waiting) -> int:
    return min(waiting.arrived_ms, core.clock.latest_ms)


# Nodes


def _no_pause(self: Rotation) -> float:
    self._at = (self._at + 1) % len(self._links)
    return 0.0


def _only_one(self: Rotation) -> list[Link]:
    return [self.link]


def _connected_and_well(self: Feed, link: Link) -> None:
    self.node = self._last = link.name
    self._rotation.worked()
    self._refused.clear()
    self._tell((Connected(link.name),))
    self._changed("")


_SWALLOWED = 10
"""So often that a participant does not leave, and the end of a run, which cancels twice as often,
leaves nothing to the garbage collector: that cannot end a task that swallows everything."""


async def _run_whatever_happens(self: Feed) -> None:
    for _ in range(_SWALLOWED):
        with suppress(asyncio.CancelledError):
            await _RUN(self)
    await _RUN(self)


_RUN = Feed.run


async def _fail_for_good(self: Feed, link: Link, error: TransportError) -> None:
    del link
    self.node, self.live = None, False
    self._changed(error.sentence)
    await asyncio.Event().wait()


async def _cursor_first(self: Feed, link: Link, page: FeedPage) -> None:
    self._ledger.stand(link.name, page.cursor)
    self._tell(())
    await asyncio.sleep(0.1)
    await _READ(self, link, page)


_READ = Feed._read


async def _gap_first(self: Feed, link: Link, since_ns: int) -> None:
    self._ledger.gap(None)
    await self._scan(link, since_ns)
    self._ledger.gap(None)


async def _leave_the_feed(self: Participant) -> None:
    del self._tasks[1]
    await _LEAVE(self)


_LEAVE = Participant.leave


# Publishing


def _offer_silently(self: Publisher, number: int) -> None:
    self._ready.append(number)


def _take_nothing_back(self: Publisher) -> None:
    self._sent.clear()


def _offer_every_sync(self: Publisher, broadcast: Broadcast, sealed: bytes) -> None:
    outbound = Outbound(sealed, self._clock(), broadcast.reason is Reason.EPHEMERAL)
    item = publisher._Item(None, broadcast.message_id, broadcast.reason, outbound)
    self._volatile.append(item)
    self._news.set()


class _Asyncio:
    """`asyncio` with something else in one place."""

    def __init__(self, name: str, value: object) -> None:
        self._changed = {name: value}

    def __getattr__(self, name: str) -> object:
        return self._changed.get(name) or getattr(asyncio, name)


async def _sleep_not(_: float) -> None:
    await asyncio.sleep(0)


def _wide_open(_: int) -> asyncio.Semaphore:
    return asyncio.Semaphore(1_000_000)


def _in_store(
    part: object,
    name: str,
    fault: Callable[..., Any] | object,
    words: str,
    first_seed: int = 0,
) -> GroupMutant:
    return GroupMutant(part, name, fault, words, with_store=True, first_seed=first_seed)


GROUP_DRIVER_MUTANTS = {
    "keeps a forged message on disk": GroupMutant(
        Ledger, "_withdrawn", _nothing, "is written twice"
    ),
    "hands out events before they are saved": GroupMutant(
        Saver, "add", _release_at_once, "before it is saved"
    ),
    "publishes before it saves": _in_store(
        Participant, "send", _send_and_publish, "leaves before it is saved"
    ),
    "takes a failed transaction for saved": GroupMutant(
        Saver, "_commit", _commit_or_not, "before it is saved|does not go on|in use"
    ),
    "tries a transaction again without a pause": GroupMutant(
        saver, "asyncio", _Asyncio("sleep", _sleep_not), "tries a transaction"
    ),
    "shows what is in the backlog again": GroupMutant(
        Events, "put", _queue_all, "twice|another place"
    ),
    "forgets its outbox": _in_store(
        Ledger, "revived", _forget_the_outbox, "does not go on from its outbox"
    ),
    "forgets who acknowledged": GroupMutant(
        Ledger, "_acknowledged", _note_nothing, "has forgotten who acknowledged"
    ),
    "gives up after a restart at once": GroupMutant(
        revive, "_missing_since_ms", _since_it_came, "gives up after", first_seed=11
    ),
    "tries nodes again without a pause": _in_store(
        Rotation, "failed", _no_pause, "tries (Follow|PublishStream|Since)"
    ),
    "forgets its failures as soon as it is connected": _in_store(
        Feed, "_connected", _connected_and_well, "tries (Follow|Since)", 36
    ),
    "asks one node for ever": replace(
        _in_store(Rotation, "in_turn", _only_one, "do not become equal"),
        compares=False,
        first_seed=124,
    ),
    "swallows cancellation": _in_store(
        Feed, "run", _run_whatever_happens, "does not leave|has not left"
    ),
    "never opens a broken feed again": _in_store(
        Feed, "_failed", _fail_for_good, "do not become equal", 8
    ),
    "advances its cursor before its messages are saved": _in_store(
        Feed, "_read", _cursor_first, "has a cursor past"
    ),
    "closes a gap before it is scanned": _in_store(Feed, "_close_gap", _gap_first, "closes a gap"),
    "leaves its feed running": _in_store(
        Participant, "leave", _leave_the_feed, "tasks are left|has not left"
    ),
    "loses the wake-up of its publisher": _in_store(
        Publisher, "offer", _offer_silently, "back|unpublished"
    ),
    "forgets what was under way": _in_store(
        Publisher, "_take_back", _take_nothing_back, "unpublished", 17
    ),
    "keeps every sync message": _in_store(
        Publisher, "offer_volatile", _offer_every_sync, "sync messages wait"
    ),
    "publishes without a window": _in_store(
        publisher, "asyncio", _Asyncio("Semaphore", _wide_open), "under way"
    ),
}
