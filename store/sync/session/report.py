"""The report of a session: filled while it runs, and shown by all who show sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Protocol

import numpy as np

from reconcile.ids import SyncId, SyncIds
from reconcile.session import Result
from store.domain.coverage import Sums
from store.domain.view import Span
from store.sync.errors import shown
from store.sync.limits import MAX_SHOWN_HIDDEN
from store.sync.transfer.report import ContentConflict, Report
from storenode.message.limits import NS_PER_S


class Equality(StrEnum):
    """The way in which a session has compared the two sides.

    XOR: by the fingerprints of WAKU-SYNC, which publishers can forge. KEYED: by lattice sums over
    contents, which cannot be forged. PARTLY_KEYED: by these from some time on.
    """

    UNKNOWN = ""
    XOR = "xor"
    KEYED = "keyed"
    PARTLY_KEYED = "partly keyed"


@dataclass(frozen=True, slots=True)
class Hidden:
    """Differences that the fingerprints of WAKU-SYNC did not show: forged, or a fault.

    ``hashes``: some of their messages, few enough for a log. Times in Unix nanoseconds.
    """

    count: int
    first_ns: int
    last_ns: int
    hashes: tuple[bytes, ...]


class SyncRole(StrEnum):
    """The side that began a session (label ``role`` of the metrics)."""

    INITIATOR = "initiator"
    RESPONDER = "responder"


class SyncEnding(StrEnum):
    """The end of a session (label ``outcome`` of the metrics).

    DONE: both sides completed it. ABORTED: another session with this peer went before it, which is
    no error. REFUSED: one of the two does not reconcile. FAILED: it broke. UNAVAILABLE: the
    database of this node did not serve.
    """

    DONE = "done"
    ABORTED = "aborted"
    REFUSED = "refused"
    FAILED = "failed"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class SyncOutcome:
    """The result of a session with a peer, on one side.

    ``in_sync``: both sides hold the same set over the window now, but for what lies below a
    horizon or is refused by policy (then ``notes`` say so). ``round_trips``: payloads sent by the
    initiator. Bytes are those of reconciliation payloads. ``messages_sent``: what the peer answered
    as stored. ``error``: one sentence, empty for DONE and ABORTED. ``differences``:
    ``missing_here`` (IDs that only the peer held) and ``missing_there`` together.
    ``undelivered``: messages that the peer promised and did not deliver, ``unsolicited`` ones
    that it sent unasked. ``left_over``: a limit was reached, and the next session goes on; then
    ``middle_ns`` is the median of the timestamps of what was found.
    ``own_count`` and ``peer_count``: IDs over the window, None where unknown. ``keyed_from_ns``:
    from here on lattice sums were compared; None: nowhere. ``compact``: the differences were found
    in the compact mode. ``conflicts``: hashes with different contents on the two sides.
    """

    in_sync: bool = False
    round_trips: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0
    messages_received: int = 0
    seconds: float = 0.0
    error: str = ""
    peer_node_id: str = ""
    differences: int = 0
    refused_by_policy: int = 0
    undelivered: int = 0
    left_over: bool = False
    middle_ns: int = 0
    notes: tuple[str, ...] = ()
    ending: SyncEnding = SyncEnding.DONE
    missing_here: int = 0
    missing_there: int = 0
    unsolicited: int = 0
    own_count: int | None = None
    peer_count: int | None = None
    equality: Equality = Equality.UNKNOWN
    keyed_from_ns: int | None = None
    hidden: Hidden | None = None
    compact: bool = False
    conflicts: int = 0
    shown_conflicts: tuple[ContentConflict, ...] = ()


class SyncObserver(Protocol):
    """An observer of sessions of either role; must not block or raise."""

    def session_ended(
        self, role: SyncRole, peer_node_id: str, peer_store_id: str, outcome: SyncOutcome
    ) -> None:
        """Note that a session ended."""

    def transferred(self, direction: str, outcome: str, count: int) -> None:
        """Count messages of a transfer: ``sent`` or ``received``, with their outcome."""

    def sync_bytes(self, direction: str, count: int) -> None:
        """Count bytes of reconciliation payloads: ``sent`` or ``received``."""


_COUNTED: Final = (None, SyncEnding.FAILED, SyncEnding.UNAVAILABLE)
"""Endings of sessions whose counts are reported."""


@dataclass(slots=True)
class SessionReport:
    """The report of one session; ``peer``: the address that this node calls.

    ``asked_from``: the lower bound that the initiator wanted; below ``horizon`` nothing was
    compared. ``opened_ns``: the clock before the view was opened. From ``summed_from_ns`` on sums
    were equal in the end, but for the conflicts; None: nowhere. ``hidden``: differences that the
    fingerprints of WAKU-SYNC did not show. ``settled``: the spans whose conflicts are all in
    ``conflicts``. ``compact``: the differences were found in the compact
    mode, ``compact_failed``: why it was given up in the middle. ``transfer`` is complete as far as
    the transfer came. ``measured``: the spans that it makes statements about, as they were stored
    when it compared. ``error``: what ended the session before its end, and ``ending`` how.
    """

    role: SyncRole
    began_ns: int
    node_id: str = ""
    store_id: str = ""
    peer: str = ""
    asked_from: SyncId | None = None
    horizon: SyncId | None = None
    opened_ns: int = 0
    result: Result | None = None
    summed_from_ns: int | None = None
    hidden: SyncIds = field(default_factory=SyncIds.empty)
    conflicts: tuple[ContentConflict, ...] = ()
    settled: tuple[Span, ...] = ()
    compact: bool = False
    compact_failed: str = ""
    transfer: Report = field(default_factory=Report)
    measured: Sums | None = None
    error: str = ""
    ending: SyncEnding | None = None

    @property
    def is_resolved(self) -> bool:
        """True if both sides hold all that one of them lacked."""
        result, transfer = self.result, self.transfer
        if result is None or result.truncated or self.error or transfer.error:
            return False
        return transfer.equal or not (len(result.to_receive) or len(result.to_send))

    def outcome(self, now_ns: int) -> SyncOutcome:
        """Return the outcome in the terms of the contract ("Reports")."""
        result, transfer = self.result, self.transfer
        seconds = (now_ns - self.began_ns) / NS_PER_S
        if result is None or result.refusal or self.ending not in _COUNTED:
            return SyncOutcome(
                seconds=seconds,
                error=self.error,
                peer_node_id=self.node_id,
                ending=self.ending or SyncEnding.FAILED,
            )
        error = self.error or transfer.error
        missing_here, missing_there = len(result.to_receive), len(result.to_send)
        conflicts = (*self.conflicts, *transfer.conflicts)
        hidden = _hidden(self.hidden) if len(self.hidden) else None
        equality = Equality.XOR
        if self.summed_from_ns is not None:
            whole = self.summed_from_ns <= result.window[0][0]
            equality = Equality.KEYED if whole else Equality.PARTLY_KEYED
        return SyncOutcome(
            in_sync=self.is_resolved and not conflicts,
            round_trips=result.rounds,
            bytes_sent=result.bytes_sent,
            bytes_received=result.bytes_received,
            messages_sent=transfer.stored_by_peer,
            messages_received=transfer.stored + transfer.duplicates,
            seconds=seconds,
            error=error,
            peer_node_id=self.node_id,
            differences=missing_here + missing_there,
            refused_by_policy=transfer.refused_by_policy,
            undelivered=transfer.undelivered,
            left_over=result.truncated,
            middle_ns=_middle_ns(result) if result.truncated else 0,
            notes=tuple(_notes(self, result, conflicts, hidden)),
            ending=(self.ending or SyncEnding.FAILED) if error else SyncEnding.DONE,
            missing_here=missing_here,
            missing_there=missing_there,
            unsolicited=transfer.unsolicited,
            own_count=result.own_count,
            peer_count=result.peer_count,
            equality=equality,
            keyed_from_ns=self.summed_from_ns,
            hidden=hidden,
            compact=self.compact,
            conflicts=len(self.conflicts) + transfer.in_conflict,
            shown_conflicts=conflicts[:MAX_SHOWN_HIDDEN],
        )


def _hidden(ids: SyncIds) -> Hidden:
    hashes = tuple(digest for _, digest in ids[:MAX_SHOWN_HIDDEN].pairs())
    return Hidden(len(ids), int(ids.timestamps[0]), int(ids.timestamps[-1]), hashes)


def _middle_ns(result: Result) -> int:
    timestamps = np.concatenate((result.to_send.timestamps, result.to_receive.timestamps))
    middle = len(timestamps) // 2
    return int(np.partition(timestamps, middle)[middle]) if len(timestamps) else 0


def _notes(
    report: SessionReport,
    result: Result,
    conflicts: tuple[ContentConflict, ...],
    hidden: Hidden | None,
) -> Iterator[str]:
    transfer, lower = report.transfer, result.window[0]
    horizon = report.horizon or lower
    if (report.asked_from or lower) < horizon:
        yield f"not compared: what is older than {_time(horizon[0])}, the horizon of this node"
    if result.truncated:
        yield "a session reports no more differences than these: the next one finds the rest"
    if transfer.refused:
        yield f"refused here by policy: {_counts(transfer.refused)}"
    if transfer.refused_by_peer:
        reasons = "; ".join(transfer.reasons_of_peer)
        yield f"refused by the peer: {_counts(transfer.refused_by_peer)}" + (
            f" ({shown(reasons)})" if reasons else ""
        )
    if transfer.undelivered:
        yield f"announced by the peer and not delivered: {transfer.undelivered:,}"
    if transfer.missed_by_peer:
        yield f"sent to the peer, which says that it did not get them: {transfer.missed_by_peer:,}"
    if transfer.pruned:
        yield f"dropped by retention here before they could be sent: {transfer.pruned:,}"
    if strays := transfer.unsolicited + transfer.repeated:
        yield f"sent by the peer although nobody asked for them: {strays:,}"
    yield from _difference_notes(conflicts, hidden)
    yield from _count_notes(result)
    if report.compact_failed:
        failed = shown(report.compact_failed)
        yield f"the compact mode was given up for a base session: {failed}"


def _difference_notes(
    conflicts: tuple[ContentConflict, ...], hidden: Hidden | None
) -> Iterator[str]:
    if hidden is not None:
        yield (
            "found by sums that nobody can forge and hidden from the fingerprints of WAKU-SYNC: "
            f"{hidden.count:,}, from {_time(hidden.first_ns)} to {_time(hidden.last_ns)}: a "
            "publisher forged them, or something is broken; see the runbook "
            "StorenodeForgedFingerprint"
        )
    if conflicts:
        first = conflicts[0]
        yield (
            f"held with different contents under one hash: {len(conflicts):,}, such "
            f"as {first.message_hash.hex()}, content {first.own_digest.hex()} here and "
            f"{first.peer_digest.hex()} there; they are not transferred"
        )


def _count_notes(result: Result) -> Iterator[str]:
    own, peer = result.own_count, result.peer_count
    if own is None or peer is None or result.truncated:
        return
    if own - len(result.to_send) != peer - len(result.to_receive):
        yield (
            f"held in the range: {own:,} here and {peer:,} by the peer's count, which the "
            "differences do not explain: the horizons of the two differ, or a fingerprint is forged"
        )


def _counts(by_label: Mapping[str, int]) -> str:
    return ", ".join(f"{label} {count:,}" for label, count in sorted(by_label.items()))


def _time(timestamp_ns: int) -> str:
    return datetime.fromtimestamp(timestamp_ns // NS_PER_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
