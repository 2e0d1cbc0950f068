"""Coverage: statements about other stores, answers' completeness, and times online."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
import pytest

from reconcile.ids import SyncId, SyncIds
from reconcile.view import Measured
from store.domain.coverage import (
    BLOCK_NS,
    HOUR_NS,
    MINUTE_NS,
    AnswerCoverage,
    AnswerState,
    Comparison,
    CoverageState,
    Intake,
    Interval,
    KnownCoverage,
    Span,
    Statement,
    answered,
    covered,
    intake_of,
    layers,
    measured_by_span,
    spans,
    stated,
    updated,
)
from store.domain.partitioning import DAY_NS

TODAY: Final = 20_000 * DAY_NS
NOW: Final = TODAY + 10 * HOUR_NS + 25 * MINUTE_NS + 7
NONE: Final = SyncIds.empty()
EQUAL: Final = Comparison(NONE, NONE, resolved=True, keyed_from_ns=None, compared_ns=NOW)


def message(time_ns: int, number: int) -> SyncId:
    return time_ns, number.to_bytes(32, "big")


def xor(ids: list[SyncId]) -> bytes:
    total = 0
    for _, digest in ids:
        total ^= int.from_bytes(digest, "big")
    return total.to_bytes(32, "big")


def measured(stored: list[SyncId], where: list[tuple[int, int]]) -> Measured:
    inside = [[each for each in stored if start <= each[0] < end] for start, end in where]
    prints = b"".join(xor(each) for each in inside)
    counts = np.array([len(each) for each in inside], np.int64)
    return Measured(counts, np.frombuffer(prints, np.uint64).reshape(-1, 4))


def statements(
    stored: list[SyncId], start_ns: int, end_ns: int, found: Comparison, now_ns: int = NOW
) -> list[Statement]:
    where = spans(start_ns, end_ns, now_ns, found)
    return stated(where, measured(stored, where), found)


def verdict(
    stored: list[SyncId], kept: list[Statement], start_ns: int, length_ns: int = HOUR_NS
) -> CoverageState:
    where = [(each.start_ns, each.end_ns) for each in kept]
    about = measured_by_span(where, measured(stored, where))
    return covered((start_ns, start_ns + length_ns), "b", kept, about).state


def test_spans_are_days_then_hours_then_blocks_and_touch() -> None:
    start_ns = TODAY - 5 * DAY_NS + 3 * HOUR_NS + 1
    found = spans(start_ns, NOW + DAY_NS, NOW, EQUAL)
    lengths = [end - start for start, end in found]
    assert found[0][0] == TODAY - 5 * DAY_NS + 3 * HOUR_NS + BLOCK_NS
    assert found[-1][1] == NOW // MINUTE_NS * MINUTE_NS
    assert all(left[1] == right[0] for left, right in pairwise(found))
    assert lengths.count(DAY_NS) == 2
    assert lengths[-3:] == [BLOCK_NS, BLOCK_NS, 5 * MINUTE_NS]


def test_a_day_with_a_difference_is_divided_into_hours() -> None:
    lacks = SyncIds.of([message(TODAY - 4 * DAY_NS + 5, 1)])
    found = replace(EQUAL, to_receive=lacks, resolved=False)
    made = statements([], TODAY - 5 * DAY_NS, TODAY - 3 * DAY_NS, found)
    assert len(made) == 1 + 24
    differing = [each for each in made if not each.equal]
    assert [(each.start_ns, each.missing_here) for each in differing] == [(TODAY - 4 * DAY_NS, 1)]


def test_what_was_transferred_counts_as_stored() -> None:
    here, there = message(TODAY + 1, 1), message(TODAY + 2, 2)
    found = replace(EQUAL, to_send=SyncIds.of([here]), to_receive=SyncIds.of([there]))
    made = statements([here], TODAY, TODAY + HOUR_NS, found)
    assert verdict([here, there], made, TODAY) is CoverageState.EQUAL
    assert verdict([here], made, TODAY) is CoverageState.UNCONFIRMED


def test_a_conflict_differs_although_all_else_was_transferred() -> None:
    here, there = message(TODAY + 1, 1), message(TODAY + HOUR_NS + 2, 2)
    conflicts = SyncIds.of([here])
    found = replace(EQUAL, to_receive=SyncIds.of([there]), conflicts=conflicts)
    made = statements([here], TODAY, TODAY + 2 * HOUR_NS, found)
    assert [(each.missing_here, each.missing_there) for each in made] == [(1, 1), (0, 0)]
    assert verdict([here, there], made, TODAY) is CoverageState.DIFFERS
    assert verdict([here, there], made, TODAY + HOUR_NS) is CoverageState.EQUAL


@pytest.mark.parametrize("late", [True, False])
def test_a_late_or_a_lost_message_withdraws_equality(late: bool) -> None:
    stored = [message(TODAY + number, number) for number in range(1, 5)]
    made = statements(stored, TODAY, TODAY + 2 * HOUR_NS, EQUAL)
    changed = [*stored, message(TODAY + 9, 9)] if late else stored[1:]
    assert verdict(stored, made, TODAY) is CoverageState.EQUAL
    assert verdict(changed, made, TODAY) is CoverageState.UNCONFIRMED
    assert verdict(changed, made, TODAY + HOUR_NS) is CoverageState.EQUAL


def test_a_difference_stays_until_a_later_session() -> None:
    lacks = message(TODAY + 1, 1)
    open_end = replace(EQUAL, to_receive=SyncIds.of([lacks]), resolved=False)
    made = statements([], TODAY, TODAY + HOUR_NS, open_end)
    assert verdict([lacks], made, TODAY) is CoverageState.DIFFERS
    later = replace(EQUAL, compared_ns=NOW + 1)
    _, kept = updated(made, statements([lacks], TODAY, TODAY + HOUR_NS, later), NOW + 2)
    assert verdict([lacks], kept, TODAY) is CoverageState.EQUAL


def test_the_counts_of_a_difference_are_those_of_its_comparison() -> None:
    stored = [message(TODAY + number * BLOCK_NS, number) for number in range(1, 5)]
    lacks = replace(EQUAL, to_receive=SyncIds.of([message(TODAY + 1, 9)]), resolved=False)
    made = statements(stored, TODAY, TODAY + HOUR_NS, lacks)
    late = [*stored, message(TODAY + 2, 10)]

    def compare(start_ns: int, end_ns: int) -> tuple[CoverageState, int | None]:
        where = [(each.start_ns, each.end_ns) for each in made]
        about = measured_by_span(where, measured(late, where))
        found = covered((start_ns, end_ns), "b", made, about)
        return found.state, found.stored_here

    assert compare(TODAY, TODAY + HOUR_NS) == (CoverageState.DIFFERS, 4)
    assert compare(TODAY, TODAY + BLOCK_NS) == (CoverageState.DIFFERS, None), "a part of the hour"


def test_an_earlier_comparison_replaces_no_later_one() -> None:
    early = replace(EQUAL, compared_ns=NOW - 1)
    old = statements([], TODAY, TODAY + HOUR_NS, EQUAL)
    new = statements([], TODAY, TODAY + 2 * HOUR_NS, early)
    gone, made = updated(old, new, NOW + 1)
    assert not gone
    assert [each.start_ns for each in made] == [TODAY + HOUR_NS]
    assert updated(old, new[:1], NOW - 1) == (old, new[:1])


def test_sessions_of_the_last_hour_cover_every_hour() -> None:
    kept: list[Statement] = []
    stored = [message(TODAY + number * BLOCK_NS, 1 << number) for number in range(18)]
    for minutes in range(10, 180, 5):
        now_ns = TODAY + minutes * MINUTE_NS
        found = replace(EQUAL, compared_ns=now_ns)
        known = [each for each in stored if each[0] < now_ns]
        made = statements(known, now_ns - HOUR_NS, now_ns, found, now_ns)
        gone, new = updated(kept, made, now_ns)
        kept = _kept(kept, gone, new)
    assert verdict(stored, kept, TODAY) is CoverageState.EQUAL
    assert verdict(stored, kept, TODAY + HOUR_NS) is CoverageState.EQUAL
    assert len(kept) <= 30


def test_what_a_session_covers_in_part_stays() -> None:
    day = statements([], TODAY - 4 * DAY_NS, TODAY - 3 * DAY_NS, EQUAL)
    later = replace(EQUAL, compared_ns=NOW + 1)
    part = statements([], TODAY - 4 * DAY_NS, TODAY - 4 * DAY_NS + HOUR_NS, later)
    assert updated(day, part, NOW + 1) == ([], part)
    lacks = replace(later, to_send=SyncIds.of([message(TODAY - 4 * DAY_NS, 1)]), resolved=False)
    differs = statements([], TODAY - 4 * DAY_NS, TODAY - 4 * DAY_NS + HOUR_NS, lacks)
    assert updated(day, differs, NOW + 1) == (day, differs)


def test_days_without_messages_are_one_statement() -> None:
    _, made = updated([], statements([], 0, TODAY, EQUAL), NOW)
    assert made[0].end_ns - made[0].start_ns > 19_000 * DAY_NS
    assert len(made) < 60


def test_a_part_of_a_step_is_not_the_step() -> None:
    made = statements([], TODAY, TODAY + 30 * MINUTE_NS, EQUAL)
    where = {(each.start_ns, each.end_ns): (0, bytes(32)) for each in made}
    found = covered((TODAY, TODAY + HOUR_NS), "b", made, where)
    assert found.state is CoverageState.UNCONFIRMED
    assert found.equal_until_ns == TODAY + 30 * MINUTE_NS


@pytest.mark.parametrize("seed", range(20))
def test_a_step_is_equal_only_if_it_was(seed: int) -> None:
    """Let two stores drift, and compare them over random windows: no statement is false."""
    rng = random.Random(seed)
    sides: tuple[set[SyncId], set[SyncId]] = (set(), set())
    kept: list[Statement] = []
    moments: dict[int, tuple[set[SyncId], set[SyncId]]] = {}
    for number in range(1, 60):
        at_ns = NOW + number
        for side in rng.sample(sides, rng.randrange(3)):
            side.add(message(TODAY + rng.randrange(6 * HOUR_NS), rng.getrandbits(200)))
        if rng.random() < 0.5:
            start_ns = TODAY + rng.randrange(5 * HOUR_NS)
            end_ns = start_ns + rng.randrange(6 * HOUR_NS)
            here, there = (
                {each for each in side if start_ns <= each[0] < end_ns} for side in sides
            )
            moments[at_ns] = set(sides[0]), set(sides[1])
            resolved = rng.random() < 0.7
            found = Comparison(
                SyncIds.of(sorted(here - there)),
                SyncIds.of(sorted(there - here)),
                resolved or here == there,
                None,
                at_ns,
            )
            made = statements(sorted(sides[0]), start_ns, end_ns, found, NOW)
            if resolved:
                sides[0].update(there)
                sides[1].update(here)
            if not made:
                continue
            gone, new = updated(kept, made, at_ns)
            kept = _kept(kept, gone, new)
        for hour in range(6):
            _hold_to_the_truth(kept, sides, moments, TODAY + hour * HOUR_NS)


def _kept(kept: list[Statement], gone: list[Statement], new: list[Statement]) -> list[Statement]:
    return sorted([*(set(kept) - set(gone)), *new], key=lambda each: (each.start_ns, -each.end_ns))


def _hold_to_the_truth(
    kept: list[Statement],
    sides: tuple[set[SyncId], set[SyncId]],
    moments: dict[int, tuple[set[SyncId], set[SyncId]]],
    start_ns: int,
) -> None:
    where = [(each.start_ns, each.end_ns) for each in kept]
    about = measured_by_span(where, measured(sorted(sides[0]), where))
    found = covered((start_ns, start_ns + HOUR_NS), "b", kept, about)
    if not found.last_equal_ns:
        assert found.state is not CoverageState.EQUAL
        return
    then = {
        each
        for side in moments[found.last_equal_ns]
        for each in side
        if start_ns <= each[0] < start_ns + HOUR_NS
    }
    assert then <= sides[0]
    assert then <= sides[1]


PRINT: Final = bytes(32)
DAY: Final = (0, 24 * HOUR_NS)


def statement(hour: int, *, compared_ns: int = 7, here: int = 0, there: int = 0) -> Statement:
    start_ns = hour * HOUR_NS
    return Statement(start_ns, start_ns + HOUR_NS, compared_ns, True, here, there, 5, PRINT)


def known(**stores: list[Statement]) -> KnownCoverage:
    """Make statements all of which still hold."""
    sums = {each.span: (each.count, each.fingerprint) for said in stores.values() for each in said}
    return KnownCoverage(stores, sums, [(1, 1)])


def answer(of: KnownCoverage, span: Span = DAY, horizon_ns: int = 0) -> AnswerCoverage:
    return answered(span, of, horizon_ns, lost=False)


EVERY: Final = [statement(hour) for hour in range(24)]


def hours(first: int, last: int) -> Span:
    return first * HOUR_NS, last * HOUR_NS


def test_complete_needs_every_part_and_names_who_agrees_on_all_of_it() -> None:
    found = answer(known(b=EVERY, c=[replace(EVERY[0], compared_ns=3), *EVERY[1:]], d=EVERY[:20]))
    assert (found.state, found.store_ids) == (AnswerState.COMPLETE, ("b", "c"))
    assert (found.compared_ns, found.reason) == (3, "")
    assert (found.from_ns, found.until_ns) == DAY


def test_a_late_message_leaves_the_longest_part_without_it() -> None:
    before = known(b=EVERY)
    found = answer(replace(before, sums={**before.sums, hours(5, 6): (6, PRINT)}))
    assert found.state is AnswerState.PARTIAL
    assert (found.from_ns, found.until_ns) == hours(6, 24)
    assert "rest of this time" in found.reason


def test_part_of_an_hour_is_asked_for() -> None:
    within = HOUR_NS + 1, 2 * HOUR_NS - 1
    found = answer(known(b=[statement(1)]), within)
    assert (found.state, found.from_ns, found.until_ns) == (AnswerState.COMPLETE, *within)


def test_what_this_store_lacked_outweighs_what_others_confirm() -> None:
    found = answer(known(b=EVERY, c=[statement(3, here=2, compared_ns=9)]))
    assert (found.state, found.store_ids, found.compared_ns) == (AnswerState.INCOMPLETE, ("c",), 9)
    # What the other store lacked makes no answer of this one incomplete.
    found = answer(known(b=EVERY, c=[statement(3, there=2)]))
    assert (found.state, found.store_ids) == (AnswerState.COMPLETE, ("b",))


def test_what_was_compared_by_xor_alone_is_never_complete() -> None:
    by_xor = [replace(each, keyed=False) for each in EVERY]
    found = answer(known(b=by_xor))
    assert (found.state, "by XOR only" in found.reason) == (AnswerState.UNCONFIRMED, True)
    found = answer(known(b=[*EVERY[:12], *by_xor[12:]]))
    assert (found.state, found.from_ns, found.until_ns) == (AnswerState.PARTIAL, *hours(0, 12))
    assert found.keyed


def test_below_the_horizon_nothing_is_complete() -> None:
    for hours_ago, state in ((4, AnswerState.PARTIAL), (24, AnswerState.UNCONFIRMED)):
        found = answer(known(b=EVERY), horizon_ns=hours_ago * HOUR_NS)
        assert (found.state, "horizon" in found.reason) == (state, True)
        assert state is AnswerState.UNCONFIRMED or found.from_ns == 4 * HOUR_NS


@pytest.mark.parametrize(
    ("stores", "lost", "reason"),
    [({}, False, "no comparison"), ({"b": [statement(0)]}, True, "lost commits")],
)
def test_nothing_is_claimed_without_a_statement_or_after_a_loss(
    *, stores: dict[str, list[Statement]], lost: bool, reason: str
) -> None:
    found = answered(hours(0, 1), known(**stores), 0, lost=lost)
    assert found.state is AnswerState.UNCONFIRMED
    assert reason in found.reason
    assert not found.store_ids


TEN: Final = 10 * HOUR_NS
RECORD: Final = [
    Interval(HOUR_NS, 3 * HOUR_NS, resumed=False),
    # Off for an hour and a half, of which the resume has brought an hour.
    Interval(3 * HOUR_NS, 4 * HOUR_NS, resumed=True),
    Interval(4 * HOUR_NS + HOUR_NS // 2, 6 * HOUR_NS, resumed=False),
    # Another node of the store.
    Interval(5 * HOUR_NS, TEN - 5, resumed=False),
]


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (hours(0, 1), Intake.NEVER),
        (hours(1, 2), Intake.ONLINE),
        (hours(3, 4), Intake.RESUMED),
        ((2 * HOUR_NS, 4 * HOUR_NS), Intake.RESUMED),
        (hours(4, 5), Intake.OFFLINE),
        (hours(5, 6), Intake.ONLINE),
        ((0, 2 * HOUR_NS), Intake.OFFLINE),
        # The record may be some seconds behind.
        ((9 * HOUR_NS, 11 * HOUR_NS), Intake.ONLINE),
    ],
)
def test_a_span_is_what_all_of_it_is_recorded_as(span: Span, expected: Intake) -> None:
    assert intake_of(span, RECORD[::-1], TEN) is expected


def test_nothing_recorded_is_never() -> None:
    assert intake_of(hours(5, 6), [], TEN) is Intake.NEVER
    assert intake_of(hours(9, 10), RECORD[:3], TEN) is Intake.OFFLINE


def test_layers_hold_each_span_once_and_do_not_overlap() -> None:
    where = [(5, 9), (0, 5), (0, 10), (0, 5), (2, 6), (9, 12)]
    found = layers(where)
    assert sorted(span for layer in found for span in layer) == sorted(set(where))
    assert all(left[1] <= right[0] for layer in found for left, right in pairwise(layer))
