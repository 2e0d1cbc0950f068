"""The embedded Postgres: a server that the node runs as its child."""

from store.embedded.process import EmbeddedPostgresError
from store.embedded.supervisor import EmbeddedPostgres, running_url

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError", "running_url"]
