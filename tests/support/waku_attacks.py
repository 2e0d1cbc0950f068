"""Clients of a gateway that break its protocols, each in a way of its own."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from store.gateway.filter import FILTER_SUBSCRIBE
from store.gateway.gossipsub import encode_control, encode_message, encode_subscriptions
from store.gateway.relay import RELAY
from store.gateway.services import LIGHT_PUSH
from store.gateway.wire import delimited
from storenode.message.varint import varint
from storenode.wire.storenode.internal.v1 import waku_protocols_pb2 as wire
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from tests.support.waku_client import (
    MPLEX,
    STORE_QUERY,
    YAMUX,
    RawClient,
    StreamResetError,
    WakuClient,
    line,
    push_request,
)

GONE: Final = (OSError, asyncio.IncompleteReadError)
"""The exceptions by which a client notices that the gateway has ended its connection."""

_UPGRADE: Final = (
    b"GET / HTTP/1.1\r\nHost: gateway\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)

_FLOOD_S: Final = 30.0
MAX_STREAMS: Final = 32
"""The gateway's default limit of streams per connection."""


async def require_answer(client: WakuClient) -> None:
    """Check that the connection still serves."""
    request = StoreQueryRequest(pagination_limit=1)
    assert (await client.query(request)).status_code == 200


async def require_reset(client: WakuClient, message: bytes) -> None:
    """Check that a stream with this in place of a query is reset."""
    try:
        await client.ask(STORE_QUERY, message)
    except StreamResetError:
        return
    raise AssertionError("the stream was not reset")


async def until_closed(raw: RawClient) -> None:
    """Read the gateway's bytes until it ends the connection."""
    with suppress(ConnectionError):
        while await raw.reader.read(65_536):
            pass


async def garbage(address: str, rng: random.Random) -> None:
    """Send bytes that are no negotiation."""
    raw = await RawClient.connect(address)
    raw.writer.write(rng.randbytes(rng.randrange(1, 4_000)))
    raw.writer.write_eof()
    await until_closed(raw)
    raw.close()


async def broken_noise(address: str, rng: random.Random) -> None:
    """Send a first message of the handshake that is none."""
    raw = await RawClient.connect(address)
    raw.writer.write(line("/multistream/1.0.0") + line("/noise"))
    raw.write_message(rng.choice((b"", bytes(32), rng.randbytes(rng.randrange(5_000)))))
    raw.write_message(rng.randbytes(200))
    await until_closed(raw)
    raw.close()


async def forged_identity(address: str, rng: random.Random) -> None:  # noqa: ARG001
    """Send the key of another."""
    raw = await RawClient.connect(address)
    await raw.secure(forged=True)
    await until_closed(raw)
    raw.close()


async def broken_seal(address: str, rng: random.Random) -> None:
    """Send a message that was encrypted with another key."""
    async with WakuClient.connected(address) as client:
        client.raw.write_message(rng.randbytes(rng.randrange(1, 60_000)))
        await until_closed(client.raw)


async def broken_frames(address: str, rng: random.Random) -> None:
    """Send random bytes in place of frames of a multiplexer."""
    async with WakuClient.connected(address, rng.choice((MPLEX, YAMUX))) as client:
        for _ in range(4):
            client.raw.send(rng.randbytes(rng.randrange(1, 5_000)))
        client.raw.writer.write_eof()
        await until_closed(client.raw)


async def broken_request(address: str, rng: random.Random) -> None:
    """Send a query that is no protobuf: the node reports it, and the connection continues."""
    async with WakuClient.connected(address, rng.choice((MPLEX, YAMUX))) as client:
        answer = await client.ask(STORE_QUERY, delimited(b"\x0a\x05aaaaa" + b"\xff" * 20))
        assert b"aaaaa" in answer
        await require_answer(client)


