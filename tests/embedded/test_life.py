"""Start, use, stop: what a node sees of its server."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg
import pytest

from store.embedded import (
    EmbeddedPostgres,
    EmbeddedPostgresError,
    EmbeddedSettings,
    binaries,
    running_url,
)
from tests.embedded.helpers import AS_ROOT, Events, copy_owned, insert, node, values

SETTINGS: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "data_checksums": "on",
    "server_encoding": "UTF8",
    "timezone": "UTC",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "33",
    "work_mem": "9MB",
}
FOREIGN_VARIABLES: Final = {
    "PGSSLMODE": "require",
    "PGHOSTADDR": "203.0.113.7",
    "PGSERVICE": "no-such-service",
    "PGOPTIONS": "-c no_such_setting=1",
    "PGREQUIREAUTH": "none",
}
"""Variables of libpq, which are meant for other servers."""


Served = tuple[EmbeddedPostgres, Path]
"""A running server and its data directory."""


def _one(url: str, query: str) -> tuple[object, ...]:
    with psycopg.connect(url) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return tuple(row)


def test_a_new_directory_becomes_a_database_that_stays(tmp_path: Path, made_once: Path) -> None:
    events = Events()
    server = EmbeddedPostgres(EmbeddedSettings(tmp_path / "deep" / "data"), events)
    url = server.start()
    assert url == server.url == server.start()
    assert f"@127.0.0.1:{server.port}/storenode" in url
    other = json.loads((made_once / "postgres.json").read_text())
    assert other["password"] not in url
    insert(url, 7)
    server.stop()
    assert server.pid is None
    assert server.port is None
    assert values(server.start()) == [7]
    server.stop()
    server.stop()
    assert events.names() == ["initialised", "started", "stopped", "started", "stopped"]


@pytest.fixture(scope="module")
def served(made_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Yield a server with settings of its own, whose process has variables of libpq."""
    data_dir = tmp_path_factory.mktemp("served") / "data"
    copy_owned(made_once, data_dir)
    settings = EmbeddedSettings(data_dir, extra={"max_connections": "33", "work_mem": "9MB"})
    with pytest.MonkeyPatch.context() as patch:
        for name, value in FOREIGN_VARIABLES.items():
            patch.setenv(name, value)
        with EmbeddedPostgres(settings) as server:
            yield server, data_dir


def test_the_settings_are_those_of_a_durable_store(served: Served) -> None:
    server, _ = served
    query = "select " + ", ".join(f"current_setting('{name}')" for name in SETTINGS)
    assert _one(server.url, query) == (*SETTINGS.values(),)
    assert _one(server.url, "show server_version") == (server.version,)
    collation = "select datcollate from pg_database where datname='storenode'"
    assert _one(server.url, collation) == ("C",)
    (compression,) = _one(server.url, "show wal_compression")
    assert compression in {"lz4", "off"}


def test_the_role_owns_its_database_and_nothing_else(served: Served) -> None:
    url = served[0].url
    rights = "rolsuper or rolcreaterole or rolcreatedb or rolreplication"
    asked = f"select {rights} from pg_roles where rolname = current_user"
    owner = "select pg_get_userbyid(datdba) from pg_database where datname = current_database()"
    assert _one(url, asked) == (False,)
    assert _one(url, owner) == ("storenode",)
    with psycopg.connect(url) as connection:
        connection.execute("create schema own")
        connection.execute("listen own")


@pytest.mark.parametrize(
    "wrong",
    [
        {"password": "wrong"},
        {"password": None},
        {"dbname": "postgres"},
        {"user": "postgres"},
        {"user": "postgres", "password": None, "dbname": "postgres"},
    ],
)
def test_no_other_account_gets_in(served: Served, wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(served[0].url)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(**{**right, **wrong})


def test_secrets_files_and_the_process_are_for_their_owner_alone(served: Served) -> None:
    server, data_dir = served
    assert server.pid is not None
    password = str(psycopg.conninfo.conninfo_to_dict(server.url)["password"])
    process = psutil.Process(server.pid)
    assert password not in " ".join(process.cmdline())
    assert password not in (data_dir / "postgres.log").read_text()
    for path in data_dir.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    uid = process.uids().effective
    if AS_ROOT and binaries.find_nss_wrapper() is not None:
        others = {each.pid for each in psutil.process_iter() if each.uids().effective == uid}
        assert uid in binaries.UNUSED_IDS
        assert others <= {each.pid for each in (process, *process.children(recursive=True))}
    assert (data_dir / "postgres").stat().st_uid == uid != (0 if AS_ROOT else -1)
    assert (data_dir / "postgres.json").stat().st_uid == os.geteuid()


def test_a_start_mends_what_a_crash_or_an_operator_left(data_dir: Path) -> None:
    half = data_dir / "postgres.new-half" / "cluster"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    (data_dir / "postgres.json-half").write_text("{")
    (data_dir / "postgres.json").unlink()  # the password is lost
    data_dir.chmod(0o777)
    with EmbeddedPostgres(EmbeddedSettings(data_dir)) as server:
        assert values(server.url) == [1]
    assert not [*data_dir.glob("*half")]
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o775


def test_another_process_finds_the_running_server(data_dir: Path) -> None:
    assert running_url(data_dir / "nothing") is None
    assert running_url(data_dir) is None
    with node(data_dir) as running:
        assert running_url(data_dir) == running.said["url"]
        assert values(running.said["url"]) == [1]
        assert running.stop() == 0
    assert running_url(data_dir) is None


def test_stopping_waits_for_no_client_and_no_listener(data_dir: Path) -> None:
    def fail(name: str, _fields: object) -> None:
        raise ValueError(name)

    server = EmbeddedPostgres(EmbeddedSettings(data_dir, stop_timeout_s=20), fail)
    with pytest.raises(EmbeddedPostgresError, match=r"was not started: call start\(\)"):
        _ = server.url
    with psycopg.connect(server.start()) as connection:
        connection.execute("select 1")
        server.stop()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
