"""Decoding of requests into the domain's values.

Requests come undecoded, because one that does not parse would end as INTERNAL in gRPC's library,
before the node could report what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from store.domain.ports import HistoryEntry, TopicFilter, TopicRights
from store.domain.query import RequestLimits, check_count, filter_by
from store.messages.fields import (
    DELIMITED,
    GROUP_ENDS,
    MAX_COUNTED_FIELDS,
    end_of_value,
    read_varint,
)
from store.serving.failure import malformed, over_limit
from storenode.wire.sds.v1 import message_pb2
from storenode.wire.storenode.v1 import store_pb2

COUNTED_REQUEST_BYTES: Final = 1024 * 1024
"""A larger ``PublishRequest`` has its messages counted before it is decoded, and a larger request
of a read its fields, since two bytes of it may become an object of fifty."""

MAX_READ_FIELDS: Final = 32_768
"""Fields of a read's request that is counted, besides the entries that the node's limits allow."""


_M = TypeVar("_M", bound=Message)


def decode(kind: type[_M], request: bytes) -> _M:
    """Parse a request.

    Raises:
        CallError: INVALID_ARGUMENT, the bytes are no such request.
    """
    try:
        return kind.FromString(request)
    except DecodeError:
        name = kind.DESCRIPTOR.full_name
        raise malformed(f"the request is no {name}: encode it as the schema says") from None


def decode_read(kind: type[_M], request: bytes, entries: int = 0) -> _M:
    """Parse a request of a read, unless a large one has too many fields.

    Besides `MAX_READ_FIELDS` it may have as many ``entries`` as the node's limits allow.

    Raises:
        CallError: INVALID_ARGUMENT, the bytes are no such request; RESOURCE_EXHAUSTED.
    """
    most = MAX_READ_FIELDS + entries
    if len(request) > COUNTED_REQUEST_BYTES and not has_at_most(request, kind, most):
        raise over_limit(
            f"the request has more than {most:,} fields: repeat none, and leave out those that the "
            "schema does not know"
        )
    return decode(kind, request)


def decode_head(kind: type[_M], request: bytes, entries: int) -> tuple[_M, bool]:
    """Parse the first fields of a request, as many as `decode_read` takes; return if that is all.

    For messages that have no messages in them.

    Raises:
        CallError: INVALID_ARGUMENT, the bytes are no such request.
    """
    if len(request) <= COUNTED_REQUEST_BYTES:
        return decode(kind, request), True
    position, left = 0, MAX_READ_FIELDS + entries
    while 0 <= position < len(request) and left:
        _, position = _field(request, position)
        left -= 1
    # What cannot be read ends the decoding there as well.
    head = request if position < 0 else request[:position]
    return decode(kind, head), len(head) == len(request)


def has_at_most(request: bytes, kind: type[Message], most: int) -> bool:
    """Return True unless an encoded message, with all within it, has more fields than ``most``.

    Also for what is no encoded message, or not of this kind, as far as it can be read.
    """
    left, parts = most, [(0, len(request), kind.DESCRIPTOR)]
    while parts:
        position, end, part = parts.pop()
        while position < end:
            left -= 1
            if left < 0:
                return False
            tag, position = read_varint(request, position)
            wire_type = tag & 7
            if wire_type == DELIMITED:
                size, position = read_varint(request, position)
                field = part.fields_by_number.get(tag >> 3)
                if size and field is not None and field.message_type is not None:
                    parts.append((position, min(position + size, end), field.message_type))
                position += size
            elif wire_type not in GROUP_ENDS:
                position = end_of_value(request, position, wire_type)
                if position < 0:
                    break
    return True


def clip(request: bytes, field: int, limit: int) -> bytes:
    """Return the request up to and with entry ``limit`` of a repeated, delimited ``field``.

    A request that is within the limit, or is no encoded message, comes back as it is. Decoding an
    entry costs far more memory than the two bytes that an empty one takes.

    Raises:
        CallError: RESOURCE_EXHAUSTED, the request has too many other fields to step over.
    """
    position, count, others, size = 0, 0, 0, len(request)
    while position < size and count < limit:
        tag, position = _field(request, position)
        if position < 0:
            return request
        if tag & 7 == DELIMITED and tag >> 3 == field:
            count += 1
        else:
            others += 1
        if others > MAX_COUNTED_FIELDS:
            raise over_limit(
                f"the request has more than {MAX_COUNTED_FIELDS:,} fields besides its entries: "
                "leave out those that the schema does not know"
            )
    return request[:position]


def _field(data: bytes, position: int) -> tuple[int, int]:
    """Return the tag of the field at ``position``, and its end, as `end_of_value` does."""
    tag, position = read_varint(data, position)
    wire_type = tag & 7
    return tag, position if wire_type in GROUP_ENDS else end_of_value(data, position, wire_type)


def topic_filter(
    content: store_pb2.ContentFilter, rights: TopicRights, limits: RequestLimits
) -> TopicFilter:
    """Combine a ``ContentFilter`` and the caller's rights into one filter.

    Raises:
        RequestError: see `store.domain.query.filter_by`.
    """
    pubsub_topic = content.pubsub_topic if content.HasField("pubsub_topic") else None
    return filter_by(pubsub_topic, content.content_topics, rights, limits)


def history_entries(
    name: str, entries: Sequence[message_pb2.HistoryEntry], limit: int
) -> list[HistoryEntry]:
    """Convert entries of a request; a hint that is set counts although it is empty.

    Raises:
        RequestError: the field ``name`` holds more than ``limit`` of them.
    """
    check_count(name, len(entries), limit)
    return [
        HistoryEntry(
            entry.message_id.encode(),
            entry.retrieval_hint if entry.HasField("retrieval_hint") else None,
        )
        for entry in entries
    ]
