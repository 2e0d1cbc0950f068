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
from store.gateway.multistream import Pipe

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


class SecurePipe(Pipe):
    """A pipe in which each piece is one message of Noise; ``peer_id`` is the other side's."""

    def __init__(self, pipe: Pipe, noise: NoiseConnection, peer_id: str) -> None:
        super().__init__()
        self.peer_id = peer_id
        self._pipe = pipe
        self._noise = noise

    async def receive(self) -> bytes:
        """Return the next message.

        Raises:
            RefusalError: It is empty, or was not encrypted with the key of the connection.
            StreamEndedError: The client has gone.
        """
        sealed = await _message(self._pipe, _MAX_MESSAGE_BYTES)
        try:
            plain: bytes = self._noise.decrypt(sealed)
        except (NoiseInvalidMessage, InvalidTag, ValueError) as error:
            raise RefusalError("malformed", "a message of Noise is not authentic") from error
        if not plain:
            # It would cost a decryption, and no rate has frames that do not come.
            raise RefusalError("malformed", "a message of Noise is empty")
        return plain

    async def send(self, data: bytes) -> None:
        """Encrypt and send; what several tasks send is not mixed."""
        sealed = bytearray()
        for start in range(0, len(data), _MAX_PLAIN_BYTES):
            sealed += _framed(self._noise.encrypt(data[start : start + _MAX_PLAIN_BYTES]))
        await self._pipe.send(bytes(sealed))


async def secure(pipe: Pipe, key: StaticKey, *, is_initiator: bool) -> SecurePipe:
    """Run the handshake, whose three messages the initiator begins.

    Raises:
        RefusalError: The other side sends none, or does not prove its identity.
        StreamEndedError: The other side has gone.
    """
    noise = NoiseConnection.from_name(_NAME)
    noise.set_as_initiator() if is_initiator else noise.set_as_responder()
    noise.set_keypair_from_private_bytes(Keypair.STATIC, key.private)
    noise.start_handshake()
    # The library forgets the other side's key at the end of the handshake.
    state = noise.noise_protocol.handshake_state
    peer_id = ""
    for number in range(3):
        is_first = number == 0
        if is_initiator == (number % 2 == 0):
            with _checked():
                message = bytes(noise.write_message(b"" if is_first else key.payload))
            await pipe.send(_framed(message))
        else:
            message = await _message(pipe, _MAX_HANDSHAKE_BYTES)
            with _checked():
                payload = bytes(noise.read_message(message))
            if not is_first:
                peer_id = require_proof(payload, state.rs.public_bytes)
    return SecurePipe(pipe, noise, peer_id)


def _framed(message: bytes) -> bytes:
    return len(message).to_bytes(_LENGTH_BYTES, "big") + message


async def _message(pipe: Pipe, most_bytes: int) -> bytes:
    size = int.from_bytes(await pipe.exactly(_LENGTH_BYTES), "big")
    if size > most_bytes:
        raise RefusalError("malformed", "a message of the handshake is too long")
    return await pipe.exactly(size)


@contextmanager
def _checked() -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise RefusalError("malformed", "the handshake of Noise is broken") from error
