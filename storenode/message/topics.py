"""Pubsub and content topics: shard names and index keys."""

import re
from hashlib import sha256
from typing import Final

from storenode.message.limits import TOPIC_KEY_BYTES

DEFAULT_PUBSUB_TOPIC: Final = "/waku/2/rs/1/0"
"""The default pubsub topic: shard 0 of cluster 1."""

_SHARD_TOPIC: Final = re.compile(r"/waku/2/rs/(0|[1-9][0-9]{0,4})/(0|[1-9][0-9]{0,4})")
_CONTENT_TOPIC: Final = re.compile(r"(/[0-9]+)?(/[^/]+){4}")
_MAX_UINT16: Final = 0xFFFF


def parse_shard(pubsub_topic: str) -> tuple[int, int] | None:
    """Read (cluster, shard) from ``/waku/2/rs/<cluster>/<shard>``.

    Both are decimal ``uint16`` without leading zeros; any other topic is a named one: ``None``.
    Source: WAKU2-RELAY-SHARDING, "Static sharding".
    """
    match = _SHARD_TOPIC.fullmatch(pubsub_topic)
    if match is None:
        return None
    cluster, shard = int(match[1]), int(match[2])
    return (cluster, shard) if cluster <= _MAX_UINT16 and shard <= _MAX_UINT16 else None


def is_content_topic(topic: str) -> bool:
    """Return True if a topic has the form ``/APPLICATION/VERSION/NAME/ENCODING``.

    A number may stand before it. Source: 23/WAKU2-TOPICS, "Content topics".
    """
    return _CONTENT_TOPIC.fullmatch(topic) is not None


def topic_key(pubsub_topic: str | bytes, content_topic: str | bytes) -> bytes:
    """Index key (16 bytes, a UUID column) of a topic pair.

    The first 128 bits of SHA-256 over both topics as UTF-8, each after its length as four bytes
    big-endian, so that no two pairs share a preimage.
    """
    return sha256(_prefixed(pubsub_topic) + _prefixed(content_topic)).digest()[:TOPIC_KEY_BYTES]


def _prefixed(topic: str | bytes) -> bytes:
    raw = topic.encode() if isinstance(topic, str) else topic
    return len(raw).to_bytes(4, "big") + raw
