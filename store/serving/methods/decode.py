"""Decoding of requests into the domain's values.

Requests come undecoded, because one that does not parse would end as INTERNAL in gRPC's library,
before the node could report what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from store.domain.ports import HistoryEntry, TopicFilter, TopicRights
from store.domain.query import check_count, filter_by
from store.messages.fields import DELIMITED, GROUP_ENDS, end_of_value, read_varint
from store.serving.failure import malformed, over_limit
from storenode.wire.sds.v1 import message_pb2
from storenode.wire.storenode.v1 import store_pb2

COUNTED_REQUEST_BYTES: Final = 1024 * 1024
"""A larger request has its fields counted before it is decoded, since two bytes of it may become an
object of fifty."""

MAX_OTHER_FIELDS: Final = 32_768
"""Fields of a request that is counted, besides the entries that the node's limits allow."""


_M = TypeVar("_M", bound=Message)


def decode(kind: type[_M], request: bytes, entries: int = 0) -> _M:
    """Parse a request, unless a large one has too many fields.

    Besides `MAX_OTHER_FIELDS` it may have as many ``entries`` as the node's limits allow.

    Raises:
        CallError: INVALID_ARGUMENT, the bytes are no such request; RESOURCE_EXHAUSTED.
    """
    decoded, is_whole = decode_head(kind, request, entries)
    if not is_whole:
        raise over_limit(
            f"the request has more than {MAX_OTHER_FIELDS + entries:,} fields: repeat none, and"
            " leave out those that the schema does not know"
        )
    return decoded


def decode_head(kind: type[_M], request: bytes, entries: int) -> tuple[_M, bool]:
    """Parse the first fields of a request, as many as it may have; return if that is all.

    Raises:
        CallError: INVALID_ARGUMENT, the bytes are no such request.
    """
    left = 0
    if len(request) > COUNTED_REQUEST_BYTES:
        described, most = cast("Descriptor", kind.DESCRIPTOR), MAX_OTHER_FIELDS + entries
        left, end = count_fields(request, 0, len(request), described, most)
        request = request if left >= 0 else request[:end]
    try:
        return kind.FromString(request), left >= 0
    except DecodeError:
        # A raw type is one of the schema with parts that stay encoded.
        name = kind.DESCRIPTOR.full_name.replace("internal.v1.Raw", "v1.")
        raise malformed(f"the request is no {name}: encode it as the schema says") from None


def count_fields(
    data: bytes, position: int, end: int, kind: Descriptor | None, most: int
) -> tuple[int, int]:
    """Count the fields of an encoded message, and of a ``kind`` those within them, up to ``most``.

    Returns how many fewer there are, and the end of what was counted. Of more, -1 and the place of
    the first field that is too much. What cannot be read ends the count: the parser refuses it.
    """
    while 0 <= position < end:
        start = position
        if not most:
            return -1, start
        most -= 1
        tag, position = read_varint(data, position)
        wire_type = tag & 7
        if wire_type == DELIMITED:
            size, position = read_varint(data, position)
            field = kind and kind.fields_by_number.get(tag >> 3)
            if size and field and field.message_type is not None:
                inner_end = min(position + size, end)
                most, _ = count_fields(data, position, inner_end, field.message_type, most)
                if most < 0:
                    return -1, start
            position += size
        elif wire_type not in GROUP_ENDS:
            position = end_of_value(data, position, wire_type)
    return most, position


def topic_filter(content: store_pb2.ContentFilter, rights: TopicRights) -> TopicFilter:
    """Combine a ``ContentFilter`` and the caller's rights into one filter.

    Raises:
        RequestError: see `store.domain.query.filter_by`.
    """
    pubsub_topic = content.pubsub_topic if content.HasField("pubsub_topic") else None
    return filter_by(pubsub_topic, content.content_topics, rights)


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
