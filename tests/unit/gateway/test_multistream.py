"""Bytes of strangers: fields, multiaddrs, negotiations, and frames of mplex and yamux."""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Final, cast
from unittest.mock import AsyncMock, Mock

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from store.gateway.addresses import ListenAddress, parse_listen_address, parse_peer_address
from store.gateway.clients import ByteBudget
from store.gateway.connection import Stream, WakuConnection
from store.gateway.faults import RefusalError, StreamEndedError
from store.gateway.limits import (
    CHUNK_BYTES,
    FRAMES_PER_S,
    MAX_FRAME_BYTES,
    MAX_STREAM_UNREAD_BYTES,
    MIN_CHUNK_BYTES,
    WINDOW_BYTES,
)
from store.gateway.multiplexing import Frame, FrameType, Mplex, Multiplexer, Yamux
from store.gateway.noise import Identity, base58, require_proof
from store.gateway.pipes import Pipe, WebSocketLink, negotiate, propose
from store.gateway.wire import MAX_VARINT_BYTES, decode_varint, delimited
from storenode.message.varint import varint

GREETING = delimited(b"/multistream/1.0.0\n")


class Pieces(Pipe):
    """A pipe of which each piece arrives by itself."""

    def __init__(self, *pieces: bytes) -> None:
        super().__init__()
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


@pytest.mark.parametrize("host", ["/ip4/nowhere", "/ip6/::g", "/dns4/a..b", f"/dns/{'x' * 64}.eu"])
def test_a_peer_has_an_address_or_a_name_that_can_be(host: str) -> None:
    with pytest.raises(ValueError, match="is not the multiaddr of a peer"):
        parse_peer_address(f"{host}/tcp/1/p2p/ID")


async def test_a_negotiation_may_come_byte_by_byte_and_ends_with_a_known_protocol() -> None:
    pipe = one_by_one(GREETING + delimited(b"/unknown\n") + delimited(b"/noise\n") + b"rest")
    assert await negotiate(pipe, ("/noise",)) == "/noise"
    assert pipe.sent == GREETING + delimited(b"na\n") + delimited(b"/noise\n")
    assert await pipe.exactly(4) == b"rest"
    assert await pipe.any() == b""


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
        await negotiate(pipe, ("/noise",))
    assert caught.value.reason == reason


@given(st.binary(max_size=300))
def test_no_bytes_prove_an_identity(payload: bytes) -> None:
    with pytest.raises(RefusalError) as caught:
        require_proof(payload, bytes(32))
    assert caught.value.reason == "identity"


def test_an_identity_is_proven_for_its_own_key_alone() -> None:
    identity = Identity(Ed25519PrivateKey.generate())
    payload = identity.prove(b"k" * 32)
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
    link = WebSocketLink(reader, writer)
    async with asyncio.timeout(30):
        with pytest.raises((StreamEndedError, RefusalError)):
            await link.accept()


