"""Which partitions may go: by age, by size, and what follows from that for the look-up tables.

- A partition of messages may go when it ends at or before now, so never the current one.
- By age it goes when it ends at or before ``now - age``; by size, oldest first, as long as all
  tables together are larger than the limit.
- Dropping one raises the horizon to its upper bound: nothing older is admitted afterwards.
- A coarse partition goes when the one after it ends at or before the horizon and before every
  message that is still held: one coarse partition later than the messages, so that cursors of
  pruned messages go on working for a while.

A step is one transaction; the steps are in the order in which they must be done.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from store.domain.partitioning import UNBOUNDED_LOW, Bounds


class Reason(StrEnum):
    """Why a partition goes."""

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
    """How long and how much is kept; None: without limit.

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
    reason: Reason


@dataclass(frozen=True, slots=True)
class Step:
    """What one transaction drops, and the horizon (nanoseconds) that it leaves."""

    drops: tuple[Drop, ...]
    horizon_ns: int


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """``left_over_bytes``: by how much the limit on size stays passed; 0 when it is kept."""

    steps: tuple[Step, ...]
    left_over_bytes: int = 0


FINE_TABLE: Final = "messages"


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

    ``fine`` are the partitions of messages, ``coarse`` those of each look-up table, and
    ``other_bytes`` the size of everything else that counts towards the limit.
    """
    state = _State(sorted(fine, key=_low), [sorted(each, key=_low) for each in coarse], horizon_ns)
    state.size_bytes += other_bytes
    steps = [Step(state.follow(), horizon_ns)]
    while (reason := state.why_oldest_goes(policy, now_ns)) is not None:
        steps.append(state.drop_oldest(reason))
    excess = 0 if policy.size_bytes is None else state.size_bytes - policy.size_bytes
    return PrunePlan(tuple(step for step in steps if step.drops), max(0, excess))


def effective_age_ns(fine: Iterable[Partition], policy: RetentionPolicy, now_ns: int) -> int | None:
    """How long messages are expected to be held, which decides the width of coarse partitions.

    Under a limit on size that is as long as they are held now: coarse partitions that span much
    more than the messages would take the space that the messages are meant to have.
    """
    if policy.size_bytes is None:
        return policy.age_ns
    lows = [each.bounds.low for each in fine if each.bounds.low != UNBOUNDED_LOW]
    held_ns = max(0, now_ns - min(lows, default=now_ns))
    return held_ns if policy.age_ns is None else min(held_ns, policy.age_ns)


class _State:
    def __init__(
        self, fine: list[Partition], coarse: list[list[Partition]], horizon_ns: int
    ) -> None:
        self.fine = fine
        self.coarse = coarse
        self.horizon_ns = horizon_ns
        self.size_bytes = sum(each.size_bytes for each in fine)
        self.size_bytes += sum(each.size_bytes for table in coarse for each in table)

    def why_oldest_goes(self, policy: RetentionPolicy, now_ns: int) -> Reason | None:
        if not self.fine or self.fine[0].bounds.high > now_ns:
            return None
        if policy.age_ns is not None and self.fine[0].bounds.high <= now_ns - policy.age_ns:
            return Reason.AGE
        if policy.size_bytes is not None and self.size_bytes > policy.size_bytes:
            return Reason.SIZE
        return None

    def drop_oldest(self, reason: Reason) -> Step:
        oldest = self.fine.pop(0)
        self.size_bytes -= oldest.size_bytes
        self.horizon_ns = max(self.horizon_ns, oldest.bounds.high)
        return Step((Drop(oldest, reason), *self.follow()), self.horizon_ns)

    def follow(self) -> tuple[Drop, ...]:
        """Take out the coarse partitions that may go now."""
        floor = min([self.horizon_ns, *(each.bounds.low for each in self.fine[:1])])
        gone: list[Drop] = []
        for table in self.coarse:
            while len(table) > 1 and table[1].bounds.high <= floor:
                gone.append(Drop(table.pop(0), Reason.FOLLOWS))
        self.size_bytes -= sum(each.partition.size_bytes for each in gone)
        return tuple(gone)


def _low(partition: Partition) -> int:
    return partition.bounds.low
