"""Addresses, tokens and the rule that a token is never sent in clear beyond loopback."""

import pytest

from storenode.connection.channel import TlsIdentity, open_channel, parse_address
from storenode.connection.errors import ClientOptionError, NodeUnavailableError, query_error

TLS = TlsIdentity(ca=b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")


@pytest.mark.parametrize(
    "text",
    ["", ":1", "host", "host:", "host:0", "host:65536", "host:-1", "host:x", "::1:7420", "[]:1"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ClientOptionError, match="write HOST:PORT"):
        parse_address(text)


@pytest.mark.parametrize("node", ["10.0.0.1:7420", "node.example:7420", "[2001:db8::1]:7420"])
async def test_a_token_is_not_sent_in_clear_beyond_loopback(node: str) -> None:
    with pytest.raises(ClientOptionError, match="would travel in clear"):
        open_channel(node, "secret", None)


@pytest.mark.parametrize(
    ("node", "tls"), [("127.0.0.1:7420", None), ("[::1]:7420", None), ("node.example:7420", TLS)]
)
async def test_a_token_is_sent_over_loopback_and_over_tls(
    node: str, tls: TlsIdentity | None
) -> None:
    channel, metadata = open_channel(node, "secret", tls)
    await channel.close(grace=None)
    assert metadata == (("authorization", "Bearer secret"),)


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "naïve", "tab\t"])
def test_a_token_that_is_no_header_value_is_refused(token: str) -> None:
    with pytest.raises(ClientOptionError, match="token is empty or holds"):
        open_channel("127.0.0.1:7420", token, None)


@pytest.mark.parametrize(("cert", "key"), [(b"c", None), (None, b"k")])
def test_a_certificate_needs_its_key(cert: bytes | None, key: bytes | None) -> None:
    with pytest.raises(ClientOptionError, match="go together"):
        TlsIdentity(cert=cert, key=key)


def test_errors_say_whether_another_attempt_may_help() -> None:
    assert NodeUnavailableError("UNAVAILABLE", "away").unreachable
    assert query_error(503, "not ready").unreachable
    assert not query_error(404, "").unreachable
    assert str(query_error(404, "unknown cursor")) == "unknown cursor (QUERY_404)"
