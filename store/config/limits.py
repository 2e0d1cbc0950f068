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

LARGEST_UNSENT_BYTES: Final = 1024 * 1024 * 1024 * 1024
