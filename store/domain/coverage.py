"""What sessions have found other stores to hold, and what of that still holds.

A session that this node began compared two fixed sets. For every span of its window it leaves one
`Statement` about the peer's store. A statement of equality goes with the count and the XOR of what
is held here in the span; it holds only while they are the same, so nothing has to withdraw it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Final, Protocol

import numpy as np

from reconcile.ids import SyncIds, ordered
from reconcile.view import Measured
from store.domain.partitioning import DAY_NS
from storenode.message.limits import NS_PER_S

MINUTE_NS: Final = 60 * NS_PER_S
BLOCK_NS: Final = 10 * MINUTE_NS
HOUR_NS: Final = 60 * MINUTE_NS
MAX_SPANS: Final = 50_000
"""Spans that one session makes statements about; what is older gets none."""

_FINE_NS: Final = 2 * DAY_NS
"""Days are summed up when they have been over for a day or longer."""
_MAX_FINE_DAYS: Final = 100
_ERA_NS: Final = 512 * DAY_NS
"""Where nothing is held or missing for so long, as before the first message, it is one span."""

Span = tuple[int, int]
"""A half-open range of timestamps in Unix nanoseconds."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What a session found out about ``start_ns`` to ``end_ns``, as of ``compared_ns``.

    Equal, if nothing is missing on either side: each message of the span that one of the two stores
    held then was held by both when the session ended. ``keyed``: compared by lattice sums, else by
    XOR alone. ``count`` and ``fingerprint`` (32 bytes): what is held here in the span, with what
    the session transferred.
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
    def equal(self) -> bool:
        """Neither side lacked anything at the end of the session."""
        return not (self.missing_here or self.missing_there)


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
        return set().union(*(_days_of(ids) for ids in every))


class CoverageState(StrEnum):
    """What is known about a step and another store."""

    EQUAL = "equal"
    DIFFERS = "differs"
    UNCONFIRMED = "unconfirmed"


@dataclass(frozen=True, slots=True)
class StoreCoverage:
    """A step, compared with another store.

    ``equal_until_ns``: equal from the start of the step up to here. ``compared_ns``: as of when,
    the earliest of the sessions that it took; 0: none that still holds. ``last_equal_ns``: the same
    of all of the step, whether it still holds or not. ``held_here``: where the two differ, how many
    messages of the step were held here when they were compared; None: the comparisons were not of
    this step alone.
    """

    store_id: str
    state: CoverageState
    compared_ns: int = 0
    equal_until_ns: int = 0
    keyed: bool = False
    missing_here: int = 0
    missing_there: int = 0
    last_equal_ns: int = 0
    held_here: int | None = None


@dataclass(frozen=True, slots=True)
class CoverageStep:
    """What is held from ``start_ns`` to ``end_ns``, and what other stores are known to hold of it.

    ``complete``: the whole step is above the horizon.
    """

    start_ns: int
    end_ns: int
    count: int
    fingerprint: bytes
    complete: bool
    stores: tuple[StoreCoverage, ...]


class Statements(Protocol):
    """The store of statements."""

    async def note(self, store_id: str, statements: Sequence[Statement], now_ns: int) -> None:
        """Keep them in place of older ones about the same time.

        Raises:
            StoreUnavailable, StoreBusy: the database does not serve.
        """

    async def between(self, start_ns: int, end_ns: int) -> Mapping[str, Sequence[Statement]]:
        """By store, those that overlap a range, ascending by start; raises `StoreUnavailable`."""


class MissingParents(Protocol):
    """What messages of SDS channels name in their causal histories, and is not held."""

    async def missing_parents(self, channel_id: bytes, bounds: Sequence[Span]) -> Sequence[int]:
        """Of each span, how many parents that messages of the channel name there are missing.

        As of some seconds ago. What retention has dropped is not missing to what named it before.

        Raises:
            StoreUnavailable, StoreBusy: the database does not serve.
        """


