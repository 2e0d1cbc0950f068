"""What a report is computed from and written with, without Spark."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.pipeline.limits import DAY_NS, HOUR_NS
from store.pipeline.report import names
from store.pipeline.report.axis import axis_of, usual_days
from store.pipeline.report.figures import Place
from store.pipeline.report.findings import NOTE, WARNING, outlook_finding
from store.pipeline.report.limits import MAX_NAME_CHARS, MAX_STEPS, OUTLIERS
from store.pipeline.report.outlook import Limits, Outlook, outlook_of

TIMES = st.integers(0, 2**63 - 1)
MB = 1_000_000


@given(st.text(max_size=300))
def test_a_name_is_shown_by_what_prints_alone(name: str) -> None:
    text = names.shown(name)
    assert text.strip()
    categories = {unicodedata.category(char) for char in text}
    assert not categories & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert len(text) <= 10 * MAX_NAME_CHARS + 1


@pytest.mark.parametrize(
    ("show", "given", "text"),
    [
        (names.shown, "room", "room"),
        (names.shown, "", "(empty)"),
        (names.shown, " \t", "(empty)"),
        (names.shown, "a\x1b[31m\n", r"a\x1b[31m\n"),
        (names.shown, "\u202egnp.exe", r"\u202egnp.exe"),
        (names.shown, "\ud800", r"\ud800"),
        (names.shown, "چت日本", "چت日本"),
        (names.shown, "e" + 4 * "\u0301", "e\u0301\u0301" + 2 * r"\u0301"),
        (names.shown, "x" * 121, "x" * 120 + "…"),
        (names.shown, "x" * 120, "x" * 120),
        (names.span, 0.0, "0 ms"),
        (names.span, -0.03, "-30 ms"),
        (names.span, 1.26, "1.26 s"),
        (names.span, 300, "5 min"),
        (names.span, 5_400, "90 min"),
        (names.span, 9_000, "2.5 h"),
        (names.span, 864_000, "10 days"),
        (names.given_size, 200 * 2**30, "200 GiB"),
        (names.given_size, 2**40, "1 TiB"),
        (names.given_size, 10**9, "1 GB"),
        (names.given_size, 1_536, "1.54 kB"),
        (names.given_size, 0, "0 bytes"),
    ],
)
def test_names_of_strangers_spans_and_sizes(
    show: Callable[[Any], str], given: object, text: str
) -> None:
    assert show(given) == text


@given(TIMES, TIMES)
def test_an_axis_holds_every_hour_once(one: int, other: int) -> None:
    first, last = sorted((one, other))
    axis = axis_of(first, last)
    assert axis.first_ns <= first
    assert last < axis.last_ns
    assert axis.low_ns <= axis.first_ns
    assert axis.last_ns <= axis.high_ns
    assert len(axis.starts) <= MAX_STEPS
    assert all(start % axis.step_ns == 0 for start in axis.starts)
    hours = sum(map(axis.hours, axis.starts))
    assert hours == (axis.last_ns - axis.first_ns) // HOUR_NS


@given(st.dictionaries(st.integers(0, 30_000), st.integers(1, 1_000), min_size=1))
def test_few_messages_are_left_out_of_an_axis_and_only_if_it_shrinks(days: dict[int, int]) -> None:
    first, last = usual_days(days)
    assert {first, last} <= days.keys()
    left_out = [day for day in days if not first <= day <= last]
    assert sum(days[day] for day in left_out) <= 2 * OUTLIERS * sum(days.values())
    if left_out:
        assert 2 * (last - first + 1) < max(days) - min(days) + 1


def test_a_message_of_1970_does_not_stretch_the_axis() -> None:
    assert usual_days({0: 1} | dict.fromkeys(range(20_000, 20_010), 100)) == (20_000, 20_009)
    assert usual_days({0: 1, 20_000: 3}) == (0, 20_000)


STEADY = {1_010: 7} | dict.fromkeys(range(1_011, 1_021), 100) | {1_021: 30}
"""1,037 messages: ten whole days of 100 each."""


def test_the_outlook_is_that_of_whole_days() -> None:
    outlook = outlook_of(STEADY, 1_037 * 1_000, Limits())
    assert (outlook.days, outlook.messages_a_day, outlook.bytes_a_day) == (10, 100, 100_000)
    assert (outlook.age_bytes, outlook.size_days, outlook.full_in_days) == (None, None, None)
    far = outlook_of(STEADY | {0: 1}, 1_038 * 1_000, Limits())
    assert (far.days, far.messages_a_day) == (10, 100)
    silent = outlook_of(STEADY | {1_050: 100}, 1_137 * 1_000, Limits())
    assert (silent.days, silent.messages_a_day) == (28, 0)


@pytest.mark.parametrize(
    ("limits", "by_age", "by_size", "full", "size_first"),
    [
        (Limits(retention_ns=9 * DAY_NS), MB, None, None, False),
        (Limits(retention_bytes=5 * MB), None, 50, None, True),
        (Limits(retention_ns=9 * DAY_NS, retention_bytes=MB // 2), MB, 5, None, True),
        (Limits(retention_ns=4 * DAY_NS, retention_bytes=5 * MB), MB // 2, 50, None, False),
        (Limits(disk_bytes=2_037_000), None, None, 10, False),
        (Limits(disk_bytes=MB), None, None, 0, False),
        (Limits(retention_ns=9 * DAY_NS, disk_bytes=2 * MB), MB, None, None, False),
        (Limits(retention_ns=99 * DAY_NS, disk_bytes=2_037_000), 10 * MB, None, 10, False),
        (Limits(retention_bytes=2 * MB, disk_bytes=2 * MB), None, 20, None, True),
    ],
)
def test_what_limits_make_of_it(
    limits: Limits,
    by_age: float | None,
    by_size: float | None,
    full: float | None,
    size_first: bool,
) -> None:
    outlook = outlook_of(STEADY, 1_037 * 1_000, limits)
    assert outlook.age_bytes == by_age
    assert outlook.size_days == by_size
    assert outlook.full_in_days == full
    assert outlook.drops_by_size(limits) == size_first


def test_each_retention_says_what_it_drops_by_itself() -> None:
    limits = Limits(retention_ns=30 * DAY_NS, retention_bytes=30 * 2**20)
    outlook = outlook_of(STEADY, 1_037 * 100_000, limits)
    found = outlook_finding(Place("the database", limits, outlook)).text
    assert "the retention by size (30 MiB) drops what is older than about 3 days" in found
    wide = replace(limits, retention_bytes=2**40)
    found = outlook_finding(Place("the database", wide, outlook)).text
    assert "the retention by age drops what is older than 30 days, and leaves 310 MB" in found


@pytest.mark.parametrize("days", [{}, {5: 10}, {5: 10, 6: 10}])
def test_without_a_whole_day_nothing_is_foretold(days: dict[int, int]) -> None:
    outlook = outlook_of(days, 1_000, Limits(DAY_NS, 10, 10))
    assert (outlook.days, outlook.bytes_a_day, outlook.full_in_days) == (0, 0, None)


@pytest.mark.parametrize(
    ("days", "said", "kind"),
    [
        (13.0, "its disk is full in 13 days", WARNING),
        (3_650.0, "its disk is full in 3,650 days", NOTE),
        (41_241.0, "its disk is not full within ten years", NOTE),
    ],
)
def test_nobody_is_told_of_a_day_in_the_next_century(days: float, said: str, kind: str) -> None:
    outlook = Outlook(1_037, MB, 10, 100, 100_000, full_in_days=days)
    found = outlook_finding(Place("the archive", Limits(), outlook))
    assert said in found.text
    assert found.kind == kind
