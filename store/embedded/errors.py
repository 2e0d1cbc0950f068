"""The error of the embedded Postgres."""


class EmbeddedPostgresError(Exception):
    """A failure of the embedded Postgres: what failed, where, and what to do, in one sentence."""
