"""The partitions that may go, one rule at a time and over simulated decades, and the clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from store.domain.partitioning import (
    DAY_NS,
    MAX_COARSE,
    Bounds,
    Cover,
    ahead,
    ends,
    plan_coarse,
    plan_messages,
)
from store.domain.retention import (
    MAX_DOUBT_NS,
    TOLERANCE_NS,
    DropReason,
    Partition,
    PrunePlan,
    Reading,
    RetentionClock,
    RetentionPolicy,
    effective_age_ns,
    plan_prune,
)

DAY_0 = 20_000
NOW = DAY_0 * DAY_NS + DAY_NS // 2
MIB = 1 << 20
HOUR_NS = DAY_NS // 24
YEAR_NS = 365 * DAY_NS


def part(low: int, high: int, table: str = "messages", size_bytes: int = MIB) -> Partition:
    """Return a partition from and to days before (negative) or after today's midnight."""
    bounds = Bounds((DAY_0 + low) * DAY_NS, (DAY_0 + high) * DAY_NS)
    return Partition(table, f"{table}_{low}", bounds, size_bytes)


def days(first: int, end: int, table: str = "messages") -> list[Partition]:
    return [part(low, low + 1, table) for low in range(first, end)]


def prune(
    fine: list[Partition],
    coarse: list[list[Partition]],
    policy: RetentionPolicy,
    horizon_ns: int = 0,
    now_ns: int = NOW,
) -> PrunePlan:
    return plan_prune(fine, coarse, policy=policy, now_ns=now_ns, horizon_ns=horizon_ns)


def gone(plan: PrunePlan) -> list[tuple[str, str]]:
    return [(each.partition.name, each.reason.value) for step in plan.steps for each in step.drops]


def test_everything_counts_towards_the_size() -> None:
    fine = days(-2, 1)
    plan = plan_prune(
        fine,
        [[part(-9, 9, "hashes", 5 * MIB)]],
        policy=RetentionPolicy(size_bytes=8 * MIB),
        now_ns=NOW,
        horizon_ns=0,
        other_bytes=MIB,
    )
    assert gone(plan) == [("messages_-2", "size")]


def test_a_message_that_is_still_stored_keeps_its_coarse_partition() -> None:
    coarse = [[part(-90, -60, "hashes"), part(-60, -30, "hashes"), part(-30, 30, "hashes")]]
    horizon = (DAY_0 - 10) * DAY_NS
    endless = RetentionPolicy()
    assert gone(prune([part(-80, -79), *days(-10, 1)], coarse, endless, horizon)) == []
    assert gone(prune(days(-10, 1), coarse, endless, horizon)) == [
        ("hashes_-90", "behind the horizon")
    ]


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        RetentionPolicy(age_ns=0)
    with pytest.raises(ValueError, match="positive"):
        RetentionPolicy(size_bytes=0)


def test_the_age_that_decides_the_width_of_coarse_partitions() -> None:
    stored = days(-5, 2)
    half = DAY_NS // 2
    assert effective_age_ns(stored, RetentionPolicy(), NOW) is None
    assert effective_age_ns(stored, RetentionPolicy(age_ns=7), NOW) == 7
    assert effective_age_ns(stored, RetentionPolicy(size_bytes=1), NOW) == 5 * DAY_NS + half
    assert effective_age_ns(stored, RetentionPolicy(age_ns=9, size_bytes=1), NOW) == 9
    assert effective_age_ns([], RetentionPolicy(size_bytes=1), NOW) == 0


