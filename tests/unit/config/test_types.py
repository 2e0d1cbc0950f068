"""Addresses, peers, lists."""

import pytest

from storenode.cli.options.types import Address, Peer, parse_address, parse_peer, split_list


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
