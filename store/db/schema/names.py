"""Names in the schema, for statements; `store.db.schema.tables` has the columns."""

from typing import Final

SCHEMA: Final = "storenode"
FINE_TABLE: Final = "messages"
COARSE_TABLES: Final = ("hashes", "sds", "topics")
COMMITS_TABLE: Final = "commits"
BUCKETS_TABLE: Final = "buckets"
UNREAD_TABLE: Final = "unread"
PARTITIONED_TABLES: Final = (FINE_TABLE, *COARSE_TABLES, COMMITS_TABLE)
"""In the order in which their locks are taken."""

SEQUENCES: Final = ("batch_seq", "position_seq")
VIEWS: Final = (
    "export_buckets",
    "export_commits",
    "export_messages",
    "export_sds",
    "export_store",
)
"""What the data pipeline reads: its contract with the database."""

TOPIC_INDEX: Final = "messages_topic_idx"
WIDE_TOPIC_INDEX: Final = "messages_topic_hash_idx"
"""The one of before schema 0012, until maintenance has built the other for every partition."""

PROVEN_INDEX: Final = "sds_proven_idx"
"""Of partitions of before schema 0011 maintenance builds it."""

HASH_KEY_BYTES: Final = 16
"""Of a message's hash, in ``hashes.key``; the other bytes are in ``hashes.rest``, or not kept."""

SHORT_FORM: Final = "0012"
"""The oldest revision whose nodes read heads without the hash, and rows of ``hashes`` without the
second half of it."""

OLDEST_POSTGRES: Final = 140_000
"""``server_version_num`` of the oldest supported release."""
