"""The wire format of protobuf, as far as a message is cut into portions before it is decoded."""

from __future__ import annotations

from typing import Final

ADMISSION_CHUNK_MESSAGES: Final = 1_000
ADMISSION_CHUNK_BYTES: Final = 384 * 1024
"""Messages, and bytes of an average request, that are judged at one go, about 4 ms, before other
calls get their turn. By number alone, messages that name hundreds of parents each took a second.
A request that is one chunk is not copied: a batch of 1,000 small messages should be one."""

MAX_COUNTED_FIELDS: Final = 10_000
"""Fields at the top of a request that is counted, its messages apart. The schema has two more; a
request may consist of millions, and to step over them would keep all other calls waiting."""

_VARINT: Final = 0
_FIXED64: Final = 1
DELIMITED: Final = 2
_FIXED32: Final = 5
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}
GROUP_ENDS: Final = (3, 4)
"""A group begins and ends with a tag alone; what is in it counts as fields beside it."""


def end_of_value(data: bytes, position: int, wire_type: int) -> int:
    """Return the end of the value at ``position``; -1 where its type has no known length."""
    if wire_type == DELIMITED:
        length, position = read_varint(data, position)
        return position + length
    if wire_type == _VARINT:
        return read_varint(data, position)[1]
    size = _FIXED_BYTES.get(wire_type)
    return -1 if size is None else position + size


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the varint at ``position``, and its end."""
    value = shift = 0
    while position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            break
        shift += 7
    return value, position


def chunk_messages(count: int, size_bytes: int) -> int:
    """Return how many of ``count`` messages in ``size_bytes`` are judged at once."""
    return max(1, min(ADMISSION_CHUNK_MESSAGES, count * ADMISSION_CHUNK_BYTES // (size_bytes + 1)))