async def too_large_request(address: str, rng: random.Random) -> None:
    """Send a query whose length is above the limit: its stream is reset at once."""
    async with WakuClient.connected(address, rng.choice((MPLEX, YAMUX))) as client:
        await require_reset(client, varint(2**20 + 1))
        await require_answer(client)


async def too_long_number(address: str, rng: random.Random) -> None:
    """Send a length that is no varint."""
    async with WakuClient.connected(address, rng.choice((MPLEX, YAMUX))) as client:
        await require_reset(client, b"\xff" * 12)


async def unknown_protocol(address: str, rng: random.Random) -> None:
    """Ask for many protocols, none of which exists."""
    async with WakuClient.connected(address, rng.choice((MPLEX, YAMUX))) as client:
        number = client.open()
        lines = b"".join(line(f"/unknown/{each}") for each in range(20))
        client.raw.send(client.data(number, line("/multistream/1.0.0") + lines))
        await require_answer(client)


async def half_requests(address: str, rng: random.Random) -> None:
    """Open streams whose request never comes, and leave a connection silently."""
    async with WakuClient.connected(address, rng.choice((MPLEX, YAMUX))) as client:
        for _ in range(10):
            number = client.open()
            begun = line("/multistream/1.0.0") + line(STORE_QUERY) + varint(1_000_000)
            client.raw.send(client.data(number, begun + bytes(1_000)))
        await require_answer(client)


async def too_many_streams(address: str, rng: random.Random) -> None:
    """Open more streams than a connection may have: the further ones are reset."""
    async with WakuClient.connected(address, rng.choice((MPLEX, YAMUX))) as client:
        for _ in range(MAX_STREAMS):
            client.open()
        await require_reset(client, b"")


async def flood(address: str, rng: random.Random) -> None:
    """Send frames without meaning, or a few bytes or none at a time: the connection is ended."""
    async with WakuClient.connected(address) as client:
        message, count = rng.choice(((b"\x04\x00" * 30_000, 1), (b"\x04", 10_000), (b"", 1)))
        for _ in range(count):
            client.raw.write_message(client.raw.noise.encrypt(message))
        # A busy machine may send the small ones more slowly than the limit.
        client.raw.writer.write_eof()
        await until_closed(client.raw)


async def broken_upgrade(address: str, rng: random.Random) -> None:
    """Send a request of HTTP that opens no WebSocket: of another kind, without end, or too long."""
    raw = await RawClient.connect(address)
    raw.writer.write(
        rng.choice(
            (
                b"GET / HTTP/1.1\r\nHost: gateway\r\n\r\n",
                b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
                b"GET /" + b"a" * rng.randrange(20_000),
                b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * rng.randrange(1_000),
                _UPGRADE.replace(b"13", b"12"),
            )
        )
    )
    raw.writer.write_eof()
    await until_closed(raw)
    raw.close()


async def broken_websocket(address: str, rng: random.Random) -> None:
    """Open a WebSocket, and send random bytes, text or an endless message."""
    raw = await RawClient.connect(address)
    raw.writer.write(_UPGRADE)
    await raw.reader.readuntil(b"\r\n\r\n")
    endless = bytes.fromhex("02fe1000") + bytes(4) + bytes(4096)
    broken = (rng.randbytes(2_000), b"\x81\x84" + bytes(8), b"\x82\xff" + b"\xff" * 12, endless)
    raw.writer.write(rng.choice(broken))
    raw.writer.write_eof()
    await until_closed(raw)
    raw.close()


async def status_of(client: WakuClient, protocol: str, request: bytes) -> int:
    """Return the status in the answer to a request of light push or filter."""
    answer = await client.ask(protocol, delimited(request))
    size_bytes = 1 if answer[0] < 0x80 else 2
    return wire.WakuResponse.FromString(answer[size_bytes:]).status_code


def subscription(topic: str, content_topics: list[str]) -> bytes:
    """Return a request to subscribe."""
    return wire.FilterRequest(
        request_id=b"r", kind=1, pubsub_topic=topic, content_topics=content_topics
    ).SerializeToString()


