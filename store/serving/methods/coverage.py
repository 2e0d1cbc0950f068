"""``GetCoverage``: what is held by hour or day, and what other stores are known to hold of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from itertools import islice
from typing import Final

from store.domain.coverage import (
    HOUR_NS,
    CoverageStep,
    Intake,
    Span,
    StoreCoverage,
    aligned,
    intake_of,
)
from store.domain.partitioning import DAY_NS
from store.domain.query import LimitError, RequestError, channel_of, time_range
from store.serving.call import Call
from store.serving.methods.decode import decode_read, topic_filter
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
    wanted = decode_read(store_pb2.GetCoverageRequest, request)
    counted = topic_filter(wanted.filter, call.client.topics, node.limits).everything
    steps = _steps(wanted, node.now_ns())
    channel = channel_of(wanted.channel_id) if wanted.channel_id and counted else None
    while bounds := list(islice(steps, STEPS_A_PAGE)):
        async with node.coverage_turn:
            found = await node.coverage.steps(bounds)
            intervals = await node.intake.overlapping(bounds[0][0], bounds[-1][1])
            missing: Sequence[int | None] = [None] * len(bounds)
            if channel is not None:
                missing = await node.missing_parents.missing_parents(channel, bounds)
        now_ns = node.now_ns()
        answer = [
            _step(step, intake_of(span, intervals, now_ns), lacking, counted=counted)
            for step, span, lacking in zip(found, bounds, missing, strict=True)
        ]
        yield store_pb2.CoveragePage(steps=answer).SerializeToString()


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


def _step(
    step: CoverageStep, intake: Intake, missing_parents: int | None, *, counted: bool
) -> store_pb2.CoverageStep:
    return store_pb2.CoverageStep(
        time_start=step.start_ns,
        time_end=step.end_ns,
        messages=step.count if counted else None,
        fingerprint=step.fingerprint if counted else b"",
        before_horizon=not step.complete,
        intake=store_pb2.CoverageStep.Intake.Value(intake.name),
        stores=[_store(each, counted=counted) for each in step.stores],
        missing_parents=missing_parents,
    )


def _store(store: StoreCoverage, *, counted: bool) -> store_pb2.StoreCoverage:
    return store_pb2.StoreCoverage(
        store_id=store.store_id,
        state=store_pb2.StoreCoverage.State.Value(store.state.name),
        compared_at=store.compared_ns,
        equal_until=store.equal_until_ns,
        keyed=store.keyed,
        missing_here=store.missing_here if counted else None,
        missing_there=store.missing_there if counted else None,
        last_equal=store.last_equal_ns,
    )
