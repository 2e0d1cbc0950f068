"""A channel's core together with what it changed since the last transaction.

`ParticipantLedger.note` records which rows follow from the events of a step of the core; `take`
hands the notes over as one batch. What came and went between two transactions never becomes a row.
Pure: time and random values are arguments, and no database is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Final

from storenode.sds.aio.state import LAMPORT_OFFSET, Row, Rows, StateBatch
from storenode.sds.channel import MessageChannel, Sealing
from storenode.sds.claims import Proof
from storenode.sds.codec import MessageKind, encode_history, encode_message
from storenode.sds.events import (
    Acknowledged,
    Broadcast,
    BroadcastReason,
    Counts,
    Event,
    GaveUp,
    Lost,
    Message,
    PossiblyAcknowledged,
    Received,
    Sent,
    Withdrawn,
)
from storenode.sds.limits import MAX_LOST_IDS

_COUNTS: Final = attrgetter(*(each.name for each in fields(Counts)))


@dataclass(slots=True)
class OutboxItem:
    """An own message that no node has taken; ``number`` orders them.

    It ``is_ready`` when it is saved and not under way to a node, which ``refusals`` nodes refused.
    """

    number: int
    message_id: str
    payload: bytes
    timestamp_ns: int
    is_ready: bool = False
    refusals: int = 0


@dataclass(slots=True)
class _Notes:
    gone: dict[str, None] = field(default_factory=dict)
    log: dict[str, Row] = field(default_factory=dict)
    hints: dict[str, bytes] = field(default_factory=dict)
    outbox: Rows = field(default_factory=dict)
    cursors: Rows = field(default_factory=dict)
    waiting: dict[int, str | None] = field(default_factory=dict)
    unacknowledged: set[str] = field(default_factory=set)
    acknowledged: Rows = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)


class ParticipantLedger:
    """A participant: its core, its outbox, where its feeds are, and what changed of all that.

    ``gap_from_ns`` is the time from which on something may be missing for want of a scan, or None;
    ``online_ns`` is when a feed was last live. Set both by the methods.
    """

    def __init__(self, core: MessageChannel) -> None:
        self.core = core
        self.serial = 0
        self.commits = 0
        self.gap_from_ns: int | None = 0
        self.online_ns = 0
        self.cursors: dict[str, bytes] = {}
        self.outbox: dict[str, OutboxItem] = {}
        self.serials: dict[str, int] = {}
        self.lost_rows: set[str] = set()
        self.dirty = False
        self._notes = _Notes()

    def send(
        self,
        now_ns: int,
        content: bytes,
        message_id: str | None,
        seal: Callable[[bytes], bytes],
        hint_of: Callable[[bytes, int], bytes],
        *,
        sealed: Sealing | None = None,
    ) -> tuple[str, list[Event]]:
        """Send content, and put the message into the outbox; return its ID, and events.

        ``sealed`` makes the content as it travels, if given; ``seal`` is applied to the whole.

        Raises as `MessageChannel.send`.
        """
        events = self.core.send(now_ns // 1_000_000, content, message_id, sealed)
        sent = next(each for each in events if isinstance(each, Broadcast))
        message, payload = self.core.outgoing.by_id[sent.message_id].message, seal(sent.payload)
        # Known before anybody holds it: what is sent next names it already.
        hint = hint_of(payload, now_ns)
        self.core.published(sent.message_id, hint)
        lamport = message.lamport or 0
        shown = Message(
            message.message_id,
            message.sender_id,
            lamport,
            message.content or b"",
            hint,
            self.core.log.after((lamport, message.message_id)),
            own=True,
            published=False,
            proof=Proof.OWN if sent.message_id in self.core.claims.unproven else Proof.MESSAGE,
            history=message.history,
        )
        self._put(OutboxItem(self.serial + 1, sent.message_id, payload, now_ns))
        others = (each for each in events if not isinstance(each, Broadcast))
        return sent.message_id, self.note([shown, *others])

    def note(self, events: list[Event]) -> list[Event]:
        """Record which rows follow from the events of a step of the core, and return them."""
        notes = self._notes
        for event in events:
            match event:
                case Received() if event.kind is MessageKind.CONTENT:
                    self._received(event.message_id)
                case Message():
                    self._added(event)
                case Withdrawn():
                    self._withdrawn(event.message_id)
                case Acknowledged():
                    notes.unacknowledged.add(event.message_id)
                    self._acknowledged(event)
                case GaveUp() | PossiblyAcknowledged():
                    notes.unacknowledged.add(event.message_id)
                case Broadcast() if event.reason is BroadcastReason.RESEND:
                    notes.unacknowledged.add(event.message_id)
                case Lost():
                    notes.lost.update(event.message_ids)
                    self.lost_rows.update(event.message_ids)
                case Sent() if event.hint is not None:
                    self._hint(event.message_id, event.hint)
                case _:
                    pass
        self.dirty = self.dirty or bool(events)
        return events

    def settle(self, message_id: str) -> None:
        """Remove a message from the outbox."""
        self._notes.outbox[self.outbox.pop(message_id).number] = None
        self.dirty = True

    def restamp(self, message_id: str, timestamp_ns: int) -> None:
        """Set the time of a message of the outbox."""
        item = self.outbox[message_id]
        item.timestamp_ns = timestamp_ns
        self._put(item)

    def stand(self, node: str, cursor: bytes | None) -> None:
        """Set the cursor of a node's feed; None removes it."""
        if cursor is None:
            self.cursors.pop(node, None)
        else:
            self.cursors[node] = cursor
        self._notes.cursors[node] = None if cursor is None else {"node": node, "cursor": cursor}
        self.dirty = True

    def gap(self, from_ns: int | None) -> None:
        """Set the time from which on messages may be missing; None: there is no gap."""
        self.gap_from_ns = from_ns
        self.dirty = True

    def online(self, now_ns: int) -> None:
        """Set the time when a feed was last live."""
        self.online_ns = now_ns
        self.dirty = True

    def take(self) -> StateBatch | None:
        """Return what changed since the last call; None when nothing did."""
        if not self.dirty:
            return None
        self._forget_lost()
        notes, self._notes, self.dirty = self._notes, _Notes(), False
        self.commits += 1
        rows: dict[str, Rows] = {
            "cursors": notes.cursors,
            "outbox": notes.outbox,
            "waiting": {key: self._waiting_row(key, name) for key, name in notes.waiting.items()},
            "unacknowledged": {
                key.encode(): self._outgoing_row(key) for key in notes.unacknowledged
            },
            "lost": {key.encode(): self._lost_row(key) for key in notes.lost},
            "acknowledged": notes.acknowledged,
        }
        log = list(notes.log.values())
        for row in log:
            row["committed"] = self.commits
        return StateBatch(self.commits, self._small(), list(notes.gone), log, notes.hints, rows)

    def _small(self) -> Row:
        core = self.core
        return {
            "commits": self.commits,
            "clock": core.clock.value - LAMPORT_OFFSET,
            "sends": core.sends,
            "serial": self.serial,
            "counts": json.dumps(_COUNTS(core.counts)),
            "gap_from_ns": self.gap_from_ns,
            "online_ns": self.online_ns,
        }

    def _put(self, item: OutboxItem) -> None:
        self.outbox[item.message_id] = item
        self._notes.outbox[item.number] = {
            "number": item.number,
            "message_id": item.message_id.encode(),
            "payload": item.payload,
            "timestamp_ns": item.timestamp_ns,
        }
        self.dirty = True

    def _acknowledged(self, event: Acknowledged) -> None:
        key, sender = event.message_id.encode(), event.sender_id.encode()
        self._notes.acknowledged[key] = {"message_id": key, "sender_id": sender}

    def _forget_lost(self) -> None:
        """Drop rows of what the core has forgotten to be lost."""
        if len(self.lost_rows) > MAX_LOST_IDS:
            forgotten = self.lost_rows - self.core.lost.keys()
            self.lost_rows -= forgotten
            self._notes.lost |= forgotten

    def _received(self, message_id: str) -> None:
        if message_id in self.serials:
            # The genuine message came while another one with its ID waited.
            self._waits_no_longer(self.serials[message_id])
        self.serial += 1
        self.serials[message_id] = self.serial
        self._notes.waiting[self.serial] = message_id

    def _waits_no_longer(self, serial: int) -> None:
        if self._notes.waiting.get(serial) is not None:
            del self._notes.waiting[serial]
        else:
            self._notes.waiting[serial] = None

    def _withdrawn(self, message_id: str) -> None:
        self._notes.hints.pop(message_id, None)
        if self._notes.log.pop(message_id, None) is None:
            self._notes.gone[message_id] = None

    def _added(self, event: Message) -> None:
        """Add a message to the log: one that was received, or else an own one."""
        message_id = event.message_id
        serial = self.serials.pop(message_id, None)
        if serial is not None:
            self._waits_no_longer(serial)
        else:
            serial = self.serial = self.serial + 1
            self._notes.unacknowledged.add(message_id)
        if message_id in self.lost_rows:
            self.lost_rows.discard(message_id)
            self._notes.lost.add(message_id)
        self._notes.log[message_id] = {
            "serial": serial,
            "lamport": event.lamport - LAMPORT_OFFSET,
            "message_id": message_id.encode(),
            "sender_id": event.sender_id.encode(),
            "content": event.content,
            "hint": event.hint,
            "unmet": json.dumps(event.unmet),
            "committed": 0,
            "proof": event.proof.value,
            "history": encode_history(event.history),
        }

    def _hint(self, message_id: str, hint: bytes) -> None:
        row = self._notes.log.get(message_id)
        if row is not None:
            row["hint"] = hint
        else:
            self._notes.hints[message_id] = hint

    def _waiting_row(self, serial: int, message_id: str | None) -> Row | None:
        place = None if message_id is None else self.core.incoming.ids.get(message_id)
        if place is None:
            return None
        waiting = self.core.incoming.waiting[place]
        return {
            "serial": serial,
            "payload": encode_message(waiting.message),
            "hint": waiting.hint,
            "arrived_ms": waiting.arrived_ms,
        }

    def _lost_row(self, message_id: str) -> Row | None:
        return {"message_id": message_id.encode()} if message_id in self.core.lost else None

    def _outgoing_row(self, message_id: str) -> Row | None:
        outgoing = self.core.outgoing.by_id.get(message_id)
        if outgoing is None:
            return None
        return {
            "message_id": message_id.encode(),
            "payload": encode_message(outgoing.message),
            "due_ms": outgoing.due_ms,
            "sends": outgoing.sends,
            "witnesses": json.dumps(outgoing.witnesses),
            "error": outgoing.error,
        }
