"""Unsigned varints (multiformats) and the few fields of protobuf that the gateway itself writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from storenode.message.varint import varint

MAX_VARINT_BYTES: Final = 9
"""The longest unsigned varint of multiformats."""

MAX_FIELD_VARINT_BYTES: Final = 10
"""The longest varint of protobuf."""

VARINT: Final = 0
BYTES: Final = 2
_FIXED: Final = {1: 8, 5: 4}


def decode_varint(
    data: bytes | bytearray | memoryview, start: int, max_bytes: int = MAX_VARINT_BYTES
) -> tuple[int, int] | None:
    """Return the value at ``start`` and where it ends; None: it is not complete.

    Raises:
        ValueError: It has more than ``max_bytes``.
    """
    value = 0
    for place in range(max_bytes):
        if start + place >= len(data):
            return None
        byte = data[start + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, start + place + 1
    raise ValueError("a varint is too long")


def decode_zigzag(value: int) -> int:
    """Return the signed number that protobuf writes as a ``sint64``."""
    return (value >> 1) ^ -(value & 1)


def delimited(data: bytes) -> bytes:
    """Return the bytes behind their length."""
    return varint(len(data)) + data


def number_field(number: int, value: int) -> bytes:
    """Encode a field of protobuf with a number."""
    return varint(number << 3 | VARINT) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """Encode a field of protobuf with bytes, a text or a message."""
    return varint(number << 3 | BYTES) + delimited(value)


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield numbers and values of the fields of a message, those with varints and bytes alone.

    Raises:
        ValueError: It is no message of protobuf.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        size, at = (_FIXED[kind], at) if kind in _FIXED else _length(kind, data, at)
        if at + size > len(data):
            raise ValueError("a field ends behind its message")
        if kind == BYTES:
            yield number, data[at : at + size]
        at += size


def _length(kind: int, data: bytes, at: int) -> tuple[int, int]:
    if kind != BYTES:
        raise ValueError(f"no field has the type {kind}")
    return _varint(data, at)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = decode_varint(data, at, MAX_FIELD_VARINT_BYTES)
    if found is None:
        raise ValueError("a varint is cut off")
    return found