def eras(start_ns: int, end_ns: int, now_ns: int, found: Comparison) -> list[Span]:
    """Long spans of a range without differences, which may be `spans` if they are empty."""
    first = -(-start_ns // _ERA_NS)
    last = min(end_ns, now_ns - _FINE_NS) // _ERA_NS
    differing = {day // _ERA_NS for day in found.differing_days}
    return [
        (era * _ERA_NS, (era + 1) * _ERA_NS) for era in range(first, last) if era not in differing
    ]


def spans(
    start_ns: int, end_ns: int, now_ns: int, found: Comparison, empty: Sequence[Span] = ()
) -> list[Span]:
    """Where a comparison of a range makes statements: days, hours, and blocks of ten minutes.

    The newest block may end at any full minute. Days with differences are divided into hours;
    ``empty`` are `eras` that become one span each.
    """
    ends = dict(empty)
    end_ns = min(end_ns, now_ns) // MINUTE_NS * MINUTE_NS
    fine = found.differing_days
    if len(fine) > _MAX_FINE_DAYS:
        fine = set(sorted(fine)[-_MAX_FINE_DAYS:])
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


def stated(where: Sequence[Span], measured: Measured, found: Comparison) -> list[Statement]:
    """The statements about some spans, of which ``measured`` was held when they were compared."""
    counts, prints = measured.counts.tolist(), np.ascontiguousarray(measured.fingerprints)
    received, sent = ordered(found.to_receive), ordered(found.to_send)
    made = []
    differing = (_places(ids, where) for ids in (received, sent, found.conflicts))
    for index, ((first, last), (from_, to), (begin, end)) in enumerate(
        zip(*differing, strict=True)
    ):
        start_ns, end_ns = where[index]
        fingerprint, count = prints[index], counts[index]
        if found.resolved and first < last:
            fingerprint = fingerprint ^ np.bitwise_xor.reduce(received.words[first:last], axis=0)
            count += last - first
        keyed = found.keyed_from_ns is not None and found.keyed_from_ns <= start_ns
        here, there = (0, 0) if found.resolved else (last - first, to - from_)
        made.append(
            Statement(
                start_ns,
                end_ns,
                found.compared_ns,
                keyed,
                here + end - begin,
                there + end - begin,
                count,
                _bytes(fingerprint),
            )
        )
    return made


def updated(
    old: Sequence[Statement], new: Sequence[Statement], now_ns: int
) -> tuple[list[Statement], list[Statement]]:
    """Which of those that overlap a session's statements go, and which of these are kept.

    ``new`` ascends and touches. It replaces what lies within, and what a difference contradicts;
    what it overlaps only in part stays as true as it was. A comparison never replaces a later one,
    unless that lies ahead of the clock. Days without messages become one statement.
    """
    later = [each for each in old if new[0].compared_ns < each.compared_ns <= now_ns]
    if later:
        start_ns, end_ns = min(each.start_ns for each in later), max(each.end_ns for each in later)
        new = [each for each in new if each.end_ns <= start_ns or each.start_ns >= end_ns]
    if not new:
        return [], []
    start_ns, end_ns = new[0].start_ns, new[-1].end_ns
    differing = [each for each in new if not each.equal]
    gone = [
        each
        for each in old
        if each not in later
        and (
            (start_ns <= each.start_ns and each.end_ns <= end_ns)
            or any(_overlap(each, other) for other in differing)
        )
    ]
    return gone, _merged(new)


def covered(
    step: Span,
    store_id: str,
    statements: Sequence[Statement],
    held: Mapping[Span, tuple[int, bytes]],
) -> StoreCoverage:
    """What statements, ascending by their starts, say of a step now.

    ``held``: count and XOR of their spans, as they are now.
    """
    start_ns, end_ns = step
    about = [each for each in statements if each.start_ns < end_ns and each.end_ns > start_ns]
    differing = [each for each in about if not each.equal]
    if differing:
        return StoreCoverage(
            store_id,
            CoverageState.DIFFERS,
            min(each.compared_ns for each in differing),
            keyed=all(each.keyed for each in differing),
            missing_here=sum(each.missing_here for each in differing),
            missing_there=sum(each.missing_there for each in differing),
            held_here=_held_then(step, about),
        )
    run = next(_runs(step, about, held), None)
    if run is not None and (run.start_ns, run.end_ns) == step:
        return StoreCoverage(
            store_id,
            CoverageState.EQUAL,
            run.compared_ns,
            end_ns,
            run.keyed,
            last_equal_ns=run.compared_ns,
        )
    found = StoreCoverage(store_id, CoverageState.UNCONFIRMED)
    if run is not None and run.start_ns == start_ns:
        found = replace(
            found, compared_ns=run.compared_ns, equal_until_ns=run.end_ns, keyed=run.keyed
        )
    once = next(_runs(step, about, None), None)
    if once is not None and (once.start_ns, once.end_ns) == step:
        found = replace(found, last_equal_ns=once.compared_ns)
    return found


def _held_then(step: Span, about: Sequence[Statement]) -> int | None:
    """Return what was held here of a step when it was compared."""
    inside = all(step[0] <= each.start_ns and each.end_ns <= step[1] for each in about)
    apart = all(left.end_ns <= right.start_ns for left, right in pairwise(about))
    return sum(each.count for each in about) if inside and apart else None


@dataclass(frozen=True, slots=True)
class Run:
    """A range without a gap over which another store is equal, as of ``compared_ns``."""

    start_ns: int
    end_ns: int
    compared_ns: int
    keyed: bool


def longest_run(
    step: Span, statements: Sequence[Statement], held: Mapping[Span, tuple[int, bytes]]
) -> Run | None:
    """The longest part of a step that statements of equality cover now; arguments as `covered`."""
    runs = _runs(step, statements, held)
    return max(runs, key=lambda run: (run.end_ns - run.start_ns, run.end_ns), default=None)


def _runs(
    step: Span, statements: Sequence[Statement], held: Mapping[Span, tuple[int, bytes]] | None
) -> Iterator[Run]:
    """Yield runs, ascending, within the step; ``held`` None: whether they still hold or not."""
    found: Run | None = None
    for each in statements:
        start_ns, end_ns = max(each.start_ns, step[0]), min(each.end_ns, step[1])
        then = each.count, each.fingerprint
        unchanged = held is None or held.get((each.start_ns, each.end_ns)) == then
        if start_ns >= end_ns or not (each.equal and unchanged):
            continue
        if found is None or start_ns > found.end_ns:
            if found is not None:
                yield found
            found = Run(start_ns, end_ns, each.compared_ns, each.keyed)
        elif end_ns > found.end_ns:
            compared_ns = min(found.compared_ns, each.compared_ns)
            found = Run(found.start_ns, end_ns, compared_ns, found.keyed and each.keyed)
    if found is not None:
        yield found


def measured_by_span(where: Sequence[Span], measured: Measured) -> dict[Span, tuple[int, bytes]]:
    """Count and XOR (32 bytes) of each span."""
    prints = np.ascontiguousarray(measured.fingerprints)
    return {
        span: (count, _bytes(prints[index]))
        for index, (span, count) in enumerate(zip(where, measured.counts.tolist(), strict=True))
    }


def layers(statements: Sequence[Statement]) -> list[list[Span]]:
    """Return the spans of statements that ascend by their starts, in lists without overlap."""
    made: list[list[Span]] = []
    for each in statements:
        free = (layer for layer in made if layer[-1][1] <= each.start_ns)
        span = each.start_ns, each.end_ns
        layer = next(free, None)
        if layer is None:
            made.append([span])
        else:
            layer.append(span)
    return made


def _overlap(left: Statement, right: Statement) -> bool:
    return left.start_ns < right.end_ns and right.start_ns < left.end_ns


def _merged(statements: Sequence[Statement]) -> list[Statement]:
    runs: list[list[Statement]] = []
    for each in statements:
        if runs and _empty_days(runs[-1][-1], each):
            runs[-1].append(each)
        else:
            runs.append([each])
    return [replace(run[0], end_ns=run[-1].end_ns) if run[1:] else run[0] for run in runs]


def _empty_days(left: Statement, right: Statement) -> bool:
    """Are both whole days without messages, of one session."""
    days = all(
        each.equal and not (each.count or each.start_ns % DAY_NS or each.end_ns % DAY_NS)
        for each in (left, right)
    )
    same = (left.compared_ns, left.keyed) == (right.compared_ns, right.keyed)
    return days and same and left.end_ns == right.start_ns


def _days_of(ids: SyncIds) -> set[int]:
    return set((np.unique(ids.timestamps // DAY_NS) * DAY_NS).tolist())


def _places(ids: SyncIds, where: Sequence[Span]) -> list[list[int]]:
    """Of each span, where its IDs begin and end."""
    found: list[list[int]] = np.searchsorted(ids.timestamps, np.array(where, np.int64)).tolist()
    return found


def _bytes(words: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]) -> bytes:
    return words.tobytes()


def aligned(start_ns: int, end_ns: int, step_ns: int) -> Iterator[Span]:
    """Return the steps that a range touches, whole."""
    for lower_ns in range(start_ns // step_ns * step_ns, end_ns, step_ns):
        yield lower_ns, lower_ns + step_ns


_SLACK_NS: Final = 30 * NS_PER_S
"""What the record may be behind while a node is online: it is written every ten seconds."""


class Intake(StrEnum):
    """The state of what a store did in a span.

    ONLINE: a node took messages in all the time. RESUMED: where none did, the store fetched what
    it had missed from a peer. OFFLINE: for a part, neither is recorded. NEVER: the record begins
    later.
    """

    ONLINE = "online"
    RESUMED = "resumed"
    OFFLINE = "offline"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Interval:
    """From ``start_ns`` to ``end_ns`` a node was online, or its store has resumed that time."""

    start_ns: int
    end_ns: int
    resumed: bool


class IntakeRecord(Protocol):
    """The store of intervals. All methods raise `StoreUnavailable` where the database is away."""

    async def record(self, interval: Interval) -> None:
        """Keep an interval; one with the same start and kind grows."""

    async def overlapping(self, start_ns: int, end_ns: int) -> Sequence[Interval]:
        """Return those that touch a range, and the first of all."""


def intake_of(span: Span, intervals: Iterable[Interval], now_ns: int) -> Intake:
    """What is recorded of a span that has begun; ``intervals`` as `IntakeRecord.overlapping`."""
    ascending = sorted(intervals, key=lambda each: each.start_ns)
    if not ascending or span[1] <= ascending[0].start_ns:
        return Intake.NEVER
    start_ns, end_ns = span[0], max(span[0], min(span[1], now_ns - _SLACK_NS))
    online = [each for each in ascending if not each.resumed]
    if _covers(online, start_ns, end_ns):
        return Intake.ONLINE
    return Intake.RESUMED if _covers(ascending, start_ns, end_ns) else Intake.OFFLINE


def _covers(ascending: Iterable[Interval], start_ns: int, end_ns: int) -> bool:
    reached_ns = start_ns
    for each in ascending:
        if each.start_ns <= reached_ns:
            reached_ns = max(reached_ns, each.end_ns)
    return reached_ns >= end_ns
