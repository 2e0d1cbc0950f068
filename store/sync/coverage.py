"""What is known of other stores: what sessions have stated, beside what is held now."""

from __future__ import annotations

from collections.abc import Sequence

from reconcile.ids import LOWEST
from reconcile.view import Spans
from reconcile.view import ViewRead as Read
from store.domain.coverage import (
    CoverageStep,
    KnownCoverage,
    Span,
    Statements,
    layers,
    measured_by_span,
)
from store.domain.hub import Place
from store.domain.view import OpenView, Reconcilable, StoredIds


class Coverage:
    """Implements `store.domain.coverage.CoverageReads`."""

    def __init__(
        self, reconcilable: Reconcilable, statements: Statements, stored: StoredIds
    ) -> None:
        self._reconcilable = reconcilable
        self._statements = statements
        self._stored = stored

    async def steps(self, bounds: Sequence[Span]) -> list[CoverageStep]:
        """About ascending, disjoint spans, at one moment; counts come from summaries.

        Raises:
            StoreUnavailable, StoreBusy: the database does not serve.
        """
        known, held, horizon_ns = await self._read(bounds[0][0], bounds[-1][1], bounds)
        return [
            CoverageStep(*span, *held[span], span[0] >= horizon_ns, tuple(known.of(span)))
            for span in bounds
        ]

    async def known(self, start_ns: int, end_ns: int) -> KnownCoverage:
        """What is known of a range that is not empty.

        Raises:
            StoreUnavailable, StoreBusy: the database does not serve.
        """
        known, _, _ = await self._read(start_ns, end_ns, ())
        return known

    async def lost_since(self, places: Sequence[Place]) -> tuple[bool, int]:
        """Whether one of some commits is lost, and the horizon now; raises `StoreUnavailable`."""
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
            held = await _measured(view, bounds) if bounds else {}
            about = await _measured(
                view, *layers(each.span for found in stated.values() for each in found)
            )
            return KnownCoverage(stated, about, view.places), held, view.horizon[0]


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
