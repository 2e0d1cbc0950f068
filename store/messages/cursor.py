"""Opaque cursors of ``Scan`` and ``Follow``.

Layout: magic ``SN``, one byte of kind and version, the fields big-endian, then the CRC-32 of all
that precedes it. The checksum finds damage and strangers' bytes; it is no protection against
forgery, and needs none: a cursor is a position, and what may be read from there is decided anew
on every call.
"""

import struct
from dataclasses import dataclass
from typing import Final, Self
from zlib import crc32

from storenode.message.limits import HASH_BYTES, MAX_TIMESTAMP_NS

STORE_ID_BYTES: Final = 16
MAX_POSITION: Final = 2**63 - 1
"""Largest commit position: a ``bigint`` of the database."""

_MAGIC: Final = b"SN"
_SCAN_V1: Final = b"s"
_FOLLOW_V1: Final = b"f"
_CHECKSUM: Final = struct.Struct(">I")
_SCAN: Final = struct.Struct(f">q{HASH_BYTES}s")
_FOLLOW: Final = struct.Struct(f">{STORE_ID_BYTES}sqQ")
_NAMES: Final = {_SCAN_V1: "Scan", _FOLLOW_V1: "Follow"}


class CursorError(ValueError):
    """The bytes are not a cursor that this call can read."""


@dataclass(frozen=True, slots=True)
class ScanCursor:
    """The last message of a ``ScanPage``: timestamp (nanoseconds) and 32-byte hash."""

    timestamp: int
    hash: bytes

    def __post_init__(self) -> None:
        _check_message(self.timestamp, self.hash)

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
    """How far a follower has come in the commit order of one database.

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

    def __post_init__(self) -> None:
        if len(self.store_id) != STORE_ID_BYTES:
            raise CursorError(f"the cursor's store ID must have {STORE_ID_BYTES} bytes")
        if not 0 <= self.position <= MAX_POSITION or not 0 <= self.token < 2**64:
            raise CursorError("the cursor's position or token is out of range")
        if self.hash is not None:
            _check_message(self.timestamp, self.hash)
        elif self.timestamp != 0:
            raise CursorError("the cursor has a timestamp without a hash: give both or neither")

    def encode(self) -> bytes:
        """Encode into 39 bytes, or 79 inside a commit."""
        body = _FOLLOW.pack(self.store_id, self.position, self.token)
        if self.hash is not None:
            body += _SCAN.pack(self.timestamp, self.hash)
        return _seal(_FOLLOW_V1, body)

    @classmethod
    def decode(cls, cursor: bytes) -> Self:
        """Read the cursor of a follower.

        Raises:
            CursorError: the bytes are damaged, foreign, or a cursor of another call.
        """
        body = _open(_FOLLOW_V1, cursor)
        if len(body) == _FOLLOW.size:
            return cls(*_FOLLOW.unpack(body))
        if len(body) == _FOLLOW.size + _SCAN.size:
            return cls(*_FOLLOW.unpack_from(body), *_SCAN.unpack_from(body, _FOLLOW.size))
        raise _damaged(_FOLLOW_V1)


def _check_message(timestamp: int, digest: bytes) -> None:
    if not 0 <= timestamp <= MAX_TIMESTAMP_NS:
        raise CursorError(f"the cursor's timestamp {timestamp} is out of range")
    if len(digest) != HASH_BYTES:
        raise CursorError(f"the cursor's hash must have {HASH_BYTES} bytes")


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
