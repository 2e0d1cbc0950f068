"""Messages as the client builds, hashes and groups them, and requests of ``Query``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from google.protobuf.duration_pb2 import Duration

from storenode.connection.arguments import refusing
from storenode.message.hashing import message_hash
from storenode.message.limits import NS_PER_S
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

if TYPE_CHECKING:
    from storenode.wire.waku.store.v3.store_pb2 import WakuMessageKeyValue

MAX_PUBLISH_REQUEST_MESSAGES: Final = 1_000
MAX_PUBLISH_REQUEST_BYTES: Final = 3_500_000
"""Messages of one request; with its other fields it stays below 4 MiB."""

_FIELD_OVERHEAD_BYTES: Final = 5
"""The overhead of a message inside a request: one byte of tag and up to four of length."""


def new_message(
    payload: bytes,
    content_topic: str,
    pubsub_topic: str,
    timestamp_ns: int,
    *,
    meta: bytes | None = None,
    ephemeral: bool | None = None,
    version: int | None = None,
    rate_limit_proof: bytes | None = None,
) -> WakuMessageAndTopic:
    """Build a message to publish; ``timestamp_ns`` is Unix time in nanoseconds."""
    message = WakuMessage(
        payload=payload,
        content_topic=content_topic,
        timestamp=timestamp_ns,
        meta=meta,
        ephemeral=ephemeral,
        version=version,
        rate_limit_proof=rate_limit_proof,
    )
    return WakuMessageAndTopic(message=message, pubsub_topic=pubsub_topic)


def hash_of(item: WakuMessageAndTopic | WakuMessageKeyValue) -> bytes:
    """Hash a message into its 32 bytes (14/WAKU2-MESSAGE), from its fields alone.

    Raises:
        ValueError: It has no timestamp, so that it has no hash.
    """
    message = item.message
    return message_hash(
        item.pubsub_topic, message.payload, message.content_topic, message.meta, message.timestamp
    )


def publish_requests(
    messages: Iterable[WakuMessageAndTopic],
    *,
    min_confirms: int = 0,
    confirm_timeout_s: float | None = None,
) -> Iterator[store_pb2.PublishRequest]:
    """Group messages into requests of at most 1,000 messages and below 4 MiB, in order.

    A message that is larger on its own travels alone, for the node to refuse.
    """
    group: list[WakuMessageAndTopic] = []
    size = 0
    for message in messages:
        added = message.ByteSize() + _FIELD_OVERHEAD_BYTES
        full = len(group) == MAX_PUBLISH_REQUEST_MESSAGES
        if group and (full or size + added > MAX_PUBLISH_REQUEST_BYTES):
            yield new_request(group, min_confirms, confirm_timeout_s)
            group, size = [], 0
        group.append(message)
        size += added
    if group:
        yield new_request(group, min_confirms, confirm_timeout_s)


@refusing
def new_request(
    messages: Iterable[WakuMessageAndTopic],
    min_confirms: int = 0,
    confirm_timeout_s: float | None = None,
) -> store_pb2.PublishRequest:
    """Build one request; without ``confirm_timeout_s`` the node's default holds."""
    request = store_pb2.PublishRequest(messages=messages, min_confirms=min_confirms)
    if confirm_timeout_s is not None:
        timeout = Duration()
        timeout.FromNanoseconds(round(confirm_timeout_s * NS_PER_S))
        request.confirm_timeout.CopyFrom(timeout)
    return request


def outcome_name(result: store_pb2.PublishResult) -> str:
    """Return the name of a result's outcome: STORED, DUPLICATE, EPHEMERAL, REJECTED or UNCONFIRMED.

    An outcome that a newer node added is given by its number.
    """
    if result.outcome in store_pb2.PublishResult.Outcome.values():
        return store_pb2.PublishResult.Outcome.Name(result.outcome)
    return str(int(result.outcome))


query_request = refusing(StoreQueryRequest)
"""Builds a request (13/WAKU2-STORE); the node judges the combination of fields."""
