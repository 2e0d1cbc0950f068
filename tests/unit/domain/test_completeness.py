"""How complete an answer is said to be, from statements that hold and what was lost meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from store.domain.completeness import AnswerCoverage, AnswerState, Known, answered
from store.domain.coverage import HOUR_NS, Span, Statement

PRINT: Final = bytes(32)
DAY: Final = (0, 24 * HOUR_NS)


def statement(hour: int, *, compared_ns: int = 7, here: int = 0, there: int = 0) -> Statement:
    start_ns = hour * HOUR_NS
    return Statement(start_ns, start_ns + HOUR_NS, compared_ns, True, here, there, 5, PRINT)


def known(**stores: list[Statement]) -> Known:
    """Statements, all of which still hold."""
    held = {
        name: {(each.start_ns, each.end_ns): (each.count, each.fingerprint) for each in said}
        for name, said in stores.items()
    }
    return Known(stores, held, [(1, 1)])


def answer(of: Known, span: Span = DAY, horizon_ns: int = 0) -> AnswerCoverage:
    return answered(span, of, horizon_ns, lost=False)


EVERY: Final = [statement(hour) for hour in range(24)]


def changed(of: Known, store: str, hour: int) -> Known:
    """The same after a late message, or a loss, in one hour."""
    span: Span = hour * HOUR_NS, (hour + 1) * HOUR_NS
    return replace(of, held={**of.held, store: {**of.held[store], span: (6, PRINT)}})


def hours(first: int, last: int) -> Span:
    return first * HOUR_NS, last * HOUR_NS


def test_complete_needs_every_part_and_names_who_agrees_on_all_of_it() -> None:
    found = answer(known(b=EVERY, c=[replace(EVERY[0], compared_ns=3), *EVERY[1:]], d=EVERY[:20]))
    assert (found.state, found.store_ids) == (AnswerState.COMPLETE, ("b", "c"))
    assert (found.compared_ns, found.reason) == (3, "")
    assert (found.from_ns, found.until_ns) == DAY


def test_a_late_message_leaves_the_longest_part_without_it() -> None:
    found = answer(changed(known(b=EVERY), "b", 5))
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
