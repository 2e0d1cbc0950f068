"""Tests of what the commands print is safe for a terminal, and what they read of times is exact."""

import re
import time
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storenode.cli.client.session import entry
from storenode.cli.client.text import (
    PREVIEW_CHARS,
    TIME,
    format_time,
    parse_time_ns,
    preview,
    safe,
)
from storenode.client.message import nanoseconds
from storenode.common.errors import ArgumentError
from storenode.message.limits import MAX_TIMESTAMP_NS
from storenode.message.text import parse_hex

UNSAFE_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def moves_nothing(text: str) -> bool:
    return not any(unicodedata.category(each) in UNSAFE_CATEGORIES for each in text)


@given(st.text(st.characters(exclude_categories=())))
@example("\x1b[2J\x1b]0;title\x07")
@example("\u202etxt.exe")
@example("\x9b31m\x7f")
@example("line\u2028break\ud800")
def test_no_text_reaches_the_terminal_with_a_control_character(text: str) -> None:
    assert moves_nothing(safe(text))


@given(st.binary(max_size=1_000))
def test_a_preview_is_short_and_safe_for_any_payload(payload: bytes) -> None:
    shown = preview(payload)
    assert moves_nothing(shown)
    assert len(shown) <= PREVIEW_CHARS


def test_a_preview_shows_text_as_text_and_bytes_as_hexadecimal() -> None:
    assert preview("grüße 👋".encode()) == "grüße 👋"
    assert preview(b"\xff\x00") == "0xff00"
    assert preview(b"a\nb") == r"a\nb"
    assert preview(b"x" * 500) == "x" * (PREVIEW_CHARS - 3) + "..."


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("0", 0),
        ("-5", -5),
        ("1700000000123456789", 1_700_000_000_123_456_789),
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1970-01-01t01:00:00.5+01:00", 500_000_000),
        ("1969-12-31 23:59:59.999999999z", -1),
        ("2026-11-20T09:30:00-00:30", 1_795_168_800_000_000_000),
        ("2026-11-20T09:30Z", 1_795_167_000_000_000_000),
        (str(MAX_TIMESTAMP_NS), MAX_TIMESTAMP_NS),
    ],
)
def test_times_are_read_to_the_nanosecond(text: str, time_ns: int) -> None:
    assert parse_time_ns(text) == (time_ns, None)


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-11-20", "2026-11-19T23:00:00.000Z"),
        ("2026-06-20", "2026-06-19T22:00:00.000Z"),
        ("2026-11-20 05:00", "2026-11-20T04:00:00.000Z"),
        ("2026-11-20T09:30:01.5", "2026-11-20T08:30:01.500Z"),
    ],
)
def test_a_time_without_a_zone_is_local_and_noted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, utc: str
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        time_ns, local = parse_time_ns(text)
        TIME.convert(text, None, None)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert format_time(time_ns) == utc
    assert local is not None
    assert f"{text} is taken in the local zone: {local.isoformat()}" in capsys.readouterr().err


def test_a_duration_is_a_time_before_now() -> None:
    before_ns = time.time_ns()
    time_ns, local = parse_time_ns("1h 30 minutes")
    assert local is None
    assert 0 <= time_ns - (before_ns - 5_400 * 10**9) <= time.time_ns() - before_ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "0001-01-01",
        "2026-02-30T00:00:00Z",
        "2026-11-20T25:00:00Z",
        "2026-11-20T09:30:00.1234567890Z",
        "9999-01-01T00:00:00Z",
        "9223372036854775808",
        "99999999999999999999",
        "1.5",
        "٣",
    ],
)
def test_what_is_no_time_is_refused_by_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time|is beyond the times"):
        parse_time_ns(text)


@given(st.integers(-MAX_TIMESTAMP_NS - 1, MAX_TIMESTAMP_NS))
def test_a_printed_time_is_the_time_without_its_microseconds(time_ns: int) -> None:
    lowest_ns = -MAX_TIMESTAMP_NS - 1
    printed = format_time(time_ns)
    if time_ns - lowest_ns > 1_000_000:
        assert parse_time_ns(printed) == (time_ns // 1_000_000 * 1_000_000, None)


def test_hexadecimal_is_read_in_either_case() -> None:
    assert parse_hex(" 0aFF ") == parse_hex("0x0aff") == b"\x0a\xff"
    with pytest.raises(ValueError, match="is not hexadecimal"):
        parse_hex("0x0x0a")


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (1_764_300_000, "looks like seconds since 1970; write 1764300000000000000, "),
        (1_764_300_000_123, "looks like milliseconds since 1970; write 1764300000123000000, "),
        (1_764_300_000_123_456, "microseconds since 1970; write 1764300000123456000, "),
    ],
)
def test_a_time_in_a_coarser_unit_is_refused_with_its_nanoseconds(
    number: int, sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse_time_ns(str(number))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        nanoseconds(number)


def test_a_text_is_no_time_of_the_client() -> None:
    with pytest.raises(ArgumentError, match="is no datetime"):
        nanoseconds("noon")  # type: ignore[arg-type] # the mistake


def test_an_entry_has_a_hint_only_after_the_last_at_sign() -> None:
    hint = "ab" * 32
    assert entry(f"alice@home@{hint}") == ("alice@home", bytes.fromhex(hint))
    assert entry("alice@home") == ("alice@home", None)
    assert entry(f"alice@{hint[:-1]}") == (f"alice@{hint[:-1]}", None)
    assert entry(f"@{hint}") == (f"@{hint}", None)
    assert entry(f"alice@0x{hint}") == ("alice", bytes.fromhex(hint))
