"""The short form of coverage in answers: read before the first message, checked after the last."""

from __future__ import annotations

from store.domain.completeness import (
    AnswerCoverage,
    AnswerState,
    CoverageReads,
    Known,
    answered,
)
from store.domain.coverage import Span
from store.domain.ports import PageRequest, QueryPage, ScanRequest, StoreBusy, StoreUnavailable
from store.domain.query import time_range
from store.serving.call import Call


class Telling:
    """What one answer will say; made before its first message is read."""

    def __init__(
        self, reads: CoverageReads, span: Span, known: Known | str, *, all_kept: bool
    ) -> None:
        self._reads = reads
        self._span = span
        self._known = known
        self._all_kept = all_kept

    async def told(self, within: Span | None = None) -> AnswerCoverage | None:
        """What to say after the last message; None where the answer is about no time.

        ``within``: what of the range the answer turned out to be about.
        """
        lower_ns, upper_ns = within or self._span
        span = max(lower_ns, self._span[0]), min(upper_ns, self._span[1])
        if isinstance(self._known, str):
            return _of_some_time(_unknown(span, self._known))
        try:
            lost, horizon_ns = await self._reads.lost_since(self._known.places)
        except (StoreBusy, StoreUnavailable) as error:
            return _of_some_time(_unknown(span, str(error)))
        if self._all_kept:
            span = max(span[0], horizon_ns), span[1]
        return _of_some_time(answered(span, self._known, horizon_ns, lost=lost))


async def telling(
    call: Call, start_ns: int, end_ns: int, *, all_kept: bool = False
) -> Telling | None:
    """Read what is known of a range; None where there is nothing to say.

    ``all_kept``: the answer is about all the time that the store keeps.
    """
    reads, end_ns = call.node.coverage, min(end_ns, call.node.now_ns())
    if reads is None or start_ns >= end_ns:
        return None
    try:
        async with call.node.coverage_turn:
            known: Known | str = await reads.known(start_ns, end_ns)
    except (StoreBusy, StoreUnavailable) as error:
        known = str(error)
    return Telling(reads, (start_ns, end_ns), known, all_kept=all_kept)


async def telling_all(call: Call, *, wanted: bool) -> Telling | None:
    """`telling` about all the time that the store keeps; None where it is not ``wanted``."""
    return await telling(call, *time_range(None, None), all_kept=True) if wanted else None


async def telling_scan(call: Call, request: ScanRequest, *, wanted: bool) -> Telling | None:
    """`telling` about a scan, from its cursor on; None where it is not ``wanted``."""
    if not wanted:
        return None
    after_ns = request.time_start_ns if request.after is None else request.after[0]
    start_ns = max(request.time_start_ns, after_ns)
    return await telling(call, start_ns, request.time_end_ns)


def page_span(request: PageRequest, page: QueryPage) -> Span:
    """The time that a page of ``Query`` is about, from its cursor to that of the next page."""
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


def _unknown(span: Span, reason: str) -> AnswerCoverage:
    return AnswerCoverage(span, AnswerState.UNCONFIRMED, reason)


def _of_some_time(found: AnswerCoverage) -> AnswerCoverage | None:
    return found if found.span[0] < found.span[1] else None
