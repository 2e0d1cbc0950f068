"""Messages between stores: ``WakuMessageAndTopic`` from stored bytes, and decoded.

A frame that is stored (see `messages.record`) has the same two fields under other numbers, after
the hash, which is not sent: its receiver computes it again::

    0A len( 0A 20 hash  12 len(message)  1A len(pubsub topic) )     stored
                        0A len(message)  12 len(pubsub topic)       sent

The way back is `store.domain.admission`, which judges and lays out.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from store.messages.fields import read_varint
from store.messages.frames import end_of_entry
from storenode.message.hashing import message_hashes, pack_timestamp
from storenode.message.limits import HASH_BYTES
from storenode.message.rules import MALFORMED, TOPIC_NOT_UTF8, Refusal
from storenode.wire.storenode.internal.v1.message_raw_pb2 import RawMessageAndTopic
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

HASH_FIELD_BYTES: Final = 2 + HASH_BYTES
"""The encoded size of a frame's first field: tag, length, hash."""


class MalformedMessageError(ValueError):
    """The bytes of an encoded message are no ``WakuMessageAndTopic``.

    ``message_hash`` is empty where the bytes have none.
    """

    def __init__(self, refusal: Refusal, message_hash: bytes = b"") -> None:
        super().__init__(refusal.sentence)
        self.refusal = refusal
        self.message_hash = message_hash


class DecodedMessage(NamedTuple):
    """The fields of a ``WakuMessageAndTopic`` that rules are about; absent ones are empty.

    ``timestamp`` in nanoseconds, ``None`` where it is absent. ``body`` is the canonical encoding of
    the WakuMessage without unknown fields.
    """

    has_message: bool
    pubsub_topic: str
    content_topic: str
    payload: bytes
    meta: bytes
    timestamp: int | None
    ephemeral: bool
    body: bytes


def transferred(frame: bytes) -> bytes:
    """Encode a ``WakuMessageAndTopic`` from a stored frame, by splicing: nothing is decoded."""
    at = read_varint(frame, 1)[1] + HASH_FIELD_BYTES + 1
    # ``at`` is at the length of the message now, after its tag; the pubsub topic follows it.
    end = end_of_entry(frame, at - 1)
    return b"\x0a%b\x12%b" % (frame[at:end], frame[end + 1 :])


def decode_message(encoded: bytes) -> DecodedMessage:
    """Decode one message of a request.

    Raises:
        MalformedMessageError: it cannot be decoded.
    """
    try:
        item = WakuMessageAndTopic.FromString(encoded)
    except DecodeError:
        raise _malformed(encoded) from None
    item.DiscardUnknownFields()
    message = item.message
    body, timestamp = message.SerializeToString(), message.timestamp
    # By position, and without a look at what follows from the rest: this is done for each message.
    return DecodedMessage(
        bool(body) or item.HasField("message"),
        item.pubsub_topic,
        message.content_topic,
        message.payload,
        message.meta,
        timestamp if timestamp or message.HasField("timestamp") else None,
        message.ephemeral,
        body,
    )


def _malformed(encoded: bytes) -> MalformedMessageError:
    try:
        item = RawMessageAndTopic.FromString(encoded)
    except DecodeError:
        return MalformedMessageError(MALFORMED)
    message = item.message
    if not message.timestamp:
        return MalformedMessageError(TOPIC_NOT_UTF8)
    stamp = pack_timestamp(message.timestamp)
    parts = (item.pubsub_topic, message.payload, message.content_topic, message.meta, stamp)
    return MalformedMessageError(TOPIC_NOT_UTF8, *message_hashes((parts,)))
