"""Messages that are read without being decoded, because all but two of their fields are known.

Most messages differ from others of the same topic in their payload and time only. Where an encoded
``WakuMessageAndTopic`` has just the fields below, each in its shortest form, the lengths at its
beginning say where its parts are, and what stands around the time says what the topics are::

    0A len( 0A len payload   12 len content topic [18 version] 50  time )  12 len pubsub topic
    ------- lead ---------   ---------- before ------------------  9 bytes  ------ after -----

Sources: 14/WAKU2-MESSAGE, "Wire Format"; Protocol Buffers, "Encoding".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.messages.record import frame_layout
from storenode.message.limits import MAX_CACHED_LAYOUTS, MAX_CACHED_SHAPES, MAX_SHAPE_BYTES

TIME_BYTES: Final = 9
"""The encoded size of a time from 1971 to 2116; messages with other times are decoded."""

LEAD_BYTES: Final = 6
"""Longest lead: two tags and two lengths of two bytes; longer ones are decoded."""

_FIRST_FIELD: Final = 0x0A
_SECOND_FIELD: Final = 0x12
_VERSION: Final = 0x18
_TIME: Final = 0x50

_MORE: Final = 0x80
_GROUPS: Final = np.array([1 << shift for shift in range(0, 7 * TIME_BYTES, 7)], np.uint64)


class Lead(NamedTuple):
    """The offsets of the parts of an entry, in bytes, and the size of the WakuMessage.

    ``head``: of its frame (`store.messages.record`).
    """

    payload: int
    before: int
    time: int
    after: int
    body_bytes: int
    head: bytes


@lru_cache(maxsize=MAX_CACHED_LAYOUTS)
def read_lead(lead: bytes) -> Lead | None:
    """Read the first `LEAD_BYTES` of an entry; None when it must be decoded."""
    body = _delimited(lead, 0, _FIRST_FIELD)
    payload = None if body is None else _delimited(lead, body[0], _FIRST_FIELD)
    if body is None or payload is None:
        return None
    (begin, body_bytes), (start, payload_bytes) = body, payload
    end = begin + body_bytes
    before, time = start + payload_bytes, end - TIME_BYTES
    if not payload_bytes or before >= time:
        return None
    return Lead(start, before, time, end, body_bytes, frame_layout(payload_bytes, body_bytes)[0])


@lru_cache(maxsize=MAX_CACHED_SHAPES)
def read_names(before: bytes, after: bytes) -> tuple[str, str] | None:
    """Read (pubsub topic, content topic); None when the entry must be decoded."""
    if len(before) + len(after) > MAX_SHAPE_BYTES:
        return None
    content = _delimited(before, 0, _SECOND_FIELD)
    pubsub = _delimited(after, 0, _SECOND_FIELD)
    if content is None or pubsub is None or sum(pubsub) != len(after):
        return None
    rest = before[sum(content) :]
    if len(rest) == 3 and rest[0] == _VERSION and rest[1] < _MORE:
        rest = rest[2:]
    if rest != bytes((_TIME,)) or not content[1]:
        return None
    try:
        return after[pubsub[0] :].decode(), before[content[0] : sum(content)].decode()
    except UnicodeDecodeError:
        return None


def _delimited(data: bytes, at: int, tag: int) -> tuple[int, int] | None:
    """Return (start, size) of a field's content; None if its length has more than two bytes."""
    if len(data) < at + 3 or data[at] != tag:
        return None
    low, high = data[at + 1], data[at + 2]
    if low < _MORE:
        return at + 2, low
    if 0 < high < _MORE:
        return at + 3, low - _MORE | high << 7
    return None


def read_times(times: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the nanoseconds of encoded times, `TIME_BYTES` each, and which are valid.

    One is not when it is negative, or the bytes are no ``sint64`` of just that size.
    """
    octets = np.frombuffer(b"".join(times), np.uint8).reshape(-1, TIME_BYTES)
    zigzag = (octets & (_MORE - 1)).astype(np.uint64) @ _GROUPS
    last = octets[:, -1]
    valid = (octets[:, :-1] >= _MORE).all(axis=1) & (last < _MORE) & (last > 0) & (zigzag % 2 == 0)
    return (zigzag >> np.uint64(1)).astype(np.int64), valid
