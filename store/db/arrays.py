"""Whole columns as binary array parameters: one Python object per batch, not one per value.

psycopg can adapt a list of values, at several microseconds a value; a batch of messages has
thousands of them. These functions lay a column out in Postgres's binary array format directly
(PostgreSQL manual, "Frontend/Backend Protocol", binary parameters; ``array_recv``): dimensions,
a flag for NULLs, the element type, then each element after its length.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import psycopg
from numpy.typing import DTypeLike, NDArray
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
"""The header of a binary array: dimensions, NULLs, type, number of elements, first index."""
_HASH: Final = np.dtype(f"V{HASH_BYTES}")


class BinaryArray(bytes):
    """A column that is already laid out as a binary array; the statement casts it to its type."""


class _BinaryArrayDumper(BytesBinaryDumper):
    """A dumper that leaves the type of the parameter to the cast."""

    oid = 0


psycopg.adapters.register_dumper(BinaryArray, _BinaryArrayDumper)


def bigints(values: Sequence[int]) -> BinaryArray:
    """Lay out signed 64-bit integers."""
    flat = [item for value in values for item in (8, value)]
    return BinaryArray(
        _HEADER.pack(1, 0, BIGINT_OID, len(values), 1)
        + struct.pack(">" + "iq" * len(values), *flat)
    )


def bigint_column(values: NDArray[np.int64]) -> BinaryArray:
    """Lay out an array of signed 64-bit integers."""
    return _column(BIGINT_OID, ">i8", values)


def booleans(values: Sequence[bool]) -> BinaryArray:
    """Lay out truth values."""
    return _column(BOOL_OID, "?", values)


def hash_column(values: NDArray[np.uint8]) -> BinaryArray:
    """Lay out an array of hashes, ``(n, 32)``."""
    return _column(BYTEA_OID, _HASH, values.view(_HASH).ravel())


def _column(
    type_oid: int, element: DTypeLike, values: Sequence[bool] | NDArray[Any]
) -> BinaryArray:
    laid_out = np.empty(len(values), [("size", ">i4"), ("value", element)])
    laid_out["size"], laid_out["value"] = laid_out.dtype["value"].itemsize, values
    return BinaryArray(_HEADER.pack(1, 0, type_oid, len(values), 1) + laid_out.tobytes())


def fixed_bytes(values: Sequence[bytes], size: int, type_oid: int = BYTEA_OID) -> BinaryArray:
    """Lay out byte strings that all have ``size`` bytes, such as hashes."""
    length = _LENGTH.pack(size)
    body = length + length.join(values) if values else b""
    return BinaryArray(_HEADER.pack(1, 0, type_oid, len(values), 1) + body)


uuids: Final = partial(fixed_bytes, size=_UUID_BYTES, type_oid=UUID_OID)
"""Lay out 16-byte keys."""


def varied_bytes(values: Sequence[bytes], type_oid: int = BYTEA_OID) -> BinaryArray:
    """Lay out byte strings of any size."""
    pack = _LENGTH.pack
    body = b"".join([part for value in values for part in (pack(len(value)), value)])
    return BinaryArray(_HEADER.pack(1, 0, type_oid, len(values), 1) + body)


def texts(values: Sequence[str]) -> BinaryArray:
    """Lay out texts, which must not hold a NUL."""
    return varied_bytes([each.encode() for each in values], TEXT_OID)


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
