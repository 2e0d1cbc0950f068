"""Errors of the database: what they mean for a caller, and the server's message."""

import re
from typing import Final, NamedTuple

import psycopg
from psycopg import errors as pg

_HOST: Final = re.compile(r"- host: '?(.*?)'?, port: '?(.*?)'?, hostaddr: \S+: (.*)")
"""A line of psycopg's on a host that it could not connect to, where there are several."""

_CONNECTING: Final = re.compile(r"^connection failed: (?:connection to server .*? failed: )?")
_FATAL: Final = "FATAL:"

_PASSING: Final = ("session is read-only", "server is in hot standby mode")
"""Replies of hosts that work, and are not the one that is wanted."""


class SchemaError(Exception):
    """The database's schema does not fit this program; the text says what to do about it."""


class HostRefusedError(psycopg.OperationalError):
    """A server must not be used for this store; another host, or it later, may be."""


class NoConnectionError(psycopg.OperationalError):
    """The error where no connection became free in time, or none could be made."""


class Failure(NamedTuple):
    """A reason why the database does not serve.

    Attributes:
        states: Beginnings of the SQLSTATEs that mean it.
        text: Finds it in a connection's error, which has no SQLSTATE.
        sentence: The error of callers.
        is_transient: The same statement may succeed within seconds, perhaps on another host.
        is_login: The server refuses this role or database whenever it is asked.
    """

    states: tuple[str, ...]
    text: str
    sentence: str
    is_transient: bool = False
    is_login: bool = False


_NEVER: Final = r"(?!)"

UNREACHABLE: Final = Failure(
    ("08", "57P01", "57P02", "57P05", "25P03"),
    _NEVER,
    "the database cannot be reached; retry with backoff",
    is_transient=True,
)
READ_ONLY: Final = Failure(
    ("25006",),
    "session is read-only",
    "the database is read-only and takes no messages; publish at another node, or retry later",
)
DISK_FULL: Final = Failure(
    ("53100",),
    "No space left on device",
    "the database's disk is full; free space, then publish again",
)
FAILURES: Final = (
    UNREACHABLE,
    READ_ONLY,
    Failure(
        ("42501",),
        "permission denied for",
        "the database role lacks a privilege; grant the node's role the rights on the schema"
        " storenode, then retry",
    ),
    DISK_FULL,
    Failure(
        ("53300",),
        "too many (?:connections|clients)|remaining connection slots",
        "the database has no free connection for this node; raise max_connections or the"
        " role's connection limit, or retry with backoff",
        is_transient=True,
    ),
    Failure(("53",), _NEVER, "the database is short of memory; retry later"),
    Failure(
        ("28",),
        'authentication failed|no pg_hba.conf entry|not permitted|role ".*" does not exist',
        "the database refuses the node's login; correct the user or password of"
        " --database-url, or pg_hba.conf",
        is_login=True,
    ),
    Failure(
        ("3D000",),
        'database ".*" does not exist',
        "the database named by --database-url does not exist; create it, or correct the URL",
        is_login=True,
    ),
    Failure(
        ("57P03",),
        "is (?:starting up|shutting down|in recovery mode|not yet accepting)",
        "the database is starting or shutting down; retry with backoff",
        is_transient=True,
    ),
    Failure(
        ("40001", "40P01", "55P03", "57014"),
        _NEVER,
        "the database is busy: a lock was not free in time; retry with backoff",
        is_transient=True,
    ),
    Failure(
        ("58", "XX001", "XX002"),
        _NEVER,
        "the database cannot read or write its files; see the log of Postgres",
    ),
)
"""The first that fits counts. An error that none fits is a fault of the program."""

NO_CONNECTION: Final = Failure(
    (),
    _NEVER,
    "no database connection became free; it is unreachable or busy: retry with backoff",
    is_transient=True,
)


def find_failure(error: BaseException) -> Failure | None:
    """Return what an error of psycopg means for callers; None for a fault of the program."""
    if isinstance(error, NoConnectionError):
        # A connection may be made, and the role lack the rights to look who serves it.
        cause = error.__cause__
        return find_failure(cause) if isinstance(cause, pg.InsufficientPrivilege) else NO_CONNECTION
    if isinstance(error, psycopg.Error) and error.sqlstate is not None:
        state = error.sqlstate
        return next((each for each in FAILURES if state.startswith(each.states)), None)
    # A connection that breaks or cannot be made is an error without an SQLSTATE.
    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return _find_in_text(reasons(error)[0])
    return None


def _find_in_text(reason: str) -> Failure:
    return next((each for each in FAILURES if re.search(each.text, reason)), UNREACHABLE)


def is_transient(error: BaseException) -> bool:
    """Return True if the same statement may succeed within seconds."""
    failure = find_failure(error)
    return failure is not None and failure.is_transient


def is_login_refused(error: BaseException) -> bool:
    """Return True if every host refuses the role or the database: waiting does not help."""
    return all(_find_in_text(reason).is_login for reason in reasons(error))


def is_missing_partition(error: BaseException) -> bool:
    """Return True if a row was refused because no partition takes it.

    Postgres reports that as a violated check that has no name (ExecFindPartition in its
    execPartition.c); a real CHECK constraint has one.
    """
    return isinstance(error, pg.CheckViolation) and error.diag.constraint_name is None


def reasons(error: BaseException) -> list[str]:
    """Return why each host could not be connected to; else the one reason of an error.

    Replies of servers come before hosts that do not answer, and replies of standbys last.
    """
    diagnosis = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    if diagnosis:
        return diagnosis.splitlines()[:1]
    lines = str(error).strip().splitlines() or [type(error).__name__]
    hosts = [found for line in lines if (found := _HOST.match(line))]
    if not hosts:
        return lines[:1]
    replies = (each.groups() for each in hosts)
    texts = [f"{host}:{port}: {_CONNECTING.sub('', text)}" for host, port, text in replies]
    return sorted(texts, key=_urgency)


def sentence(error: BaseException) -> str:
    """Return the message of the server or the driver, in one line."""
    return "; ".join(reasons(error))


def _urgency(reason: str) -> int:
    if any(part in reason for part in _PASSING):
        return 2
    return 0 if _FATAL in reason else 1