async def broken_services(address: str, rng: random.Random) -> None:
    """Send requests of light push and filter that are broken, or of another network."""
    message = WakuMessage(payload=b"x", content_topic="/a/1/b/proto", timestamp=time.time_ns())

    def subscribe(topic: str, count: int) -> bytes:
        return subscription(topic, [f"/a/1/{each}/proto" for each in range(count)])

    here, elsewhere = "/waku/2/rs/1/2", "/waku/2/rs/65535/0"
    async with WakuClient.connected(address, rng.choice((MPLEX, YAMUX))) as client:
        for protocol, request, expected in (
            (LIGHT_PUSH, b"\xff" + rng.randbytes(rng.randrange(500)), 400),
            (LIGHT_PUSH, push_request(message.SerializeToString(), elsewhere), 421),
            (FILTER_SUBSCRIBE, b"\xff" + rng.randbytes(rng.randrange(500)), 400),
            (FILTER_SUBSCRIBE, subscribe(elsewhere, 1), 400),
            (FILTER_SUBSCRIBE, subscribe(here, 101), 400),
        ):
            assert await status_of(client, protocol, request) == expected, (protocol, expected)
        await require_answer(client)


async def many_subscriptions(address: str, rng: random.Random) -> None:
    """Subscribe ten thousand times on a connection, which has room for a thousand."""
    async with WakuClient.connected(address, rng.choice((MPLEX, YAMUX))) as client:
        codes = []
        for number in range(100):
            topics = [f"/many/1/{number}-{each}/proto" for each in range(100)]
            request = subscription("/waku/2/rs/1/2", topics)
            codes.append(await status_of(client, FILTER_SUBSCRIBE, request))
        assert codes == [200] * 10 + [503] * 90


async def hostile_relay(address: str, rng: random.Random) -> None:
    """Send floods, forgeries and garbage as a relay peer, and read nothing."""
    topic = "/waku/2/rs/1/2"

    def invented(count: int) -> list[bytes]:
        return [rng.randbytes(32) for _ in range(count)]

    rpcs = (
        lambda: rng.randbytes(rng.randrange(1, 2_000)),
        lambda: b"\x0a\x00" * 36_000,
        lambda: encode_control("ihave", topic, message_ids=invented(4_000)),
        lambda: encode_control("iwant", message_ids=invented(4_000)),
        lambda: encode_control("idontwant", message_ids=invented(4_000)),
        lambda: encode_subscriptions(f"/waku/2/rs/9/{each}" for each in range(900)),
        lambda: encode_control("graft", topic) * 900,
        lambda: encode_control("prune", topic, backoff_s=2**40) + encode_control("graft", topic),
        lambda: encode_message(topic, rng.randbytes(500)),
        lambda: encode_message(topic, bytes(160_000)),
    )
    async with WakuClient.connected(address, YAMUX) as client:
        number = client.open()
        client.raw.send(client.data(number, line("/multistream/1.0.0") + line(RELAY)))
        for _ in range(rng.randrange(2, 30)):
            rpc = delimited(rng.choice(rpcs)())
            for start in range(0, len(rpc), 16_384):
                client.raw.send(client.data(number, rpc[start : start + 16_384]))
            if client.raw.writer.is_closing():
                return
            async with asyncio.timeout(_FLOOD_S):
                await client.raw.writer.drain()


HOSTILE: Final[tuple[Callable[[str, random.Random], Awaitable[None]], ...]] = (
    *(garbage, broken_noise, forged_identity, broken_seal, broken_frames, broken_request),
    *(too_large_request, too_long_number, unknown_protocol, half_requests, too_many_streams),
    *(flood, broken_services, many_subscriptions, hostile_relay),
)
"""The attacks on a TCP listener."""

HOSTILE_WEBSOCKETS: Final = (garbage, broken_upgrade, broken_websocket)
"""The attacks on a WebSocket listener."""
