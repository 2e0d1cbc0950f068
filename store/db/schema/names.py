"""Names in the schema, for statements; ``schema.txt`` has the columns."""

from typing import Final

SCHEMA: Final = "storenode"
FINE_TABLE: Final = "messages"
COARSE_TABLES: Final = ("hashes", "sds", "topics")
COMMITS_TABLE: Final = "commits"
BUCKETS_TABLE: Final = "buckets"
UNREAD_TABLE: Final = "unread"
PARTITIONED_TABLES: Final = (FINE_TABLE, *COARSE_TABLES, COMMITS_TABLE)
"""In the order in which their locks are taken."""

HASH_KEY_BYTES: Final = 16
"""Size of ``hashes.key``: the first half of a message's hash. The message has the other half."""

OLDEST_POSTGRES: Final = 140_000
"""``server_version_num`` of the oldest supported release."""
