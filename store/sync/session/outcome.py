"""What a session came to, in the words of the contract ("Reports")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import numpy as np

from reconcile.ids import SyncId, SyncIds
from reconcile.session import Result
from store.domain.ports import ContentConflict, Equality, Hidden, SyncEnding, SyncOutcome, SyncRole
from store.sync.errors import shown
from store.sync.limits import MAX_SHOWN_HIDDEN
from store.sync.session.agreement import BY_XOR, Proof
from store.sync.session.stating import Compared
from store.sync.transfer.events import Report
from storenode.message.limits import NS_PER_S

NOTHING_TRANSFERRED: Final = Report()


def unsuccessful(ending: SyncEnding, error: str, seconds: float, node_id: str = "") -> SyncOutcome:
    """A session that found nothing out."""
    return SyncOutcome(
        in_sync=False,
        round_trips=0,
        bytes_sent=0,
        bytes_received=0,
        messages_sent=0,
        messages_received=0,
        seconds=seconds,
        error=error,
        peer_node_id=node_id,
        ending=ending,
    )


@dataclass(slots=True)
class Account:
    """What is known of one session, for its outcome.

    ``asked_from``: the lower bound that the initiator wanted; below ``horizon`` nothing was
    compared. ``compact_failed``: why the compact mode was given up in the middle. ``report`` is
    that of its transfer, as far as it came. ``opened_ns``: the clock before its view was opened.
    ``compared``: what was held then.
    """

    role: SyncRole
    began_ns: int
    node_id: str = ""
    store_id: str = ""
    asked_from: SyncId | None = None
    horizon: SyncId | None = None
    result: Result | None = None
    proof: Proof = BY_XOR
    compact_failed: str = ""
    report: Report = field(default_factory=lambda: NOTHING_TRANSFERRED)
    opened_ns: int = 0
    compared: Compared | None = None

    @property
    def conflicts(self) -> tuple[ContentConflict, ...]:
        """The conflicts of the comparison and of the transfer, as far as they are kept."""
        return (*self.proof.conflicts, *self.report.conflicts)

    @property
    def is_resolved(self) -> bool:
        """True: both sides hold all that one of them lacked, unless the session has failed."""
        result, report = self.result, self.report
        if result is None or result.truncated:
            return False
        return report.equal or not (len(result.to_receive) or len(result.to_send))

    def outcome(
        self, now_ns: int, error: str = "", ending: SyncEnding | None = None
    ) -> SyncOutcome:
        """What the session came to; ``error`` is what ended it before its end."""
        seconds = (now_ns - self.began_ns) / NS_PER_S
        result, proof, report = self.result, self.proof, self.report
        if result is None or result.refusal or ending not in (None, SyncEnding.FAILED):
            return unsuccessful(ending or SyncEnding.FAILED, error, seconds, self.node_id)
        error = error or report.error
        missing_here, missing_there = len(result.to_receive), len(result.to_send)
        resolved = not error and self.is_resolved
        hidden = _hidden(proof.hidden) if len(proof.hidden) else None
        equality = Equality.XOR
        if proof.summed_from_ns is not None:
            whole = proof.summed_from_ns <= result.window[0][0]
            equality = Equality.KEYED if whole else Equality.PARTLY_KEYED
        return SyncOutcome(
            in_sync=resolved and not self.conflicts,
            round_trips=result.rounds,
            bytes_sent=result.bytes_sent,
            bytes_received=result.bytes_received,
            messages_sent=report.stored_by_peer,
            messages_received=report.stored + report.duplicates,
            seconds=seconds,
            error=error,
            peer_node_id=self.node_id,
            differences=missing_here + missing_there,
            refused_by_policy=report.refused_by_policy,
            undelivered=report.undelivered,
            left_over=result.truncated,
            middle_ns=_middle_ns(result) if result.truncated else 0,
            notes=tuple(_notes(self, result, hidden)),
            ending=SyncEnding.FAILED if error else SyncEnding.DONE,
            missing_here=missing_here,
            missing_there=missing_there,
            unsolicited=report.unsolicited,
            own_count=result.own_count,
            peer_count=result.peer_count,
            equality=equality,
            keyed_from_ns=proof.summed_from_ns,
            hidden=hidden,
            compact=proof.compact,
            conflicts=len(proof.conflicts) + report.in_conflict,
            shown_conflicts=self.conflicts[:MAX_SHOWN_HIDDEN],
        )


def _hidden(ids: SyncIds) -> Hidden:
    shown_ids = ids[:MAX_SHOWN_HIDDEN].pairs()
    first_ns, last_ns = int(ids.timestamps[0]), int(ids.timestamps[-1])
    return Hidden(len(ids), first_ns, last_ns, tuple(digest for _, digest in shown_ids))


def _middle_ns(result: Result) -> int:
    timestamps = np.concatenate((result.to_send.timestamps, result.to_receive.timestamps))
    middle = len(timestamps) // 2
    return int(np.partition(timestamps, middle)[middle]) if len(timestamps) else 0


def _notes(account: Account, result: Result, hidden: Hidden | None) -> Iterator[str]:
    report, lower = account.report, result.window[0]
    horizon = account.horizon or lower
    if (account.asked_from or lower) < horizon:
        yield f"not compared: what is older than {_time(horizon[0])}, the horizon of this node"
    if result.truncated:
        yield "a session reports no more differences than these: the next one finds the rest"
    if report.refused:
        yield f"refused here by policy: {_counts(report.refused)}"
    if report.refused_by_peer:
        reasons = "; ".join(report.reasons_of_peer)
        yield f"refused by the peer: {_counts(report.refused_by_peer)}" + (
            f" ({shown(reasons)})" if reasons else ""
        )
    if report.undelivered:
        yield f"announced by the peer and not delivered: {report.undelivered:,}"
    if report.missed_by_peer:
        yield f"sent to the peer, which says that it did not get them: {report.missed_by_peer:,}"
    if report.pruned:
        yield f"dropped by retention here before they could be sent: {report.pruned:,}"
    if report.unsolicited or report.repeated:
        strays = report.unsolicited + report.repeated
        yield f"sent by the peer although nobody asked for them: {strays:,}"
    if hidden is not None:
        yield (
            "found by sums that nobody can forge and hidden from the fingerprints of WAKU-SYNC: "
            f"{hidden.count:,}, from {_time(hidden.first_ns)} to {_time(hidden.last_ns)}: a "
            "publisher forged them, or something is broken; see the runbook "
            "StorenodeForgedFingerprint"
        )
    if account.conflicts:
        first = account.conflicts[0]
        yield (
            f"held with different contents under one hash: {len(account.conflicts):,}, such "
            f"as {first.message_hash.hex()}, content {first.own_digest.hex()} here and "
            f"{first.peer_digest.hex()} there; they are not transferred"
        )
    yield from _count_notes(result)
    if account.compact_failed:
        failed = shown(account.compact_failed)
        yield f"the compact mode was given up for a base session: {failed}"


def _count_notes(result: Result) -> Iterator[str]:
    """Yield notes where the counts of the two sides contradict what was found.

    They do where a fingerprint was forged, and also where the horizons of the two differ.
    """
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
