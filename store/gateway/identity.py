"""Keys of libp2p: the gateway's own, in a file, and the proof that a client has the one it names.

Source: libp2p, "Peer Ids and Keys" and "noise-libp2p".
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from store.gateway.faults import GatewayError, RefusalError
from store.gateway.wire import parse, require
from storenode.wire.storenode.internal.v1.libp2p_pb2 import Libp2pPublicKey, NoisePayload

_ED25519, _SECP256K1 = 1, 2
"""Kinds of keys that Waku peers have; those of RSA and ECDSA are refused."""

_STATIC_KEY: Final = b"noise-libp2p-static-key:"
_IDENTITY_MULTIHASH: Final = b"\x00"
_MAX_KEY_BYTES: Final = 42
_BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_MAX_KEY_FILE_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Identity:
    """The gateway's Ed25519 key, and what follows from it."""

    key: ed25519.Ed25519PrivateKey

    @classmethod
    def generate(cls) -> Identity:
        """Generate a new key."""
        return cls(ed25519.Ed25519PrivateKey.generate())

    @property
    def public_key(self) -> bytes:
        """The public key as libp2p encodes it."""
        raw = self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return Libp2pPublicKey(kind=_ED25519, data=raw).SerializeToString()

    @property
    def peer_id(self) -> str:
        """The peer ID of the gateway in base58, beginning with ``12D3KooW``."""
        return peer_id_of(self.public_key)

    def handshake_payload(self, static_key: bytes) -> bytes:
        """Return the proof that a key of Noise is this identity's."""
        signature = self.key.sign(_STATIC_KEY + static_key)
        payload = NoisePayload(identity_key=self.public_key, identity_signature=signature)
        return payload.SerializeToString()


def kept_identity(path: Path) -> Identity:
    """Read the identity from a file, which is created at the first use, for its owner alone.

    Raises:
        GatewayError: The file cannot be read or written, or holds something else.
    """
    try:
        return _read(path) if path.exists() else _made(path)
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


def _made(path: Path) -> Identity:
    identity = Identity.generate()
    text = identity.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    # Complete or not there: a start that is killed leaves no half of a key.
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    return identity


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
    """Return the peer ID of an encoded public key (libp2p, "Peer Ids and Keys").

    Raises:
        ValueError: The key is longer than one that is in its peer ID.
    """
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
