"""Whole columns as binary array parameters: one Python object per batch, not one per value.

psycopg can adapt a list of values, at several microseconds a value; a batch of messages has
thousands of them. These functions lay a column out in Postgres's binary array format directly
(PostgreSQL manual, "Frontend/Backend Protocol", binary parameters; ``array_recv``): dimensions,
a flag for NULLs, the element type, then each element after its length.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from psycopg.abc import AdaptContext
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.pq import Format

from storenode.message.limits import HASH_BYTES

BIGINT_OID: Final = 20
BOOL_OID: Final = 16
BYTEA_OID: Final = 17
TEXT_OID: Final = 25
UUID_OID: Final = 2950
_BIGINT_ARRAY_OID: Final = 1016
_BOOL_ARRAY_OID: Final = 1000
_BYTEA_ARRAY_OID: Final = 1001
_TEXT_ARRAY_OID: Final = 1009
_UUID_ARRAY_OID: Final = 2951
_UUID_BYTES: Final = 16
_LENGTH: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">iiiii")
_HASH: Final = np.dtype(f"V{HASH_BYTES}")


class BinaryArray:
    """A column that is already laid out as a binary array."""

    __slots__ = ("encoded",)

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded


class BigintArray(BinaryArray):
    """``bigint[]``."""


class BoolArray(BinaryArray):
    """``boolean[]``."""


class ByteaArray(BinaryArray):
    """``bytea[]``."""


class TextArray(BinaryArray):
    """``text[]``."""


class UuidArray(BinaryArray):
    """``uuid[]``."""


def _header(element_oid: int, count: int) -> bytes:
    if count == 0:
        return struct.pack(">iii", 0, 0, element_oid)
    return _HEADER.pack(1, 0, element_oid, count, 1)


def bigints(values: Sequence[int]) -> BigintArray:
    """Lay out signed 64-bit integers."""
    flat = [item for value in values for item in (8, value)]
    return BigintArray(
        _header(BIGINT_OID, len(values)) + struct.pack(">" + "iq" * len(values), *flat)
    )


def bigint_column(values: NDArray[np.int64]) -> BigintArray:
    """Lay out an array of signed 64-bit integers."""
    laid_out = np.empty(len(values), [("size", ">i4"), ("value", ">i8")])
    laid_out["size"], laid_out["value"] = 8, values
    return BigintArray(_header(BIGINT_OID, len(values)) + laid_out.tobytes())


def booleans(values: Sequence[bool]) -> BoolArray:
    """Lay out truth values."""
    laid_out = np.empty(len(values), [("size", ">i4"), ("value", "?")])
    laid_out["size"], laid_out["value"] = 1, values
    return BoolArray(_header(BOOL_OID, len(values)) + laid_out.tobytes())


def fixed_bytes(values: Sequence[bytes], size: int) -> ByteaArray:
    """Lay out byte strings that all have ``size`` bytes, such as hashes."""
    length = _LENGTH.pack(size)
    body = length + length.join(values) if values else b""
    return ByteaArray(_header(BYTEA_OID, len(values)) + body)


def hash_column(values: NDArray[np.uint8]) -> ByteaArray:
    """Lay out an array of hashes, ``(n, 32)``."""
    laid_out = np.empty(len(values), [("size", ">i4"), ("value", _HASH)])
    laid_out["size"], laid_out["value"] = HASH_BYTES, values.view(_HASH).ravel()
    return ByteaArray(_header(BYTEA_OID, len(values)) + laid_out.tobytes())


def varied_bytes(values: Sequence[bytes]) -> ByteaArray:
    """Lay out byte strings of any size."""
    pack = _LENGTH.pack
    body = b"".join([part for value in values for part in (pack(len(value)), value)])
    return ByteaArray(_header(BYTEA_OID, len(values)) + body)


def texts(values: Sequence[str]) -> TextArray:
    """Lay out texts, which must not hold a NUL."""
    pack, encoded = _LENGTH.pack, [each.encode() for each in values]
    body = b"".join([part for value in encoded for part in (pack(len(value)), value)])
    return TextArray(_header(TEXT_OID, len(values)) + body)


def uuids(values: Sequence[bytes]) -> UuidArray:
    """Lay out 16-byte keys."""
    length = _LENGTH.pack(_UUID_BYTES)
    body = length + length.join(values) if values else b""
    return UuidArray(_header(UUID_OID, len(values)) + body)


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: BinaryArray) -> Buffer:
        """Pass the laid out bytes on."""
        return obj.encoded


class _BigintArrayDumper(_ArrayDumper):
    oid = _BIGINT_ARRAY_OID


class _BoolArrayDumper(_ArrayDumper):
    oid = _BOOL_ARRAY_OID


class _ByteaArrayDumper(_ArrayDumper):
    oid = _BYTEA_ARRAY_OID


class _TextArrayDumper(_ArrayDumper):
    oid = _TEXT_ARRAY_OID


class _UuidArrayDumper(_ArrayDumper):
    oid = _UUID_ARRAY_OID


class _RawLoader(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        """Return the bytes as Postgres sent them."""
        return bytes(data)


def register(context: AdaptContext) -> None:
    """Teach a connection these arrays; ``uuid`` values load as their 16 bytes.

    ``uuid[]`` loads in Postgres's binary array format: see `split_uuids`.
    """
    adapters = context.adapters
    assert adapters is not None
    adapters.register_dumper(BigintArray, _BigintArrayDumper)
    adapters.register_dumper(BoolArray, _BoolArrayDumper)
    adapters.register_dumper(ByteaArray, _ByteaArrayDumper)
    adapters.register_dumper(TextArray, _TextArrayDumper)
    adapters.register_dumper(UuidArray, _UuidArrayDumper)
    adapters.register_loader("uuid", _RawLoader)
    # By its number: a name with brackets stands for the type of the elements.
    adapters.register_loader(_UUID_ARRAY_OID, _RawLoader)


_FIRST_ELEMENT: Final = _HEADER.size + _LENGTH.size
_STRIDE: Final = _LENGTH.size + _UUID_BYTES


def split_uuids(encoded: bytes) -> list[bytes]:
    """Read a ``uuid[]`` without NULLs, as `register` loads it, into 16-byte keys."""
    return [
        encoded[start : start + _UUID_BYTES]
        for start in range(_FIRST_ELEMENT, len(encoded), _STRIDE)
    ]
