"""The embedded Postgres: a server that the node runs as its child."""

from store.embedded.errors import EmbeddedPostgresError
from store.embedded.settings import EmbeddedSettings
from store.embedded.supervisor import EmbeddedPostgres, running_url

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError", "EmbeddedSettings", "running_url"]
