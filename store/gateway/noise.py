"""The encrypted connection: Noise XX with the identities of libp2p ("noise-libp2p")."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from noise.connection import Keypair, NoiseConnection
from noise.exceptions import NoiseInvalidMessage, NoiseValueError

from store.gateway.faults import RefusalError
from store.gateway.identity import Identity, require_proof
from store.gateway.limits import MAX_HANDSHAKE_PAYLOAD_BYTES
from store.gateway.multistream import ByteReader, Pipe

PROTOCOL: Final = "/noise"
_NAME: Final = b"Noise_XX_25519_ChaChaPoly_SHA256"
_LENGTH_BYTES: Final = 2
_MAX_MESSAGE_BYTES: Final = 2**16 - 1
_TAG_BYTES: Final = 16
_MAX_PLAIN_BYTES: Final = _MAX_MESSAGE_BYTES - _TAG_BYTES
_BROKEN: Final = (
    NoiseInvalidMessage,
    NoiseValueError,
    InvalidTag,
    ValueError,
    IndexError,
    TypeError,
)
"""What the library raises for a message that is none; it checks few sizes itself."""
_MAX_HANDSHAKE_BYTES: Final = MAX_HANDSHAKE_PAYLOAD_BYTES + 96


class StaticKey:
    """The gateway's key of Noise, one for all connections of a run, with its proof."""

    def __init__(self, identity: Identity) -> None:
        key = X25519PrivateKey.generate()
        self.private = key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.payload = identity.handshake_payload(public)


class SecurePipe:
    """A pipe in which each piece is one message of Noise; ``peer_id`` is the other side's."""

    def __init__(
        self, reader: ByteReader, pipe: Pipe, noise: NoiseConnection, peer_id: str
    ) -> None:
        self.peer_id = peer_id
        self._reader = reader
        self._pipe = pipe
        self._noise = noise

    async def receive(self) -> bytes:
        """Return the next message; the rate of frames bounds empty ones.

        Raises:
            RefusalError: It was not encrypted with the key of the connection.
            Ended: The client has gone.
        """
        while True:
            size = int.from_bytes(await self._reader.exactly(_LENGTH_BYTES), "big")
            sealed = await self._reader.exactly(size)
            try:
                plain: bytes = self._noise.decrypt(sealed)
            except (NoiseInvalidMessage, InvalidTag, ValueError) as error:
                raise RefusalError("malformed", "a message of Noise is not authentic") from error
            if plain:
                return plain

    async def send(self, data: bytes) -> None:
        """Encrypt and send; what several tasks send is not mixed."""
        sealed = bytearray()
        for start in range(0, len(data), _MAX_PLAIN_BYTES):
            message = self._noise.encrypt(data[start : start + _MAX_PLAIN_BYTES])
            sealed += _framed(message)
        await self._pipe.send(bytes(sealed))


async def secure(reader: ByteReader, pipe: Pipe, key: StaticKey) -> SecurePipe:
    """Respond to the handshake of a client.

    Raises:
        RefusalError: It is none, or does not prove the client's identity.
        Ended: The client has gone.
    """
    noise = NoiseConnection.from_name(_NAME)
    noise.set_as_responder()
    noise.set_keypair_from_private_bytes(Keypair.STATIC, key.private)
    noise.start_handshake()
    first = await _message(reader)
    with _checked():
        noise.read_message(first)
        answer = bytes(noise.write_message(key.payload))
    await pipe.send(_framed(answer))
    # The library forgets the client's key at the end of the handshake.
    state = noise.noise_protocol.handshake_state
    last = await _message(reader)
    with _checked():
        payload = bytes(noise.read_message(last))
    return SecurePipe(reader, pipe, noise, require_proof(payload, state.rs.public_bytes))


async def initiate(reader: ByteReader, pipe: Pipe, key: StaticKey) -> SecurePipe:
    """Begin the handshake with a peer.

    Raises:
        RefusalError: The peer does not answer with one, or does not prove its identity.
        Ended: The peer has gone.
    """
    noise = NoiseConnection.from_name(_NAME)
    noise.set_as_initiator()
    noise.set_keypair_from_private_bytes(Keypair.STATIC, key.private)
    noise.start_handshake()
    # The library forgets the peer's key at the end of the handshake.
    state = noise.noise_protocol.handshake_state
    await pipe.send(_framed(bytes(noise.write_message())))
    answer = await _message(reader)
    with _checked():
        payload = bytes(noise.read_message(answer))
    peer_id = require_proof(payload, state.rs.public_bytes)
    await pipe.send(_framed(bytes(noise.write_message(key.payload))))
    return SecurePipe(reader, pipe, noise, peer_id)


def _framed(message: bytes) -> bytes:
    return len(message).to_bytes(_LENGTH_BYTES, "big") + message


async def _message(reader: ByteReader) -> bytes:
    size = int.from_bytes(await reader.exactly(_LENGTH_BYTES), "big")
    if size > _MAX_HANDSHAKE_BYTES:
        raise RefusalError("malformed", "a message of the handshake is too long")
    return await reader.exactly(size)


@contextmanager
def _checked() -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise RefusalError("malformed", "the handshake of Noise is broken") from error
