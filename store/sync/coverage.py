"""The statements about coverage of sessions that this node began, until they are written.

Only the initiator makes statements: its view is older than the first frame that the peer has seen,
so the peer's view holds all that the peer held at that moment. The other way round that is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from reconcile.ids import SyncIds, ordered
from reconcile.session import Result
from store.domain.coverage import (
    Comparison,
    Statement,
    Statements,
    Sums,
    eras,
    measure_spans,
    overlapping,
    replaced,
    spans,
    stated,
)
from store.domain.partitioning import DAY_NS, HOUR_NS
from store.domain.ports import NotServingError
from store.domain.view import Span
from store.sync.index.view_reads import in_thread_if
from store.sync.index.views import StoredView
from store.sync.limits import THREADED_ROWS
from store.sync.session.report import ContentConflict, SessionReport
from storenode.common.bounded_dict import BoundedDict

_LONG_NS: Final = 1_000 * DAY_NS
_MAX_STORES: Final = 64
_WRITTEN_EVERY_NS: Final = HOUR_NS
"""Statements that only repeat others at a later time are written this often."""


Measured = tuple[Comparison, Sums]
"""What a session has compared, and the sums of the spans that it may make statements about."""


async def measure(
    view: StoredView,
    report: SessionReport,
    result: Result,
    conflicts: Sequence[ContentConflict],
    now_ns: int,
) -> Measured | None:
    """Measure what a session has compared, before anything is transferred.

    None: it can make no statement. Raises as `StoredView.measure`.
    """
    has_counts = report.own_count is not None and report.peer_count is not None
    # Where the counts disagree, the peer does not keep as much of the window.
    if not report.compared or report.left_over or not (has_counts and report.counts_agree):
        return None
    ids = [(each.timestamp, each.message_hash) for each in conflicts]
    found = Comparison(
        to_send=result.to_send,
        to_receive=result.to_receive,
        resolved=False,
        keyed_from_ns=report.keyed_from_ns,
        compared_ns=report.opened_ns,
        conflicts=ordered(SyncIds.of(ids)) if ids else SyncIds.empty(),
    )
    (start_ns, _), (end_ns, _) = result.window
    long = await measure_spans(view, eras(start_ns, end_ns, now_ns, found))
    empty: list[Span] = []
    for era, (count, _) in long.items():
        if not count and empty and empty[-1][1] == era[0]:
            empty[-1] = empty[-1][0], era[1]
        elif not count:
            empty.append(era)
    large = end_ns - start_ns - sum(upper - lower for lower, upper in empty) > _LONG_NS
    where = await in_thread_if(large, spans, start_ns, end_ns, now_ns, found, empty)
    sums = await measure_spans(view, where)
    return (found, sums) if sums else None


async def statements_of(report: SessionReport, measured: Measured) -> list[Statement]:
    """Return the statements of a session that has ended, about spans that it has measured."""
    resolved = report.is_resolved and not (report.refused_by_policy or report.pruned)
    found, sums = measured
    found = replace(found, resolved=resolved)
    return await in_thread_if(len(sums) > THREADED_ROWS, stated, sums, found)


@dataclass(slots=True)
class _Written:
    """The last write about a store, and newer statements that only repeat it."""

    content: frozenset[tuple[object, ...]]
    written_ns: int
    waiting: Sequence[Statement] = ()
    noted_ns: int = 0


class StatementBuffer:
    """`Statements` that are written when they change, after an hour, or at shutdown."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._written = BoundedDict[str, _Written](_MAX_STORES)

    async def note(self, store_id: str, statements: Sequence[Statement], now_ns: int) -> None:
        """Keep statements in place of older ones about the same time, as `Statements.note`."""
        if not statements:
            return
        before, content = self._written.get(store_id), _content(statements)
        if (
            before is None
            or content != before.content
            or not 0 <= now_ns - before.written_ns < _WRITTEN_EVERY_NS
        ):
            await self._statements.note(store_id, statements, now_ns)
            self._written[store_id] = _Written(content, now_ns)
        else:
            before.waiting, before.noted_ns = statements, now_ns

    async def between(self, start_ns: int, end_ns: int) -> Mapping[str, Sequence[Statement]]:
        """Return by store the statements that overlap a range, as `Statements.between`."""
        found = dict(await self._statements.between(start_ns, end_ns))
        for store_id, written in self._written.items():
            if about := overlapping(written.waiting, (start_ns, end_ns)):
                found[store_id] = replaced(found.get(store_id, ()), about, written.noted_ns)
        return found

    async def flush(self) -> None:
        """Write what waits; a database that does not serve keeps the older statements."""
        for store_id, written in list(self._written.items()):
            if written.waiting:
                try:
                    await self._statements.note(store_id, written.waiting, written.noted_ns)
                except NotServingError:
                    return
                written.waiting = ()


def _content(statements: Sequence[Statement]) -> frozenset[tuple[object, ...]]:
    """Return what statements say of messages, without the times of the comparison."""
    return frozenset(
        (
            each.start_ns,
            each.keyed,
            (each.missing_here, each.missing_there),
            each.count,
            each.fingerprint,
        )
        for each in statements
        if each.count or not each.equal
    )
