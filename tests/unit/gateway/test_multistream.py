"""Bytes of strangers: fields, multiaddrs, negotiations, and frames of mplex and yamux."""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final, cast
from unittest.mock import AsyncMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.gateway.addresses import ListenAddress, parse_listen_address
from store.gateway.clients import ByteBudget
from store.gateway.connection import WakuConnection
from store.gateway.faults import RefusalError, StreamEndedError
from store.gateway.identity import Identity, base58, require_proof
from store.gateway.limits import (
    CHUNK_BYTES,
    MAX_FRAME_BYTES,
    MAX_STREAM_UNREAD_BYTES,
    MIN_CHUNK_BYTES,
    WINDOW_BYTES,
)
from store.gateway.links import TcpLink, WebSocketLink
from store.gateway.mplex import Mplex
from store.gateway.multiplexing import (
    Aborted,
    Credit,
    DataReceived,
    Event,
    Finished,
    Multiplexer,
    Noted,
    Opened,
    Pong,
)
from store.gateway.multistream import ByteReader, negotiate, propose
from store.gateway.streams import Stream
from store.gateway.wire import MAX_VARINT_BYTES, decode_varint, delimited
from store.gateway.yamux import Yamux
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


# mplex and yamux

HEADER: Final = struct.Struct(">BBHII")
STREAMS: Final = st.integers(0, 2**20).map(lambda each: 2 * each + 1)
MAX_HEAD_BYTES: Final = 1024
"""More than any head of a frame."""


def mplex_frame(event: Event) -> bytes:
    """Encode an event as a client of mplex does."""
    match event:
        case Opened(stream):
            return varint(stream << 3) + delimited(b"name")
        case DataReceived(stream, data):
            return varint(stream << 3 | 2) + delimited(data)
        case Finished(stream):
            return varint(stream << 3 | 4) + b"\x00"
        case Aborted(stream):
            return varint(stream << 3 | 6) + b"\x00"
    raise AssertionError(event)


def yamux_frame(event: Event) -> bytes:
    """Encode an event as a client of yamux does."""
    match event:
        case Opened(stream):
            return HEADER.pack(0, 1, 1, stream, 0)
        case DataReceived(stream, data):
            return HEADER.pack(0, 0, 0, stream, len(data)) + data
        case Finished(stream):
            return HEADER.pack(0, 0, 4, stream, 0)
        case Aborted(stream):
            return HEADER.pack(0, 1, 8, stream, 0)
        case Credit(stream, size_bytes):
            return HEADER.pack(0, 1, 0, stream, size_bytes)
    raise AssertionError(event)


EVENTS: Final = st.one_of(
    st.builds(Opened, STREAMS),
    st.builds(DataReceived, STREAMS, st.binary(min_size=1, max_size=300)),
    st.builds(Finished, STREAMS),
    st.builds(Aborted, STREAMS),
)
PIECES: Final = st.lists(st.integers(1, 40), min_size=1, max_size=20)


def cut(data: bytes, sizes: list[int]) -> Iterable[bytes]:
    """Yield the data in pieces of these sizes, over and over."""
    at, number = 0, 0
    while at < len(data):
        size = sizes[number % len(sizes)]
        yield data[at : at + size]
        at, number = at + size, number + 1


