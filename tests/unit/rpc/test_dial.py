import pytest

from dial.hosts import is_loopback
from store.domain.ports import PeerAddress
from store.rpc.dial import shown
from store.rpc.limits import MAX_PEER_TEXT_CHARS


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("LOCALHOST", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("node.example", False),
        ("localhost.example", False),
    ],
)
def test_only_this_machine_is_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_texts_of_peers_are_cut_and_made_printable() -> None:
    assert shown("plain text: über") == "plain text: über"
    assert shown("a\nb\x1b[31m") == "a\ufffdb\ufffd[31m"
    cut = shown("x" * 10_000)
    assert len(cut) == MAX_PEER_TEXT_CHARS
    assert cut.endswith("…")


def test_addresses_as_operators_write_them() -> None:
    assert str(PeerAddress("127.0.0.1", 7420)) == "127.0.0.1:7420"
    assert str(PeerAddress("::1", 7420, "a.example")) == "a.example@[::1]:7420"
