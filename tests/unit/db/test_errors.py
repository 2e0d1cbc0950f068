"""The classification of database errors for callers."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors as pg
from psycopg_pool import PoolTimeout

from store.db.errors import find_failure, is_login_refused

TCP = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '


@pytest.mark.parametrize(
    ("error", "text", "is_transient"),
    [
        (pg.ReadOnlySqlTransaction(), "read-only", False),
        (pg.InsufficientPrivilege(), "lacks a privilege", False),
        (pg.DiskFull(), "disk is full", False),
        (pg.OutOfMemory(), "short of memory", False),
        (pg.TooManyConnections(), "no free connection", True),
        (pg.InvalidPassword(), "refuses the node's login", False),
        (pg.InvalidCatalogName(), "does not exist", False),
        (pg.CannotConnectNow(), "starting or shutting down", True),
        (pg.AdminShutdown(), "cannot be reached", True),
        (pg.ConnectionFailure(), "cannot be reached", True),
        (pg.IdleInTransactionSessionTimeout(), "cannot be reached", True),
        (pg.DeadlockDetected(), "is busy", True),
        (pg.QueryCanceled(), "is busy", True),
        (pg.IoError(), "cannot read or write its files", False),
        (psycopg.OperationalError("server closed the connection"), "cannot be reached", True),
        (psycopg.InterfaceError("connection already closed"), "cannot be reached", True),
        (psycopg.OperationalError(TCP + "Connection refused"), "cannot be reached", True),
        (psycopg.OperationalError(TCP + "session is read-only"), "read-only", False),
        (
            psycopg.OperationalError(TCP + 'FATAL:  too many connections for role "storenode"'),
            "no free connection",
            True,
        ),
        (
            psycopg.OperationalError(TCP + "FATAL:  the database system is starting up"),
            "starting or shutting down",
            True,
        ),
        (PoolTimeout(), "no database connection became free", True),
    ],
    ids=lambda each: repr(each)[:60],
)
def test_each_error_of_the_database_has_its_sentence(
    error: BaseException, text: str, is_transient: bool
) -> None:
    failure = find_failure(error)
    assert failure is not None
    assert text in failure.sentence
    assert failure.is_transient == is_transient


def test_a_fault_of_the_program_is_no_failure_of_the_database() -> None:
    for error in (pg.UndefinedTable(), pg.UniqueViolation(), ValueError()):
        assert find_failure(error) is None


def test_a_login_is_refused_only_if_every_host_refuses_it() -> None:
    refused = 'FATAL:  password authentication failed for user "u"'
    line = "- host: '{}', port: '1', hostaddr: '10.0.0.1': {}"
    both = "failed, all attempts:\n" + "\n".join(line.format(each, refused) for each in "ab")
    one = both.replace(f"hostaddr: '10.0.0.1': {refused}", "hostaddr: '10.0.0.1': timeout", 1)
    assert is_login_refused(psycopg.OperationalError(TCP + refused))
    assert is_login_refused(psycopg.OperationalError(both))
    assert not is_login_refused(psycopg.OperationalError(one))
