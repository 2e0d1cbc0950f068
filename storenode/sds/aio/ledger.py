"""A channel's core together with what it changed since the last transaction.

`ParticipantLedger.note` records which rows follow from the events of a step of the core; `take`
hands the notes over as one batch. What came and went between two transactions never becomes a row.
Pure: time and random values are arguments, and a database is only read, by `revive`.

`revive` makes a ledger from a state, so that a participant continues where its last transaction
left it. Timing (when to send next), sync messages that waited, and which messages no other one
names are not kept: all of that starts again. The first message of a new life therefore carries the
filter. Others who ask are answered from the state.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Final

from storenode.sds.aio.state import LAMPORT_OFFSET, Row, Rows, SqliteState, StateBatch, StateError
from storenode.sds.bloom import FilterShape
from storenode.sds.buffers import Outgoing, WaitingMessage
from storenode.sds.channel import MessageChannel, Sealing
from storenode.sds.claims import Proof, proof_of, said_by
from storenode.sds.codec import (
    MessageError,
    MessageKind,
    SdsMessage,
    decode_history,
    decode_message,
    encode_history,
    encode_message,
)
from storenode.sds.config import ChannelConfig
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
from storenode.sds.log import Rng

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
    updates: dict[str, Row] = field(default_factory=dict)
    outbox: Rows = field(default_factory=dict)
    cursors: Rows = field(default_factory=dict)
    waiting: dict[int, str | None] = field(default_factory=dict)
    unacknowledged: set[str] = field(default_factory=set)
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
                    self._update(event.message_id, "acknowledged_by", event.sender_id.encode())
                case GaveUp() | PossiblyAcknowledged():
                    notes.unacknowledged.add(event.message_id)
                case Broadcast() if event.reason is BroadcastReason.RESEND:
                    notes.unacknowledged.add(event.message_id)
                case Lost():
                    notes.lost.update(event.message_ids)
                    self.lost_rows.update(event.message_ids)
                case Sent() if event.hint is not None:
                    self._update(event.message_id, "hint", event.hint)
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
            "lost": {
                key.encode(): {"message_id": key.encode()} if key in self.core.lost else None
                for key in notes.lost
            },
        }
        log = list(notes.log.values())
        for row in log:
            row["committed"] = self.commits
        return StateBatch(self.commits, self._small(), list(notes.gone), log, notes.updates, rows)

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

    def _forget_lost(self) -> None:
        """Drop rows of what the core has forgotten to be lost."""
        if len(self.lost_rows) > MAX_LOST_IDS:
            forgotten = self.lost_rows - self.core.lost.keys()
            self.lost_rows -= forgotten
            self._notes.lost |= forgotten

    def _received(self, message_id: str) -> None:
        if message_id in self.serials:
            # The genuine message came while another one with its ID waited.
            self._notes.waiting[self.serials[message_id]] = None
        self.serial += 1
        self.serials[message_id] = self.serial
        self._notes.waiting[self.serial] = message_id

    def _withdrawn(self, message_id: str) -> None:
        self._notes.updates.pop(message_id, None)
        if self._notes.log.pop(message_id, None) is None:
            self._notes.gone[message_id] = None

    def _added(self, event: Message) -> None:
        """Add a message to the log: one that was received, or else an own one."""
        message_id = event.message_id
        serial = self.serials.pop(message_id, None)
        if serial is not None:
            self._notes.waiting[serial] = None
        else:
            serial = self.serial = self.serial + 1
            self._notes.unacknowledged.add(message_id)
        if message_id in self.lost_rows:
            self.lost_rows.discard(message_id)
            self._notes.lost.add(message_id)
        claim = self.core.claims.unproven.get(message_id)
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
            "digest": None if claim is None else claim.digest,
            "history": encode_history(event.history),
            "acknowledged_by": None,
        }

    def _update(self, message_id: str, column: str, value: bytes) -> None:
        row = self._notes.log.get(message_id)
        if row is None:
            row = self._notes.updates.setdefault(message_id, {})
        row[column] = value

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

    def _outgoing_row(self, message_id: str) -> Row | None:
        outgoing = self.core.outgoing.by_id.get(message_id)
        if outgoing is None:
            return None
        return {
            "message_id": message_id.encode(),
            "due_ms": outgoing.due_ms,
            "sends": outgoing.sends,
            "witnesses": json.dumps(outgoing.witnesses),
            "error": outgoing.error,
        }


def revive(state: SqliteState, config: ChannelConfig, now_ms: int, rng: Rng) -> ParticipantLedger:
    """Open a state and make its ledger; a new one for a new state.

    Raises:
        StateError: the state cannot be used, or holds what this program did not write.
    """
    row = state.open()
    if config.repair is not None:
        # Contents are read from the state.
        config = replace(config, repair=replace(config.repair, kept_messages=0))
    core = MessageChannel(config, now_ms, rng)
    ledger = ParticipantLedger(core)
    ledger.commits = row["commits"]
    if row["commits"]:
        try:
            _fill(state, ledger, row)
            core.showing.due = True
        except (MessageError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"The state {state.shown} is damaged: {error}") from error
    return ledger


def filter_length(shape: FilterShape, inserted: int) -> int:
    """Return how many of the last IDs a rolling filter contains after ``inserted`` insertions."""
    kept = shape.capacity // 2
    if inserted <= shape.capacity:
        return inserted
    return kept + 1 + (inserted - shape.capacity - 1) % (shape.capacity - kept)


def _fill(state: SqliteState, ledger: ParticipantLedger, row: Row) -> None:
    core = ledger.core
    core.clock.value = row["clock"] + LAMPORT_OFFSET
    core.sends = row["sends"]
    core.counts = Counts(*json.loads(row["counts"]))
    ledger.serial = row["serial"]
    ledger.gap_from_ns, ledger.online_ns = row["gap_from_ns"], row["online_ns"]
    ledger.cursors = {each["node"]: each["cursor"] for each in state.rows("cursors")}
    for entry in state.entries():
        core.log.insert(entry)
    for message_id, unproven in state.unproven():
        core.claims.add(message_id, unproven)
    names = [each["message_id"].decode() for each in state.rows("lost")]
    ledger.lost_rows.update(names)
    core.lost.update(dict.fromkeys(names))
    # Before what waits, whose times count from where the clock has come to.
    _fill_outgoing(state, core)
    _fill_waiting(ledger, state.rows("waiting"))
    _fill_filter(ledger, state)
    for each in state.rows("outbox"):
        message_id = each["message_id"].decode()
        ledger.outbox[message_id] = OutboxItem(**{**each, "message_id": message_id})


def _fill_waiting(ledger: ParticipantLedger, rows: list[Row]) -> None:
    core = ledger.core
    made = [_waiting(core, row) for row in rows]
    core.incoming.restore(made)
    for waiting, row in zip(made, rows, strict=True):
        if not waiting.proof:
            core.claims.add(waiting.message.message_id, said_by(waiting.message))
        ledger.serials[waiting.message.message_id] = row["serial"]
        for entry in waiting.message.history:
            if entry.message_id in waiting.unmet and entry.message_id not in core.incoming.ids:
                core.incoming.want(
                    entry, _missing_since_ms(core, waiting), waiting.message.sender_id
                )


def _missing_since_ms(core: MessageChannel, waiting: WaitingMessage) -> int:
    """Return since when causes count as missing: time while the participant was off does not.

    The clock may have been set back since; it is not missing since a time to come.
    """
    now_ms, lost_after_ms = core.clock.latest_ms, core.config.lost_after_ms
    earliest_ms = 0 if lost_after_ms is None else now_ms - lost_after_ms // 2
    return min(max(waiting.arrived_ms, earliest_ms), now_ms)


def _waiting(core: MessageChannel, row: Row) -> WaitingMessage:
    message = decode_message(row["payload"], stored=True)
    named = [entry.message_id for entry in message.history]
    unmet = {name for name in named if name not in core.log and name not in core.lost}
    unmet.discard(message.message_id)
    return WaitingMessage(message, row["hint"], row["arrived_ms"], unmet, proof_of(message))


def _fill_filter(ledger: ParticipantLedger, state: SqliteState) -> None:
    """Insert again the IDs that the filter had.

    Where a message was withdrawn another one takes its place, so that the filter rolls over when it
    would have.
    """
    count = filter_length(ledger.core.config.filter, ledger.serial)
    names = dict(state.since(ledger.serial - count + 1))
    names |= {serial: message_id for message_id, serial in ledger.serials.items()}
    newest = names[max(names)] if names else ""
    for serial in range(ledger.serial - count + 1, ledger.serial + 1):
        if newest:
            ledger.core.filter.add(names.get(serial, newest))
    ledger.core.filter.complete = ledger.serial <= count


def _fill_outgoing(state: SqliteState, core: MessageChannel) -> None:
    for row in state.unacknowledged():
        message = message_of(core.config.channel_id, row)
        probe = core.config.filter.probe(message.message_id)
        witnesses = json.loads(row["witnesses"])
        core.outgoing.by_id[message.message_id] = Outgoing(
            message, probe, row["due_ms"], row["sends"], witnesses, row["error"]
        )
        # Where the clock has been set back, times continue from where they were.
        was_ms = row["due_ms"] - core.config.resend_possible_ms
        core.clock.latest_ms = max(core.clock.latest_ms, was_ms)


def message_of(channel_id: str, row: Row) -> SdsMessage:
    """Return the message of a row of the log, without filter and requests.

    Raises:
        MessageError: its causal history is damaged.
    """
    return SdsMessage(
        channel_id,
        row["message_id"].decode(),
        row["sender_id"].decode(),
        row["lamport"] + LAMPORT_OFFSET,
        decode_history(row["history"]),
        content=row["content"],
    )
