"""What a session came to, in the words of the contract ("Reports")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

import numpy as np

from reconcile.ids import SyncId, SyncIds
from reconcile.session import Result
from store.domain.equality import Equality, Hidden
from store.domain.ports import SyncEnding, SyncOutcome
from store.sync.errors import shown
from store.sync.limits import MAX_SHOWN_HIDDEN
from store.sync.session.agreement import Proof
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


def outcome_of(
    result: Result,
    proof: Proof,
    report: Report,
    *,
    asked_from: SyncId,
    horizon: SyncId,
    seconds: float,
    node_id: str,
    error: str = "",
    compact_failed: str = "",
) -> SyncOutcome:
    """A session that reconciled; ``report`` is that of its transfer, as far as it came.

    ``asked_from``: the lower bound that the initiator wanted; below ``horizon`` nothing was
    compared. ``error``: what ended the session, other than the transfer's own fault.
    ``compact_failed``: why the compact mode was given up.
    """
    error = error or report.error
    found = bool(len(result.to_send) or len(result.to_receive))
    open_ends = found and not report.equal
    hidden = _hidden(proof.hidden)
    return SyncOutcome(
        in_sync=not (error or open_ends or result.truncated),
        round_trips=result.rounds,
        bytes_sent=result.bytes_sent,
        bytes_received=result.bytes_received,
        messages_sent=report.stored_by_peer,
        messages_received=report.stored + report.duplicates,
        seconds=seconds,
        error=error,
        peer_node_id=node_id,
        differences=len(result.to_send) + len(result.to_receive),
        refused_by_policy=report.refused_by_policy,
        undelivered=report.undelivered,
        left_over=result.truncated,
        middle_ns=_middle_ns(result) if result.truncated else 0,
        notes=tuple(
            _notes(
                result,
                hidden,
                report,
                asked_from=asked_from,
                horizon=horizon,
                compact_failed=compact_failed,
            )
        ),
        ending=SyncEnding.FAILED if error else SyncEnding.DONE,
        missing_here=len(result.to_receive),
        missing_there=len(result.to_send),
        unsolicited=report.unsolicited,
        own_count=result.own_count,
        peer_count=result.peer_count,
        equality=_equality(result, proof),
        keyed_from_ns=proof.keyed_from_ns,
        hidden=hidden,
        compact=proof.compact,
    )


def _equality(result: Result, proof: Proof) -> Equality:
    if proof.keyed_from_ns is None:
        return Equality.XOR
    whole = proof.keyed_from_ns <= result.window[0][0]
    return Equality.KEYED if whole else Equality.PARTLY_KEYED


def _hidden(ids: SyncIds) -> Hidden | None:
    if not len(ids):
        return None
    shown_ids = ids[:MAX_SHOWN_HIDDEN].pairs()
    first_ns, last_ns = int(ids.timestamps[0]), int(ids.timestamps[-1])
    return Hidden(len(ids), first_ns, last_ns, tuple(digest for _, digest in shown_ids))


def _middle_ns(result: Result) -> int:
    timestamps = np.concatenate((result.to_send.timestamps, result.to_receive.timestamps))
    middle = len(timestamps) // 2
    return int(np.partition(timestamps, middle)[middle]) if len(timestamps) else 0


def _notes(
    result: Result,
    hidden: Hidden | None,
    report: Report,
    *,
    asked_from: SyncId,
    horizon: SyncId,
    compact_failed: str,
) -> Iterator[str]:
    if asked_from < horizon:
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
            f"found by keyed fingerprints and hidden from those of WAKU-SYNC: {hidden.count:,}, "
            f"from {_time(hidden.first_ns)} to {_time(hidden.last_ns)}: a publisher forged them, "
            "or something is broken; see the runbook StorenodeForgedFingerprint"
        )
    yield from _count_notes(result)
    if compact_failed:
        yield f"the compact mode was given up for a base session: {shown(compact_failed)}"


def _count_notes(result: Result) -> Iterator[str]:
    """Do the counts of the two sides contradict what was found?

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
