"""The encrypted connection: Noise XX, in which both sides prove their libp2p identities.

Source: libp2p, "noise-libp2p" and "Peer Ids and Keys".
"""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from noise.connection import Keypair, NoiseConnection
from noise.exceptions import NoiseInvalidMessage, NoiseValueError

from store.gateway import limits
from store.gateway.faults import GatewayError, RefusalError
from store.gateway.pipes import Pipe
from store.gateway.wire import parse, require
from storenode.wire.storenode.internal.v1.libp2p_pb2 import Libp2pPublicKey, NoisePayload

PROTOCOL: Final = "/noise"
_NAME: Final = b"Noise_XX_25519_ChaChaPoly_SHA256"
_LENGTH_BYTES: Final = 2
_MAX_MESSAGE_BYTES: Final = 2**16 - 1
_MAX_PLAIN_BYTES: Final = _MAX_MESSAGE_BYTES - 16  # the tag
_MAX_HANDSHAKE_BYTES: Final = limits.MAX_HANDSHAKE_PAYLOAD_BYTES + 96
_BROKEN: Final = NoiseInvalidMessage, NoiseValueError, InvalidTag, ValueError, IndexError, TypeError
"""The exceptions that the library raises for an invalid message; it checks few sizes itself."""

_ED25519, _SECP256K1 = 1, 2
"""Kinds of keys that Waku peers have; those of RSA and ECDSA are refused."""

_STATIC_KEY: Final = b"noise-libp2p-static-key:"
_IDENTITY_MULTIHASH: Final = b"\x00"
_MAX_KEY_BYTES: Final = 42
_BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_MAX_KEY_FILE_BYTES: Final = 16 * 1024


class Identity:
    """The gateway's Ed25519 key, and the key of Noise of all connections of a run.

    ``peer_id`` is in base58 and begins with ``12D3KooW``. ``proof`` is the payload of the handshake
    by which others verify that the key of Noise is this identity's.
    """

    def __init__(self, key: ed25519.Ed25519PrivateKey) -> None:
        self._key = key
        raw = key.public_key().public_bytes_raw()
        self.public_key = Libp2pPublicKey(kind=_ED25519, data=raw).SerializeToString()
        self.peer_id = peer_id_of(self.public_key)
        noise_key = X25519PrivateKey.generate()
        self.noise_key = noise_key.private_bytes_raw()
        self.proof = self.prove(noise_key.public_key().public_bytes_raw())

    def prove(self, noise_key: bytes) -> bytes:
        """Return the proof that a public key of Noise is this identity's."""
        signature = self._key.sign(_STATIC_KEY + noise_key)
        payload = NoisePayload(identity_key=self.public_key, identity_signature=signature)
        return payload.SerializeToString()


def kept_identity(path: Path) -> Identity:
    """Read the identity from a file, which is created at the first use, for its owner alone.

    Raises:
        GatewayError: The file cannot be read or written, or holds something else.
    """
    try:
        return _read(path) if path.exists() else _create(path)
    except OSError as error:
        raise GatewayError(
            f"The file {path} of --key-file cannot be used ({error.strerror}): let this user read"
            " and write it."
        ) from error


def _read(path: Path) -> Identity:
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        text = file.read(_MAX_KEY_FILE_BYTES)
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise GatewayError(
            f"The file {path} of --key-file is open to everybody (mode {mode:04o}): run `chmod 600"
            f" {path}`, or remove it to get a new peer ID if somebody may have read it."
        )
    try:
        key = load_pem_private_key(text, None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise GatewayError(
            f"The file {path} of --key-file holds no Ed25519 key in PEM: restore it, or remove it"
            " to get a new peer ID."
        )
    return Identity(key)


def _create(path: Path) -> Identity:
    key = ed25519.Ed25519PrivateKey.generate()
    # Complete or not there: a start that is killed leaves no half of a key.
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    with open(scratch, "xb", opener=partial(os.open, mode=0o600)) as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    return Identity(key)


def require_proof(payload: bytes, static_key: bytes) -> str:
    """Return the peer ID that the other side proves in the handshake of Noise.

    Raises:
        RefusalError: It does not prove that the key of the connection is its own.
    """
    try:
        proof = parse(NoisePayload, payload)
        require(proof, "identity_key", "identity_signature")
        key = parse(Libp2pPublicKey, proof.identity_key)
        require(key, "data")
        _verify(key, proof.identity_signature, _STATIC_KEY + static_key)
        return peer_id_of(proof.identity_key)
    except (ValueError, InvalidSignature) as error:
        raise RefusalError("identity", f"the client's identity is not proven: {error}") from error


def peer_id_of(public_key: bytes) -> str:
    """Return the peer ID of an encoded public key; raise ValueError for a key that is too long."""
    if len(public_key) > _MAX_KEY_BYTES:
        raise ValueError("the key is too long")
    return base58(_IDENTITY_MULTIHASH + bytes([len(public_key)]) + public_key)


def _verify(key: Libp2pPublicKey, signature: bytes, data: bytes) -> None:
    if key.kind == _ED25519:
        ed25519.Ed25519PublicKey.from_public_bytes(key.data).verify(signature, data)
    elif key.kind == _SECP256K1:
        public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256K1(), key.data)
        public.verify(signature, data, ec.ECDSA(SHA256()))
    else:
        raise ValueError("the key is of no known kind")


def base58(data: bytes) -> str:
    """Encode bytes in base58, as Bitcoin does."""
    number, text = int.from_bytes(data, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = _BASE58[digit] + text
    return "1" * (len(data) - len(data.lstrip(b"\x00"))) + text


class SecurePipe(Pipe):
    """A pipe in which each piece is one message of Noise; ``peer_id`` is the other side's."""

    def __init__(self, pipe: Pipe, noise: NoiseConnection, peer_id: str) -> None:
        super().__init__()
        self.peer_id = peer_id
        self._pipe = pipe
        self._noise = noise

    async def receive(self) -> bytes:
        """Return the next message; raise RefusalError if it is empty, or not authentic."""
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


async def secure(pipe: Pipe, identity: Identity, *, is_initiator: bool) -> SecurePipe:
    """Run the handshake, whose three messages the initiator begins.

    Raises:
        RefusalError: The other side sends none, or does not prove its identity.
    """
    noise = NoiseConnection.from_name(_NAME)
    noise.set_as_initiator() if is_initiator else noise.set_as_responder()
    noise.set_keypair_from_private_bytes(Keypair.STATIC, identity.noise_key)
    noise.start_handshake()
    # The library forgets the other side's key at the end of the handshake.
    state = noise.noise_protocol.handshake_state
    peer_id = ""
    try:
        for number in range(3):
            if is_initiator == (number % 2 == 0):
                message = bytes(noise.write_message(identity.proof if number else b""))
                await pipe.send(_framed(message))
            else:
                payload = bytes(noise.read_message(await _message(pipe, _MAX_HANDSHAKE_BYTES)))
                if number:
                    peer_id = require_proof(payload, state.rs.public_bytes)
    except _BROKEN as error:
        raise RefusalError("malformed", "the handshake of Noise is broken") from error
    return SecurePipe(pipe, noise, peer_id)


def _framed(message: bytes) -> bytes:
    return len(message).to_bytes(_LENGTH_BYTES, "big") + message


async def _message(pipe: Pipe, most_bytes: int) -> bytes:
    size = int.from_bytes(await pipe.exactly(_LENGTH_BYTES), "big")
    if size > most_bytes:
        raise RefusalError("malformed", "a message of the handshake is too long")
    return await pipe.exactly(size)