@dataclass
class World:
    """A node without a database: partitions as sets, pruned and extended once in a while."""

    fine: list[Bounds] = field(default_factory=list)
    coarse: list[Bounds] = field(default_factory=list)
    horizon_ns: int = 0
    most_coarse: int = 0

    def live(self, now_ns: int, policy: RetentionPolicy, late: list[int]) -> None:
        self.prune(now_ns, policy)
        age = effective_age_ns(self.partitions("messages"), policy, now_ns)
        oldest = max(self.horizon_ns, 1, now_ns - (policy.age_ns or now_ns))
        wanted = [*ahead(now_ns), *(ts for ts in late if ts >= oldest)]
        self.fine = sorted([*self.fine, *plan_messages(self.fine, wanted, now_ns)])
        made = plan_coarse(self.coarse, ends(self.fine, wanted), now_ns, age)
        self.coarse = sorted([*self.coarse, *made])
        self.check(now_ns, policy)

    def partitions(self, table: str) -> list[Partition]:
        bounds = self.fine if table == "messages" else self.coarse
        return [Partition(table, str(each), each, MIB) for each in bounds]

    def prune(self, now_ns: int, policy: RetentionPolicy) -> None:
        plan = plan_prune(
            self.partitions("messages"),
            [self.partitions("hashes")],
            policy=policy,
            now_ns=now_ns,
            horizon_ns=self.horizon_ns,
        )
        for step in plan.steps:
            assert step.horizon_ns >= self.horizon_ns
            self.horizon_ns = step.horizon_ns
            for drop in step.drops:
                stored = self.fine if drop.partition.table == "messages" else self.coarse
                stored.remove(drop.partition.bounds)
                if drop.reason is DropReason.AGE:
                    assert policy.age_ns is not None
                    assert drop.partition.bounds.high <= now_ns - policy.age_ns
            self.check_order()

    def check_order(self) -> None:
        """Check that at most one coarse partition lies wholly below the horizon."""
        floor = min([self.horizon_ns, *(each.low for each in self.fine[:1])])
        assert len([each for each in self.coarse if each.high <= floor]) <= 1

    def check(self, now_ns: int, policy: RetentionPolicy) -> None:
        fine, coarse = Cover(self.fine), Cover(self.coarse)
        fine.check()
        coarse.check()
        self.most_coarse = max(self.most_coarse, len(self.coarse))
        assert len(self.coarse) <= MAX_COARSE
        assert fine.spans(now_ns, now_ns + DAY_NS)
        assert coarse.spans(now_ns, now_ns + DAY_NS)
        last = now_ns + DAY_NS
        past = [each for each in self.fine if each.low <= last]
        assert all(coarse.spans(each.low, min(each.high - 1, last)) for each in past)
        if policy.age_ns is not None:
            assert not any(each.high <= now_ns - policy.age_ns for each in self.fine)


YEAR_DAYS = 365
MONTH = RetentionPolicy(age_ns=30 * DAY_NS)
DAILY = RetentionPolicy(age_ns=DAY_NS)
ENDLESS = RetentionPolicy()
SMALL = RetentionPolicy(size_bytes=20 * MIB)


