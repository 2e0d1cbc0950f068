"""A small Waku client: libp2p over TCP with Noise and either multiplexer, a stream at a time."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from noise.connection import Keypair, NoiseConnection

from store.gateway.pipes import MULTISTREAM, Pipe, TcpLink, propose
from store.gateway.wire import decode_varint, delimited
from storenode.message.varint import varint
from storenode.wire.storenode.internal.v1.waku_protocols_pb2 import LightPushRequest
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse

MPLEX: Final = "/mplex/6.7.0"
YAMUX: Final = "/yamux/1.0.0"
STORE_QUERY: Final = "/vac/waku/store-query/3.0.0"
PING: Final = "/ipfs/ping/1.0.0"
_YAMUX_HEADER: Final = struct.Struct(">BBHII")
_MAX_NOISE_BYTES: Final = 65_535 - 16


class StreamResetError(Exception):
    """The gateway gave the stream up."""


def push_request(encoded: bytes | None, topic: str | None) -> bytes:
    """Encode a request of light push; None leaves a field out."""
    request = LightPushRequest(request_id=b"r", pubsub_topic=topic, message=encoded)
    return request.SerializeToString()


def line(text: str) -> bytes:
    """Return a line of a negotiation."""
    return delimited(text.encode() + b"\n")


def address_of(multiaddr: str) -> tuple[str, int]:
    """Return host and port of a multiaddr."""
    parts = multiaddr.split("/")
    return parts[2], int(parts[4])


class RawClient:
    """A TCP connection with which the handshake can be made step by step, or broken."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.noise = NoiseConnection.from_name(b"Noise_XX_25519_ChaChaPoly_SHA256")

    @classmethod
    async def connect(cls, multiaddr: str) -> Self:
        """Connect silently."""
        return cls(*await asyncio.open_connection(*address_of(multiaddr)))

    async def read_message(self) -> bytes:
        """Return a message of Noise, encrypted."""
        size = int.from_bytes(await self.reader.readexactly(2), "big")
        return await self.reader.readexactly(size)

    def write_message(self, message: bytes) -> None:
        """Write a message of Noise."""
        self.writer.write(len(message).to_bytes(2, "big") + message)

    async def secure(self, *, forged: bool = False) -> None:
        """Run the handshake of Noise; ``forged`` proves the identity of another."""
        await propose(TcpLink(self.reader, self.writer), "/noise")
        static, identity = X25519PrivateKey.generate(), Ed25519PrivateKey.generate()
        self.noise.set_as_initiator()
        self.noise.set_keypair_from_private_bytes(Keypair.STATIC, static.private_bytes_raw())
        self.noise.start_handshake()
        self.write_message(bytes(self.noise.write_message()))
        self.noise.read_message(await self.read_message())
        signer = Ed25519PrivateKey.generate() if forged else identity
        key = b"\x08\x01\x12\x20" + identity.public_key().public_bytes_raw()
        signature = signer.sign(
            b"noise-libp2p-static-key:" + static.public_key().public_bytes_raw()
        )
        payload = b"\x0a" + delimited(key) + b"\x12" + delimited(signature)
        self.write_message(bytes(self.noise.write_message(payload)))

    def send(self, data: bytes) -> None:
        """Encrypt and write."""
        for start in range(0, len(data), _MAX_NOISE_BYTES):
            self.write_message(self.noise.encrypt(data[start : start + _MAX_NOISE_BYTES]))

    async def receive(self) -> bytes:
        """Return the next decrypted piece."""
        return bytes(self.noise.decrypt(await self.read_message()))

    def close(self) -> None:
        """Close silently."""
        self.writer.transport.abort()


class WakuClient(Pipe):
    """A client after its handshake."""

    def __init__(self, raw: RawClient, multiplexer: str) -> None:
        super().__init__()
        self.raw = raw
        self.multiplexer = multiplexer
        self._next = 1

    async def receive(self) -> bytes:
        return await self.raw.receive()

    async def send(self, data: bytes) -> None:
        self.raw.send(data)

    @classmethod
    async def connect(cls, multiaddr: str, multiplexer: str = MPLEX) -> Self:
        """Connect, and agree on a multiplexer."""
        raw = await RawClient.connect(multiaddr)
        try:
            await raw.secure()
            client = cls(raw, multiplexer)
            await propose(client, multiplexer)
        except BaseException:
            raw.close()
            raise
        return client

    @classmethod
    @asynccontextmanager
    async def connected(cls, multiaddr: str, multiplexer: str = MPLEX) -> AsyncIterator[Self]:
        """Yield a client for the length of a block."""
        client = await cls.connect(multiaddr, multiplexer)
        try:
            yield client
        finally:
            client.close()

    def close(self) -> None:
        """Close silently."""
        self.raw.close()

    def open(self) -> int:
        """Open a stream; its number."""
        number, self._next = self._next, self._next + 2
        if self.multiplexer == MPLEX:
            self.raw.send(varint(number << 3) + b"\x00")
        else:
            self.raw.send(_YAMUX_HEADER.pack(0, 1, 1, number, 0))
        return number

    def data(self, number: int, data: bytes) -> bytes:
        """Return a frame with data."""
        if self.multiplexer == MPLEX:
            return varint(number << 3 | 2) + delimited(data)
        return _YAMUX_HEADER.pack(0, 0, 0, number, len(data)) + data

    async def ask(self, protocol: str, message: bytes) -> bytes:
        """Send a message on a stream of its own; all that comes back on it.

        Raises:
            StreamResetError: The gateway gave the stream up.
        """
        number = self.open()
        self.raw.send(self.data(number, line(MULTISTREAM) + line(protocol) + message))
        await self.raw.writer.drain()
        answer = b""
        while (piece := await self._piece(number)) is not None:
            answer += piece
        greeting = line(MULTISTREAM) + line(protocol)
        assert answer.startswith(greeting), answer
        return answer[len(greeting) :]

    async def query(self, request: StoreQueryRequest) -> StoreQueryResponse:
        """Return one query."""
        answer = await self.ask(STORE_QUERY, delimited(request.SerializeToString()))
        size, at = decode_varint(answer, 0) or (0, 0)
        assert len(answer) == at + size
        return StoreQueryResponse.FromString(answer[at:])

    async def _piece(self, number: int) -> bytes | None:
        """Return the next data of a stream; None at its end."""
        while True:
            flag, stream, data = await self._frame()
            if stream != number:
                continue
            if flag == "reset":
                raise StreamResetError
            if data and self.multiplexer == YAMUX:
                self.raw.send(_YAMUX_HEADER.pack(0, 1, 0, number, len(data)))
            if data or flag == "close":
                return data or None

    async def _frame(self) -> tuple[str, int, bytes]:
        if self.multiplexer == MPLEX:
            header = await self.length(2**62)
            data = await self.delimited(2**62)
            return {1: "data", 3: "close", 5: "reset"}[header & 7], header >> 3, data
        _, kind, flags, number, length = _YAMUX_HEADER.unpack(await self.exactly(12))
        data = await self.exactly(length) if kind == 0 else b""
        flag = "reset" if flags & 8 else "close" if flags & 4 else "data"
        return flag, number, data
