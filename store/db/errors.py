"""What is wrong with a schema or its partitions, and how Postgres says so."""

import re
from typing import Final

import psycopg
from psycopg import errors as pg

_HOST: Final = re.compile(r"- host: '?(.*?)'?, port: '?(.*?)'?, hostaddr: \S+: (.*)")
"""A line of psycopg's on a host that it could not connect to, where there are several."""

_CONNECTING: Final = re.compile(r"^connection failed: (?:connection to server .*? failed: )?")
_FATAL: Final = "FATAL:"

_PASSING: Final = ("session is read-only", "server is in hot standby mode")
"""What hosts say that are in order, and merely not the one that is looked for."""


class SchemaError(Exception):
    """The database's schema does not fit this program; the text says what to do about it."""


def is_missing_partition(error: BaseException) -> bool:
    """True when a row was refused because no partition takes it.

    Postgres reports that as a violated check that has no name (ExecFindPartition in its
    execPartition.c); a real CHECK constraint has one.
    """
    return isinstance(error, pg.CheckViolation) and error.diag.constraint_name is None


def reasons(error: BaseException) -> list[str]:
    """Why no host could be connected to, one reason each; else the one thing that is wrong.

    What a server has said comes before the silence of others, and last what standbys say.
    """
    diagnosis = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    if diagnosis:
        return diagnosis.splitlines()[:1]
    lines = str(error).strip().splitlines() or [type(error).__name__]
    hosts = [found for line in lines if (found := _HOST.match(line))]
    if not hosts:
        return lines[:1]
    return sorted((_said(*each.groups()) for each in hosts), key=_urgency)


def sentence(error: BaseException) -> str:
    """What the server or the driver said, in one line."""
    return "; ".join(reasons(error))


def _said(host: str, port: str, text: str) -> str:
    return f"{host}:{port}: {_CONNECTING.sub('', text)}"


def _urgency(reason: str) -> int:
    if any(part in reason for part in _PASSING):
        return 2
    return 0 if _FATAL in reason else 1
