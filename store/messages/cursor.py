"""Opaque cursors of ``Scan`` and ``Follow``.

Layout: magic ``SN``, one byte of kind and version, the fields big-endian, then the CRC-32 of all
that precedes it. The checksum finds damage and strangers' bytes; it is no protection against
forgery. A cursor of ``Scan`` needs none: it names a message that its caller was given, and what may
be read from there is decided again on every call.

A cursor of ``Follow`` names a commit of the whole store. Callers who may read few topics must not
learn from it how much is stored on others, so `FollowCursors` encrypts it under a key that the
database keeps: every node on the database reads it, also after a restart. That is encrypt-then-MAC
with keyed BLAKE2b (RFC 7693) as the pseudorandom function of both: the plaintext is shorter than
one output of it, which is used once for each random nonce.
"""

import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Self
from zlib import crc32

from storenode.message.limits import HASH_BYTES, MAX_TIMESTAMP_NS

STORE_ID_BYTES: Final = 16
MAX_POSITION: Final = 2**63 - 1
"""Largest commit position: a ``bigint`` of the database."""

_MAGIC: Final = b"SN"
_SCAN_V1: Final = b"s"
_FOLLOW: Final = b"g"
_CHECKSUM: Final = struct.Struct(">I")
_SCAN: Final = struct.Struct(f">q{HASH_BYTES}s")
_SEALED: Final = struct.Struct(f">qQ?q{HASH_BYTES}s")
_NAMES: Final = {_SCAN_V1: "Scan", _FOLLOW: "Follow"}

NONCE_BYTES: Final = 16
CURSOR_KEY_BYTES: Final = 32
_TAG_BYTES: Final = 16
_FOR_PAD: Final = b"cursor pad"
_FOR_TAG: Final = b"cursor tag"


class CursorError(ValueError):
    """The bytes are not a cursor that this call can read."""


@dataclass(frozen=True, slots=True)
class ScanCursor:
    """The last message of a ``ScanPage``: timestamp (nanoseconds) and 32-byte hash."""

    timestamp: int
    hash: bytes

    def __post_init__(self) -> None:
        if not 0 <= self.timestamp <= MAX_TIMESTAMP_NS:
            raise CursorError(f"the cursor's timestamp {self.timestamp} is out of range")

    def encode(self) -> bytes:
        """Encode into 47 bytes."""
        return _seal(_SCAN_V1, _SCAN.pack(self.timestamp, self.hash))

    @classmethod
    def decode(cls, cursor: bytes) -> Self:
        """Read the cursor of a scan.

        Raises:
            CursorError: the bytes are damaged, foreign, or a cursor of another call.
        """
        body = _open(_SCAN_V1, cursor)
        if len(body) != _SCAN.size:
            raise _damaged(_SCAN_V1)
        return cls(*_SCAN.unpack(body))


@dataclass(frozen=True, slots=True)
class FollowCursor:
    """The position of a follower in the commit order of one database.

    ``store_id`` (16 bytes) names the database, ``position`` the commit, and ``token`` (64 bits)
    identifies that commit, so that a database which lost it is recognised. With ``hash``, the
    follower stands inside that commit, right after the message that ``timestamp`` and ``hash``
    name; without, it stands after the whole commit, and ``timestamp`` is 0.
    """

    store_id: bytes
    position: int
    token: int
    timestamp: int = 0
    hash: bytes | None = None


class FollowCursors:
    """Cursors of ``Follow`` as the callers of one store hold them: 112 bytes, whatever they say.

    ``nonces`` gives `NONCE_BYTES` random bytes, new ones each time.
    """

    def __init__(self, store_id: bytes, key: bytes, nonces: Callable[[], bytes]) -> None:
        self._store_id = store_id
        self._key = key
        self._nonces = nonces

    def seal(self, cursor: FollowCursor) -> bytes:
        """Encode a cursor of this store, each time in other bytes."""
        plain = _SEALED.pack(
            cursor.position,
            cursor.token,
            cursor.hash is not None,
            cursor.timestamp,
            cursor.hash or bytes(HASH_BYTES),
        )
        nonce = self._nonces()
        sealed = cursor.store_id + nonce + self._crypt(nonce, plain)
        return _seal(_FOLLOW, sealed + self._tag(sealed))

    def open(self, cursor: bytes) -> FollowCursor:
        """Read a cursor. Of another store only the ``store_id`` is returned.

        Raises:
            CursorError: the bytes are damaged, foreign, or a cursor of another call.
        """
        body = _open(_FOLLOW, cursor)
        if len(body) != STORE_ID_BYTES + NONCE_BYTES + _SEALED.size + _TAG_BYTES:
            raise _damaged(_FOLLOW)
        store_id, sealed, tag = body[:STORE_ID_BYTES], body[:-_TAG_BYTES], body[-_TAG_BYTES:]
        if store_id != self._store_id:
            return FollowCursor(store_id, 0, 0)
        if not hmac.compare_digest(tag, self._tag(sealed)):
            raise _damaged(_FOLLOW)
        nonce, encrypted = sealed[STORE_ID_BYTES:][:NONCE_BYTES], sealed[-_SEALED.size :]
        position, token, inside, timestamp, digest = _SEALED.unpack(self._crypt(nonce, encrypted))
        return FollowCursor(store_id, position, token, timestamp, digest if inside else None)

    def _crypt(self, nonce: bytes, text: bytes) -> bytes:
        pad = blake2b(nonce, key=self._key, person=_FOR_PAD).digest()[: len(text)]
        return (int.from_bytes(text) ^ int.from_bytes(pad)).to_bytes(len(text))

    def _tag(self, sealed: bytes) -> bytes:
        return blake2b(sealed, digest_size=_TAG_BYTES, key=self._key, person=_FOR_TAG).digest()


def _seal(kind: bytes, body: bytes) -> bytes:
    sealed = _MAGIC + kind + body
    return sealed + _CHECKSUM.pack(crc32(sealed))


def _open(kind: bytes, cursor: bytes) -> bytes:
    sealed, checksum = cursor[: -_CHECKSUM.size], cursor[-_CHECKSUM.size :]
    found = sealed[len(_MAGIC) : len(_MAGIC) + 1]
    if not sealed.startswith(_MAGIC) or checksum != _CHECKSUM.pack(crc32(sealed)):
        raise _damaged(kind)
    if found != kind:
        owner = _NAMES.get(found, "a newer version of this service")
        raise CursorError(
            f"the cursor was made by {owner}, not by {_NAMES[kind]}: pass one of the same call"
        )
    return sealed[len(_MAGIC) + 1 :]


def _damaged(kind: bytes) -> CursorError:
    return CursorError(
        f"the cursor is not one of {_NAMES[kind]}: pass the bytes of a page unchanged, or none"
    )
