"""Names in the schema, for statements; ``schema.txt`` has the columns."""

from typing import Final

SCHEMA: Final = "storenode"
FINE_TABLE: Final = "messages"
COARSE_TABLES: Final = ("hashes", "sds", "topics")
COMMITS_TABLE: Final = "commits"
BUCKETS_TABLE: Final = "buckets"
PARTITIONED_TABLES: Final = (FINE_TABLE, *COARSE_TABLES, COMMITS_TABLE)
"""In the order in which their locks are taken."""

HASH_KEY_BYTES: Final = 8
"""Bytes of a hash in ``hashes.key``, a big-endian signed integer; several hashes may have one."""

OLDEST_POSTGRES: Final = 140_000
"""``server_version_num`` of the oldest supported release."""
