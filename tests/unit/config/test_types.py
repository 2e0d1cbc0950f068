"""Values of options: addresses, peers, lists, durations and sizes."""

from collections.abc import Callable

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.cli.capacity import capacity_command
from storenode.cli.options.types import Address, Peer, parse_address, parse_peer, split_list
from storenode.cli.options.units import (
    MAX_SIZE_BYTES,
    format_size,
    parse_duration_ns,
    parse_size_bytes,
)


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:7420", "127.0.0.1", 7420, True),
        ("127.9.9.9:1", "127.9.9.9", 1, True),
        ("localhost:0", "localhost", 0, True),
        ("LOCALHOST:1", "LOCALHOST", 1, True),
        ("[::1]:7420", "::1", 7420, True),
        ("[::]:1", "::", 1, False),
        ("0.0.0.0:1", "0.0.0.0", 1, False),
        ("localhost.example:1", "localhost.example", 1, False),
        ("127.0.0.1.example:1", "127.0.0.1.example", 1, False),
        ("node.example:65535", "node.example", 65535, False),
    ],
)
def test_addresses_are_read_and_written_alike(
    text: str, host: str, port: int, loopback: bool
) -> None:
    found = parse_address(text)
    assert (found, str(found), found.loopback) == (Address(host, port), text, loopback)


NO_ADDRESSES = (
    *("", "7420", ":7420", "host", "host:", "host:x", "host:65536", "host:-1", "host:٣"),
    *("::1:7420", "[host]:7420", "[::1]", "[]:1", "[::1:7420"),
)


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|port|IPv6|127\.0\.0\.1:7420"):
        parse_address(text)


def test_a_peer_may_be_pinned_to_an_id() -> None:
    address = Address("10.0.0.2", 7430)
    assert parse_peer("10.0.0.2:7430") == Peer(address)
    assert parse_peer("b.example@10.0.0.2:7430") == Peer(address, "b.example")
    assert str(parse_peer("b.example@10.0.0.2:7430")) == "b.example@10.0.0.2:7430"


@pytest.mark.parametrize("text", ["@10.0.0.2:1", "a b@10.0.0.2:1", "id@10.0.0.2", "id@@h:1"])
def test_what_is_no_peer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"node ID|HOST:PORT"):
        parse_peer(text)


def test_lists_are_split_at_commas_and_white_space() -> None:
    assert split_list(" a,b  c,\n,d ") == ["a", "b", "c", "d"]
    assert split_list("") == []


S = 1_000_000_000


DURATIONS = {
    "0": 0,
    "90s": 90 * S,
    "5m": 300 * S,
    "5 min": 300 * S,
    "2 days 1 Hour": 49 * 3600 * S,
    "1h": 3600 * S,
    "30d": 30 * 86_400 * S,
    "1w": 7 * 86_400 * S,
    "250ms": S // 4,
    "1h30m": 5400 * S,
    "1.5h": 5400 * S,
    "0.000000001s": 1,
    " 10s ": 10 * S,
    "106751d": 106_751 * 86_400 * S,
}
SIZES = {
    "4096": 4096,
    "1B": 1,
    "64KiB": 65_536,
    "10GiB": 10 * 2**30,
    "10gib": 10 * 2**30,
    "500MB": 500_000_000,
    "1.5 MiB": 1_572_864,
    "2TiB": 2**41,
}


def test_durations_and_sizes_are_read() -> None:
    assert {text: parse_duration_ns(text) for text in DURATIONS} == DURATIONS
    assert {text: parse_size_bytes(text) for text in SIZES} == SIZES


NO_DURATIONS = ("", "5", "s", "-5s", "5 x", "5 months", "1e3s", "5y", "5s5", "٣s", "1.5", "1..5s")
NO_SIZES = ("", "GiB", "-1KiB", "1 PiB", "1GiBs", "ten", "1,5MiB")


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        *((parse_duration_ns, text, "such as 90s, 5m, 1h or 30d") for text in NO_DURATIONS),
        (parse_duration_ns, "9" * 80 + "s", "such as 90s, 5m, 1h or 30d"),
        (parse_duration_ns, "106752d", "longer than 292 years"),
        *((parse_size_bytes, text, "such as 64KiB, 500MB or 10GiB") for text in NO_SIZES),
        (parse_size_bytes, "99999999TiB", "larger than 8 EiB"),
    ],
)
def test_what_is_neither_is_refused_with_an_example(
    read: Callable[[str], int], text: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        read(text)


@given(st.integers(0, MAX_SIZE_BYTES // 2))
def test_a_formatted_size_reads_back_within_its_decimal(size_bytes: int) -> None:
    assert parse_size_bytes(format_size(size_bytes)) == pytest.approx(size_bytes, rel=0.05)


def test_whole_sizes_are_written_whole() -> None:
    assert [format_size(n) for n in (5, 150 * 1024, 3 * 2**20)] == ["5B", "150KiB", "3MiB"]


@pytest.mark.parametrize("share", ["0", "1.5", "nan", "-1"])
def test_a_share_of_the_capacity_is_no_more_than_all(share: str) -> None:
    with pytest.raises(click.BadParameter, match="above 0 and up to 1"):
        capacity_command.make_context("capacity", ["--connected-share", share])
