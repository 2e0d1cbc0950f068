"""Publishing: what is in the outbox reaches a node, in order, over as many nodes as it takes.

An own message stays in the outbox until a node holds it, with its exact bytes and time: published
again it is the same message. One that is refused gets a new time if it is old, since nodes refuse
what is. What the core says again anyway (resends, syncs, answers) is volatile: it is dropped when
no node takes it. A resend of what the node holds is ephemeral, so that there is one copy. One of
what it refused, or lost with its newest commits, is stored.

A node that goes away may not have passed on what it held. So the next one is given once more what
was published lately: if it holds that already, nothing happens.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from storenode.sds.aio.transport import Outbound, PublishResult, Rotation, TransportError
from storenode.sds.events import Broadcast, BroadcastReason, NotStored
from storenode.sds.limits import (
    MAX_PUBLISH_BYTES,
    MAX_PUBLISH_MESSAGES,
    MAX_PUBLISH_TRIES,
    MAX_REPUBLISHED,
    MAX_VOLATILE_ITEMS,
    REPUBLISH_NS,
    RESTAMP_AFTER_NS,
)

if TYPE_CHECKING:
    from storenode.sds.aio.participant import Participant
    from storenode.sds.aio.transport import Link


@dataclass(frozen=True, slots=True)
class Ready:
    """A message of the outbox is saved and may leave; comes back through the saver."""

    message_id: str


@dataclass(slots=True)
class _Item:
    message_id: str
    reason: BroadcastReason
    outbound: Outbound
    has_own_time: bool = False
    """True if the message keeps its timestamp and gets a new one only if a node refuses that."""


class OutboxPublisher:
    """A publisher of a participant's outbox."""

    def __init__(self, participant: Participant) -> None:
        self._participant = participant
        self._ledger = participant.ledger
        self._rotation = Rotation(participant.links)
        self._volatile: deque[_Item] = deque(maxlen=MAX_VOLATILE_ITEMS)
        self._news = asyncio.Event()
        self._lately: deque[_Item] = deque(maxlen=MAX_REPUBLISHED)

    def offer(self, message_id: str) -> None:
        """Publish a message of the outbox."""
        self._ledger.outbox[message_id].is_ready = True
        self._news.set()

    def offer_volatile(
        self, broadcast: Broadcast, sealed: bytes, timestamp_ns: int | None = None
    ) -> None:
        """Publish something that is dropped when no node takes it; None: with a new time."""
        if broadcast.message_id in self._ledger.outbox:
            return
        if broadcast.reason is BroadcastReason.SYNC:
            kept = [item for item in self._volatile if item.reason is not BroadcastReason.SYNC]
            self._volatile = deque(kept, MAX_VOLATILE_ITEMS)
        time_ns = self._participant.clock() if timestamp_ns is None else timestamp_ns
        outbound = Outbound(sealed, time_ns, broadcast.passes)
        own = timestamp_ns is not None
        self._volatile.append(_Item(broadcast.message_id, broadcast.reason, outbound, own))
        self._news.set()

    async def run(self) -> None:
        """Publish for ever, one request after the other, at one node after the other."""
        while True:
            while not (items := self._next_items()):
                self._news.clear()
                await self._news.wait()
            link = self._rotation.link
            try:
                await self._keep_unheld(link, items)
                verdicts = await link.publish([item.outbound for item in items])
                if len(items) != len(verdicts):
                    raise TransportError("A node answered what was not published.")
            except TransportError as error:
                self._participant.trouble("publishing", error)
                self._take_back(items)
                await asyncio.sleep(self._rotation.failed())
                if self._rotation.link is not link:
                    since_ns = self._participant.clock() - REPUBLISH_NS
                    self._volatile.extend(
                        item for item in self._lately if item.outbound.timestamp_ns >= since_ns
                    )
            else:
                self._rotation.worked()
                self._participant.trouble("publishing", None)
                self._settle(items, verdicts)

    async def _keep_unheld(self, link: Link, items: Sequence[_Item]) -> None:
        """Let a node store the resends of messages that it does not hold."""
        resends = [item for item in items if item.reason is BroadcastReason.RESEND]
        entries = [self._ledger.core.log.recent(item.message_id) for item in resends]
        hints = [entry.hint for entry in entries if entry is not None and entry.hint]
        stored = await link.holds(hints) if hints else set()
        for item, entry in zip(resends, entries, strict=True):
            is_stored = entry is None or entry.hint in stored
            item.outbound = replace(item.outbound, ephemeral=is_stored)

    def _next_items(self) -> list[_Item]:
        """Return what goes into the next request: the outbox in order, then the volatile."""
        items: list[_Item] = []
        size = 0
        for own in self._ledger.outbox.values():
            if len(items) >= MAX_PUBLISH_MESSAGES or size >= MAX_PUBLISH_BYTES:
                break
            if own.is_ready:
                own.is_ready = False
                outbound = Outbound(own.payload, own.timestamp_ns)
                items.append(_Item(own.message_id, BroadcastReason.CONTENT, outbound))
                size += len(own.payload)
        while self._volatile and len(items) < MAX_PUBLISH_MESSAGES and size < MAX_PUBLISH_BYTES:
            items.append(self._volatile.popleft())
            size += len(items[-1].outbound.payload)
        return items

    def _take_back(self, items: Sequence[_Item]) -> None:
        for item in items:
            if item.reason is BroadcastReason.CONTENT:
                self._ledger.outbox[item.message_id].is_ready = True

    def _settle(self, items: list[_Item], verdicts: Sequence[PublishResult]) -> None:
        events: list[Any] = []
        for item, verdict in zip(items, verdicts, strict=True):
            if verdict.stored:
                events += self._stored(item, verdict.hint)
            elif item.reason is BroadcastReason.CONTENT:
                events += self._refused(item.message_id, verdict.reason)
            elif item.has_own_time:
                outbound = replace(item.outbound, timestamp_ns=self._participant.clock())
                self._volatile.append(_Item(item.message_id, item.reason, outbound))
                self._news.set()
            else:
                self._participant.trouble("publishing", TransportError(verdict.reason))
        self._participant.notify(events)

    def _stored(self, item: _Item, hint: bytes) -> Sequence[Any]:
        if item.reason is BroadcastReason.CONTENT:
            self._ledger.settle(item.message_id)
        is_own = item.reason in (BroadcastReason.CONTENT, BroadcastReason.RESEND)
        if is_own and not item.outbound.ephemeral:
            self._lately.append(_Item(item.message_id, BroadcastReason.REPAIR, item.outbound))
            return self._ledger.note(self._ledger.core.published(item.message_id, hint))
        if item.reason is BroadcastReason.REPAIR:
            self._participant.answering.copied(item.message_id, hint)
        return ()

    def _refused(self, message_id: str, reason: str) -> Sequence[Any]:
        now_ns, item = self._participant.clock(), self._ledger.outbox[message_id]
        item.refusals += 1
        is_old = now_ns - item.timestamp_ns >= RESTAMP_AFTER_NS
        if is_old and item.refusals <= MAX_PUBLISH_TRIES:
            self._ledger.restamp(message_id, now_ns)
            return (Ready(message_id),)
        self._ledger.settle(message_id)
        return (NotStored(message_id, reason),)
