"""Database servers: connection strings, errors, which one is the primary; and all statements."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo
from psycopg import errors as pg

from store.db.errors import NoConnectionError, find_failure, is_login_refused
from store.db.pool import complete_url
from store.db.primary import DatabaseServer, hosts_of, label, refusal, with_hosts
from store.db.statements import SQL


@pytest.mark.parametrize(
    ("url", "ports"),
    [
        ("postgresql://u@a/d", None),
        ("postgresql://u@a:1/d", "1"),
        ("postgresql://u@a:5432,b:65535/d", "5432,65535"),
        ("postgresql://u@a,b:5433/d", ",5433"),
        ("host=a,b port=5433 dbname=d", "5433"),
    ],
)
def test_hosts_and_ports_stay_and_a_primary_is_asked_for(url: str, ports: str | None) -> None:
    completed = conninfo.conninfo_to_dict(complete_url(url))
    assert completed.get("port") == ports
    assert completed["target_session_attrs"] == "primary"
    given = conninfo.make_conninfo(url, target_session_attrs="any", connect_timeout="1")
    completed = conninfo.conninfo_to_dict(complete_url(given))
    assert (completed["target_session_attrs"], completed["connect_timeout"]) == ("any", "1")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u@a:notaport/d",
        "postgresql://u@a:0/d",
        "postgresql://u@a:65536/d",
        "postgresql://u@a:5432,b:-1/d",
        "host=a port=54x",
        "postgresql://u@[::1/d",
        "nonsense",
    ],
)
def test_what_no_server_can_have_is_refused_before_any_is_asked(url: str) -> None:
    with pytest.raises(ValueError, match="the database URL cannot be read"):
        complete_url(url)


# The order of servers

SERVER = DatabaseServer(b"s" * 16, 7_000, 2, (40, 9), "a:1", "100.5")


@pytest.mark.parametrize(
    ("system", "timeline", "holds", "refused"),
    [
        (7_000, 1, True, "a:1 is on timeline 1, and this node has seen timeline 2"),
        (7_000, 1, False, "a:1 is on timeline 1, and this node has seen timeline 2"),
        (7_000, 2, True, None),
        (7_000, 2, False, "a:1 lacks commit 40"),
        # A promotion that lost commits: which, the feed says.
        (7_000, 3, False, None),
        # Another cluster, or one that does not say: only commits tell.
        (8_000, 1, True, None),
        (8_000, 9, False, "a:1 lacks commit 40"),
        (0, 0, True, None),
        (0, 0, False, "a:1 lacks commit 40"),
    ],
)
def test_a_server_is_judged_by_what_was_seen(
    system: int, timeline: int, *, holds: bool, refused: str | None
) -> None:
    found = refusal(replace(SERVER, system=system, timeline=timeline), SERVER, holds=holds)
    assert (found or "").startswith(refused or "")
    assert (found is None) == (refused is None)
    other = replace(SERVER, store_id=b"t" * 16, system=system, timeline=timeline)
    assert "holds another store" in (refusal(other, SERVER, holds=holds) or "")


@pytest.mark.parametrize(
    ("timeline", "holds", "stored", "newer"),
    [
        (3, False, False, True),
        (1, True, False, False),
        (2, True, False, True),
        (2, False, True, False),
        (2, True, True, False),
        (2, False, False, False),
        (0, True, False, True),
        (0, False, False, False),
    ],
)
def test_the_higher_timeline_is_newer_and_then_who_holds_more(
    timeline: int, *, holds: bool, stored: bool, newer: bool
) -> None:
    one = replace(SERVER, timeline=timeline)
    is_behind = refusal(one, SERVER, holds=holds)
    assert (refusal(SERVER, one, holds=stored) is not None and is_behind is None) == newer


@pytest.mark.parametrize(
    ("url", "labels"),
    [
        ("postgresql://u@a:1,b:2/d", ["a:1", "b:2"]),
        ("postgresql://u@a,b:2/d", ["a", "b:2"]),
        ("host=a,b port=3 dbname=d", ["a:3", "b:3"]),
        ("host=a,a hostaddr=::1,127.0.0.1 dbname=d", ["::1", "127.0.0.1"]),
        ("hostaddr=127.0.0.1 dbname=d", ["127.0.0.1"]),
        ("dbname=d", ["the default host"]),
    ],
)
def test_hosts_are_taken_apart_and_put_together_in_another_order(
    url: str, labels: list[str]
) -> None:
    hosts = hosts_of(url)
    assert [label(each) for each in hosts] == labels
    assert [label(each) for each in hosts_of(with_hosts(url, hosts[::-1]))] == labels[::-1]
    assert [label(each) for each in hosts_of(with_hosts(url, hosts[:1]))] == labels[:1]


# Errors of the database

TCP = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '


def caused(cause: psycopg.Error) -> NoConnectionError:
    """Return the error of a connection that could not be made."""
    error = NoConnectionError()
    error.__cause__ = cause
    return error


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
        (NoConnectionError(), "no database connection became free", True),
        (caused(pg.InsufficientPrivilege()), "lacks a privilege", False),
        (caused(pg.TooManyConnections()), "no database connection became free", True),
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


# Statements

STORE = Path(__file__).parents[3] / "store"


def test_every_statement_is_used_and_every_used_one_is_there() -> None:
    sources = [*STORE.rglob("*.py"), *STORE.rglob("*.sql")]
    texts = [path.read_text("utf-8") for path in sources]
    used = {name for text in texts for name in re.findall(r"(?:\bSQL\.|<)(\w+\.\w+)", text)}
    stored = {(table, name) for table in vars(SQL) for name in getattr(SQL, table).names}
    assert {f"{table}.{name}" for table, name in stored} == used
    for table, name in stored:
        text = getattr(getattr(SQL, table), name)
        assert text
        assert not re.search(r"--|<\w+\.\w+>|^\s|\s$", text)
