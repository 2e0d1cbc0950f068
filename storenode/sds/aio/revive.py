"""A ledger made from a state, so that a participant goes on where its last transaction left it.

What is not kept is timing (when to speak next), sync messages that waited, and which messages no
other one names: all of that begins anew. The first message of a new life therefore carries the
filter. Others who ask are answered from the state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from heapq import heappop, heappush
from typing import Final

from storenode.sds.aio.ledger import OutboxItem, ParticipantLedger
from storenode.sds.aio.state import LAMPORT_OFFSET, Row, SqliteState, StateError
from storenode.sds.bloom import FilterShape
from storenode.sds.channel import MessageChannel
from storenode.sds.claims import Proof, proof_of, said, said_by
from storenode.sds.codec import MessageError, decode_message
from storenode.sds.config import ChannelConfig
from storenode.sds.events import Counts
from storenode.sds.incoming_buffer import WaitingMessage
from storenode.sds.limits import MAX_LOST_IDS, MAX_UNPROVEN
from storenode.sds.log import LogEntry
from storenode.sds.outgoing_buffer import Outgoing
from storenode.sds.rng import Rng

_UNPROVEN: Final = ("", Proof.OWN.value)
_ROWS_AT_ONCE: Final = 64
"""Messages whose contents are in memory at a time."""


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
    """Return how many of the last IDs a rolling filter contains after so many insertions."""
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
    count = filter_length(core.config.filter, ledger.serial)
    in_filter = dict.fromkeys(range(ledger.serial - count + 1, ledger.serial + 1), "")
    _fill_log(state, ledger, in_filter)
    _fill_lost(state, ledger)
    # Before what waits, whose times count from where the clock has come to.
    _fill_outgoing(state, core)
    _fill_waiting(ledger, state.rows("waiting"), in_filter)
    _fill_filter(ledger, in_filter)
    for each in state.rows("outbox"):
        message_id = each["message_id"].decode()
        ledger.outbox[message_id] = OutboxItem(**{**each, "message_id": message_id})


def _fill_log(state: SqliteState, ledger: ParticipantLedger, in_filter: dict[int, str]) -> None:
    """Read the log once, oldest first; note the IDs that the filter had by their numbers."""
    core, unproven = ledger.core, list[tuple[int, str]]()

    def entries() -> Iterator[LogEntry]:
        for each in state.entries():
            if each.serial in in_filter:
                in_filter[each.serial] = each.message_id
            if each.proof in _UNPROVEN:
                heappush(unproven, (each.serial, each.message_id))
                if len(unproven) > MAX_UNPROVEN:
                    core.claims.older.add(core.log.digest(heappop(unproven)[1]))
            yield LogEntry(each.lamport, each.message_id, each.sender_id, each.hint)

    core.log.load(entries())
    names = [message_id for _, message_id in sorted(unproven)]
    for start in range(0, len(names), _ROWS_AT_ONCE):
        for row in state.messages(names[start : start + _ROWS_AT_ONCE]):
            sender_id, lamport = row["sender_id"].decode(), row["lamport"] + LAMPORT_OFFSET
            own = row["proof"] == Proof.OWN.value
            core.claims.add(
                row["message_id"].decode(), said(sender_id, lamport, row["content"], own=own)
            )


def _fill_lost(state: SqliteState, ledger: ParticipantLedger) -> None:
    names = [each["message_id"].decode() for each in state.rows("lost")]
    ledger.lost_rows.update(names)
    ledger.core.lost = dict.fromkeys(names[-MAX_LOST_IDS:])


def _fill_waiting(ledger: ParticipantLedger, rows: list[Row], in_filter: dict[int, str]) -> None:
    core = ledger.core
    made = [_waiting(core, row) for row in rows]
    core.incoming.restore(made, [])
    for waiting, row in zip(made, rows, strict=True):
        if not waiting.proof:
            core.claims.add(waiting.message.message_id, said_by(waiting.message))
        ledger.serials[waiting.message.message_id] = row["serial"]
        if row["serial"] in in_filter:
            in_filter[row["serial"]] = waiting.message.message_id
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


def _fill_filter(ledger: ParticipantLedger, in_filter: dict[int, str]) -> None:
    """Insert again the IDs that the filter had.

    Where a message was withdrawn another one takes its place, so that the filter rolls over when it
    would have.
    """
    newest = next((name for name in reversed(in_filter.values()) if name), "")
    for name in in_filter.values():
        if name or newest:
            ledger.core.filter.add(name or newest)
    ledger.core.filter.complete = ledger.serial <= len(in_filter)


def _fill_outgoing(state: SqliteState, core: MessageChannel) -> None:
    made = []
    for row in state.rows("unacknowledged"):
        message = decode_message(row["payload"], stored=True)
        probe = core.config.filter.probe(message.message_id)
        witnesses = json.loads(row["witnesses"])
        made.append(Outgoing(message, probe, row["due_ms"], row["sends"], witnesses, row["error"]))
        # Where the clock has been set back, times go on from where they were.
        was_ms = row["due_ms"] - core.config.resend_possible_ms
        core.clock.latest_ms = max(core.clock.latest_ms, was_ms)
    for outgoing in sorted(made, key=lambda each: each.message.lamport or 0):
        core.outgoing.add(outgoing)
