"""What a session that this node began leaves behind for ``GetCoverage``.

Only the beginner makes statements: its view is older than the first frame that the peer has seen,
so the peer's view holds all that the peer held at that moment. The other way round that is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from reconcile.ids import SyncIds, ordered
from reconcile.session import Result
from reconcile.view import Measured, Spans
from reconcile.view import ViewRead as Read
from store.domain.coverage import (
    Comparison,
    Span,
    Statement,
    eras,
    spans,
    stated,
)
from store.domain.partitioning import DAY_NS
from store.domain.view import OpenView
from store.sync.index.reading import in_thread_if
from store.sync.limits import THREADED_SPANS
from store.sync.session.agreement import Proof
from store.sync.transfer.events import Report

_LONG_NS: Final = 1_000 * DAY_NS


@dataclass(frozen=True, slots=True)
class Compared:
    """What was held here in some spans when a session compared them, and what it found."""

    where: list[Span]
    measured: Measured
    found: Comparison


async def compare(
    view: OpenView, result: Result, proof: Proof, opened_ns: int, now_ns: int
) -> Compared | None:
    """Measure the spans that the session may say something about; None: it may say nothing.

    ``opened_ns``: the clock before the view was opened. Raises as `OpenView.answer`.
    """
    own, peer = result.own_count, result.peer_count
    if result.refusal or result.truncated or own is None or peer is None:
        return None
    if own - len(result.to_send) != peer - len(result.to_receive):
        return None  # the peer does not keep as much of the window
    (start_ns, _), (end_ns, _) = result.window
    conflicts = SyncIds.of([(each.timestamp, each.message_hash) for each in proof.conflicts])
    found = Comparison(
        result.to_send,
        result.to_receive,
        False,
        proof.summed_from_ns,
        opened_ns,
        conflicts=ordered(conflicts),
    )
    long = eras(start_ns, end_ns, now_ns, found)
    counts = (await _measured(view, long)).counts.tolist() if long else []
    empty = [era for era, count in zip(long, counts, strict=True) if not count]
    where = await in_thread_if(
        end_ns - start_ns > _LONG_NS, spans, start_ns, end_ns, now_ns, found, empty
    )
    return Compared(where, await _measured(view, where), found) if where else None


async def _measured(view: OpenView, where: list[Span]) -> Measured:
    lower, upper = np.array(where, np.int64).T.copy()
    asked = Spans(SyncIds.at_times(lower), SyncIds.at_times(upper))
    measured = (await view.answer(Read(measure=asked))).measured
    assert measured is not None
    return measured


async def statements_of(compared: Compared, report: Report, *, equal: bool) -> list[Statement]:
    """What a session says at its end; ``equal`` is false where its transfer has failed."""
    resolved = equal and not (report.refused_by_policy or report.pruned)
    found = replace(compared.found, resolved=resolved)
    large = len(compared.where) > THREADED_SPANS
    return await in_thread_if(large, stated, compared.where, compared.measured, found)
