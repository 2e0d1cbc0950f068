"""Limits of messages, requests and responses.

Source: the node's contract, table "Limits". Everything that a remote side can make grow has
its bound here; rooms with vocabulary of their own (``sds``) keep theirs beside it.
"""

from typing import Final

HASH_BYTES: Final = 32
"""Size of a message hash (14/WAKU2-MESSAGE, "Deterministic message hashing")."""

CONTENT_DIGEST_BYTES: Final = 16
"""Size of the digest that determines a message's content (`storenode.message.hashing`)."""

TOPIC_KEY_BYTES: Final = 16
"""Size of the index key of a (pubsub topic, content topic) pair."""

MAX_TIMESTAMP_NS: Final = 2**63 - 1
"""Largest timestamp that the ``sint64`` of a WakuMessage can carry."""

NS_PER_S: Final = 1_000_000_000

UNCHECKED_DRIFT_NS: Final = 24 * 3600 * NS_PER_S
"""The distance that a timestamp may be in the future when the drift check is off."""

MAX_MESSAGE_BYTES: Final = 150 * 1024
"""The size limit of an encoded WakuMessage without its unknown fields."""

MAX_META_BYTES: Final = 64
MAX_TOPIC_BYTES: Final = 1024
"""A pubsub or content topic, as UTF-8."""

MAX_BATCH_MESSAGES: Final = 5_000
"""Messages in one PublishRequest."""

MAX_RESPONSE_BYTES: Final = 4 * 1024 * 1024
"""The size limit of any response, the default of gRPC clients. A page is cut earlier."""

MAX_REQUEST_BYTES: Final = 16 * 1024 * 1024
"""A request of a client."""

MAX_PEER_REQUEST_BYTES: Final = 64 * 1024 * 1024
"""A frame of a peer."""

DEFAULT_PAGE_MESSAGES: Final = 100
MAX_PAGE_MESSAGES: Final = 1_000
"""Page of ``Query``; larger wishes are clamped."""

MAX_QUERY_HASHES: Final = 1_000
MAX_QUERY_CONTENT_TOPICS: Final = 100

MAX_SDS_ENTRIES: Final = 1_000
"""Entries of one ``GetSdsMessages``."""

MAX_SDS_CLAIMANTS: Final = 16
"""Stored messages returned (and walked) for one SDS message ID."""

MAX_CAUSAL_HEADS: Final = 100
MAX_CAUSAL_KNOWN_IDS: Final = 10_000
MAX_CAUSAL_MESSAGES: Final = 100_000
"""``GetCausalHistory``: where a walk starts, what it need not send, what it returns at most."""

MAX_CACHED_TOPICS: Final = 1_024
"""Topic pairs whose derived values stay computed, unless one is longer than `MAX_SHAPE_BYTES`."""

MAX_CACHED_LAYOUTS: Final = 8_192
"""Frame layouts (one per combination of sizes) that stay computed."""

MAX_CACHED_SHAPES: Final = 2_048
MAX_SHAPE_BYTES: Final = 2_200
"""The size limit of the bytes around the time in messages that are read without being decoded
(mostly two topics), and the number of such pairs that are remembered."""
