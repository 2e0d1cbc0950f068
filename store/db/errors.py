"""What is wrong with a schema or its partitions, and how Postgres says so."""

import psycopg
from psycopg import errors as pg


class SchemaError(Exception):
    """The database's schema does not fit this program; the text says what to do about it."""


def is_missing_partition(error: BaseException) -> bool:
    """True when a row was refused because no partition takes it.

    Postgres reports that as a violated check that has no name (ExecFindPartition in its
    execPartition.c); a real CHECK constraint has one.
    """
    return isinstance(error, pg.CheckViolation) and error.diag.constraint_name is None


def sentence(error: psycopg.Error) -> str:
    """The first line of what the server or the driver said."""
    text = error.diag.message_primary or str(error).strip() or type(error).__name__
    return text.splitlines()[0]
