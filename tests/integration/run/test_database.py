"""The database of a node: refused, awaited, lost and found again."""

from __future__ import annotations

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
from tests.support.ports import ReservedPort
from tests.support.postgres import PostgresServer, copy_cluster

SERVING = HealthCheckResponse.SERVING
NOT_SERVING = HealthCheckResponse.NOT_SERVING


def with_unused_host(url: str, unused: ReservedPort) -> str:
    """Return a URL whose first address refuses connections."""
    credentials, _, rest = url.rpartition("@")
    return f"{credentials}@{unused.address},{rest}"


def test_a_database_that_cannot_be_used_is_named_at_the_start(
    tmp_path: Path, postgres: PostgresServer, empty_database_url: str
) -> None:
    unused, missing = ReservedPort(), postgres.url("no_such_database")
    host = missing.rpartition("@")[2].partition("/")[0]
    absent = 'FATAL:  database "no_such_database" does not'
    cases: list[tuple[str, str, int, list[str]]] = [
        (empty_database_url, "1h", 1, ["create it with `storenode db upgrade`"]),
        (
            f"postgresql://u:hunter2@{unused.address}/d",
            "400ms",
            3,
            [f"at 127.0.0.1 port {unused.number} could not be reached", "Connection refused"],
        ),
        # What waiting does not mend is not waited for.
        (missing, "1h", 3, ['database "no_such_database" does not exist']),
        # A server's word comes first.
        (
            with_unused_host(missing, unused),
            "400ms",
            3,
            [f"{host}: {absent}", f"{unused.address}: Connection refused"],
        ),
    ]
    for url, timeout, code, words in cases:
        ended = run_to_end(tmp_path / "data", "--start-timeout", timeout, database_url=url)
        assert (ended.code, ended.output) == (code, ""), ended
        places = [ended.sentence.find(each) for each in words]
        assert -1 not in places, ended.sentence
        assert places == sorted(places), ended.sentence
        assert "hunter2" not in ended.log


def test_a_node_with_time_tries_again_and_another_host(tmp_path: Path, database_url: str) -> None:
    unused = ReservedPort()
    url = f"postgresql://u@{unused.address}/d"
    node = NodeProcess(tmp_path / "patient", ("--start-timeout", "1h"), url)
    node.launch()
    try:
        eventually(lambda: node.log().count("database_not_reached") > 1)
        assert node.terminate() == 0
    finally:
        node.kill()
    other = with_unused_host(database_url, unused)
    with running_node(tmp_path / "data", database_url=other) as node:
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


def lines_of(node: NodeProcess, event: str) -> list[str]:
    return [line for line in node.log().splitlines() if f"database_{event}" in line]


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
            eventually(lambda: [line for line in lines_of(node, "still_away") if "refused" in line])
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
        assert [len(lines_of(node, event)) for event in ("away", "back")] == [1, 1]
        assert "psycopg.pool" not in outage
    finally:
        server.stop()