@pytest.mark.parametrize("opcode", [0x2, 0x9])
async def test_frames_of_a_websocket_without_data_have_a_rate(opcode: int) -> None:
    reader, writer = asyncio.StreamReader(), Mock(drain=AsyncMock())
    link = WebSocketLink(reader, writer)
    reader.feed_data(
        b"GET / HTTP/1.1\r\nHost: g\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    await link.accept()
    empty = bytes([0x80 | opcode, 0x80]) + bytes(4)
    reader.feed_data(empty * 10 + b"\x82\x81" + bytes(4) + b"x")
    assert await link.receive() == b"x"
    for _ in range(20):
        reader.feed_data(b"\x82\x81" + bytes(4) + b"x" + empty * (FRAMES_PER_S // 10))
    reader.feed_eof()
    with pytest.raises(RefusalError) as caught:
        await link.exactly(21)
    assert caught.value.reason == "flood"


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
        await propose(pipe, "/a/1")
    else:
        with pytest.raises(RefusalError) as caught:
            await propose(pipe, "/a/1")
        assert caught.value.reason == reason
    assert pipe.sent == GREETING + delimited(b"/a/1\n")


# mplex and yamux

HEADER: Final = struct.Struct(">BBHII")
STREAMS: Final = st.integers(0, 2**20).map(lambda each: 2 * each + 1)
MAX_HEAD_BYTES: Final = 1024
"""A size above that of any head of a frame."""


def mplex_frame(frame: Frame) -> bytes:
    """Encode a frame as a client of mplex does."""
    kind, stream, data, _ = frame
    if kind is FrameType.OPEN:
        return varint(stream << 3) + delimited(b"name")
    flag = {FrameType.DATA: 2, FrameType.CLOSE: 4, FrameType.RESET: 6}[kind]
    return varint(stream << 3 | flag) + delimited(data)


def yamux_frame(frame: Frame) -> bytes:
    """Encode a frame as a client of yamux does."""
    number, flags = {
        FrameType.OPEN: (1, 1),
        FrameType.DATA: (0, 0),
        FrameType.CLOSE: (0, 4),
        FrameType.RESET: (1, 8),
    }[frame.kind]
    return HEADER.pack(0, number, flags, frame.stream, len(frame.data)) + frame.data


FRAMES: Final = st.one_of(
    st.tuples(st.just(FrameType.DATA), STREAMS, st.binary(min_size=1, max_size=300)),
    st.tuples(st.sampled_from((FrameType.OPEN, FrameType.CLOSE, FrameType.RESET)), STREAMS),
).map(lambda parts: Frame(*parts))
PIECES: Final = st.lists(st.integers(1, 40), min_size=1, max_size=20)


def cut(data: bytes, sizes: list[int]) -> Iterable[bytes]:
    """Yield the data in pieces of these sizes, over and over."""
    at, number = 0, 0
    while at < len(data):
        size = sizes[number % len(sizes)]
        yield data[at : at + size]
        at, number = at + size, number + 1


def joined(frames: Iterable[Frame]) -> list[Frame]:
    """Return the frames with consequences, neighbouring data of a stream joined."""
    result: list[Frame] = []
    for frame in frames:
        if frame.kind in (FrameType.DATA, FrameType.CREDIT) and not (frame.data or frame.value):
            continue
        if frame.kind is FrameType.DATA and result and result[-1][:2] == frame[:2]:
            result[-1] = frame._replace(data=result[-1].data + frame.data)
        else:
            result.append(frame)
    return result


FORMATS: Final = pytest.mark.parametrize(
    ("make", "encode"), [(Mplex, mplex_frame), (Yamux, yamux_frame)], ids=["mplex", "yamux"]
)
Make = Callable[[], Multiplexer]
Encode = Callable[[Frame], bytes]


@FORMATS
@given(frames=st.lists(FRAMES, max_size=20), sizes=PIECES)
def test_frames_in_any_pieces_are_decoded_alike(
    make: Make, encode: Encode, frames: list[Frame], sizes: list[int]
) -> None:
    data, multiplexer = b"".join(map(encode, frames)), make()
    found = joined(frame for piece in cut(data, sizes) for frame in multiplexer.decode(piece))
    assert found == joined(frames)


@pytest.mark.parametrize("make", [Mplex, Yamux])
@given(data=st.binary(max_size=2_000), sizes=PIECES)
def test_any_bytes_give_frames_or_one_fault_and_are_not_buffered(
    make: Make, data: bytes, sizes: list[int]
) -> None:
    multiplexer, reasons = make(), []
    try:
        for piece in cut(data, sizes):
            for frame in multiplexer.decode(piece):
                assert isinstance(frame, Frame)
            assert len(multiplexer._buffer) <= MAX_HEAD_BYTES
    except RefusalError as fault:
        reasons.append(fault.reason)
    assert {*reasons} <= {"malformed", "too_large", "goodbye"}


@FORMATS
def test_the_largest_frame_passes_through_unbuffered(make: Make, encode: Encode) -> None:
    multiplexer, received = make(), 0
    for piece in cut(encode(Frame(FrameType.DATA, 1, bytes(MAX_FRAME_BYTES))), [65_536]):
        received += sum(len(frame.data) for frame in multiplexer.decode(piece))
        assert len(multiplexer._buffer) <= MAX_HEAD_BYTES
    assert received == MAX_FRAME_BYTES


@FORMATS
def test_each_frame_is_seen_also_one_without_data_or_meaning(make: Make, encode: Encode) -> None:
    empty = encode(Frame(FrameType.DATA, 1))
    meaningless = HEADER.pack(0, 2, 2, 0, 77) if make is Yamux else b"\x0f\x00"
    frames = list(make().decode(empty * 3 + meaningless))
    assert len(frames) == 4
    assert joined(frames[:3]) == []
    assert all(frame.kind in (FrameType.DATA, FrameType.PONG) for frame in frames)


HOSTILE: Final[list[tuple[Multiplexer, bytes, str]]] = [
    (Mplex(), varint(1 << 3 | 2) + varint(MAX_FRAME_BYTES + 1), "too_large"),
    (Mplex(), varint(1 << 3) + varint(257), "too_large"),
    (Mplex(), varint(1 << 3 | 4) + varint(2**40), "too_large"),
    (Mplex(), b"\xff" * 10, "malformed"),
    (Mplex(), b"\x08" + b"\x80" * 10, "malformed"),
    (Yamux(), HEADER.pack(1, 0, 0, 1, 0), "malformed"),  # an unknown version
    (Yamux(), HEADER.pack(0, 4, 0, 1, 0), "malformed"),  # an unknown kind
    (Yamux(), HEADER.pack(0, 0, 1, 2, 0), "malformed"),  # the gateway's own number
    (Yamux(), HEADER.pack(0, 0, 0, 4, 0), "malformed"),  # one that the gateway did not open
    (Yamux(), HEADER.pack(0, 1, 1, 0, 0), "malformed"),  # the session as a stream
    (Yamux(), HEADER.pack(0, 0, 0, 0, 0), "malformed"),
    (Yamux(), HEADER.pack(0, 0, 0, 1, MAX_FRAME_BYTES + 1), "too_large"),
    (Yamux(), HEADER.pack(0, 0, 0, 1, 2**32 - 1), "too_large"),
    (Yamux(), HEADER.pack(0, 3, 0, 0, 2), "goodbye"),
]


@pytest.mark.parametrize(("multiplexer", "data", "reason"), HOSTILE)
def test_hostile_frames_are_refused(multiplexer: Multiplexer, data: bytes, reason: str) -> None:
    multiplexer.new_stream()
    with pytest.raises(RefusalError) as caught:
        list(multiplexer.decode(data))
    assert caught.value.reason == reason


def test_pings_of_yamux_are_answered() -> None:
    (ping,) = Yamux().decode(HEADER.pack(0, 2, 1, 0, 77))
    assert ping.kind is FrameType.PING
    assert Yamux().encode(ping._replace(kind=FrameType.PONG)) == HEADER.pack(0, 2, 2, 0, 77)


def test_a_frame_of_yamux_may_open_fill_and_end_a_stream() -> None:
    frames = joined(Yamux().decode(HEADER.pack(0, 0, 1 | 4, 5, 3) + b"abc"))
    assert frames == [
        Frame(FrameType.OPEN, 5),
        Frame(FrameType.DATA, 5, b"abc"),
        Frame(FrameType.CLOSE, 5),
    ]


@pytest.mark.parametrize("make", [Mplex, Yamux])
def test_streams_of_the_gateway_and_of_the_client_do_not_meet(make: Make) -> None:
    multiplexer = make()
    one, two = multiplexer.new_stream(), multiplexer.new_stream()
    kinds = FrameType.OPEN, FrameType.DATA, FrameType.CLOSE, FrameType.RESET
    datas = b"", b"ab", b"", b""
    encoded = [
        multiplexer.encode(Frame(kind, one, data)) for kind, data in zip(kinds, datas, strict=True)
    ]
    if make is Mplex:
        assert encoded == [b"\x00\x010", b"\x02\x02ab", b"\x04\x00", b"\x06\x00"]
        frames = b"\x01\x02cd\x03\x00"
        own, number = b"\x00\x00\x02\x02ef", 0
    else:
        heads = [(1, 1, 2, 0), (0, 0, 2, 2), (0, 4, 2, 0), (1, 8, 2, 0)]
        assert encoded == [
            HEADER.pack(0, *head) + data for head, data in zip(heads, datas, strict=True)
        ]
        frames = HEADER.pack(0, 0, 2, 2, 2) + b"cd" + HEADER.pack(0, 0, 4, 2, 0)
        own, number = HEADER.pack(0, 1, 1, 1, 0) + HEADER.pack(0, 0, 0, 1, 2) + b"ef", 1
    assert one != two
    assert joined(multiplexer.decode(frames + own)) == [
        Frame(FrameType.DATA, one, b"cd"),
        Frame(FrameType.CLOSE, one),
        Frame(FrameType.OPEN, number),
        Frame(FrameType.DATA, number, b"ef"),
    ]


class Carrier:
    def __init__(self, multiplexer: Multiplexer, limit_bytes: int = 1_000) -> None:
        self.multiplexer = multiplexer
        self.client = SimpleNamespace(unread=ByteBudget(limit_bytes))
        self.sent: list[bytes] = []

    async def send(
        self, kind: FrameType, stream: int = 0, data: bytes = b"", value: int = 0
    ) -> None:
        self.sent.append(self.multiplexer.encode(Frame(kind, stream, data, value)))


def stream_of(multiplexer: Multiplexer) -> tuple[Stream, list[bytes]]:
    carrier = Carrier(multiplexer)
    return Stream(1, cast("WakuConnection", carrier)), carrier.sent


async def test_unread_bytes_are_bounded_by_stream_and_in_all() -> None:
    carrier = Carrier(Mplex(), MAX_STREAM_UNREAD_BYTES + 10)
    stream, other = (Stream(each, cast("WakuConnection", carrier)) for each in (1, 3))
    stream.feed(bytes(MAX_STREAM_UNREAD_BYTES))
    for subject, size_bytes, reason in ((stream, 1, "too_large"), (other, 11, "busy")):
        with pytest.raises(RefusalError) as caught:
            subject.feed(bytes(size_bytes))
        assert caught.value.reason == reason
    stream.discard()
    other.feed(b"\x02abcde")
    assert await other.delimited(2) == b"ab"
    other.release()
    assert carrier.client.unread.used_bytes == len(b"cde")
    other.discard()
    assert carrier.client.unread.used_bytes == 0


def test_a_few_addresses_leave_bytes_to_others() -> None:
    whole = ByteBudget(100)
    for share in [ByteBudget(25, whole) for _ in range(4)]:
        with pytest.raises(RefusalError):  # noqa: PT012 - after some
            while True:
                share.take(1)
    ByteBudget(25, whole).take(5)


async def test_a_window_of_yamux_is_kept_and_opened_by_the_client() -> None:
    stream, sent = stream_of(Yamux())
    sending = asyncio.create_task(stream.send(bytes(WINDOW_BYTES + 500)))

    def sent_bytes() -> int:
        client = Yamux()
        return sum(len(frame.data) for each in sent for frame in client.decode(each))

    for _ in range(20):
        await asyncio.sleep(0)
    assert (sent_bytes(), sending.done()) == (WINDOW_BYTES, False)
    stream.credit(500)
    await sending
    assert sent_bytes() == WINDOW_BYTES + 500
    stream.credit(2**32 - 1)
    with pytest.raises(RefusalError):
        stream.credit(1)


async def test_a_window_that_opens_byte_by_byte_is_not_used_byte_by_byte() -> None:
    stream, sent = stream_of(Yamux())
    sending = asyncio.create_task(stream.send(bytes(WINDOW_BYTES + 10_000)))
    for _ in range(10_000):
        await asyncio.sleep(0)
        stream.credit(1)
    await sending
    assert len(sent) <= WINDOW_BYTES // CHUNK_BYTES + 10_000 // MIN_CHUNK_BYTES + 2


async def test_a_stream_that_the_client_gave_up_ends_each_wait_on_it() -> None:
    stream, _ = stream_of(Yamux())
    sending = stream.send(bytes(2 * WINDOW_BYTES))
    waiting = asyncio.gather(stream.receive(), sending, return_exceptions=True)
    await asyncio.sleep(0)
    stream.fail()
    assert [type(each) for each in await waiting] == [StreamEndedError] * 2
