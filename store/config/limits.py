"""Bounds of what the options of `storenode run` may be set to."""

from typing import Final

MAX_CLUSTER: Final = 65_535
MAX_SHARD: Final = 65_535
MAX_CONNECTIONS: Final = 1_000
"""To the database, for one kind of work."""

LARGEST_CONNECTIONS: Final = 100_000
DEFAULT_CONNECTIONS: Final = 4_096
DEFAULT_CONNECTIONS_PER_HOST: Final = 1_024
"""Of callers. A proxy that does not end HTTP/2 makes one connection for each client."""

LARGEST_MESSAGE_BYTES: Final = 3 * 1024 * 1024
"""A message must fit into a response, and gRPC clients take 4 MiB by default."""

LARGEST_TOPIC_BYTES: Final = 2 * 1024
"""A topic must fit into an index entry of Postgres, at most 2,704 bytes."""

LARGEST_RESPONSE_BYTES: Final = 64 * 1024 * 1024
"""A response is held in memory as a whole, by the node and by the client."""

LARGEST_UNSENT_BYTES: Final = 1024 * 1024 * 1024 * 1024

LARGEST_BATCH_MESSAGES: Final = 50_000
LARGEST_PAGE_MESSAGES: Final = 10_000
LARGEST_QUERY_HASHES: Final = 10_000
LARGEST_QUERY_TOPICS: Final = 1_000
LARGEST_SDS_ENTRIES: Final = 10_000

LARGEST_SDS_CLAIMANTS: Final = 100
"""All claimants of an ID are in memory at one time, as often as their messages refer to others."""

LARGEST_CAUSAL_HEADS: Final = 1_000
LARGEST_CAUSAL_KNOWN_IDS: Final = 100_000

LARGEST_CAUSAL_MESSAGES: Final = 150_000
"""About what the memory of one walk holds; see ``store.domain.causal``."""
