"""Varints, fields, multiaddrs and lines as strangers write them."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterator
from unittest.mock import AsyncMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.gateway.addresses import ListenAddress, parse_listen_address
from store.gateway.faults import RefusalError, StreamEndedError
from store.gateway.identity import Identity, base58, require_proof
from store.gateway.links import TcpLink, WebSocketLink
from store.gateway.multistream import ByteReader, negotiate, propose
from store.gateway.wire import MAX_VARINT_BYTES, decode_varint, delimited, fields
from storenode.message.varint import varint

GREETING = delimited(b"/multistream/1.0.0\n")


class Pieces:
    """A pipe of which each piece arrives by itself."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.sent = b""

    async def receive(self) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    async def send(self, data: bytes) -> None:
        self.sent += data


def one_by_one(data: bytes) -> Pieces:
    return Pieces(*(bytes([each]) for each in data))


@given(st.binary(max_size=30))
def test_any_bytes_are_a_varint_incomplete_or_too_long(data: bytes) -> None:
    try:
        found = decode_varint(data, 0)
    except ValueError:
        assert all(byte >= 0x80 for byte in data[:MAX_VARINT_BYTES])
    else:
        assert found is None or found[1] <= min(len(data), MAX_VARINT_BYTES)


@given(st.binary(max_size=100))
def test_any_bytes_are_fields_or_refused(data: bytes) -> None:
    try:
        found = list(fields(data))
    except ValueError:
        return
    assert sum(len(value) for _, value in found if isinstance(value, bytes)) <= len(data)


def addresses() -> Iterator[st.SearchStrategy[str]]:
    ports = st.integers(0, 65_535)
    for name, hosts in (("ip4", st.ip_addresses(v=4)), ("ip6", st.ip_addresses(v=6))):
        for ending in ("", "/ws", "/wss", "/tls/ws"):
            form = f"/{name}/{{}}/tcp/{{}}{ending}"
            yield st.builds(form.format, hosts, ports)


@given(st.one_of(*addresses()))
def test_a_multiaddr_comes_back(text: str) -> None:
    parsed = parse_listen_address(text)
    assert parse_listen_address(str(parsed)) == parsed
    assert str(parsed) == text.replace("/wss", "/tls/ws")
    encoded = parsed.encoded()
    ip = ipaddress.ip_address(parsed.host)
    assert encoded[1 : 1 + len(ip.packed)] == ip.packed
    assert parsed.port.to_bytes(2, "big") in encoded


@given(st.text("/ip46tcpws.:0123456789%\u0663 ", max_size=40))
def test_any_text_is_a_multiaddr_or_refused_in_words(text: str) -> None:
    said = ""
    try:
        assert isinstance(parse_listen_address(text), ListenAddress)
    except ValueError as error:
        said = str(error)
    assert not said or repr(text) in said


async def test_a_negotiation_may_come_byte_by_byte_and_ends_with_a_known_protocol() -> None:
    pipe = one_by_one(GREETING + delimited(b"/unknown\n") + delimited(b"/noise\n") + b"rest")
    reader = ByteReader(pipe)
    assert await negotiate(reader, pipe, ("/noise",)) == "/noise"
    assert pipe.sent == GREETING + delimited(b"na\n") + delimited(b"/noise\n")
    assert await reader.exactly(4) == b"rest"
    assert await reader.any() == b""


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (delimited(b"/multistream/2.0.0\n"), "malformed"),
        (delimited(b"/multistream/1.0.0"), "malformed"),
        (varint(1_025), "too_large"),
        (b"\xff" * 10, "malformed"),
        (GREETING + delimited(b"/x\n") * 16, "no_protocol"),
        (GREETING + delimited(b"\xff\xfe\n") * 16, "no_protocol"),
    ],
)
async def test_what_is_no_negotiation_is_refused(data: bytes, reason: str) -> None:
    pipe = one_by_one(data)
    with pytest.raises(RefusalError) as caught:
        await negotiate(ByteReader(pipe), pipe, ("/noise",))
    assert caught.value.reason == reason


@given(st.binary(max_size=300))
def test_no_bytes_prove_an_identity(payload: bytes) -> None:
    with pytest.raises(RefusalError) as caught:
        require_proof(payload, bytes(32))
    assert caught.value.reason == "identity"


def test_an_identity_is_proven_for_its_own_key_alone() -> None:
    identity = Identity.generate()
    payload = identity.handshake_payload(b"k" * 32)
    require_proof(payload, b"k" * 32)
    with pytest.raises(RefusalError):
        require_proof(payload, b"l" * 32)
    assert identity.peer_id.startswith("12D3KooW")
    assert base58(b"\x00\x00\x01") == "112"


@pytest.mark.parametrize(
    "begun", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: gateway\r\n", b"\x00\xff" * 40]
)
async def test_a_client_that_ends_before_its_websocket_is_open_is_let_go(begun: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(begun)
    reader.feed_eof()
    writer = Mock(drain=AsyncMock())
    link = WebSocketLink(TcpLink(reader, writer))
    async with asyncio.timeout(30):
        with pytest.raises((StreamEndedError, RefusalError)):
            await link.accept()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (GREETING + delimited(b"/a/1\n"), None),
        (GREETING + delimited(b"na\n"), "no_protocol"),
        (GREETING + delimited(b"/b/1\n"), "malformed"),
        (delimited(b"/multistream/2.0.0\n"), "malformed"),
        (GREETING + delimited(b"/a/1"), "malformed"),
    ],
)
async def test_a_protocol_is_proposed_and_agreed_on_or_refused(
    answer: bytes, reason: str | None
) -> None:
    pipe = one_by_one(answer)
    if reason is None:
        await propose(ByteReader(pipe), pipe, "/a/1")
    else:
        with pytest.raises(RefusalError) as caught:
            await propose(ByteReader(pipe), pipe, "/a/1")
        assert caught.value.reason == reason
    assert pipe.sent == GREETING + delimited(b"/a/1\n")
