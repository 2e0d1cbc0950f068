"""Coverage: statements about other stores, answers' completeness, and times online."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Final

import pytest

from reconcile.ids import SyncId, SyncIds
from reconcile.view import Measured, Spans
from store.domain.coverage import (
    BLOCK_NS,
    Comparison,
    Interval,
    KnownCoverage,
    Statement,
    Sums,
    eras,
    intake_of,
    measure_spans,
    replaced,
    spans,
    stated,
)
from store.domain.partitioning import DAY_NS, HOUR_NS, MINUTE_NS
from store.domain.view import Span
from store.sync.coverage import StatementBuffer
from storenode.wire.storenode.coverage.v1.coverage_pb2 import AnswerCoverage
from storenode.wire.storenode.v1.store_pb2 import CoverageStep, StoreCoverage
from tests.support.naive_view import NaiveView
from tests.support.spec_peer import xor

TODAY: Final = 20_000 * DAY_NS
NOW: Final = TODAY + 10 * HOUR_NS + 25 * MINUTE_NS + 7
NONE: Final = SyncIds.empty()
EQUAL: Final = Comparison(NONE, NONE, resolved=True, keyed_from_ns=None, compared_ns=NOW)


def message(time_ns: int, number: int) -> SyncId:
    return time_ns, number.to_bytes(32, "big")


def sums_of(stored: list[SyncId], where: list[Span]) -> Sums:
    inside = {span: [each for each in stored if span[0] <= each[0] < span[1]] for span in where}
    return {span: (len(ids), xor(ids)) for span, ids in inside.items()}


def statements(
    stored: list[SyncId], start_ns: int, end_ns: int, found: Comparison, now_ns: int = NOW
) -> list[Statement]:
    return stated(sums_of(stored, spans(start_ns, end_ns, now_ns, found)), found)


def known_of(stored: list[SyncId], kept: list[Statement]) -> KnownCoverage:
    return KnownCoverage({"b": kept}, sums_of(stored, [each.span for each in kept]), [(1, 1)])


def verdict(
    stored: list[SyncId], kept: list[Statement], start_ns: int
) -> StoreCoverage.State.ValueType:
    return known_of(stored, kept).of((start_ns, start_ns + HOUR_NS))[0].state


@pytest.mark.parametrize("seed", range(5))
async def test_spans_are_measured_however_they_overlap(seed: int) -> None:
    rng = random.Random(seed)
    stored = [message(rng.randrange(100), number) for number in range(40)]
    starts = [rng.randrange(100) for _ in range(rng.randrange(20))]
    where = [(start, rng.randrange(start + 1, 102)) for start in starts]
    naive = NaiveView(stored)

    async def measure(spans: Spans) -> Measured:
        spans.check()
        return naive.measured(spans.pairs())

    view: Any = SimpleNamespace(measure=measure)
    assert await measure_spans(view, where) == sums_of(stored, where)


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


def test_a_transferred_message_counts_as_stored() -> None:
    here, there = message(TODAY + 1, 1), message(TODAY + 2, 2)
    found = replace(EQUAL, to_send=SyncIds.of([here]), to_receive=SyncIds.of([there]))
    made = statements([here], TODAY, TODAY + HOUR_NS, found)
    assert verdict([here, there], made, TODAY) == StoreCoverage.EQUAL
    assert verdict([here], made, TODAY) == StoreCoverage.UNCONFIRMED


def test_a_conflict_differs_although_all_else_was_transferred() -> None:
    here, there = message(TODAY + 1, 1), message(TODAY + HOUR_NS + 2, 2)
    conflicts = SyncIds.of([here])
    found = replace(EQUAL, to_receive=SyncIds.of([there]), conflicts=conflicts)
    made = statements([here], TODAY, TODAY + 2 * HOUR_NS, found)
    assert [(each.missing_here, each.missing_there) for each in made] == [(1, 1), (0, 0)]
    assert verdict([here, there], made, TODAY) == StoreCoverage.DIFFERS
    assert verdict([here, there], made, TODAY + HOUR_NS) == StoreCoverage.EQUAL


@pytest.mark.parametrize("late", [True, False])
def test_a_late_or_a_lost_message_withdraws_equality(late: bool) -> None:
    stored = [message(TODAY + number, number) for number in range(1, 5)]
    made = statements(stored, TODAY, TODAY + 2 * HOUR_NS, EQUAL)
    changed = [*stored, message(TODAY + 9, 9)] if late else stored[1:]
    assert verdict(stored, made, TODAY) == StoreCoverage.EQUAL
    assert verdict(changed, made, TODAY) == StoreCoverage.UNCONFIRMED
    assert verdict(changed, made, TODAY + HOUR_NS) == StoreCoverage.EQUAL


def test_an_earlier_comparison_replaces_no_later_one() -> None:
    early = replace(EQUAL, compared_ns=NOW - 1)
    old = statements([], TODAY, TODAY + HOUR_NS, EQUAL)
    new = statements([], TODAY, TODAY + 2 * HOUR_NS, early)
    assert replaced(old, new, NOW + 1) == [*old, new[1]]
    assert replaced(old, new[:1], NOW - 1) == new[:1], "it lies ahead of the clock"


def test_sessions_of_the_last_hour_cover_every_hour() -> None:
    kept: list[Statement] = []
    stored = [message(TODAY + number * BLOCK_NS, 1 << number) for number in range(18)]
    for minutes in range(10, 180, 5):
        now_ns = TODAY + minutes * MINUTE_NS
        found = replace(EQUAL, compared_ns=now_ns)
        earlier = [each for each in stored if each[0] < now_ns]
        made = statements(earlier, now_ns - HOUR_NS, now_ns, found, now_ns)
        kept = replaced(kept, made, now_ns)
    assert verdict(stored, kept, TODAY) == StoreCoverage.EQUAL
    assert verdict(stored, kept, TODAY + HOUR_NS) == StoreCoverage.EQUAL
    assert len(kept) <= 30


def test_a_statement_of_which_a_session_covers_a_part_stays_until_it_differs() -> None:
    day = statements([], TODAY - 4 * DAY_NS, TODAY - 3 * DAY_NS, EQUAL)
    later = replace(EQUAL, compared_ns=NOW + 1)
    part = statements([], TODAY - 4 * DAY_NS, TODAY - 4 * DAY_NS + HOUR_NS, later)
    assert replaced(day, part, NOW + 1) == [*day, *part]
    lacks = replace(later, to_send=SyncIds.of([message(TODAY - 4 * DAY_NS, 1)]), resolved=False)
    differs = statements([], TODAY - 4 * DAY_NS, TODAY - 4 * DAY_NS + HOUR_NS, lacks)
    assert replaced(day, differs, NOW + 1) == differs


def test_a_long_time_without_messages_is_a_few_spans() -> None:
    every = eras(0, TODAY, NOW, EQUAL)
    assert all(left[1] == right[0] for left, right in pairwise(every))
    found = spans(0, TODAY, NOW, EQUAL, [(every[0][0], every[-1][1])])
    assert found[0][1] - found[0][0] > 19_000 * DAY_NS
    assert len(found) < 100


def test_a_part_of_a_step_is_not_the_step() -> None:
    known = known_of([], statements([], TODAY, TODAY + 30 * MINUTE_NS, EQUAL))
    (found,) = known.of((TODAY, TODAY + HOUR_NS))
    assert found.state == StoreCoverage.UNCONFIRMED
    assert found.equal_until == TODAY + 30 * MINUTE_NS


Sides = tuple[set[SyncId], set[SyncId]]


@pytest.mark.parametrize("seed", range(20))
def test_a_step_is_equal_and_an_answer_complete_only_if_it_is_so(seed: int) -> None:
    """Let two stores drift, and compare them over random windows: no statement is false."""
    rng = random.Random(seed)
    sides: Sides = (set(), set())
    kept: list[Statement] = []
    moments: dict[int, Sides] = {}
    for number in range(1, 60):
        at_ns = NOW + number
        for side in rng.sample(sides, rng.randrange(3)):
            side.add(message(TODAY + rng.randrange(6 * HOUR_NS), rng.getrandbits(200)))
        if sides[0] and rng.random() < 0.1:
            sides[0].remove(rng.choice(sorted(sides[0])))
        if rng.random() < 0.5:
            start_ns = TODAY + rng.randrange(5 * HOUR_NS)
            end_ns = start_ns + rng.randrange(6 * HOUR_NS)
            here, there = (_within(side, start_ns, end_ns) for side in sides)
            moments[at_ns] = set(sides[0]), set(sides[1])
            resolved = rng.random() < 0.7
            found = Comparison(
                SyncIds.of(sorted(here - there)),
                SyncIds.of(sorted(there - here)),
                resolved or here == there,
                rng.choice((None, TODAY, TODAY + HOUR_NS)),
                at_ns,
            )
            made = statements(sorted(sides[0]), start_ns, end_ns, found, NOW)
            if resolved:
                sides[0].update(there)
                sides[1].update(here)
            kept = replaced(kept, made, at_ns) if made else kept
        known = known_of(sorted(sides[0]), kept)
        for hour in range(6):
            step = TODAY + hour * HOUR_NS, TODAY + (hour + 1) * HOUR_NS
            (step_found,) = known.of(step)
            if step_found.state == StoreCoverage.EQUAL:
                assert _then(moments, step_found.compared_at, step) <= sides[0]
            if step_found.last_equal:
                assert _then(moments, step_found.last_equal, step, of_either=True) <= sides[1]
        asked = TODAY + rng.randrange(3 * HOUR_NS), TODAY + rng.randrange(3, 7) * HOUR_NS
        answer = known.answer(asked, TODAY + rng.randrange(2) * HOUR_NS, lost=False)
        part = answer.complete_from, answer.complete_until
        assert (answer.state == AnswerCoverage.COMPLETE) == (part == asked)
        if answer.state in {AnswerCoverage.COMPLETE, AnswerCoverage.PARTIAL}:
            assert _then(moments, answer.compared_at, part) <= sides[0]


def _within(ids: set[SyncId], start_ns: int, end_ns: int) -> set[SyncId]:
    return {each for each in ids if start_ns <= each[0] < end_ns}


def _then(
    moments: dict[int, Sides], at_ns: int, span: Span, *, of_either: bool = False
) -> set[SyncId]:
    """Return what the other store, or one of the two, held of a span at a moment."""
    own, other = moments[at_ns]
    return _within(own | other if of_either else other, *span)


PRINT: Final = bytes(32)
DAY: Final = (0, 24 * HOUR_NS)


def statement(hour: int, *, compared_ns: int = 7, here: int = 0, there: int = 0) -> Statement:
    start_ns = hour * HOUR_NS
    return Statement(start_ns, start_ns + HOUR_NS, compared_ns, True, here, there, 5, PRINT)


def known(**stores: list[Statement]) -> KnownCoverage:
    """Make statements all of which still hold."""
    sums = {each.span: (each.count, each.fingerprint) for said in stores.values() for each in said}
    return KnownCoverage(stores, sums, [(1, 1)])


EVERY: Final = [statement(hour) for hour in range(24)]
BY_XOR: Final = [replace(each, keyed=False) for each in EVERY]
LATE: Final = {**known(b=EVERY).sums, (5 * HOUR_NS, 6 * HOUR_NS): (6, PRINT)}
COMPLETE, PARTIAL = AnswerCoverage.COMPLETE, AnswerCoverage.PARTIAL
INCOMPLETE, UNCONFIRMED = AnswerCoverage.INCOMPLETE, AnswerCoverage.UNCONFIRMED


def hours(first: int, last: int) -> Span:
    return first * HOUR_NS, last * HOUR_NS


Said = tuple[str, int, Span]
"""Stores, each named by a letter, the time of the earliest comparison, and the complete part."""

Row = tuple[AnswerCoverage, AnswerCoverage.State.ValueType, Said, str]


def row(
    of: KnownCoverage,
    state: AnswerCoverage.State.ValueType,
    said: Said,
    reason: str = "",
    *,
    span: Span = DAY,
    horizon_ns: int = 0,
    lost: bool = False,
) -> Row:
    """Return an answer, by default about a day, and what it says."""
    return of.answer(span, horizon_ns, lost=lost), state, said, reason


FEWER: Final = known(b=EVERY, c=[replace(EVERY[0], compared_ns=3), *EVERY[1:]], d=EVERY[:20])
LACKED: Final = known(b=EVERY, c=[statement(3, here=2, compared_ns=9)])
SENT: Final = known(b=EVERY, c=[statement(3, there=2)])
IN_PART: Final = known(b=[*EVERY[:12], *BY_XOR[12:]])
WITHIN: Final = HOUR_NS + 1, 2 * HOUR_NS - 1
REST: Final = "rest of this time"
NO: Final = "", 0, (0, 0)
ANSWERS: Final = {
    "who agrees on every part": row(FEWER, COMPLETE, ("bc", 3, DAY)),
    "the longest part without a late message": row(
        replace(known(b=EVERY), sums=LATE), PARTIAL, ("b", 7, hours(6, 24)), REST
    ),
    "part of an hour": row(known(b=EVERY[1:2]), COMPLETE, ("b", 7, WITHIN), span=WITHIN),
    "what this store lacked": row(LACKED, INCOMPLETE, ("c", 9, (0, 0)), "lacked"),
    "what the other store lacked": row(SENT, COMPLETE, ("b", 7, DAY)),
    "by XOR": row(known(b=BY_XOR), UNCONFIRMED, NO, "by XOR only"),
    "in part by XOR": row(IN_PART, PARTIAL, ("b", 7, hours(0, 12)), REST),
    "a horizon": row(
        known(b=EVERY), PARTIAL, ("b", 7, hours(4, 24)), "horizon", horizon_ns=4 * HOUR_NS
    ),
    "all below it": row(known(b=EVERY), UNCONFIRMED, NO, "horizon", horizon_ns=24 * HOUR_NS),
    "no statement": row(known(), UNCONFIRMED, NO, "no comparison", span=hours(0, 1)),
    "a loss": row(known(b=EVERY[:1]), UNCONFIRMED, NO, "lost commits", span=hours(0, 1), lost=True),
}


@pytest.mark.parametrize("row", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_as_complete_as_statements_that_hold_say(row: Row) -> None:
    found, state, said, reason = row
    part = found.complete_from, found.complete_until
    assert (found.state, "".join(found.store_ids), found.compared_at, part) == (state, *said)
    assert reason in found.reason if reason else not found.reason
    assert found.keyed == (state != UNCONFIRMED)


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
        (hours(0, 1), CoverageStep.NEVER),
        (hours(1, 2), CoverageStep.ONLINE),
        (hours(3, 4), CoverageStep.RESUMED),
        ((2 * HOUR_NS, 4 * HOUR_NS), CoverageStep.RESUMED),
        (hours(4, 5), CoverageStep.OFFLINE),
        (hours(5, 6), CoverageStep.ONLINE),
        ((0, 2 * HOUR_NS), CoverageStep.OFFLINE),
        # The record may be some seconds behind.
        ((9 * HOUR_NS, 11 * HOUR_NS), CoverageStep.ONLINE),
    ],
)
def test_a_span_is_what_all_of_it_is_recorded_as(
    span: Span, expected: CoverageStep.Intake.ValueType
) -> None:
    assert intake_of(span, RECORD[::-1], TEN) == expected

    assert intake_of(span, [], TEN) == CoverageStep.NEVER
    assert intake_of(hours(9, 10), RECORD[:3], TEN) == CoverageStep.OFFLINE


# Statements of coverage are written when they change, and read as if they had been

SAID = Statement(0, 10, 100, True, 0, 0, 3, bytes(32))


class Written:
    """`Statements` that keep what is written last about each store; a write may take a while."""

    def __init__(self) -> None:
        self.writes, self.meanwhile = 0, list[Awaitable[None]]()
        self.last: dict[str, Sequence[Statement]] = {}

    async def note(self, store_id: str, statements: Sequence[Statement], now_ns: int) -> None:
        del now_ns
        while self.meanwhile:
            await self.meanwhile.pop()
        self.writes += 1
        self.last[store_id] = statements

    async def between(self, start_ns: int, end_ns: int) -> Mapping[str, Sequence[Statement]]:
        del start_ns, end_ns
        return dict(self.last)


async def test_statements_are_written_when_they_change_or_after_an_hour() -> None:
    buffer = StatementBuffer(written := Written())
    await buffer.note("a", [SAID], 100)
    assert written.writes == 1
    again = replace(SAID, end_ns=20, compared_ns=200)
    await buffer.note("a", [again], MINUTE_NS + 100)
    assert written.writes == 1
    assert await buffer.between(0, 100) == {"a": [again]}
    assert await buffer.between(30, 100) == {"a": [SAID]}, "what was written"
    await buffer.note("b", [SAID], 200)
    assert written.writes == 2
    more = replace(again, count=4)
    await buffer.note("a", [more], MINUTE_NS + 200)
    assert (written.writes, written.last["a"]) == (3, [more])
    last = replace(more, count=5)
    await buffer.note("a", [last], MINUTE_NS + 300)
    assert written.writes == 3, "a minute has not passed"
    later = replace(last, start_ns=20, end_ns=30, compared_ns=300)
    await buffer.note("a", [later], 2 * MINUTE_NS + 200)
    assert (written.writes, written.last["a"]) == (4, [last, later]), "what waited was not lost"
    await buffer.note("a", [later], 2 * MINUTE_NS + HOUR_NS)
    assert written.writes == 4
    await buffer.note("a", [later], 2 * MINUTE_NS + HOUR_NS + 200)
    assert written.writes == 5, "it repeats what was written an hour before"


async def test_what_waits_is_written_at_the_end_and_before_what_it_does_not_touch() -> None:
    buffer = StatementBuffer(written := Written())
    later, more = replace(SAID, compared_ns=200), replace(SAID, start_ns=10, end_ns=20)
    distant = replace(SAID, start_ns=50, end_ns=60)
    await buffer.note("a", [SAID], 100)
    await buffer.note("a", [later], 200)
    written.meanwhile.append(buffer.note("a", [more], 250))
    await buffer.note("a", [distant], 300)
    assert (written.writes, written.last) == (3, {"a": [later, more]})
    await buffer.flush()
    await buffer.flush()
    assert (written.writes, written.last) == (4, {"a": [distant]})
