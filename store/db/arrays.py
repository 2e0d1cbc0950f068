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
import psycopg
from numpy.typing import NDArray
from psycopg.abc import AdaptContext
from psycopg.types.string import ByteaBinaryLoader, BytesBinaryDumper

from storenode.message.limits import HASH_BYTES

BIGINT_OID: Final = 20
BOOL_OID: Final = 16
BYTEA_OID: Final = 17
TEXT_OID: Final = 25
UUID_OID: Final = 2950
_UUID_ARRAY_OID: Final = 2951
_UUID_BYTES: Final = 16
_LENGTH: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">iiiii")
"""One dimension, no NULLs, the type and number of the elements, and 1 as the first index."""
_HASH: Final = np.dtype(f"V{HASH_BYTES}")


class BinaryArray(bytes):
    """A column that is already laid out as a binary array."""


class BigintArray(BinaryArray):
    """A column of ``bigint[]``."""


class BoolArray(BinaryArray):
    """A column of ``boolean[]``."""


class ByteaArray(BinaryArray):
    """A column of ``bytea[]``."""


class TextArray(BinaryArray):
    """A column of ``text[]``."""


class UuidArray(BinaryArray):
    """A column of ``uuid[]``."""


_OIDS: Final = {
    BigintArray: 1016,
    BoolArray: 1000,
    ByteaArray: 1001,
    TextArray: 1009,
    UuidArray: _UUID_ARRAY_OID,
}
for _kind, _oid in _OIDS.items():
    _dumper = type(f"{_kind.__name__}Dumper", (BytesBinaryDumper,), {"oid": _oid})
    psycopg.adapters.register_dumper(_kind, _dumper)


def bigints(values: Sequence[int]) -> BigintArray:
    """Lay out signed 64-bit integers."""
    flat = [item for value in values for item in (8, value)]
    return BigintArray(
        _HEADER.pack(1, 0, BIGINT_OID, len(values), 1)
        + struct.pack(">" + "iq" * len(values), *flat)
    )


def bigint_column(values: NDArray[np.int64]) -> BigintArray:
    """Lay out an array of signed 64-bit integers."""
    laid_out = np.empty(len(values), [("size", ">i4"), ("value", ">i8")])
    laid_out["size"], laid_out["value"] = 8, values
    return BigintArray(_HEADER.pack(1, 0, BIGINT_OID, len(values), 1) + laid_out.tobytes())


def booleans(values: Sequence[bool]) -> BoolArray:
    """Lay out truth values."""
    laid_out = np.empty(len(values), [("size", ">i4"), ("value", "?")])
    laid_out["size"], laid_out["value"] = 1, values
    return BoolArray(_HEADER.pack(1, 0, BOOL_OID, len(values), 1) + laid_out.tobytes())


def fixed_bytes(values: Sequence[bytes], size: int) -> ByteaArray:
    """Lay out byte strings that all have ``size`` bytes, such as hashes."""
    length = _LENGTH.pack(size)
    body = length + length.join(values) if values else b""
    return ByteaArray(_HEADER.pack(1, 0, BYTEA_OID, len(values), 1) + body)


def hash_column(values: NDArray[np.uint8]) -> ByteaArray:
    """Lay out an array of hashes, ``(n, 32)``."""
    laid_out = np.empty(len(values), [("size", ">i4"), ("value", _HASH)])
    laid_out["size"], laid_out["value"] = HASH_BYTES, values.view(_HASH).ravel()
    return ByteaArray(_HEADER.pack(1, 0, BYTEA_OID, len(values), 1) + laid_out.tobytes())


def varied_bytes(values: Sequence[bytes]) -> ByteaArray:
    """Lay out byte strings of any size."""
    pack = _LENGTH.pack
    body = b"".join([part for value in values for part in (pack(len(value)), value)])
    return ByteaArray(_HEADER.pack(1, 0, BYTEA_OID, len(values), 1) + body)


def texts(values: Sequence[str]) -> TextArray:
    """Lay out texts, which must not hold a NUL."""
    pack, encoded = _LENGTH.pack, [each.encode() for each in values]
    body = b"".join([part for value in encoded for part in (pack(len(value)), value)])
    return TextArray(_HEADER.pack(1, 0, TEXT_OID, len(values), 1) + body)


def uuids(values: Sequence[bytes]) -> UuidArray:
    """Lay out 16-byte keys."""
    length = _LENGTH.pack(_UUID_BYTES)
    body = length + length.join(values) if values else b""
    return UuidArray(_HEADER.pack(1, 0, UUID_OID, len(values), 1) + body)


def register(context: AdaptContext) -> None:
    """Let ``uuid`` values of a connection load as their 16 bytes.

    ``uuid[]`` loads in Postgres's binary array format: see `split_uuids`.
    """
    adapters = context.adapters
    assert adapters is not None
    adapters.register_loader("uuid", ByteaBinaryLoader)
    # By its number: a name with brackets stands for the type of the elements.
    adapters.register_loader(_UUID_ARRAY_OID, ByteaBinaryLoader)


_FIRST_ELEMENT: Final = _HEADER.size + _LENGTH.size
_STRIDE: Final = _LENGTH.size + _UUID_BYTES


def split_uuids(encoded: bytes) -> list[bytes]:
    """Read a ``uuid[]`` without NULLs, as `register` loads it, into 16-byte keys."""
    return [
        encoded[start : start + _UUID_BYTES]
        for start in range(_FIRST_ELEMENT, len(encoded), _STRIDE)
    ]
