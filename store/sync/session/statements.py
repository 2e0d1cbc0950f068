"""The statements about coverage of a session that this node began.

Only the initiator makes statements: its view is older than the first frame that the peer has seen,
so the peer's view holds all that the peer held at that moment. The other way round that is unknown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from reconcile.ids import SyncIds, ordered
from reconcile.view import Measured, Spans
from reconcile.view import ViewRead as Read
from store.domain.coverage import Comparison, Span, Statement, eras, spans, stated
from store.domain.partitioning import DAY_NS
from store.domain.view import OpenView
from store.sync.index.view_reads import in_thread_if
from store.sync.limits import THREADED_SPANS
from store.sync.session.report import Comparisons, SessionReport

_LONG_NS: Final = 1_000 * DAY_NS


async def measure(view: OpenView, report: SessionReport, now_ns: int) -> Comparisons | None:
    """Measure the spans that a session may state something about; None: there are none.

    Raises as `OpenView.answer`.
    """
    result = report.result
    if result is None or result.refusal or result.truncated:
        return None
    own, peer = result.own_count, result.peer_count
    if own is None or peer is None:
        return None
    if own - len(result.to_send) != peer - len(result.to_receive):
        return None  # the peer does not keep as much of the window
    (start_ns, _), (end_ns, _) = result.window
    conflicts = SyncIds.of([(each.timestamp, each.message_hash) for each in report.conflicts])
    found = Comparison(
        result.to_send,
        result.to_receive,
        resolved=False,
        keyed_from_ns=report.summed_from_ns,
        compared_ns=report.opened_ns,
        conflicts=ordered(conflicts),
    )
    long = eras(start_ns, end_ns, now_ns, found)
    counts = (await _measured(view, long)).counts.tolist() if long else []
    empty = [era for era, count in zip(long, counts, strict=True) if not count]
    large = end_ns - start_ns > _LONG_NS
    where = await in_thread_if(large, spans, start_ns, end_ns, now_ns, found, empty)
    return Comparisons(where, await _measured(view, where), found) if where else None


async def _measured(view: OpenView, where: list[Span]) -> Measured:
    lower, upper = np.array(where, np.int64).T.copy()
    asked = Spans(SyncIds.at_times(lower), SyncIds.at_times(upper))
    measured = (await view.answer(Read(measure=asked))).measured
    assert measured is not None
    return measured


async def statements_of(report: SessionReport, compared: Comparisons) -> list[Statement]:
    """Return the statements of a session that has ended."""
    transfer = report.transfer
    resolved = report.is_resolved and not (transfer.refused_by_policy or transfer.pruned)
    found = replace(compared.found, resolved=resolved)
    large = len(compared.spans) > THREADED_SPANS
    return await in_thread_if(large, stated, compared.spans, compared.measured, found)
