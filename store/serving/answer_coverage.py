"""The coverage of one answer: read before the first message, checked after the last."""

from __future__ import annotations

from store.domain.coverage import (
    AnswerCoverage,
    AnswerState,
    CoverageReads,
    KnownCoverage,
    Span,
    answered,
)
from store.domain.ports import PageRequest, QueryPage, StoreBusy, StoreUnavailable
from store.serving.call import Call


class AnswerReport:
    """The coverage of one answer; made before its first message is read.

    ``known`` is a sentence where the database did not serve. ``all_kept``: the answer is about all
    the time that the store keeps.
    """

    def __init__(
        self, reads: CoverageReads, span: Span, known: KnownCoverage | str, *, all_kept: bool
    ) -> None:
        self._reads = reads
        self._span = span
        self._known = known
        self._all_kept = all_kept

    async def finish(self, within: Span | None = None) -> AnswerCoverage | None:
        """Return the coverage after the last message; None where the answer is about no time.

        ``within``: the part of the range that the answer turned out to be about.
        """
        lower_ns, upper_ns = within or self._span
        start_ns, end_ns = max(lower_ns, self._span[0]), min(upper_ns, self._span[1])
        known, lost, horizon_ns = self._known, False, 0
        if not isinstance(known, str):
            try:
                lost, horizon_ns = await self._reads.lost_since(known.places)
            except (StoreBusy, StoreUnavailable) as error:
                known = str(error)
        if self._all_kept:
            start_ns = max(start_ns, horizon_ns)
        if start_ns >= end_ns:
            return None
        if isinstance(known, str):
            return AnswerCoverage((start_ns, end_ns), AnswerState.UNCONFIRMED, known)
        return answered((start_ns, end_ns), known, horizon_ns, lost=lost)


async def open_report(
    call: Call, start_ns: int, end_ns: int, *, all_kept: bool = False
) -> AnswerReport | None:
    """Read the statements about a range; return None where there is nothing to report."""
    reads, end_ns = call.node.coverage, min(end_ns, call.node.now_ns())
    if start_ns >= end_ns:
        return None
    try:
        async with call.node.coverage_turn:
            known: KnownCoverage | str = await reads.known(start_ns, end_ns)
    except (StoreBusy, StoreUnavailable) as error:
        known = str(error)
    return AnswerReport(reads, (start_ns, end_ns), known, all_kept=all_kept)


def page_span(request: PageRequest, page: QueryPage) -> Span:
    """Return the time that a page of ``Query`` is about, from its cursor to the next page's."""
    start_ns, end_ns = request.time_start_ns, request.time_end_ns
    if request.hashes is not None:
        return start_ns, end_ns
    if request.forward:
        if request.after is not None:
            start_ns = max(start_ns, request.after[0])
        return start_ns, end_ns if page.next_ns is None else page.next_ns + 1
    if request.after is not None:
        end_ns = min(end_ns, request.after[0] + 1)
    return start_ns if page.next_ns is None else page.next_ns, end_ns
