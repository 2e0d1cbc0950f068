"""The one exception of this room."""


class EmbeddedPostgresError(Exception):
    """One sentence that says what is wrong with the embedded Postgres, where, and what to do."""
