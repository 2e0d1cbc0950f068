"""The partitions that are made, against oracles that a reader can see are right."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.domain.partitioning import (
    COMMITS_PER_PARTITION,
    CROWDED_AT,
    DAY_NS,
    MAX_COARSE,
    MONTHS_DAYS,
    NEAR_DAYS,
    UNBOUNDED_HIGH,
    UNBOUNDED_LOW,
    WIDEN_AT,
    Bounds,
    Cover,
    ahead,
    parse_bounds,
    partition_name,
    plan_coarse,
    plan_commits,
    plan_messages,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR_NS = DAY_NS // 24


def ns(*date: int) -> int:
    return (datetime(*date, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1) * 1_000  # type: ignore[arg-type,misc]


NOW = ns(2026, 11, 20, 12)
clocks = st.integers(ns(1970, 1, 2), ns(2200, 1, 1))
retentions = st.one_of(st.none(), st.integers(1, 4_000).map(lambda hours: hours * HOUR_NS))


@st.composite
def disjoint(draw: st.DrawFn) -> list[Bounds]:
    edges = sorted(draw(st.sets(st.integers(-40, 40), max_size=16)))
    pairs = pairwise(edges)
    return [Bounds(low, high) for low, high in pairs if draw(st.booleans())]


@given(disjoint(), st.integers(-45, 45), st.integers(-45, 45))
def test_a_cover_answers_as_a_list_does(bounds: list[Bounds], one: int, other: int) -> None:
    first, last = sorted((one, other))
    cover = Cover(reversed(bounds))
    cover.check()
    inside = {key for each in bounds for key in range(each.low, each.high)}
    assert (cover.find(one) is not None) == (one in inside)
    assert cover.spans(first, last) == (set(range(first, last + 1)) <= inside)
    assert cover.reaches(first) == next(key for key in count(first) if key not in inside)
    asked = Bounds(first, last + 1)
    assert cover.overlaps(asked) == bool(set(range(first, last + 1)) & inside)


def names(bounds: Iterable[Bounds], table: str = "messages") -> list[str]:
    return [partition_name(table, each) for each in bounds]


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("FOR VALUES FROM ('5') TO ('7')", Bounds(5, 7)),
        ("FOR VALUES FROM (5) TO (7)", Bounds(5, 7)),
        ("FOR VALUES FROM ('-5') TO ('7')", Bounds(-5, 7)),
        ("FOR VALUES FROM (MINVALUE) TO ('7')", Bounds(UNBOUNDED_LOW, 7)),
        ("FOR VALUES FROM ('7') TO (MAXVALUE)", Bounds(7, UNBOUNDED_HIGH)),
        ("DEFAULT", None),
    ],
)
def test_bounds_are_read_as_postgres_writes_them(text: str, bounds: Bounds | None) -> None:
    assert parse_bounds(text) == bounds
    if bounds is not None:
        assert parse_bounds(f"FOR VALUES {bounds.clause}") == bounds


@pytest.mark.parametrize("values", ["", "IN (1)", "FROM ('a') TO ('b')", "FROM (7) TO (7)"])
def test_bounds_that_are_no_range_are_refused(values: str) -> None:
    with pytest.raises(ValueError, match="holds nothing" if "7" in values else "not a range"):
        parse_bounds(f"FOR VALUES {values}")


@pytest.mark.parametrize(
    ("ts", "name"),
    [
        (ns(2026, 11, 20), "messages_20261120"),
        (ns(2026, 11, 21) - 1, "messages_20261120"),
        (NOW + DAY_NS, "messages_20261121"),
        (NOW - NEAR_DAYS * DAY_NS, "messages_20260921"),
        (ns(2026, 9, 20), "messages_20260920"),
        (ns(2026, 8, 31), "messages_2026m08"),
        (ns(2025, 2, 28), "messages_2025m02"),
        (NOW - MONTHS_DAYS * DAY_NS, "messages_2024m11"),
        (ns(2024, 6, 1), "messages_2024m06"),
        (ns(2023, 12, 31, 23), "messages_2023"),
        (1, "messages_1970"),
    ],
)
def test_units_grow_with_the_distance_from_now(ts: int, name: str) -> None:
    assert names(plan_messages([], [ts], NOW)) == [name]


def test_what_is_covered_in_part_is_filled_by_days() -> None:
    june = Bounds(ns(2025, 6, 10), ns(2025, 6, 11))
    assert names(plan_messages([june], [ns(2025, 6, 20)], NOW)) == ["messages_20250620"]
    months = plan_messages([], [ns(2020, 3, 5)], ns(2020, 8, 1))
    assert names(plan_messages(months, [ns(2020, 5, 5)], NOW)) == ["messages_2020m05"]


def test_where_nothing_is_dropped_months_follow_on_many_days() -> None:
    stored: list[Bounds] = []
    now = NOW
    for _ in range(10 * 365):
        stored += plan_messages(stored, ahead(now), now)
        now += DAY_NS
    cover = Cover(stored)
    cover.check()
    assert cover.spans(NOW, now)
    by_day = [each for each in stored if each.high - each.low == DAY_NS]
    assert CROWDED_AT <= len(by_day) < CROWDED_AT + 31
    assert len(stored) - len(by_day) <= 10 * 12


def is_calendar_unit(bounds: Bounds) -> bool:
    low = EPOCH + timedelta(microseconds=bounds.low // 1_000)
    high = EPOCH + timedelta(microseconds=bounds.high // 1_000)
    day = high - low == timedelta(days=1) and low.time() == EPOCH.time()
    following = (low + timedelta(days=31)).replace(day=1)
    month = low.day == 1 and high == following and low.time() == EPOCH.time()
    year = low == EPOCH.replace(year=low.year) and high == EPOCH.replace(year=low.year + 1)
    return day or month or year


@given(
    st.lists(
        st.tuples(
            clocks, st.lists(st.tuples(st.booleans(), st.integers(1, 40_000 * 24)), max_size=8)
        ),
        max_size=6,
    )
)
def test_every_legal_timestamp_gets_a_partition_whatever_was_made_before(
    days: list[tuple[int, list[tuple[bool, int]]]],
) -> None:
    stored: list[Bounds] = []
    for now, shifts in days:
        wanted = [1, now, now + DAY_NS, *ahead(now)]
        wanted += [max(1, min(now + DAY_NS, now - hours * HOUR_NS)) for _, hours in shifts]
        wanted += [max(1, now - hours * HOUR_NS // 24) for near, hours in shifts if near]
        made = plan_messages(stored, wanted, now)
        stored += made
        cover = Cover(stored)
        cover.check()
        assert all(cover.find(ts) is not None for ts in wanted)
        assert all(any(ts in each for ts in wanted) for each in made)
        assert all(is_calendar_unit(each) for each in made)
        assert plan_messages(stored, wanted, now) == []
        assert len(set(names(stored))) == len(stored)


@given(st.integers(0, 2**62), st.sets(st.integers(0, 5)))
def test_commits_have_the_partition_of_a_position_and_the_next(
    position: int, offsets: set[int]
) -> None:
    first = position // COMMITS_PER_PARTITION
    stored = [
        Bounds(number * COMMITS_PER_PARTITION, (number + 1) * COMMITS_PER_PARTITION)
        for number in (first + offset for offset in offsets)
    ]
    made = plan_commits(stored, position)
    cover = Cover([*stored, *made])
    cover.check()
    assert cover.spans(position, position + COMMITS_PER_PARTITION)
    numbers = [first + offset for offset in (0, 1) if offset not in offsets]
    assert names(made, "commits") == [f"commits_{number}" for number in numbers]


def test_the_first_coarse_partition_starts_today_and_older_ones_have_no_lower_bound() -> None:
    today = ns(2026, 11, 20)
    plan = plan_coarse([], [NOW - 500 * DAY_NS, NOW], NOW, 30 * DAY_NS)
    made = [Bounds(UNBOUNDED_LOW, today), Bounds(today, today + 8 * DAY_NS)]
    assert plan == made
    assert names(made, "sds") == ["sds_before_20261120", "sds_20261120"]


def test_many_partitions_make_wide_ones_and_so_a_century_has_few() -> None:
    day = DAY_NS
    stored = [Bounds(number * day, (number + 1) * day) for number in range(10, 10 + WIDEN_AT)]
    stored += plan_coarse(stored, [stored[-1].high], NOW, day)
    assert stored[-1] == Bounds(16 * day, 22 * day)
    stored += plan_coarse(stored, [1, stored[-1].high], NOW, day)
    assert stored[-2:] == [Bounds(UNBOUNDED_LOW, 10 * day), Bounds(22 * day, 34 * day)]
    endless: list[Bounds] = []
    for years in range(100):
        endless += plan_coarse(endless, [NOW + years * 365 * day], NOW, None)
    assert len(endless) == 11


@given(
    st.lists(
        st.tuples(clocks, retentions, st.lists(st.integers(1, 40_000 * 24), max_size=4)),
        min_size=1,
        max_size=14,
    )
)
def test_coarse_partitions_cover_everything_and_stay_few(
    days: list[tuple[int, int | None, list[int]]],
) -> None:
    stored: list[Bounds] = []
    for now, retention, shifts in days:
        wanted = [*ahead(now), *(max(1, now - hours * HOUR_NS) for hours in shifts)]
        stored = sorted([*stored, *plan_coarse(stored, wanted, now, retention)])
        cover = Cover(stored)
        cover.check()
        assert len(stored) <= MAX_COARSE
        assert cover.spans(stored[0].low, stored[-1].high - 1)
        assert all(cover.find(ts) is not None for ts in wanted)
        assert plan_coarse(stored, wanted, now, retention) == []
        assert len(set(names(stored, "x"))) == len(stored)
