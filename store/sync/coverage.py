"""The statements about coverage of sessions that this node began, until they are written.

Only the initiator makes statements: its view is older than the first frame that the peer has seen,
so the peer's view holds all that the peer held at that moment. The other way round that is unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from reconcile.ids import SyncIds, ordered
from reconcile.session import Result
from store.domain.coverage import (
    BLOCK_NS,
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
from store.sync.session.report import SessionReport
from storenode.common.bounded_dict import BoundedDict

if TYPE_CHECKING:
    from store.sync.session.reconciliation import Reconciliation

_LONG_NS: Final = 1_000 * DAY_NS
_MAX_STORES: Final = 64
_CHANGED_EVERY_NS: Final = MINUTE_NS
_REPEATED_EVERY_NS: Final = HOUR_NS
"""Statements that have changed, or only repeat others at a later time, are written this often."""

Measured = tuple[Comparison, Sums | Callable[[], Awaitable[Sums]], object]
"""A comparison of a session, the sums of the spans that it may make statements about, or a read of
them, and the finding of a session that has found both sides equal; None: of another one."""


async def measure(
    view: StoredView, report: SessionReport, result: Result, side: Reconciliation, now_ns: int
) -> Measured | None:
    """Measure what a session has compared, before anything is transferred.

    None: it can make no statement. Where the sides are equal, and few IDs are all in memory, the
    sums are read when they are needed. Raises as `StoredView.measure`.
    """
    has_counts = report.own_count is not None and report.peer_count is not None
    # Where the counts disagree, the peer does not keep as much of the window.
    if not report.compared or report.left_over or not (has_counts and report.counts_agree):
        return None
    ids = [(each.timestamp, each.message_hash) for each in side.conflicts]
    found = Comparison(
        to_send=result.to_send,
        to_receive=result.to_receive,
        resolved=False,
        keyed_from_ns=report.keyed_from_ns,
        compared_ns=report.opened_ns,
        conflicts=ordered(SyncIds.of(ids)) if ids else SyncIds.empty(),
    )
    (start_ns, _), (end_ns, _) = result.window
    read = partial(_sums_of, view, found, (start_ns, end_ns), now_ns)
    is_small = view.cold is None and view.rows is not None and len(view.rows) <= THREADED_ROWS
    if side.equal_sum and is_small:
        return found, read, (side.equal_sum, -(-start_ns // BLOCK_NS))
    sums = await read()
    return (found, sums, None) if sums else None


async def _sums_of(view: StoredView, found: Comparison, window: Span, now_ns: int) -> Sums:
    start_ns, end_ns = window
    long = await measure_spans(view, eras(start_ns, end_ns, now_ns, found))
    empty: list[Span] = []
    for era, (count, _) in long.items():
        if not count and empty and empty[-1][1] == era[0]:
            empty[-1] = empty[-1][0], era[1]
        elif not count:
            empty.append(era)
    large = end_ns - start_ns - sum(upper - lower for lower, upper in empty) > _LONG_NS
    where = await in_thread_if(large, spans, start_ns, end_ns, now_ns, found, empty)
    return await measure_spans(view, where)


async def statements_of(report: SessionReport, measured: Measured) -> list[Statement]:
    """Return the statements of a session that has ended, about spans that it has measured."""
    resolved = report.is_resolved and not (report.refused_by_policy or report.pruned)
    found, read, _ = measured
    sums = await read() if callable(read) else read
    found = replace(found, resolved=resolved)
    return await in_thread_if(len(sums) > THREADED_ROWS, stated, sums, found)


@dataclass(slots=True)
class _Buffered:
    """The statements about a store that are not written yet, and when some were written last.

    ``content`` is that of the last ones, ``is_changed`` whether it changed since they were written.
    ``found``: the finding of the last session, if it was equal; ``repeated`` makes the statements
    of one that has found the same since then, at a time.
    """

    waiting: Sequence[Statement] = ()
    noted_ns: int = 0
    written_ns: int = -_REPEATED_EVERY_NS
    content: Sequence[object] = ()
    is_changed: bool = False
    found: object = None
    repeated: tuple[Callable[[], Awaitable[list[Statement]]], int] | None = None

    def is_due(self, now_ns: int) -> bool:
        """Return True if what waits is to be written."""
        every_ns = _CHANGED_EVERY_NS if self.is_changed else _REPEATED_EVERY_NS
        return not 0 <= now_ns - self.written_ns < every_ns


class StatementBuffer:
    """`Statements` that are written when they change, after an hour, or at shutdown.

    Until then they are in memory, where reads find them. Changes within a minute of a write wait
    for the next session; a node that crashes loses them, and makes them again. Those of a session
    that has found what the one before it did are made when they are read or written.
    """

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._stores = BoundedDict[str, _Buffered](_MAX_STORES)

    async def take(self, report: SessionReport, measured: Measured, now_ns: int) -> None:
        """Take the statements of a session that has ended; raises as `Statements.note`."""
        store = self._stores.get(report.store_id) or _Buffered()
        make, (_, _, found) = partial(statements_of, report, measured), measured
        if found and found == store.found and not (store.is_changed or store.is_due(now_ns)):
            store.repeated = make, now_ns
            return
        await self.note(report.store_id, await make(), now_ns)
        self._stores.get(report.store_id, store).found = found

    async def note(self, store_id: str, statements: Sequence[Statement], now_ns: int) -> None:
        """Keep statements in place of older ones about the same time, as `Statements.note`."""
        if not statements:
            return
        store = self._stores[store_id] = self._stores.get(store_id) or _Buffered()
        await self._make_repeated(store_id, store)
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
        if store.is_due(now_ns):
            await self._write(store_id, store)

    async def between(self, start_ns: int, end_ns: int) -> Mapping[str, Sequence[Statement]]:
        """Return by store the statements that overlap a range, as `Statements.between`."""
        for store_id, store in list(self._stores.items()):
            await self._make_repeated(store_id, store)
        found = dict(await self._statements.between(start_ns, end_ns))
        for store_id, store in self._stores.items():
            if about := overlapping(store.waiting, (start_ns, end_ns)):
                found[store_id] = replaced(found.get(store_id, ()), about, store.noted_ns)
        return found

    async def flush(self) -> None:
        """Write what waits; a database that does not serve keeps the older statements."""
        with suppress(NotServingError):
            for store_id, store in list(self._stores.items()):
                await self._make_repeated(store_id, store)
                await self._write(store_id, store)

    async def _make_repeated(self, store_id: str, store: _Buffered) -> None:
        if store.repeated is not None:
            (make, now_ns), store.repeated = store.repeated, None
            await self.note(store_id, await make(), now_ns)

    async def _write(self, store_id: str, store: _Buffered) -> None:
        if waiting := store.waiting:
            await self._statements.note(store_id, waiting, store.noted_ns)
            if store.waiting is waiting:  # no other session has noted some meanwhile
                store.waiting, store.written_ns, store.is_changed = (), store.noted_ns, False
