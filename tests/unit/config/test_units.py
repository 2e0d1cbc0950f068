"""Durations and sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storenode.cli.options.units import (
    MAX_SIZE_BYTES,
    format_size,
    parse_duration_ns,
    parse_size_bytes,
)

S = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("0", 0),
        ("90s", 90 * S),
        ("5m", 300 * S),
        ("1h", 3600 * S),
        ("30d", 30 * 86_400 * S),
        ("1w", 7 * 86_400 * S),
        ("250ms", S // 4),
        ("1h30m", 5400 * S),
        ("1.5h", 5400 * S),
        ("0.000000001s", 1),
        (" 10s ", 10 * S),
        ("106751d", 106_751 * 86_400 * S),
    ],
)
def test_durations_are_read(text: str, expected_ns: int) -> None:
    assert parse_duration_ns(text) == expected_ns


@pytest.mark.parametrize(
    "text",
    ["", "5", "s", "-5s", "5 s", "5S", "1e3s", "5y", "5s5", "٣s", "1.5", "1..5s", "9" * 80 + "s"],
)
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as 90s, 5m, 1h or 30d"):
        parse_duration_ns(text)


def test_a_duration_past_the_range_of_timestamps_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than 292 years"):
        parse_duration_ns("106752d")


@pytest.mark.parametrize(
    ("text", "expected_bytes"),
    [
        ("4096", 4096),
        ("1B", 1),
        ("64KiB", 65_536),
        ("10GiB", 10 * 2**30),
        ("10gib", 10 * 2**30),
        ("500MB", 500_000_000),
        ("1.5 MiB", 1_572_864),
        ("2TiB", 2**41),
    ],
)
def test_sizes_are_read(text: str, expected_bytes: int) -> None:
    assert parse_size_bytes(text) == expected_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1KiB", "1 PiB", "1GiBs", "ten", "1,5MiB"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as 64KiB, 500MB or 10GiB"):
        parse_size_bytes(text)


def test_a_size_past_all_disks_is_refused() -> None:
    with pytest.raises(ValueError, match="larger than 8 EiB"):
        parse_size_bytes("99999999TiB")


@given(st.integers(0, MAX_SIZE_BYTES // 2))
def test_a_formatted_size_reads_back_within_its_decimal(size_bytes: int) -> None:
    assert parse_size_bytes(format_size(size_bytes)) == pytest.approx(size_bytes, rel=0.05)


def test_whole_sizes_are_written_whole() -> None:
    assert [format_size(n) for n in (5, 150 * 1024, 3 * 2**20)] == ["5B", "150KiB", "3MiB"]
