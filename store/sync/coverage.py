"""Statements of sessions about other stores: kept for ``GetCoverage``, and read there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reconcile.ids import LOWEST
from reconcile.view import Spans
from reconcile.view import ViewRead as Read
from store.domain.coverage import (
    HOUR_NS,
    CoverageStep,
    KnownCoverage,
    Span,
    Statement,
    Statements,
    layers,
    measured_by_span,
    updated,
)
from store.domain.hub import Place
from store.domain.ports import StoreBusy, StoreUnavailable
from store.domain.view import OpenView, Reconcilable, StoredIds
from storenode.common.bounded import BoundedDict

_MAX_STORES: Final = 64
_WRITTEN_EVERY_NS: Final = HOUR_NS
"""Statements that only repeat others at a later time are written this often."""


@dataclass(slots=True)
class _Pending:
    """The newest statements about a store; ``written`` and ``written_ns`` are of the last write."""

    statements: Sequence[Statement]
    noted_ns: int
    written: frozenset[tuple[object, ...]] = frozenset()
    written_ns: int | None = None


class StatementBuffer:
    """`Statements` that are written when they change, after an hour, or at shutdown."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._pending = BoundedDict[str, _Pending](_MAX_STORES)

    async def note(self, store_id: str, statements: Sequence[Statement], now_ns: int) -> None:
        """Keep statements in place of older ones about the same time.

        Raises:
            StoreUnavailable, StoreBusy: the database does not serve.
        """
        if not statements:
            return
        before = self._pending.get(store_id) or _Pending((), now_ns)
        content = _content(statements)
        due = before.written_ns is None or now_ns - before.written_ns >= _WRITTEN_EVERY_NS
        if due or content != before.written or now_ns < before.noted_ns:
            await self._statements.note(store_id, statements, now_ns)
            self._pending[store_id] = _Pending((), now_ns, content, now_ns)
        else:
            pending = _Pending(statements, now_ns, content, before.written_ns)
            self._pending[store_id] = pending

    async def between(self, start_ns: int, end_ns: int) -> Mapping[str, Sequence[Statement]]:
        """Return by store the statements that overlap a range, ascending; raises as `note`."""
        found = dict(await self._statements.between(start_ns, end_ns))
        for store_id, pending in self._pending.items():
            about = [
                each
                for each in pending.statements
                if each.start_ns < end_ns and each.end_ns > start_ns
            ]
            if about:
                old = found.get(store_id, ())
                gone, made = updated(old, about, pending.noted_ns)
                kept = [*(each for each in old if each not in gone), *made]
                found[store_id] = sorted(kept, key=lambda each: (each.start_ns, -each.end_ns))
        return found

    async def flush(self) -> None:
        """Write what waits; a database that does not serve keeps the older statements."""
        for store_id, pending in list(self._pending.items()):
            if pending.statements:
                try:
                    await self._statements.note(store_id, pending.statements, pending.noted_ns)
                except (StoreUnavailable, StoreBusy):
                    return
                pending.statements = ()


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


class Coverage:
    """Implements `store.domain.coverage.CoverageReads`."""

    def __init__(
        self, reconcilable: Reconcilable, statements: Statements, stored: StoredIds
    ) -> None:
        self._reconcilable = reconcilable
        self._statements = statements
        self._stored = stored

    async def steps(self, bounds: Sequence[Span]) -> list[CoverageStep]:
        """Return the steps of ascending, disjoint spans, at one moment; counts come from summaries.

        Raises:
            StoreUnavailable, StoreBusy: the database does not serve.
        """
        known, measured, horizon_ns = await self._read(bounds[0][0], bounds[-1][1], bounds)
        return [
            CoverageStep(*span, *measured[span], span[0] >= horizon_ns, tuple(known.of(span)))
            for span in bounds
        ]

    async def known(self, start_ns: int, end_ns: int) -> KnownCoverage:
        """Return what is known of a range that is not empty.

        Raises:
            StoreUnavailable, StoreBusy: the database does not serve.
        """
        known, _, _ = await self._read(start_ns, end_ns, ())
        return known

    async def lost_since(self, places: Sequence[Place]) -> tuple[bool, int]:
        """Return whether a commit is lost, and the horizon; raises `StoreUnavailable`."""
        found = [await self._stored.newest(place) for place in places]
        return not all(each.served for each in found), max(each.horizon_ns for each in found)

    async def _read(
        self, start_ns: int, end_ns: int, bounds: Sequence[Span]
    ) -> tuple[KnownCoverage, dict[Span, tuple[int, bytes]], int]:
        # Read first: what is stored meanwhile withdraws statements, and none is believed too long.
        stated = await self._statements.between(start_ns, end_ns)
        lowest = min((each[0].start_ns for each in stated.values()), default=start_ns)
        lower = max(0, min(lowest, start_ns)), LOWEST[1]
        async with self._reconcilable.open_view(lower, (end_ns, LOWEST[1])) as view:
            measured = await _measured(view, bounds) if bounds else {}
            about = await _measured(
                view, *layers(each.span for found in stated.values() for each in found)
            )
            return KnownCoverage(stated, about, view.places), measured, view.horizon[0]


async def _measured(view: OpenView, *lists: Sequence[Span]) -> dict[Span, tuple[int, bytes]]:
    """Count and fingerprint of spans; those of one list do not overlap."""
    found: dict[Span, tuple[int, bytes]] = {}
    for where in lists:
        zeros = LOWEST[1]
        asked = Spans.of([((start, zeros), (end, zeros)) for start, end in where])
        measured = (await view.answer(Read(measure=asked))).measured
        assert measured is not None
        found |= measured_by_span(where, measured)
    return found
