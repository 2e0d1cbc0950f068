"""What is said of a long piece of work: what is done, what is left, how fast; and not too often."""

from __future__ import annotations

from itertools import pairwise

import pytest

from store.pipeline.progress import SELDOM_S, Counts, Lines


def test_the_first_step_goes_over_the_messages() -> None:
    lines = Lines("verify", 1_000, 100.0)
    assert lines.line(Counts(0, 8, 5), 101.0) == "verify: 0 of 8 parts, about 0 of 1,000 messages"
    assert lines.line(Counts(2, 8, 5), 105.0) == (
        "verify: 2 of 8 parts, about 250 of 1,000 messages, 50/s, about 15 s left"
    )


def test_further_steps_are_numbered_and_have_a_time_of_their_own() -> None:
    lines = Lines("audit", 1_000, 0.0)
    assert lines.line(Counts(1, 8, 5), 1.0) is not None
    assert lines.line(Counts(0, 3, 7), 11.0) == "audit: step 3, 0 of 3 parts"
    assert lines.line(Counts(1, 3, 7), 13.0) == "audit: step 3, 1 of 3 parts, about 24 s left"


def test_a_stage_that_is_done_does_not_bring_a_step_back() -> None:
    lines = Lines("audit", 0, 0.0)
    for step in (5, 6, 5):
        lines.line(Counts(0, 3, step), 1.0)
    assert lines.line(Counts(1, 3, 6), 9.0) == "audit: step 2, 1 of 3 parts, about 16 s left"


def test_nothing_is_said_of_nothing() -> None:
    assert Lines("report", 0, 0.0).line(Counts(0, 0, 0), 99.0) is None


def moments(lines: Lines, seconds: int, *, progressing: bool) -> list[int]:
    """When something is said of what takes so many seconds."""
    return [
        now
        for now in range(1, seconds)
        if lines.line(Counts(now if progressing else 0, seconds, 1), float(now)) is not None
    ]


@pytest.mark.parametrize(("seconds", "most"), [(60, 40), (3_600, 170)])
def test_long_work_is_told_of_seldom_and_never_long_not_at_all(seconds: int, most: int) -> None:
    said = [0, *moments(Lines("archive", 10**6, 0.0), seconds, progressing=True)]
    assert len(said) <= most
    assert max(later - earlier for earlier, later in pairwise(said)) <= SELDOM_S
    assert said[:6] == [0, 1, 2, 3, 4, 5]


def test_what_stands_still_is_said_again() -> None:
    assert moments(Lines("restore", 0, 0.0), 95, progressing=False) == [1, 31, 61, 91]
