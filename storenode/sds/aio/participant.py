"""A participant: the parts around its core, connected in one event loop.

The ledger (the core, and what it changed) is only touched between two awaits. Everything that
follows from a step goes to the saver, and comes back by `_release` when the transaction is
through: then messages are offered to the publisher, and events go to the readers.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Self

from storenode.common.errors import ClientClosedError
from storenode.message.hashing import message_hash
from storenode.message.text import printable
from storenode.sds.aio.cipher import Clear
from storenode.sds.aio.events import EventHub
from storenode.sds.aio.feed import ChannelFeed
from storenode.sds.aio.join_options import Joining
from storenode.sds.aio.ledger import ParticipantLedger, revive
from storenode.sds.aio.publisher import OutboxPublisher, Ready
from storenode.sds.aio.repair import Repair, RepairResponder
from storenode.sds.aio.saver import Saver
from storenode.sds.aio.signing import Signing, unframe
from storenode.sds.aio.state import LAMPORT_OFFSET, Row, StateError
from storenode.sds.aio.status import Status
from storenode.sds.aio.transport import Fetched, Link, Rotation, Transport, TransportError
from storenode.sds.claims import Proof
from storenode.sds.codec import Entry, decode_history
from storenode.sds.events import (
    Behind,
    Broadcast,
    BroadcastReason,
    ChannelEvent,
    EphemeralReceived,
    Forged,
    Lost,
    Message,
    Missing,
    NotStored,
    Packet,
    PacketRefusal,
    Recall,
    Refused,
)
from storenode.sds.limits import BYTES_AT_ONCE, CATCH_UP_OVERLAP_NS, LEAVE_TIMEOUT_S, MAX_TICK_S

_log = logging.getLogger("storenode")
_NS_PER_MS: Final = 1_000_000
_PACKET_BYTES: Final = 256
_ONLINE_EVERY_NS: Final = 300 * 10**9
"""The interval of records of the time, each a transaction, while a feed is live and silent."""


class Participant:
    """Runs from `join` to `leave`; ``clock`` gives Unix time in nanoseconds.

    ``readable`` is True if nodes can read messages, so that they can be asked by ID.
    """

    def __init__(
        self,
        ledger: ParticipantLedger,
        joining: Joining,
        thread: Executor | None,
        links: Sequence[Link],
    ) -> None:
        config = joining.config
        self.ledger = ledger
        self.core = ledger.core
        self.hub: EventHub[ChannelEvent] = EventHub()
        self.links = links
        self.rotation = Rotation(links)
        self.clock = joining.clock
        self._route = joining.route
        self._forgets = joining.state.in_memory
        self.readable = not joining.cipher.whole
        self._content_cipher = joining.cipher if self.readable else Clear()
        self._message_cipher = Clear() if self.readable else joining.cipher
        self._signing = Signing(joining.signer, config.channel_id, config.sender_id)
        self._rng = joining.rng
        self._troubles: dict[str, TransportError | StateError] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._is_hurried = False
        self.saver = Saver(
            ledger, joining.state, thread, self._release, partial(self.trouble, "state")
        )
        self.answering = RepairResponder(self)
        self.publisher = OutboxPublisher(self)
        self.repair = Repair(self)
        self.feed = ChannelFeed(self)

    @property
    def calls(self) -> Counter[str]:
        """The calls to nodes so far, by kind; publishing by streams is not counted."""
        return self.feed.calls + self.repair.calls

    @classmethod
    async def join(
        cls, joining: Joining, thread: Executor | None, transports: Sequence[Transport]
    ) -> Self:
        """Open a state in ``thread``, and begin where it was left; `leave` closes it.

        Raises:
            StateError: the state cannot be used.
        """
        loop, state = asyncio.get_running_loop(), joining.state
        given = state, joining.config, joining.clock() // _NS_PER_MS, joining.rng
        links: list[Link] = []
        try:
            ledger = await loop.run_in_executor(thread, revive, *given)
            for transport in transports:
                links.append(transport.open(joining.route))  # noqa: PERF401 - the next may fail
        except BaseException:
            for link in links:
                await link.close()
            await loop.run_in_executor(thread, state.close)
            raise
        participant = cls(ledger, joining, thread, links)
        participant._start()
        return participant

    def _start(self) -> None:
        for message_id in self.ledger.outbox:
            self.publisher.offer(message_id)
        for work in (
            self.saver.run(),
            self.feed.run(),
            self.feed.searches(),
            self.publisher.run(),
            self.repair.run(),
            self.answering.run(),
            self._tick(),
        ):
            task = asyncio.create_task(work)
            task.add_done_callback(self._ended)
            self._tasks.append(task)
        self.repair.wake()

    async def leave(self) -> None:
        """Wait a little for what is not published, save, and let go of everything.

        A call that is cancelled waits no longer for what is not published.
        """
        try:
            with suppress(Exception):
                async with asyncio.timeout(LEAVE_TIMEOUT_S):
                    while self.ledger.outbox and not self._is_hurried:
                        if self.feed.node is None and not self._forgets:
                            break  # a later life with the same state publishes it
                        self.check()
                        await self.hub.changed()
        finally:
            try:
                await self._end()
            finally:
                await self.saver.in_thread(self.saver.state.close)

    def hurry(self) -> None:
        """Make `leave` wait no longer for what is not published."""
        self._is_hurried = True
        self.hub.stir()

    async def _end(self) -> None:
        saving, *others = self._tasks
        try:
            for task in others:
                task.cancel()
            await asyncio.wait(others)
            self.saver.stop()
            await asyncio.wait({saving}, timeout=LEAVE_TIMEOUT_S)
        finally:
            saving.cancel()
            await asyncio.wait({saving})
            left = ClientClosedError("The channel was left: join it again.")
            self.saver.fail(left)
            self.hub.end()
            self.hub.fail(left)
            for link in self.links:
                await link.close()

    def send(self, content: bytes, message_id: str | None) -> str:
        """Send content; it leaves when it is saved. Raises as `MessageChannel.send`."""

        def sealed(lamport: int, history: Sequence[Entry]) -> bytes:
            return self._content_cipher.seal(self._signing.frame(content, lamport, history))

        seal = self._message_cipher.seal
        sent_id, events = self.ledger.send(
            self.clock(), content, message_id, seal, self._hint, sealed=sealed
        )
        self.notify([*events, Ready(sent_id)])
        return sent_id

    def send_ephemeral(self, content: bytes) -> None:
        """Send content without reliability; nothing happens while offline."""
        if self.hub.failure is not None:
            raise self.hub.failure
        events = self.core.send_ephemeral(self._content_cipher.seal(content))
        self.ledger.note(events)  # the number of sends changes
        if self.feed.node is not None:
            self.notify(events)

    def notify(self, things: Sequence[Any]) -> None:
        """Queue the events of a step, which are handed out when they are saved."""
        if any(isinstance(thing, Missing) for thing in things):
            self.repair.wake()
        for thing in things:
            if isinstance(thing, Behind):
                self.feed.search(thing.since_ms * _NS_PER_MS)
            elif isinstance(thing, Lost) and thing.early:
                self.feed.search(max(self.clock() - CATCH_UP_OVERLAP_NS, 0))
            elif isinstance(thing, NotStored):
                name, reason = self._route.channel_id, thing.reason
                _log.warning(
                    "channel %s: a message was refused: %s", printable(name), printable(reason)
                )
            elif isinstance(thing, Recall):
                self.answering.want(thing.message_ids)
        self.saver.add(things)
        self.hub.stir()

    async def take(self, messages: Sequence[Fetched]) -> int | None:
        """Receive messages; return the time of the first one for which there was no room."""
        refused_ns: int | None = None
        for some in _portions(messages):
            await self.hub.room()
            await self.saver.room()
            self.answering.note(some)
            events = self.ledger.note(self.core.receive(self.now_ms(), self._packets(some)))
            self.notify(events)
            refusals = (event.reason for event in events if isinstance(event, Refused))
            if refused_ns is None and PacketRefusal.BUFFER_FULL in refusals:
                refused_ns = min(each.timestamp_ns for each in some)
            await asyncio.sleep(0)
        return refused_ns

    def message_of(self, row: Row) -> Message:
        """Return a row of the log as the application sees it."""
        message_id, sender_id = row["message_id"].decode(), row["sender_id"].decode()
        lamport, by = row["lamport"] + LAMPORT_OFFSET, row["acknowledged_by"]
        message = Message(
            message_id,
            sender_id,
            lamport,
            row["content"],
            row["hint"],
            unmet=tuple(json.loads(row["unmet"])),
            own=sender_id == self.core.config.sender_id,
            published=message_id not in self.ledger.outbox,
            acknowledged_by=None if by is None else by.decode(),
            proof=Proof(row["proof"]),
            history=decode_history(row["history"]),
        )
        return self._opened(message)

    @property
    def status(self) -> Status:
        """The status now."""
        incoming = self.core.incoming
        parts = ("state", "feed", "publishing") if self.ledger.outbox else ("state", "feed")
        troubles = (str(self._troubles[part]) for part in parts if part in self._troubles)
        return Status(
            node=self.feed.node,
            live=self.feed.live,
            missing=len(incoming.wants),
            waiting=len(incoming.waiting),
            lost=len(self.core.lost),
            unreadable=self.core.counts.malformed,
            behind=self.core.lacks.at_least(),
            incomparable=len(self.core.lacks.incomparable),
            unpublished=len(self.ledger.outbox),
            unacknowledged=len(self.core.outgoing),
            trouble=next(troubles, ""),
        )

    def publish_answer(
        self, answer: Broadcast, hint: bytes | None, timestamp_ns: int | None
    ) -> None:
        """Publish an answer to a repair request, as the same message if its time is known."""
        sealed = self._message_cipher.seal(answer.payload)
        is_same = timestamp_ns is not None and self._hint(sealed, timestamp_ns) == hint
        self.publisher.offer_volatile(answer, sealed, timestamp_ns if is_same else None)

    def _release(self, commit: int, things: list[Any]) -> None:
        shown: list[ChannelEvent] = []
        for thing in things:
            if isinstance(thing, Ready):
                self.publisher.offer(thing.message_id)
            elif isinstance(thing, Broadcast):
                if thing.reason is not BroadcastReason.EPHEMERAL or self.feed.node is not None:
                    sealed = self._message_cipher.seal(thing.payload)
                    self.publisher.offer_volatile(thing, sealed)
            elif self.hub.readers and not isinstance(thing, Recall):
                shown.append(self._shown(thing))
        self.hub.put(commit, shown)

    def _shown(self, event: Any) -> ChannelEvent:  # noqa: ANN401 - any event of the core
        match event:
            case Message():
                return self._opened(event)
            case Forged():
                return replace(event, content=unframe(self._open_content(event.content)[0])[0])
            case EphemeralReceived():
                content, _ = self._open_content(event.content)
                return EphemeralReceived(event.message_id, event.sender_id, content)
            case _:
                found: ChannelEvent = event
                return found

    def _packets(self, messages: Sequence[Fetched]) -> list[Packet]:
        packets = []
        for each in messages:
            try:
                clear = self._message_cipher.open(each.payload)
                packets.append(Packet(clear, each.hint or None))
            except Exception:  # noqa: BLE001 - others choose the bytes, which must not stop the channel
                self.core.counts.malformed += 1
        return packets

    def _opened(self, message: Message) -> Message:
        """Return a message with its content in clear, without signature."""
        clear, readable = self._open_content(message.content)
        if not readable:
            return replace(message, readable=False)
        return self._signing.read(replace(message, content=clear))

    def _open_content(self, content: bytes) -> tuple[bytes, bool]:
        try:
            return self._content_cipher.open(content), True
        except Exception:  # noqa: BLE001 - as in `_packets`
            return content, False

    def _hint(self, payload: bytes, timestamp_ns: int) -> bytes:
        route = self._route
        return message_hash(route.pubsub_topic, payload, route.content_topic, None, timestamp_ns)

    def now_ms(self) -> int:
        """Return Unix time in milliseconds."""
        return self.clock() // _NS_PER_MS

    async def relieve(self) -> None:
        """Repair until at most half of the room for waiting messages is taken, if that helps."""
        half = self.core.config.max_waiting // 2
        while len(self.core.incoming.waiting) > half and await self.repair.round():
            pass

    async def _tick(self) -> None:
        noted_ns = self.clock()
        while True:
            now_ns = self.clock()
            due_s = self.core.next_due_ms(self._rng) / 1_000 - now_ns / 1_000_000_000
            await asyncio.sleep(min(max(due_s, 0.01), MAX_TICK_S))
            await self.saver.room()
            await self.hub.room()
            events = self.ledger.note(self.core.tick(self.now_ms(), self._rng))
            if events:
                self.notify(events)
            if self.clock() - noted_ns >= _ONLINE_EVERY_NS:
                noted_ns = self.clock()
                if self.feed.live:
                    self.ledger.online(noted_ns)
                self.notify(())

    def trouble(self, part: str, error: TransportError | StateError | None) -> None:
        """Note the trouble of a part of the participant; None: there is none."""
        known = self._troubles.pop(part, None)
        if error is not None:
            self._troubles[part] = error
            if str(error) != str(known):
                name = self._route.channel_id
                _log.warning("channel %s: %s", printable(name), printable(str(error)))
        self.hub.stir()

    def check(self) -> None:
        """Raise an error of the nodes that waiting cannot heal."""
        for part in ("feed", "publishing") if self.ledger.outbox else ("feed",):
            known = self._troubles.get(part)
            if isinstance(known, TransportError) and known.final is not None:
                raise known.final

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.hub.fail(error)
            self.saver.fail(error)
            for other in self._tasks:
                other.cancel()


def _portions(messages: Iterable[Fetched]) -> Iterator[list[Fetched]]:
    """Yield messages in portions that are taken before other tasks get their turn."""
    some, size = list[Fetched](), 0
    for each in messages:
        some.append(each)
        size += _PACKET_BYTES + len(each.payload)
        if size >= BYTES_AT_ONCE:
            yield some
            some, size = [], 0
    yield some
