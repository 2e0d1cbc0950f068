"""How complete an answer is said to be, from statements that hold and what was lost meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from store.domain.completeness import AnswerState, Known, answered
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


def changed(of: Known, store: str, hour: int) -> Known:
    """The same after a late message, or a loss, in one hour."""
    span: Span = hour * HOUR_NS, (hour + 1) * HOUR_NS
    return replace(of, held={**of.held, store: {**of.held[store], span: (6, PRINT)}})


def hours(first: int, last: int) -> Span:
    return first * HOUR_NS, last * HOUR_NS


def test_complete_needs_every_part_and_names_who_agrees_on_all_of_it() -> None:
    every = [statement(hour) for hour in range(24)]
    some = every[:20]
    found = answered(
        DAY, known(b=every, c=[replace(every[0], compared_ns=3), *every[1:]], d=some), 0, lost=False
    )
    assert (found.state, found.store_ids, found.compared_ns) == (
        AnswerState.COMPLETE,
        ("b", "c"),
        3,
    )
    assert (found.from_ns, found.until_ns, found.reason) == (*DAY, "")


def test_a_late_message_leaves_the_longest_part_without_it() -> None:
    found = answered(
        DAY, changed(known(b=[statement(hour) for hour in range(24)]), "b", 5), 0, lost=False
    )
    assert found.state is AnswerState.PARTIAL
    assert (found.from_ns, found.until_ns) == hours(6, 24)
    assert "rest of this time" in found.reason


def test_part_of_an_hour_is_asked_for() -> None:
    within = HOUR_NS + 1, 2 * HOUR_NS - 1
    found = answered(within, known(b=[statement(1)]), 0, lost=False)
    assert (found.state, found.from_ns, found.until_ns) == (AnswerState.COMPLETE, *within)


def test_what_this_store_lacked_outweighs_what_others_confirm() -> None:
    whole = [statement(hour) for hour in range(24)]
    lacking = [statement(3, here=2, compared_ns=9)]
    found = answered(DAY, known(b=whole, c=lacking), 0, lost=False)
    assert (found.state, found.store_ids, found.compared_ns) == (AnswerState.INCOMPLETE, ("c",), 9)
    # What the other store lacked makes no answer of this one incomplete.
    found = answered(DAY, known(b=whole, c=[statement(3, there=2)]), 0, lost=False)
    assert (found.state, found.store_ids) == (AnswerState.COMPLETE, ("b",))


def test_below_the_horizon_nothing_is_complete() -> None:
    whole = known(b=[statement(hour) for hour in range(24)])
    found = answered(DAY, whole, 4 * HOUR_NS, lost=False)
    assert (found.state, found.from_ns) == (AnswerState.PARTIAL, 4 * HOUR_NS)
    assert "horizon" in found.reason
    found = answered(DAY, whole, DAY[1], lost=False)
    assert found.state is AnswerState.UNCONFIRMED
    assert "horizon" in found.reason


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
