"""Coverage: what is held, and what other stores are known to hold of it.

``GetCoverage`` answers that by hour or day; an `AnswerReport` is about one answer, read before its
first message and checked after its last.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from store.domain.coverage import Coverage, KnownCoverage, aligned, intake_of, unconfirmed
from store.domain.partitioning import DAY_NS, HOUR_NS
from store.domain.ports import NotServingError, PageRequest, QueryPage
from store.domain.query import LimitError, RequestError, channel_of, time_range
from store.domain.view import Span
from store.serving.call import Call
from store.serving.methods.decode import decode, topic_filter
from storenode.wire.storenode.coverage.v1 import coverage_pb2
from storenode.wire.storenode.v1 import store_pb2

MAX_STEPS: Final = 10_000
STEPS_A_PAGE: Final = 240

_LENGTHS_NS: Final = {
    store_pb2.GetCoverageRequest.STEP_UNSPECIFIED: HOUR_NS,
    store_pb2.GetCoverageRequest.HOUR: HOUR_NS,
    store_pb2.GetCoverageRequest.DAY: DAY_NS,
}


async def coverage(call: Call, request: bytes) -> AsyncGenerator[bytes, None]:
    """Serve ``GetCoverage``."""
    node = call.node
    wanted = decode(store_pb2.GetCoverageRequest, request)
    counted = topic_filter(wanted.filter, call.client.topics).everything
    steps = _steps(wanted, node.now_ns())
    channel = channel_of(wanted.channel_id) if wanted.channel_id and counted else None
    while bounds := list(islice(steps, STEPS_A_PAGE)):
        async with node.coverage_turn:
            found = await node.coverage.steps(bounds)
            intervals = await node.intake(bounds[0][0], bounds[-1][1])
            missing: Sequence[int | None] = [None] * len(bounds)
            if channel is not None:
                missing = await node.missing_parents(channel, bounds)
        for step, span, lacking in zip(found, bounds, missing, strict=True):
            step.intake = intake_of(span, intervals, node.now_ns())
            if lacking is not None:
                step.missing_parents = lacking
            if not counted:
                _clear_counts(step)
        yield store_pb2.CoveragePage(steps=found).SerializeToString()


def _steps(wanted: store_pb2.GetCoverageRequest, now_ns: int) -> Iterator[Span]:
    """Return the requested steps.

    Raises:
        LimitError: they are too many.
        RequestError: their length is none that the schema has.
    """
    step_ns = _LENGTHS_NS.get(wanted.step)
    if step_ns is None:
        raise RequestError(f"step {wanted.step} is unknown: ask for HOUR or DAY")
    start_ns, end_ns = time_range(
        wanted.time_start if wanted.HasField("time_start") else None,
        wanted.time_end if wanted.HasField("time_end") else None,
    )
    end_ns = min(end_ns, now_ns)
    if not wanted.HasField("time_start"):
        start_ns = max(0, end_ns - DAY_NS)
    count = -(-(end_ns - start_ns // step_ns * step_ns) // step_ns)
    if count > MAX_STEPS:
        raise LimitError(
            f"{count:,} steps are asked for, at most {MAX_STEPS:,} are answered: ask for a shorter "
            "time, or for days"
        )
    return aligned(start_ns, end_ns, step_ns)


def _clear_counts(step: store_pb2.CoverageStep) -> None:
    """Remove what is about messages outside the filter of the call."""
    step.ClearField("messages")
    step.ClearField("fingerprint")
    for store in step.stores:
        store.ClearField("missing_here")
        store.ClearField("missing_there")


@dataclass(frozen=True, slots=True)
class AnswerReport:
    """The coverage of one answer; made before its first message is read.

    ``known`` is a sentence where the database did not serve. ``all_kept``: the answer is about all
    the time that the store keeps.
    """

    reads: Coverage
    span: Span
    known: KnownCoverage | str
    all_kept: bool

    async def finish(self, within: Span | None = None) -> coverage_pb2.AnswerCoverage | None:
        """Return the coverage after the last message; None where the answer is about no time.

        ``within``: the part of the range that the answer turned out to be about.
        """
        lower_ns, upper_ns = within or self.span
        start_ns, end_ns = max(lower_ns, self.span[0]), min(upper_ns, self.span[1])
        known, lost, horizon_ns = self.known, False, 0
        if not isinstance(known, str):
            try:
                lost, horizon_ns = await self.reads.lost_since(known.places)
            except NotServingError as error:
                known = str(error)
        if self.all_kept:
            start_ns = max(start_ns, horizon_ns)
        if start_ns >= end_ns:
            return None
        if isinstance(known, str):
            return unconfirmed((start_ns, end_ns), known)
        return known.answer((start_ns, end_ns), horizon_ns, lost=lost)


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
    except NotServingError as error:
        known = str(error)
    return AnswerReport(reads, (start_ns, end_ns), known, all_kept)


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
