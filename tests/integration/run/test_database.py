"""The database of a node: refused, awaited, lost and found again."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import grpc
import psutil
import psycopg
from grpc_health.v1.health_pb2 import HealthCheckResponse
from psycopg import sql

from store.db.migrate import upgrade
from tests.integration.run.helpers import get, run_to_end, watch_health
from tests.support.node import NodeProcess, running_node
from tests.support.polling import eventually
from tests.support.ports import HeldPort
from tests.support.postgres import PostgresServer, copy_cluster

SERVING = HealthCheckResponse.SERVING
NOT_SERVING = HealthCheckResponse.NOT_SERVING


def test_a_database_without_the_schema_is_refused(tmp_path: Path, empty_database_url: str) -> None:
    ended = run_to_end(tmp_path / "data", database_url=empty_database_url)
    assert ended.code == 1
    assert "run `storenode db upgrade`" in ended.sentence.replace("create it with", "run")
    assert ended.output == ""


def test_an_unreachable_database_ends_the_start_with_code_3(tmp_path: Path) -> None:
    unused = HeldPort()
    url = f"postgresql://u:hunter2@{unused.address}/d"
    ended = run_to_end(tmp_path / "data", "--start-timeout", "400ms", database_url=url)
    assert ended.code == 3
    assert ended.sentence.startswith(
        f"storenode: The database at 127.0.0.1 port {unused.number} could not be reached"
    )
    assert "Connection refused" in ended.sentence
    assert "hunter2" not in ended.log
    # With time for more than one attempt it makes another.
    node = NodeProcess(tmp_path / "patient", ("--start-timeout", "1h"), url)
    node.launch()
    try:
        eventually(lambda: node.log().count("database_not_reached") > 1)
        assert node.terminate() == 0
    finally:
        node.kill()


def test_what_waiting_does_not_mend_is_not_waited_for(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    ended = run_to_end(
        tmp_path / "data", "--start-timeout", "1h", database_url=postgres.url("no_such_database")
    )
    assert ended.code == 3
    assert 'database "no_such_database" does not exist' in ended.sentence


def test_of_several_hosts_each_says_what_is_wrong_and_a_servers_word_comes_first(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    unused = HeldPort()
    credentials, _, rest = postgres.url("no_such_database").rpartition("@")
    host_port, _, database = rest.partition("/")
    url = f"{credentials}@{unused.address},{host_port}/{database}"
    ended = run_to_end(tmp_path / "data", "--start-timeout", "400ms", database_url=url)
    assert ended.code == 3
    server = ended.sentence.index(f'{host_port}: FATAL:  database "no_such_database" does not')
    assert server < ended.sentence.index(f"{unused.address}: Connection refused")


def test_two_nodes_share_a_database_and_try_several_hosts(
    tmp_path: Path, database_url: str
) -> None:
    unused = HeldPort()
    credentials, _, rest = database_url.rpartition("@")
    host_port, _, database = rest.partition("/")
    url = f"{credentials}@{unused.address},{host_port}/{database}"
    with (
        running_node(tmp_path / "a", database_url=database_url) as one,
        running_node(tmp_path / "b", database_url=url) as two,
    ):
        assert one.ready["node_id"] != two.ready["node_id"]
        for node in (one, two):
            assert get(node.metrics, "/readyz") == (200, "ready\n")


def test_a_node_outlives_its_embedded_server(tmp_path: Path) -> None:
    with (
        running_node(copy_cluster(tmp_path / "data")) as node,
        grpc.insecure_channel(node.listen) as channel,
    ):
        states = watch_health(channel)
        assert next(states) == SERVING
        (server,) = [
            child
            for child in psutil.Process(node.process.pid).children()
            if child.name().startswith("postgres")
        ]
        server.send_signal(signal.SIGKILL)
        assert next(states) == NOT_SERVING
        assert next(states) == SERVING
        assert get(node.metrics, "/readyz") == (200, "ready\n")
        # It may have been reached again before it is told that it was started again.
        for event in ("postgres_restarted", "away"):
            counted = f'storenode_database_events_total{{event="{event}"}} 1.0'
            eventually(lambda line=counted: line in get(node.metrics, "/metrics")[1])  # type: ignore[misc]
        assert node.terminate() == 0


def allow_connections(server: PostgresServer, name: str, *, allowed: bool) -> None:
    """Let a database accept connections again, or end those that it has and accept no more."""
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        allow = sql.SQL("alter database {} allow_connections {}")
        connection.execute(allow.format(sql.Identifier(name), sql.Literal(allowed)))
        if not allowed:
            end = "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s"
            connection.execute(end, [name])


def test_a_node_waits_for_an_external_server_to_come_back(tmp_path: Path) -> None:
    server = PostgresServer(tmp_path / "postgres")
    server.start()
    try:
        name = server.create_database()
        url = server.url(name)
        upgrade(url)
        with (
            running_node(tmp_path / "data", database_url=url) as node,
            grpc.insecure_channel(node.listen) as channel,
        ):
            states = watch_health(channel)
            assert next(states) == SERVING
            allow_connections(server, name, allowed=False)
            assert next(states) == NOT_SERVING
            server.stop()
            # The log follows the cause: not accepting connections first, then no server at all.
            eventually(lambda: re.search(r"refused.*database_still_away", node.log()))
            assert get(node.metrics, "/readyz") == (
                503,
                "not ready: the database does not answer\n",
            )
            assert get(node.metrics, "/healthz") == (200, "alive\n")
            assert "storenode_ready 0.0" in get(node.metrics, "/metrics")[1]
            server.start()
            allow_connections(server, name, allowed=True)
            assert next(states) == SERVING
            assert node.terminate() == 0
        outage = node.log()
        assert outage.count("database_away") == outage.count("database_back") == 1
        assert "psycopg.pool" not in outage
    finally:
        server.stop()
