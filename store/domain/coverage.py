"""Coverage: the messages that other stores held by sessions, and the times of this store's intake.

- *Stated.* A session that this node began compared two fixed sets. For every `Span` of its window
  it leaves one `Statement` about the peer's store. A statement of equality goes with the count and
  the XOR of the messages that are stored here in the span.
- *Believed.* `KnownCoverage` has statements beside the same figures as they are now. A statement of
  equality holds while they are the same, so nothing has to withdraw it.
- *Answered.* ``GetCoverage`` returns `CoverageStep` messages, other reads an `AnswerCoverage`.
  Statements are read before the first message of an answer. Messages that are stored meanwhile make
  the answer more complete; lost or dropped ones are looked for after the last message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import numpy as np

from reconcile.ids import HASH_WORDS, LOWEST, SyncId, SyncIds, ordered
from reconcile.view import Measured, Spans
from store.domain.hub import Place
from store.domain.partitioning import DAY_NS, HOUR_NS, MINUTE_NS
from store.domain.view import Span, StoredIds
from storenode.message.limits import HASH_BYTES, MAX_TIMESTAMP_NS, NS_PER_S
from storenode.wire.storenode.coverage.v1.coverage_pb2 import AnswerCoverage
from storenode.wire.storenode.v1.store_pb2 import CoverageStep, StoreCoverage

BLOCK_NS: Final = 10 * MINUTE_NS
MAX_SPANS: Final = 50_000
"""Spans that one session makes statements about; older ones get none."""

_FINE_NS: Final = 2 * DAY_NS
"""Days are summed up when they have been over for a day or longer."""
_MAX_FINE_DAYS: Final = 100
_ERAS_NS: Final = (512 * DAY_NS, 16 * DAY_NS)
"""The lengths of empty spans that are one span, such as the time before the first message."""
_SLACK_NS: Final = 30 * NS_PER_S
"""Delay of the record of online times: it is written every 15 seconds."""

_LOST: Final = "this store lost commits while the answer was read: ask again"
_DROPPED: Final = "messages before the horizon of this store may have been dropped"
_DIFFERS: Final = "this store lacked messages of this time that the named stores held"
_BY_XOR: Final = "other stores were compared by XOR only, which publishers can forge"
_UNKNOWN: Final = "no comparison with another store still holds for this time"
_PARTLY: Final = "no comparison with another store still holds for the rest of this time"

Sums = Mapping[Span, tuple[int, bytes]]
"""The count and the XOR (32 bytes) of the messages that are stored here, by span."""


class MeasuredView(Protocol):
    """The contents of a store at one moment, whose spans can be measured."""

    @property
    def horizon(self) -> SyncId:
        """The lowest ID that is stored or accepted."""

    @property
    def places(self) -> Sequence[Place]:
        """The newest commits of what it was made from; of what was read, so far."""

    async def measure(self, spans: Spans) -> Measured:
        """Return counts and fingerprints of spans of time; raises `NotServingError`."""


async def measure_spans(view: MeasuredView, where: Iterable[Span]) -> Sums:
    """Return the sums of spans, which may overlap, in their order; raises `NotServingError`."""
    spans = list(where)
    if not spans:
        return {}
    bounds = np.array(spans, np.int64)
    edges = np.unique(bounds)
    times = SyncIds.at_times(edges)
    measured = await view.measure(Spans(times[:-1], times[1:]))
    counts, prints = np.zeros(len(edges), np.int64), np.zeros((len(edges), HASH_WORDS), np.uint64)
    np.cumsum(measured.counts, out=counts[1:])
    np.bitwise_xor.accumulate(measured.fingerprints, out=prints[1:])
    first, last = edges.searchsorted(bounds.T)
    within = (counts[last] - counts[first]).tolist()
    encoded = (prints[last] ^ prints[first]).tobytes()
    starts = range(0, len(encoded), HASH_BYTES)
    xors = [encoded[start : start + HASH_BYTES] for start in starts]
    return dict(zip(spans, zip(within, xors, strict=True), strict=True))


def aligned(start_ns: int, end_ns: int, step_ns: int) -> Iterator[Span]:
    """Yield the steps that a range touches, whole."""
    for lower_ns in range(start_ns // step_ns * step_ns, end_ns, step_ns):
        yield lower_ns, lower_ns + step_ns


@dataclass(slots=True)  # frozen ones take four times as long to make, and a session makes many
class Statement:
    """A finding of a session about ``start_ns`` to ``end_ns``, as of ``compared_ns``.

    Equal, if nothing is missing on either side: each message of the span that one of the two stores
    held then was held by both when the session ended. ``keyed``: compared by lattice sums, else by
    XOR alone. ``count`` and ``fingerprint`` (32 bytes): the messages that are stored here in the
    span, with those that the session transferred.
    """

    start_ns: int
    end_ns: int
    compared_ns: int
    keyed: bool
    missing_here: int
    missing_there: int
    count: int
    fingerprint: bytes

    @property
    def span(self) -> Span:
        """The time that it is about."""
        return self.start_ns, self.end_ns

    @property
    def equal(self) -> bool:
        """True if neither side lacked anything at the end of the session."""
        return not (self.missing_here or self.missing_there)

    @property
    def content(self) -> tuple[object, ...]:
        """The statement without its end and the time of the comparison."""
        missing = self.missing_here, self.missing_there
        return self.start_ns, self.keyed, *missing, self.count, self.fingerprint


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences that a session found, ascending or not, as of ``compared_ns``.

    ``resolved``: both sides hold all of them since. From ``keyed_from_ns`` on, lattice sums were
    compared; None: nowhere. ``conflicts``, ascending: IDs with different contents, each missing on
    both sides.
    """

    to_send: SyncIds
    to_receive: SyncIds
    resolved: bool
    keyed_from_ns: int | None
    compared_ns: int
    conflicts: SyncIds = field(default_factory=SyncIds.empty)

    @property
    def differing_days(self) -> set[int]:
        """The beginnings of the days of all that differs."""
        every = (self.to_send, self.to_receive, self.conflicts)
        found = [ids.timestamps // DAY_NS * DAY_NS for ids in every if len(ids)]
        return set().union(*(days.tolist() for days in found))


def eras(start_ns: int, end_ns: int, now_ns: int, found: Comparison) -> list[Span]:
    """Return long spans of a range without differences, which may be `spans` if they are empty."""
    made, days = list[Span](), found.differing_days
    for step_ns in _ERAS_NS:
        lower_ns = -(-start_ns // step_ns) * step_ns
        start_ns = max(lower_ns, min(end_ns, now_ns - _FINE_NS) // step_ns * step_ns)
        differing = {day // step_ns * step_ns for day in days}
        made += [each for each in aligned(lower_ns, start_ns, step_ns) if each[0] not in differing]
    return made


def spans(
    start_ns: int, end_ns: int, now_ns: int, found: Comparison, empty: Sequence[Span] = ()
) -> list[Span]:
    """Divide a range into the spans of its statements: days, hours, and blocks of ten minutes.

    The newest block may end at any full minute. Days with differences are divided into hours;
    ``empty`` are `eras` that become one span each.
    """
    ends = dict(empty)
    end_ns = min(end_ns, now_ns) // MINUTE_NS * MINUTE_NS
    fine = set(sorted(found.differing_days)[-_MAX_FINE_DAYS:])
    made: list[Span] = []
    upper_ns = -(-start_ns // BLOCK_NS) * BLOCK_NS
    while upper_ns < end_ns:
        lower_ns = upper_ns
        day_ends = lower_ns + DAY_NS
        if lower_ns in ends:
            upper_ns = ends[lower_ns]
        elif not lower_ns % DAY_NS and day_ends <= now_ns - _FINE_NS and day_ends <= end_ns:
            upper_ns = lower_ns + (HOUR_NS if lower_ns in fine else DAY_NS)
        elif not lower_ns % HOUR_NS and lower_ns + HOUR_NS <= end_ns:
            upper_ns = lower_ns + HOUR_NS
        else:
            upper_ns = min(lower_ns + BLOCK_NS, end_ns)
        made.append((lower_ns, upper_ns))
    return made[-MAX_SPANS:]


def stated(measured: Sums, found: Comparison) -> list[Statement]:
    """Make the statements about ascending spans, measured when they were compared."""
    keyed_ns = MAX_TIMESTAMP_NS if found.keyed_from_ns is None else found.keyed_from_ns
    made = [
        Statement(start_ns, end_ns, found.compared_ns, keyed_ns <= start_ns, 0, 0, *sums)
        for (start_ns, end_ns), sums in measured.items()
    ]
    received = ordered(found.to_receive)
    differing = received, ordered(found.to_send), found.conflicts
    if not any(map(len, differing)):
        return made
    bounds = np.array(list(measured), np.int64)
    places = [np.searchsorted(ids.timestamps, bounds).tolist() for ids in differing]
    for each, (first, last), (from_, to), (begin, end) in zip(made, *places, strict=True):
        if found.resolved and first < last:
            came = np.bitwise_xor.reduce(received.words[first:last], axis=0)
            each.fingerprint = (np.frombuffer(each.fingerprint, np.uint64) ^ came).tobytes()
            each.count += last - first
        here, there = (0, 0) if found.resolved else (last - first, to - from_)
        each.missing_here, each.missing_there = here + (end - begin), there + (end - begin)
    return made


def replaced(old: Sequence[Statement], new: Sequence[Statement], now_ns: int) -> list[Statement]:
    """Return the statements about a store after a session, ascending by their starts.

    ``new`` ascends and touches. It replaces statements within it, and those that a difference
    contradicts; one that it overlaps only in part stays as true as it was. A comparison never
    replaces a later one, unless that lies ahead of the clock.
    """
    later = [each for each in old if new[0].compared_ns < each.compared_ns <= now_ns]
    if later:
        start_ns, end_ns = min(each.start_ns for each in later), max(each.end_ns for each in later)
        new = [each for each in new if each.end_ns <= start_ns or each.start_ns >= end_ns]
    if new:
        start_ns, end_ns = new[0].start_ns, new[-1].end_ns
        differing = [each for each in new if not each.equal]
        old = [
            each
            for each in old
            if each in later
            or not (
                (start_ns <= each.start_ns and each.end_ns <= end_ns)
                or overlapping(differing, each.span)
            )
        ]
    if not old:
        return list(new)
    return sorted([*old, *new], key=lambda each: (each.start_ns, -each.end_ns))


def overlapping(statements: Iterable[Statement], span: Span) -> list[Statement]:
    """Return the statements that are about a part of a span."""
    return [each for each in statements if each.start_ns < span[1] and span[0] < each.end_ns]


@dataclass(frozen=True, slots=True)
class KnownCoverage:
    """The statements about other stores at one moment.

    ``stated``: by store, ascending by their starts. ``sums``: of their spans, as they were after
    the statements had been read. ``places``: the newest commits that ``sums`` include, at least
    one. ``horizon_ns``: as it was then.
    """

    stated: Mapping[str, Sequence[Statement]]
    sums: Sums
    places: Sequence[Place]
    horizon_ns: int = 0

    def of(self, step: Span) -> list[StoreCoverage]:
        """Compare a step with each store."""
        return [self._compare(step, store_id) for store_id in sorted(self.stated)]

    def _compare(self, step: Span, store_id: str) -> StoreCoverage:
        about = overlapping(self.stated[store_id], step)
        differing = [each for each in about if not each.equal]
        if differing:
            return StoreCoverage(
                store_id=store_id,
                state=StoreCoverage.DIFFERS,
                compared_at=min(each.compared_ns for each in differing),
                keyed=all(each.keyed for each in differing),
                missing_here=sum(each.missing_here for each in differing),
                missing_there=sum(each.missing_there for each in differing),
            )
        run = next(_runs(step, filter(self._holds, about)), _NO_RUN)
        if run.start_ns > step[0]:
            run = _NO_RUN
        is_equal = run.end_ns == step[1]
        once = run if is_equal else next(_runs(step, about), run)
        return StoreCoverage(
            store_id=store_id,
            state=StoreCoverage.EQUAL if is_equal else StoreCoverage.UNCONFIRMED,
            compared_at=run.compared_ns,
            equal_until=run.end_ns,
            keyed=run.keyed,
            missing_here=0,
            missing_there=0,
            last_equal=once.compared_ns if (once.start_ns, once.end_ns) == step else 0,
        )

    def answer(self, span: Span, horizon_ns: int, *, lost: bool) -> AnswerCoverage:
        """Evaluate an answer about a range that is not empty.

        ``horizon_ns`` and ``lost``: as they were after the last message had been read.
        """
        part = max(span[0], horizon_ns), span[1]
        if lost or part[0] >= part[1]:
            return unconfirmed(span, _LOST if lost else _DROPPED)
        lacking = {
            store_id: [each for each in overlapping(found, part) if each.missing_here]
            for store_id, found in self.stated.items()
        }
        if every := [each for found in lacking.values() for each in found]:
            return AnswerCoverage(
                time_start=span[0],
                time_end=span[1],
                state=AnswerCoverage.INCOMPLETE,
                reason=_DIFFERS,
                store_ids=sorted(store_id for store_id, found in lacking.items() if found),
                compared_at=min(each.compared_ns for each in every),
                keyed=all(each.keyed for each in every),
            )
        return self._confirm(span, part)

    def _confirm(self, span: Span, part: Span) -> AnswerCoverage:
        """Return the longest run within a part over which stores are equal by lattice sums."""
        longest: dict[str, _Run] = {}
        for store_id, found in self.stated.items():
            runs = _runs(part, (each for each in found if each.keyed and self._holds(each)))
            if (run := max(runs, key=lambda run: run.rank, default=None)) is not None:
                longest[store_id] = run
        if not longest:
            by_xor = any(not each.keyed for found in self.stated.values() for each in found)
            return unconfirmed(span, _BY_XOR if by_xor else _UNKNOWN)
        best = max(longest.values(), key=lambda run: run.rank)
        agreeing = {store_id: run for store_id, run in longest.items() if run.rank == best.rank}
        run_span = best.start_ns, best.end_ns
        reason = "" if run_span == span else (_DROPPED if run_span == part else _PARTLY)
        return AnswerCoverage(
            time_start=span[0],
            time_end=span[1],
            state=AnswerCoverage.PARTIAL if reason else AnswerCoverage.COMPLETE,
            reason=reason,
            store_ids=sorted(agreeing),
            compared_at=min(run.compared_ns for run in agreeing.values()),
            complete_from=best.start_ns,
            complete_until=best.end_ns,
            keyed=True,
        )

    def _holds(self, said: Statement) -> bool:
        """Return True for a statement of equality whose span has not changed since."""
        return said.equal and self.sums.get(said.span) == (said.count, said.fingerprint)


def unconfirmed(span: Span, reason: str) -> AnswerCoverage:
    """Return that nothing is known about an answer, for a reason in one sentence."""
    return AnswerCoverage(
        time_start=span[0], time_end=span[1], state=AnswerCoverage.UNCONFIRMED, reason=reason
    )


class _Run(NamedTuple):
    """A range without a gap over which another store is equal, as of ``compared_ns``."""

    start_ns: int
    end_ns: int
    compared_ns: int
    keyed: bool

    @property
    def rank(self) -> tuple[int, int]:
        """The sort key: the longest, then the latest."""
        return self.end_ns - self.start_ns, self.end_ns


_NO_RUN: Final = _Run(0, 0, 0, keyed=False)


def _runs(step: Span, statements: Iterable[Statement]) -> Iterator[_Run]:
    """Yield the runs of ascending statements of equality, within the step."""
    found: _Run | None = None
    for each in statements:
        start_ns, end_ns = max(each.start_ns, step[0]), min(each.end_ns, step[1])
        if start_ns >= end_ns:
            continue
        if found is None or start_ns > found.end_ns:
            if found is not None:
                yield found
            found = _Run(start_ns, end_ns, each.compared_ns, each.keyed)
        elif end_ns > found.end_ns:
            compared_ns = min(found.compared_ns, each.compared_ns)
            found = _Run(found.start_ns, end_ns, compared_ns, found.keyed and each.keyed)
    if found is not None:
        yield found


class Statements(Protocol):
    """The store of statements. Both methods raise `NotServingError`."""

    async def note(self, store_id: str, statements: Sequence[Statement], now_ns: int) -> None:
        """Persist them in place of older ones about the same time."""

    async def between(self, start_ns: int, end_ns: int) -> Mapping[str, Sequence[Statement]]:
        """Return those that overlap a range, by store, ascending."""


class Coverage:
    """The reads of ``GetCoverage``, and of answers with their completeness.

    All methods raise `NotServingError` where the database does not serve.
    """

    def __init__(
        self,
        open_view: Callable[[SyncId, SyncId], AbstractAsyncContextManager[MeasuredView]],
        statements: Statements,
        stored: StoredIds,
    ) -> None:
        self._open_view = open_view
        self._statements = statements
        self._stored = stored

    async def steps(self, bounds: Sequence[Span]) -> list[CoverageStep]:
        """Return the coverage of ascending, disjoint spans at one moment."""
        known = await self.known(bounds[0][0], bounds[-1][1], bounds)
        return [
            CoverageStep(
                time_start=span[0],
                time_end=span[1],
                messages=known.sums[span][0],
                fingerprint=known.sums[span][1],
                before_horizon=span[0] < known.horizon_ns,
                stores=known.of(span),
            )
            for span in bounds
        ]

    async def known(
        self, start_ns: int, end_ns: int, measured: Sequence[Span] = ()
    ) -> KnownCoverage:
        """Return the statements about a range that is not empty, and the sums of further spans."""
        # Read first: what is stored meanwhile withdraws statements, and none is believed too long.
        stated = await self._statements.between(start_ns, end_ns)
        spans = [*measured, *(each.span for found in stated.values() for each in found)]
        lower_ns = max(0, min([start_ns, *(span[0] for span in spans)]))
        async with self._open_view((lower_ns, LOWEST[1]), (end_ns, LOWEST[1])) as view:
            sums = await measure_spans(view, spans)
            return KnownCoverage(stated, sums, view.places, view.horizon[0])

    async def lost_since(self, places: Sequence[Place]) -> tuple[bool, int]:
        """Return True if one of some commits is lost, and the horizon now."""
        found = [await self._stored.newest(place) for place in places]
        return not all(each.served for each in found), max(each.horizon_ns for each in found)


@dataclass(frozen=True, slots=True)
class Interval:
    """A time in which a node was online, or which its store has resumed."""

    start_ns: int
    end_ns: int
    resumed: bool


def intake_of(
    span: Span, intervals: Iterable[Interval], now_ns: int
) -> CoverageStep.Intake.ValueType:
    """Return the activity in a span that has begun, from all that touch it and the first."""
    ascending = sorted(intervals, key=lambda each: each.start_ns)
    if not ascending or span[1] <= ascending[0].start_ns:
        return CoverageStep.NEVER
    start_ns, end_ns = span[0], max(span[0], min(span[1], now_ns - _SLACK_NS))
    online = [each for each in ascending if not each.resumed]
    if _is_covered_by(online, start_ns, end_ns):
        return CoverageStep.ONLINE
    is_covered = _is_covered_by(ascending, start_ns, end_ns)
    return CoverageStep.RESUMED if is_covered else CoverageStep.OFFLINE


def _is_covered_by(ascending: Iterable[Interval], start_ns: int, end_ns: int) -> bool:
    reached_ns = start_ns
    for each in ascending:
        if each.start_ns <= reached_ns:
            reached_ns = max(reached_ns, each.end_ns)
    return reached_ns >= end_ns
