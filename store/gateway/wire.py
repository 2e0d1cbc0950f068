"""Unsigned varints (multiformats), the fields of protobuf, and those of a ``WakuMessage``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from store.gateway.limits import MAX_META_BYTES
from storenode.message.varint import varint

MAX_VARINT_BYTES: Final = 9
"""The longest unsigned varint of multiformats."""

MAX_FIELD_VARINT_BYTES: Final = 10
"""The longest varint of protobuf."""

VARINT: Final = 0
BYTES: Final = 2
_FIXED: Final = {1: 8, 5: 4}
Fields = dict[int, int | bytes | None]
"""The last value of each field of a message, by number."""


def decode_varint(
    data: bytes | bytearray | memoryview, start: int, max_bytes: int = MAX_VARINT_BYTES
) -> tuple[int, int] | None:
    """Return the value at ``start`` and where it ends; None: it is not complete.

    Raises:
        ValueError: It has more than ``max_bytes``.
    """
    value = shift = 0
    for byte in data[start : start + max_bytes]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, start + shift // 7
    if shift == 7 * max_bytes:
        raise ValueError("a varint is too long")
    return None


class WakuMessageFields(NamedTuple):
    """The fields of 14/WAKU2-MESSAGE that the gateway reads; None: the field is absent."""

    payload: bytes | None
    content_topic: bytes | None
    meta: bytes | None
    timestamp_ns: int

    def require_relayable(self) -> tuple[bytes, bytes]:
        """Return payload and content topic, without which nwaku decodes no message.

        Raises:
            ValueError: One is absent, or ``meta`` is too long.
        """
        if self.payload is None or self.content_topic is None:
            name = "payload" if self.payload is None else "content_topic"
            raise ValueError(f"the required field {name} is missing")
        if len(self.meta or b"") > MAX_META_BYTES:
            raise ValueError(f"the field meta has more than {MAX_META_BYTES} bytes")
        return self.payload, self.content_topic


def parse_waku_message(encoded: bytes) -> WakuMessageFields:
    """Read the fields of an encoded ``WakuMessage``.

    Raises:
        ValueError: It is malformed, or a field has another type.
    """
    found = dict(fields(encoded))
    zigzag = found.get(10, 0)
    if not isinstance(zigzag, int):
        raise ValueError("the field timestamp is not a number")  # noqa: TRY004 - of what came
    return WakuMessageFields(
        optional_bytes(found, 1, "payload"),
        optional_bytes(found, 2, "content_topic"),
        optional_bytes(found, 11, "meta"),
        zigzag >> 1 ^ -(zigzag & 1),
    )


def optional_bytes(found: Fields, number: int, name: str) -> bytes | None:
    """Return a field of bytes, or None; raise ValueError if it is a number."""
    value = found.get(number)
    if isinstance(value, int):
        raise ValueError(f"the field {name} is not of bytes")  # noqa: TRY004 - of what came
    return value


def required_bytes(found: Fields, number: int, name: str) -> bytes:
    """Return a field of bytes; raise ValueError if it is absent or a number."""
    value = optional_bytes(found, number, name)
    if value is None:
        raise ValueError(f"the required field {name} is missing")
    return value


def delimited(data: bytes) -> bytes:
    """Return the bytes behind their length."""
    return varint(len(data)) + data


def number_field(number: int, value: int) -> bytes:
    """Encode a field of protobuf with a number."""
    return varint(number << 3 | VARINT) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """Encode a field of protobuf with bytes, a text or a message."""
    return varint(number << 3 | BYTES) + delimited(value)


def encode_status(request_id: bytes, status_code: int, sentence: str) -> bytes:
    """Encode the part that responses of store query, light push and filter have in common."""
    encoded = bytes_field(1, request_id) + number_field(10, status_code)
    return encoded + bytes_field(11, sentence.encode()) if sentence else encoded


def fields(data: bytes) -> Iterator[tuple[int, int | bytes | None]]:
    """Yield numbers and values of the fields of a message; None for a value of a fixed size.

    Raises:
        ValueError: It is no message of protobuf.
    """
    at, end = 0, len(data)
    while at < end:
        key = data[at]
        at += 1
        if key >= 0x80:
            key, at = _varint(data, at - 1)
        number, kind = key >> 3, key & 7
        if kind in _FIXED:
            at += _FIXED[kind]
            if at > end:
                raise ValueError("a field ends behind its message")
            yield number, None
            continue
        if kind not in (VARINT, BYTES):
            raise ValueError(f"no field has the type {kind}")
        if at < end and data[at] < 0x80:
            value = data[at]
            at += 1
        else:
            value, at = _varint(data, at)
        if kind == VARINT:
            yield number, value
            continue
        start, at = at, at + value
        if at > end:
            raise ValueError("a field ends behind its message")
        yield number, data[start:at]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    if at + 1 < len(data) and data[at + 1] < 0x80 <= data[at]:
        return data[at] & 0x7F | data[at + 1] << 7, at + 2
    found = decode_varint(data, at, MAX_FIELD_VARINT_BYTES)
    if found is None:
        raise ValueError("a varint is cut off")
    return found
