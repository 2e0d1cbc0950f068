"""Start, use, stop: what a node sees of its server."""

import asyncio
import json
import socket
import stat
from pathlib import Path
from typing import Any

import psycopg
import pytest

from store.embedded import (
    EmbeddedPostgres,
    EmbeddedPostgresError,
    EmbeddedSettings,
    running_url,
)
from tests.embedded.helpers import AS_ROOT, Events, insert, node, reserve_port, values


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


def test_the_settings_are_those_of_a_durable_store(data_dir: Path) -> None:
    wanted = {
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
    settings = EmbeddedSettings(data_dir, extra={"max_connections": "33", "work_mem": "9MB"})
    with EmbeddedPostgres(settings) as server:
        query = "select " + ", ".join(f"current_setting('{name}')" for name in wanted)
        assert _one(server.url, query) == (*wanted.values(),)
        assert _one(server.url, "show server_version") == (server.version,)
        collation = "select datcollate from pg_database where datname='storenode'"
        assert _one(server.url, collation) == ("C",)
        (compression,) = _one(server.url, "show wal_compression")
        assert compression in {"lz4", "off"}


def test_the_role_owns_its_database_and_nothing_else(data_dir: Path) -> None:
    rights = "rolsuper or rolcreaterole or rolcreatedb or rolreplication"
    owner = "select pg_get_userbyid(datdba) from pg_database where datname = current_database()"
    with EmbeddedPostgres(EmbeddedSettings(data_dir)) as server:
        asked = f"select {rights} from pg_roles where rolname = current_user"
        assert _one(server.url, asked) == (False,)
        assert _one(server.url, owner) == ("storenode",)
        insert(server.url, 2)
        with psycopg.connect(server.url) as connection:
            connection.execute("create schema own")
            connection.execute("listen own")


def test_no_other_account_gets_in(data_dir: Path) -> None:
    with EmbeddedPostgres(EmbeddedSettings(data_dir)) as server:
        right: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(server.url)
        wrongs: tuple[dict[str, Any], ...] = (
            {"password": "wrong"},
            {"password": None},
            {"dbname": "postgres"},
            {"user": "postgres"},
            {"user": "postgres", "password": None, "dbname": "postgres"},
        )
        for wrong in wrongs:
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(**{**right, **wrong})


def test_secrets_and_files_are_for_their_owner_alone(data_dir: Path) -> None:
    with EmbeddedPostgres(EmbeddedSettings(data_dir)) as server:
        command_line = Path(f"/proc/{server.pid}/cmdline")
        password = str(psycopg.conninfo.conninfo_to_dict(server.url)["password"])
        if command_line.exists():
            assert password not in command_line.read_text()
        assert password not in (data_dir / "postgres.log").read_text()
    for path in data_dir.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    if AS_ROOT:
        assert (data_dir / "postgres").stat().st_uid != 0
        assert (data_dir / "postgres.json").stat().st_uid == 0


def test_a_lost_password_is_replaced(data_dir: Path) -> None:
    (data_dir / "postgres.json").unlink()
    with EmbeddedPostgres(EmbeddedSettings(data_dir)) as server:
        assert values(server.url) == [1]


def test_another_process_finds_the_running_server(data_dir: Path) -> None:
    assert running_url(data_dir / "nothing") is None
    assert running_url(data_dir) is None
    with node(data_dir) as running:
        assert running_url(data_dir) == running.said["url"]
        assert values(running.said["url"]) == [1]
        assert running.stop() == 0
    assert running_url(data_dir) is None


async def test_an_event_loop_starts_and_stops_it(data_dir: Path) -> None:
    server = EmbeddedPostgres(EmbeddedSettings(data_dir))
    url = await asyncio.to_thread(server.start)
    async with await psycopg.AsyncConnection.connect(url) as connection:
        cursor = await connection.execute("select value from kept")
        assert await cursor.fetchall() == [(1,)]
    await asyncio.to_thread(server.stop)
    with pytest.raises(EmbeddedPostgresError, match=r"was not started: call start\(\)"):
        _ = server.url


def test_stopping_does_not_wait_for_clients(data_dir: Path) -> None:
    server = EmbeddedPostgres(EmbeddedSettings(data_dir, stop_timeout_s=20))
    with psycopg.connect(server.start()) as connection:
        connection.execute("select 1")
        server.stop()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")


def test_a_listener_that_fails_does_not_take_the_server_with_it(data_dir: Path) -> None:
    def fail(name: str, _fields: object) -> None:
        raise ValueError(name)

    with EmbeddedPostgres(EmbeddedSettings(data_dir), fail) as server:
        assert values(server.url) == [1]


def test_the_port_stays_from_run_to_run_unless_it_is_taken(data_dir: Path) -> None:
    last, port = data_dir / "postgres.json", reserve_port(data_dir)
    for _ in range(2):
        with EmbeddedPostgres(EmbeddedSettings(data_dir)) as server:
            assert server.port == port.number
    with (
        socket.create_server(("127.0.0.1", port.number)),
        EmbeddedPostgres(EmbeddedSettings(data_dir)) as server,
    ):
        assert server.port != port.number
        assert json.loads(last.read_text())["port"] == server.port
        assert values(server.url) == [1]
