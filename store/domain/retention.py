"""Retention: the partitions to drop by age and size, with those of lookup tables, and its clock.

- A partition of messages may go when it ends at or before now, so never the current one.
- By age it goes when it ends at or before ``now - age``; by size, oldest first, as long as all
  tables together are larger than the limit.
- Dropping one raises the horizon to its upper bound: nothing older is admitted afterwards.
- Limits that would drop more than `MAX_EXCESS_SHARE` of the messages, or `MAX_EXCESS_NS` of time,
  beyond the ones that the store has agreed to, must be confirmed: they may be a slip, such as 30m
  for 30d.
- A coarse partition goes when the one after it ends at or before the horizon and before every
  message that is still held: one coarse partition later than the messages, so that cursors of
  pruned messages continue working for a while.

A step is one transaction; the steps are in the order in which they must be done.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Final

from store.domain.partitioning import DAY_NS, UNBOUNDED_LOW, Bounds
from storenode.message.limits import NS_PER_S

TOLERANCE_NS: Final = 60 * NS_PER_S
MAX_DOUBT_NS: Final = DAY_NS
"""Bounds of the doubt of a `RetentionClock`."""


class DropReason(StrEnum):
    """The reason to drop a partition."""

    AGE = "age"
    SIZE = "size"
    FOLLOWS = "behind the horizon"


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as the catalog describes it; ``rows`` is an estimate, -1 when unknown."""

    table: str
    name: str
    bounds: Bounds
    size_bytes: int = 0
    rows: int = -1
    oid: int = 0


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The limits of age and size; None: without limit.

    ``requires_archive``: what is not archived in full stays, whatever the limits say.
    """

    age_ns: int | None = None
    size_bytes: int | None = None
    requires_archive: bool = False

    def __post_init__(self) -> None:
        if self.age_ns is not None and self.age_ns <= 0:
            raise ValueError("a retention of no time would keep nothing: give a positive one")
        if self.size_bytes is not None and self.size_bytes <= 0:
            raise ValueError("a retention of no bytes would keep nothing: give a positive one")


@dataclass(frozen=True, slots=True)
class Drop:
    """A partition that goes, and why."""

    partition: Partition
    reason: DropReason


@dataclass(frozen=True, slots=True)
class PruneStep:
    """The partitions that one transaction drops, and the horizon (nanoseconds) that it leaves."""

    drops: tuple[Drop, ...]
    horizon_ns: int


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """``left_over_bytes``: by how much the limit on size stays passed; 0 when it is kept."""

    steps: tuple[PruneStep, ...]
    left_over_bytes: int = 0

    def messages(self) -> tuple[Partition, ...]:
        """Return the partitions of messages that go, oldest first."""
        drops = (each.partition for step in self.steps for each in step.drops)
        return tuple(each for each in drops if each.table == FINE_TABLE)


FINE_TABLE: Final = "messages"
_BOUNDS: Final = attrgetter("bounds")


def plan_prune(
    fine: Iterable[Partition],
    coarse: Iterable[Sequence[Partition]],
    *,
    policy: RetentionPolicy,
    now_ns: int,
    horizon_ns: int,
    other_bytes: int = 0,
) -> PrunePlan:
    """Decide what goes.

    ``fine`` are the partitions of messages, ``coarse`` those of each lookup table, and
    ``other_bytes`` the size of everything else that counts towards the limit.
    """
    left = sorted(fine, key=_BOUNDS)
    tables = [sorted(each, key=_BOUNDS) for each in coarse]
    size_bytes = other_bytes + sum(each.size_bytes for table in (left, *tables) for each in table)
    steps: list[PruneStep] = []
    reason: DropReason | None = None
    while True:
        drops: list[Drop] = []
        if reason is not None:
            drops.append(Drop(left.pop(0), reason))
            horizon_ns = max(horizon_ns, drops[0].partition.bounds.high)
        floor_ns = min([horizon_ns, *(each.bounds.low for each in left[:1])])
        for table in tables:
            while len(table) > 1 and table[1].bounds.high <= floor_ns:
                drops.append(Drop(table.pop(0), DropReason.FOLLOWS))
        if drops:
            size_bytes -= sum(each.partition.size_bytes for each in drops)
            steps.append(PruneStep(tuple(drops), horizon_ns))
        if not left or left[0].bounds.high > now_ns:
            break
        if policy.age_ns is not None and left[0].bounds.high <= now_ns - policy.age_ns:
            reason = DropReason.AGE
        elif policy.size_bytes is not None and size_bytes > policy.size_bytes:
            reason = DropReason.SIZE
        else:
            break
    excess = 0 if policy.size_bytes is None else size_bytes - policy.size_bytes
    return PrunePlan(tuple(steps), max(0, excess))


MAX_EXCESS_SHARE: Final = 0.1
MAX_EXCESS_NS: Final = 7 * DAY_NS
"""The share of the bytes of all messages, and the span of time, that lower limits may drop at once
without a confirmation."""


@dataclass(frozen=True, slots=True)
class Excess:
    """The oldest partitions of messages, which limits would drop, and their share of all bytes.

    ``span_ns``: the time that they span; one without a lower bound counts as a year.
    """

    partitions: tuple[Partition, ...]
    share: float
    size_bytes: int
    span_ns: int

    @classmethod
    def of(cls, partitions: tuple[Partition, ...], fine: Iterable[Partition]) -> "Excess | None":
        """Return partitions out of all partitions of messages; None: there are none."""
        if not partitions:
            return None
        total = sum(each.size_bytes for each in fine)
        size_bytes = sum(each.size_bytes for each in partitions)
        first, last = partitions[0].bounds, partitions[-1].bounds
        span_ns = last.high - max(first.low, first.high - 365 * DAY_NS)
        return cls(partitions, size_bytes / max(1, total), size_bytes, span_ns)

    @property
    def days(self) -> float:
        """The time that they span, in days."""
        return self.span_ns / DAY_NS


def find_excess(
    plan: PrunePlan, agreed: PrunePlan | None, fine: Iterable[Partition]
) -> Excess | None:
    """Return what must be confirmed before it is dropped; None: nothing.

    Args:
        plan: The drops under the limits in question.
        agreed: Those under the limits that the store has agreed to; None: it has agreed to none.
        fine: The partitions of messages.
    """
    expected = () if agreed is None else agreed.messages()
    excess = Excess.of(tuple(each for each in plan.messages() if each not in expected), fine)
    if excess is None:
        return None
    is_small = excess.share <= MAX_EXCESS_SHARE and excess.span_ns <= MAX_EXCESS_NS
    return None if is_small else excess


def effective_age_ns(fine: Iterable[Partition], policy: RetentionPolicy, now_ns: int) -> int | None:
    """Return how long messages are expected to be stored, for the width of coarse partitions.

    Under a limit on size that is as long as they are held now: coarse partitions that span much
    more than the messages would take the space that the messages are meant to have.
    """
    if policy.size_bytes is None:
        return policy.age_ns
    lows = [each.bounds.low for each in fine if each.bounds.low != UNBOUNDED_LOW]
    stored_ns = max(0, now_ns - min(lows, default=now_ns))
    return stored_ns if policy.age_ns is None else min(stored_ns, policy.age_ns)


@dataclass(frozen=True, slots=True)
class Reading:
    """The time of a `RetentionClock`, and by how much the clock is ahead of it; in nanoseconds."""

    time_ns: int
    ahead_ns: int = 0

    @property
    def doubted(self) -> bool:
        """True while the clock is not believed."""
        return self.ahead_ns > 0


class RetentionClock:
    """A clock for retention: the system's, unless that has leapt forward.

    A dropped partition does not come back, and a clock that is a year ahead for a minute must not
    drop a year. So the clock is compared with the steady time since it was last believed. Rules:

    1. Where it shows no more than that, with `TOLERANCE_NS`, it is believed; also when it was set
       back, since that keeps messages for longer.
    2. Else it has leapt. Time continues from where it was, until the clock has been steady for as
       long as it leapt over, or for `MAX_DOUBT_NS`. Then it is believed: a node that was off, or a
       machine that slept, has leapt as well.
    3. A starting node compares it with the newest commit, which shows that the clock was there.

    Publishing and queries use the clock itself, which is wrong no longer than it is wrong.
    """

    def __init__(self, witness_ns: int, steady_ns: int) -> None:
        self._believed_ns = witness_ns  # a time that has certainly been reached
        self._at_ns = steady_ns
        self._doubted_since_ns: int | None = None

    def read(self, clock_ns: int, steady_ns: int) -> Reading:
        """Return the time when the clock shows ``clock_ns``, and a monotonic one ``steady_ns``."""
        expected_ns = self._believed_ns + (steady_ns - self._at_ns)
        ahead_ns = clock_ns - expected_ns
        reading = Reading(clock_ns)
        if ahead_ns > TOLERANCE_NS:
            since_ns = steady_ns if self._doubted_since_ns is None else self._doubted_since_ns
            if steady_ns - since_ns < min(ahead_ns, MAX_DOUBT_NS):
                reading = Reading(expected_ns, ahead_ns)
                self._doubted_since_ns = since_ns
        if not reading.doubted:
            self._doubted_since_ns = None
        self._believed_ns, self._at_ns = reading.time_ns, steady_ns
        return reading