def joined(events: Iterable[Event]) -> list[Event]:
    """Return the events with consequences, neighbouring data of a stream joined."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, Noted) or (isinstance(event, Credit) and not event.size_bytes):
            continue
        if (
            isinstance(event, DataReceived)
            and isinstance(last, DataReceived)
            and last.stream == event.stream
        ):
            result[-1] = DataReceived(event.stream, last.data + event.data)
        else:
            result.append(event)
    return result


@pytest.mark.parametrize(
    ("make", "frame"), [(Mplex, mplex_frame), (Yamux, yamux_frame)], ids=["mplex", "yamux"]
)
@given(events=st.lists(EVENTS, max_size=20), sizes=PIECES)
def test_frames_in_any_pieces_give_the_same_events(
    make: Callable[[], Multiplexer],
    frame: Callable[[Event], bytes],
    events: list[Event],
    sizes: list[int],
) -> None:
    data = b"".join(map(frame, events))
    multiplexer = make()
    found = joined(event for piece in cut(data, sizes) for event in multiplexer.feed(piece))
    assert found == joined(events)


@pytest.mark.parametrize("make", [Mplex, Yamux])
@given(data=st.binary(max_size=2_000), sizes=PIECES)
def test_any_bytes_give_events_or_one_fault_and_are_not_buffered(
    make: Callable[[], Multiplexer], data: bytes, sizes: list[int]
) -> None:
    multiplexer, reasons = make(), []
    try:
        for piece in cut(data, sizes):
            for event in multiplexer.feed(piece):
                assert isinstance(event, Event)
            assert len(multiplexer._buffer) <= MAX_HEAD_BYTES  # type: ignore[attr-defined]
    except RefusalError as fault:
        reasons.append(fault.reason)
    assert {*reasons} <= {"malformed", "too_large", "goodbye"}


@pytest.mark.parametrize("make", [Mplex, Yamux])
def test_the_largest_frame_passes_through_unbuffered(
    make: Callable[[], Multiplexer],
) -> None:
    multiplexer, frame = make(), mplex_frame if make is Mplex else yamux_frame
    whole, received = frame(DataReceived(1, bytes(MAX_FRAME_BYTES))), 0
    for piece in cut(whole, [65_536]):
        for event in multiplexer.feed(piece):
            received += len(event.data) if isinstance(event, DataReceived) else 0
        assert len(multiplexer._buffer) <= MAX_HEAD_BYTES  # type: ignore[attr-defined]
    assert received == MAX_FRAME_BYTES


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
    multiplexer.open()
    with pytest.raises(RefusalError) as caught:
        list(multiplexer.feed(data))
    assert caught.value.reason == reason


def test_pings_of_yamux_are_answered_and_answers_are_not() -> None:
    (answer,) = Yamux().feed(HEADER.pack(0, 2, 1, 0, 77))
    assert answer == Pong(HEADER.pack(0, 2, 2, 0, 77))
    assert list(Yamux().feed(HEADER.pack(0, 2, 2, 0, 77))) == [Noted()]


def test_a_frame_of_yamux_may_open_fill_and_end_a_stream() -> None:
    frame = HEADER.pack(0, 0, 1 | 4, 5, 3) + b"abc"
    events = [each for each in Yamux().feed(frame) if not isinstance(each, Noted)]
    assert events == [Opened(5), DataReceived(5, b"abc"), Finished(5)]


@pytest.mark.parametrize("make", [Mplex, Yamux])
def test_streams_of_the_gateway_and_of_the_client_do_not_meet(
    make: Callable[[], Multiplexer],
) -> None:
    multiplexer = make()
    (one, opening), (two, _) = multiplexer.open(), multiplexer.open()
    number = 0 if make is Mplex else 2
    if make is Mplex:
        assert opening == varint(number << 3) + delimited(b"0")
        assert multiplexer.data(one, b"ab") == varint(number << 3 | 2) + delimited(b"ab")
        assert multiplexer.finished(one) == varint(number << 3 | 4) + b"\x00"
        assert multiplexer.aborted(one) == varint(number << 3 | 6) + b"\x00"
        frames = varint(number << 3 | 1) + delimited(b"cd") + varint(number << 3 | 3) + b"\x00"
        own = mplex_frame(Opened(0)) + mplex_frame(DataReceived(0, b"ef"))
        expected: list[Event] = [Opened(0), DataReceived(0, b"ef")]
    else:
        assert opening == HEADER.pack(0, 1, 1, number, 0)
        assert multiplexer.data(one, b"ab") == HEADER.pack(0, 0, 0, number, 2) + b"ab"
        frames = HEADER.pack(0, 0, 2, number, 2) + b"cd" + HEADER.pack(0, 0, 4, number, 0)
        own = yamux_frame(Opened(1)) + yamux_frame(DataReceived(1, b"ef"))
        expected = [Opened(1), DataReceived(1, b"ef")]
    assert one != two
    assert joined(multiplexer.feed(frames + own)) == [
        DataReceived(one, b"cd"),
        Finished(one),
        *expected,
    ]


class Carrier:
    def __init__(self, multiplexer: Multiplexer) -> None:
        self.multiplexer = multiplexer
        self.sent: list[bytes] = []

    async def send(self, frame: bytes) -> None:
        self.sent.append(frame)


def stream_of(multiplexer: Multiplexer, limit_bytes: int = 1_000) -> tuple[Stream, list[bytes]]:
    carrier = Carrier(multiplexer)
    return Stream(1, cast("WakuConnection", carrier), ByteBudget(limit_bytes)), carrier.sent


def test_unread_bytes_are_bounded_by_stream_and_in_all() -> None:
    budget = ByteBudget(MAX_STREAM_UNREAD_BYTES + 10)
    connection = cast("WakuConnection", Carrier(Mplex()))
    stream, other = (Stream(each, connection, budget) for each in (1, 3))
    stream.feed(bytes(MAX_STREAM_UNREAD_BYTES))
    for subject, size_bytes, reason in ((stream, 1, "too_large"), (other, 11, "busy")):
        with pytest.raises(RefusalError) as caught:
            subject.feed(bytes(size_bytes))
        assert caught.value.reason == reason
    for subject in (stream, other):
        subject.discard()
    assert budget.used_bytes == 0


async def test_a_window_of_yamux_is_kept_and_opened_by_the_client() -> None:
    stream, sent = stream_of(Yamux())
    sending = asyncio.create_task(stream.send(bytes(WINDOW_BYTES + 500)))

    def sent_bytes() -> int:
        client = Yamux()
        events = [event for frame in sent for event in client.feed(frame)]
        return sum(len(each.data) for each in events if isinstance(each, DataReceived))

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
