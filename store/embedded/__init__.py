"""A Postgres server of the node's own, run as its child."""

from store.embedded.errors import EmbeddedPostgresError
from store.embedded.settings import EmbeddedSettings
from store.embedded.supervisor import EmbeddedPostgres, running_url

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError", "EmbeddedSettings", "running_url"]
