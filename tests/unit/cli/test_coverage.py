"""The lines of `storenode coverage`, and the sentence of ``--coverage``."""

from __future__ import annotations

from typing import Any

import pytest

from storenode.cli.client.coverage import _line, sentence
from storenode.client.types import AnswerCoverage, CoverageStep, StoreCoverage

HOUR = 3_600_000_000_000


def page(
    state: AnswerCoverage.State.ValueType,
    *stores: str,
    reason: str = "",
    compared: int = 5,
    keyed: bool = True,
    within: tuple[int, int] = (0, 1),
) -> AnswerCoverage:
    start, end = within
    return AnswerCoverage(
        state=state,
        store_ids=stores or ("b",),
        reason=reason,
        compared_at=compared * HOUR,
        complete_from=start * HOUR,
        complete_until=end * HOUR,
        keyed=keyed,
    )


WHOLE = page(AnswerCoverage.COMPLETE)
ELSEWHERE = page(AnswerCoverage.COMPLETE, "c", compared=4)
PART = page(AnswerCoverage.PARTIAL, reason="the horizon", within=(1, 2))
UNKNOWN = page(AnswerCoverage.UNCONFIRMED, reason="why")
LACKING = page(AnswerCoverage.INCOMPLETE, "c\x1b", reason="it lacked messages", compared=3)
NEWER = page(99)  # type: ignore[arg-type] # as a newer node sends it


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([], "unknown: the node says nothing about this answer."),
        ([WHOLE], "complete as far as 1 store (b) knew as of 1970-01-01T05:00:00.000Z."),
        (
            [WHOLE, ELSEWHERE],
            "complete on each page as far as 2 stores (b, c) knew as of 1970-01-01T04:00:00.000Z.",
        ),
        (
            [WHOLE, PART],
            (
                "complete from 1970-01-01T01:00:00.000Z up to 1970-01-01T02:00:00.000Z as far as 1"
                " store (b) knew as of 1970-01-01T05:00:00.000Z; the horizon."
            ),
        ),
        ([WHOLE, UNKNOWN, PART], "not confirmed: why."),
        ([NEWER, WHOLE], "not confirmed: the node does not say why."),
        (
            [UNKNOWN, LACKING, WHOLE],
            (
                "incomplete as of 1970-01-01T03:00:00.000Z: it lacked messages: 1 store (c\\x1b);"
                " see storenode coverage."
            ),
        ),
        (
            [page(AnswerCoverage.COMPLETE, *"abcde", keyed=False)],
            (
                "complete as far as 5 stores (a, b, c and 2 more) knew as of"
                " 1970-01-01T05:00:00.000Z, by XOR."
            ),
        ),
    ],
)
def test_an_answer_is_as_complete_as_its_least_complete_page(
    said: list[AnswerCoverage], expected: str
) -> None:
    assert sentence(said) == f"Coverage: {expected}"


def store(**fields: Any) -> StoreCoverage:  # noqa: ANN401 - those of the message
    return StoreCoverage(store_id="b\x1b", compared_at=2 * HOUR, **fields)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (CoverageStep(), "messages not counted  not confirmed by any store"),
        (
            CoverageStep(messages=1, before_horizon=True),
            "1 message, before the horizon  not",
        ),
        (
            CoverageStep(messages=2, intake=CoverageStep.RESUMED, missing_parents=1),
            "2 messages, in part resumed from a peer, 1 parent missing  not confirmed",
        ),
        (
            CoverageStep(messages=0, stores=[store(state=StoreCoverage.EQUAL)]),
            "0 messages  equal to b\\x1b as of 1970-01-01T02:00:00.000Z, by XOR",
        ),
        (
            CoverageStep(stores=[store(state=StoreCoverage.DIFFERS, missing_here=1), store()]),
            (
                "messages not counted  differs from b\\x1b as of 1970-01-01T02:00:00.000Z"
                " (missing here 1, there 0); not confirmed by b\\x1b as it is now"
            ),
        ),
        (
            CoverageStep(stores=[store(equal_until=HOUR, last_equal=1)]),
            "messages not counted  equal to b\\x1b up to 1970-01-01T01:00:00.000Z only, equal as",
        ),
    ],
)
def test_a_step_says_what_is_stored_and_by_whom_it_is_confirmed(
    step: CoverageStep, expected: str
) -> None:
    assert _line(step).startswith(f"1970-01-01T00:00:00.000Z  {expected}")
