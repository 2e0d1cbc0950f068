"""Unsigned varints of multiformats, and messages of protobuf as strangers send them."""

from __future__ import annotations

from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from storenode.message.limits import MAX_META_BYTES
from storenode.message.varint import varint
from storenode.wire.storenode.internal.v1.message_raw_pb2 import RawMessage
from storenode.wire.storenode.internal.v1.waku_protocols_pb2 import WakuResponse

MAX_VARINT_BYTES: Final = 9
"""The longest unsigned varint of multiformats."""

UNREADABLE_ID: Final = b"N/A"
"""The request ID of the answer to a request that cannot be parsed, as nwaku has it."""

_M = TypeVar("_M", bound=Message)


def decode_varint(data: bytes | bytearray | memoryview, start: int) -> tuple[int, int] | None:
    """Return the value at ``start`` and its end; None: incomplete; raise ValueError: too long."""
    value = shift = 0
    for byte in data[start : start + MAX_VARINT_BYTES]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, start + shift // 7
    if shift == 7 * MAX_VARINT_BYTES:
        raise ValueError("a varint is too long")
    return None


def delimited(data: bytes) -> bytes:
    """Return the bytes behind their length."""
    return varint(len(data)) + data


def parse(kind: type[_M], data: bytes) -> _M:
    """Parse a message of protobuf; raise ValueError for bytes that are none."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise ValueError(f"the bytes are no {kind.DESCRIPTOR.name}") from None


def require(message: Message, *names: str) -> None:
    """Raise ValueError if a field of a message is absent."""
    for name in names:
        if not message.HasField(name):
            raise ValueError(f"the required field {name} is missing")


def parse_relayable(encoded: bytes) -> RawMessage:
    """Parse a ``WakuMessage`` with the fields without which nwaku decodes none.

    Raises:
        ValueError: It is malformed, a field is absent, or ``meta`` is too long.
    """
    message = parse(RawMessage, encoded)
    require(message, "payload", "content_topic")
    if len(message.meta) > MAX_META_BYTES:
        raise ValueError(f"the field meta has more than {MAX_META_BYTES} bytes")
    return message


def encode_status(request_id: bytes, status_code: int, sentence: str, **more: int) -> bytes:
    """Encode a response of store query, light push or filter."""
    response = WakuResponse(
        request_id=request_id, status_code=status_code, status_description=sentence, **more
    )
    return response.SerializeToString()
