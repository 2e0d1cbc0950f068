"""What ``GetCoverage`` answers: what is held, beside what sessions have stated about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reconcile.ids import LOWEST
from reconcile.view import Read, Spans
from store.domain.coverage import (
    CoverageStep,
    Span,
    Statement,
    Statements,
    covered,
    layers,
    measured_by_span,
)
from store.domain.view import OpenView, Reconcilable


class Coverage:
    """Implements `store.domain.coverage.CoverageReads`."""

    def __init__(self, reconcilable: Reconcilable, statements: Statements) -> None:
        self._reconcilable = reconcilable
        self._statements = statements

    async def steps(self, bounds: Sequence[Span]) -> list[CoverageStep]:
        """About ascending, disjoint spans, at one moment; counts come from summaries.

        Raises:
            StoreUnavailable, StoreBusy: the database does not serve.
        """
        # Read first: what is stored meanwhile withdraws statements, and none is believed too long.
        stated = await self._statements.between(bounds[0][0], bounds[-1][1])
        lowest = min((each[0].start_ns for each in stated.values()), default=bounds[0][0])
        lower = (max(0, min(lowest, bounds[0][0])), LOWEST[1])
        async with self._reconcilable.open_view(lower, (bounds[-1][1], LOWEST[1])) as view:
            horizon_ns = view.horizon[0]
            held = await _measured(view, bounds)
            about = {
                store: await _measured(view, *layers(found)) for store, found in stated.items()
            }
        return [_step(span, held[span], horizon_ns, stated, about) for span in bounds]


def _step(
    span: Span,
    held: tuple[int, bytes],
    horizon_ns: int,
    stated: Mapping[str, Sequence[Statement]],
    about: Mapping[str, Mapping[Span, tuple[int, bytes]]],
) -> CoverageStep:
    start_ns, end_ns = span
    stores = [covered(span, store, stated[store], about[store]) for store in sorted(stated)]
    return CoverageStep(start_ns, end_ns, *held, start_ns >= horizon_ns, tuple(stores))


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
