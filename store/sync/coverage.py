"""The statements about coverage of sessions that this node began, until they are written.

Only the initiator makes statements: its view is older than the first frame that the peer has seen,
so the peer's view holds all that the peer held at that moment. The other way round that is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
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
from store.domain.partitioning import DAY_NS, HOUR_NS, MINUTE_NS
from store.domain.ports import NotServingError
from store.domain.view import Span
from store.sync.index.views import StoredView, in_thread_if
from store.sync.limits import THREADED_ROWS
from store.sync.session.report import ContentConflict, SessionReport
from storenode.common.bounded_dict import BoundedDict

_LONG_NS: Final = 1_000 * DAY_NS
_MAX_STORES: Final = 64
_CHANGED_EVERY_NS: Final = MINUTE_NS
_REPEATED_EVERY_NS: Final = HOUR_NS
"""Statements that have changed, or only repeat others at a later time, are written this often."""

Measured = tuple[Comparison, Sums]
"""A comparison of a session and the sums of the spans that it may make statements about."""


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
class _Buffered:
    """The statements about a store that are not written yet, and when some were written last.

    ``content`` is that of the last ones, ``is_changed`` whether it changed since they were written.
    """

    waiting: Sequence[Statement] = ()
    noted_ns: int = 0
    written_ns: int = -_REPEATED_EVERY_NS
    content: Sequence[object] = ()
    is_changed: bool = False


class StatementBuffer:
    """`Statements` that are written when they change, after an hour, or at shutdown.

    Until then they are in memory, where reads find them. Changes within a minute of a write wait
    for the next session; a node that crashes loses them, and makes them again.
    """

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._stores = BoundedDict[str, _Buffered](_MAX_STORES)

    async def note(self, store_id: str, statements: Sequence[Statement], now_ns: int) -> None:
        """Keep statements in place of older ones about the same time, as `Statements.note`."""
        if not statements:
            return
        store = self._stores[store_id] = self._stores.get(store_id) or _Buffered()
        while store.waiting and not (
            statements[0].start_ns <= store.waiting[-1].end_ns
            and store.waiting[0].start_ns <= statements[-1].end_ns
        ):
            # What is written together has no gaps.
            await self._write(store_id, store)
        store.waiting = replaced(store.waiting, statements, now_ns)
        store.noted_ns, before = now_ns, store.content
        store.content = [each.content for each in statements if each.count or not each.equal]
        store.is_changed |= store.content != before
        every_ns = _CHANGED_EVERY_NS if store.is_changed else _REPEATED_EVERY_NS
        if not 0 <= now_ns - store.written_ns < every_ns:
            await self._write(store_id, store)

    async def between(self, start_ns: int, end_ns: int) -> Mapping[str, Sequence[Statement]]:
        """Return by store the statements that overlap a range, as `Statements.between`."""
        found = dict(await self._statements.between(start_ns, end_ns))
        for store_id, store in self._stores.items():
            if about := overlapping(store.waiting, (start_ns, end_ns)):
                found[store_id] = replaced(found.get(store_id, ()), about, store.noted_ns)
        return found

    async def flush(self) -> None:
        """Write what waits; a database that does not serve keeps the older statements."""
        with suppress(NotServingError):
            for store_id, store in list(self._stores.items()):
                await self._write(store_id, store)

    async def _write(self, store_id: str, store: _Buffered) -> None:
        if waiting := store.waiting:
            await self._statements.note(store_id, waiting, store.noted_ns)
            if store.waiting is waiting:  # no other session has noted some meanwhile
                store.waiting, store.written_ns, store.is_changed = (), store.noted_ns, False