def pause_days(policy: RetentionPolicy) -> int:
    """Return the days between two rounds: where much is stored, a round a day costs time."""
    return 30 if policy is ENDLESS else max(1, (policy.age_ns or 0) // (30 * DAY_NS))


@pytest.mark.parametrize(
    ("policies", "years", "most_coarse"),
    [
        ([MONTH], 2, 7),
        ([DAILY], 1, 6),
        ([RetentionPolicy(age_ns=YEAR_DAYS * DAY_NS)], 12, 8),
        ([DAILY, ENDLESS, DAILY, MONTH, ENDLESS, SMALL], 18, 9),
    ],
)
def test_years_of_operation(policies: list[RetentionPolicy], years: int, most_coarse: int) -> None:
    world, day = World(), DAY_0
    for year in range(years):
        policy = policies[year % len(policies)]
        step = pause_days(policy)
        for _ in range(0, YEAR_DAYS, step):
            late = [(day - back) * DAY_NS for back in (3, 40, 400) if day % 90 == back % 90]
            world.live(day * DAY_NS + DAY_NS // 3, policy, late)
            day += step
    assert world.most_coarse <= most_coarse


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3_000),
            st.sampled_from([MONTH, DAILY, ENDLESS, SMALL]),
            st.lists(st.integers(0, 4_000), max_size=3),
        ),
        min_size=2,
        max_size=12,
    )
)
@example([(0, MONTH, []), (275, MONTH, []), (50, MONTH, []), (550, ENDLESS, [241])])
def test_pauses_changes_of_mind_and_late_messages(
    visits: list[tuple[int, RetentionPolicy, list[int]]],
) -> None:
    world, now = World(), NOW
    for pause, policy, late in visits:
        now += pause * DAY_NS // 10
        world.live(now, policy, [now - back * DAY_NS // 4 for back in late])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(1, 30), st.integers(1, 14))
def test_size_and_age_against_dropping_one_by_one(
    sizes: list[int], limit: int, age_days: int
) -> None:
    fine = [
        part(place - len(sizes) + 1, place - len(sizes) + 2, size_bytes=size)
        for place, size in enumerate(sizes)
    ]
    policy = RetentionPolicy(age_ns=age_days * DAY_NS, size_bytes=limit)
    expected = []
    left = list(fine)
    while left[0].bounds.high <= NOW and (
        left[0].bounds.high <= NOW - age_days * DAY_NS
        or sum(each.size_bytes for each in left) > limit
    ):
        expected.append(left.pop(0).name)
    plan = prune(fine, [], policy)
    assert [name for name, _ in gone(plan)] == expected
    assert plan.left_over_bytes == max(0, sum(each.size_bytes for each in left) - limit)


def test_a_leap_is_not_believed_and_is_over_when_the_clock_is_set_right() -> None:
    clock = RetentionClock(NOW, 0)
    assert clock.read(NOW + YEAR_NS, 0) == Reading(NOW, YEAR_NS)
    assert clock.read(NOW + YEAR_NS + HOUR_NS, HOUR_NS) == Reading(NOW + HOUR_NS, YEAR_NS)
    right = NOW + 2 * HOUR_NS
    assert clock.read(right, 2 * HOUR_NS) == Reading(right)


@pytest.mark.parametrize(("leap_ns", "doubt_ns"), [(YEAR_NS, MAX_DOUBT_NS), (HOUR_NS, HOUR_NS)])
def test_a_leap_is_believed_after_as_long_as_it_leapt_over_or_a_day(
    leap_ns: int, doubt_ns: int
) -> None:
    clock, leapt = RetentionClock(NOW, 0), NOW + leap_ns
    assert clock.read(leapt, 0).doubted
    assert clock.read(leapt + doubt_ns - 1, doubt_ns - 1).doubted
    assert clock.read(leapt + doubt_ns, doubt_ns) == Reading(leapt + doubt_ns)


def test_a_clock_that_is_set_back_is_believed() -> None:
    clock = RetentionClock(NOW, 0)
    assert clock.read(NOW - YEAR_NS, 0) == Reading(NOW - YEAR_NS)
    assert clock.read(NOW, HOUR_NS).doubted, "to be set right again is a leap as well"


@given(st.lists(st.tuples(st.integers(-YEAR_NS, YEAR_NS), st.integers(0, HOUR_NS)), max_size=30))
def test_time_never_runs_ahead_of_the_clock_nor_faster_than_it_passes(
    steps: list[tuple[int, int]],
) -> None:
    clock, steady, last = RetentionClock(NOW, 0), 0, NOW
    for offset, passed in steps:
        steady += passed
        reading = clock.read(NOW + steady + offset, steady)
        assert reading.time_ns <= NOW + steady + offset
        # Within a day nothing large is believed: 30 steps may last 30 hours.
        if steady < MAX_DOUBT_NS and abs(offset) > MAX_DOUBT_NS:
            assert reading.time_ns <= max(last + passed, 0) + TOLERANCE_NS
        last = reading.time_ns
