"""The metrics listener of a running node: metrics, probes, the status page, its limits."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import psycopg
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse
from prometheus_client.parser import text_string_to_metric_families
from psycopg import sql

from chaos.ports import ReservedPort
from store.db.migrate import upgrade
from store.observe.http import MAX_HTTP_HEAD_BYTES, MAX_UNFINISHED_REQUESTS
from store.observe.problems import RUNBOOKS
from tests.integration.run.helpers import TIMEOUT_S, get, raw_exchange, watch_health
from tests.support.command import Command
from tests.support.fleet import await_status, made, publish
from tests.support.node import NodeProcess, running_node
from tests.support.polling import eventually
from tests.support.postgres import PostgresServer, copy_cluster

HOUR_S = 3_600
FILES = {
    "/status": "text/html; charset=utf-8",
    "/status.css": "text/css; charset=utf-8",
    "/status.js": "text/javascript; charset=utf-8",
    "/status.svg": "image/svg+xml",
    "/status.json": "application/json",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    data = copy_cluster(tmp_path_factory.mktemp("node") / "data")
    with running_node(data, "--metrics-allow-host", "Watch.Example") as node:
        yield node


def status(address: str) -> dict[str, Any]:
    code, text = get(address, "/status.json")
    assert code == 200
    found: dict[str, Any] = json.loads(text)
    return found


def wait_for(address: str, right: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return the first answer that is right."""

    def look() -> dict[str, Any] | None:
        found = status(address)
        return found if right(found) else None

    return eventually(look)


def holds(found: dict[str, Any], messages: int) -> bool:
    """Return True if ``messages`` are shown; null stands for what was not read in time."""
    if not found["held"] or not found["history"]:
        return False
    return bool(found["status"]["messages"] >= messages <= sum(found["history"]["hours"]))


def test_it_shows_the_stored_messages_and_their_times(node: NodeProcess) -> None:
    now_ns = time.time_ns()
    asyncio.run(publish(node, made(40, now_ns, span_s=5)))
    found = wait_for(
        node.metrics,
        lambda it: (
            holds(it, 40) and "messages" in (it["tables"] or {"partitions": ()})["partitions"]
        ),
    )
    state = found["status"]
    assert (state["ready"], state["unready"]) == (True, "")
    assert state["node_id"] == node.ready["node_id"]
    assert abs(state["newest_timestamp"] - now_ns) <= 10**9
    history = found["history"]
    assert history["complete"]
    start, hours = history["hours_start"], history["hours"]
    assert len(hours) == 720
    filled = {start + place * HOUR_S for place, count in enumerate(hours) if count}
    assert filled <= {(now_ns // 10**9 - back) // HOUR_S * HOUR_S for back in range(7)}
    assert sum(hours) == state["messages"]
    assert found["tables"]["partitions"]["messages"] >= 1
    assert not state["database"]["archived"]
    assert (state["peers"], found["calls"], state["resume"]) == ([], {}, None)
    assert state["gossip"] == {"unread": 0, "oldest_unread": 0, "waiting": 0, "peers": []}


@pytest.mark.parametrize("path", FILES)
def test_a_browser_may_do_with_it_only_what_it_must(node: NodeProcess, path: str) -> None:
    with closing(HTTPConnection(node.metrics, timeout=TIMEOUT_S)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.getheader("Content-Type") == FILES[path]
        policy = answer.getheader("Content-Security-Policy", "")
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        assert answer.getheader("Cross-Origin-Resource-Policy") == "same-origin"
        assert answer.getheader("Set-Cookie") is None
        assert answer.getheader("Access-Control-Allow-Origin") is None
        body = answer.read().decode()
    elsewhere = body.replace("http://www.w3.org/2000/svg", "").replace(RUNBOOKS, "")
    assert "://" not in elsewhere
    assert get(node.metrics, path, "HEAD") == (200, "")
    assert get(node.metrics, path, "POST")[0] == 405


def test_the_root_leads_to_it_and_no_other_file_is_served(node: NodeProcess) -> None:
    answer = raw_exchange(node.metrics, b"GET / HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 302 ")
    assert b"\r\nLocation: /status\r\n" in answer
    for path in ("/status.html", "/status/", "/status/../page.py", "/page.py", "/web/status.js"):
        assert get(node.metrics, path)[0] == 404


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


def test_a_node_without_its_database_shows_what_it_last_knew_and_waits_for_it(
    tmp_path: Path,
) -> None:
    server = PostgresServer(tmp_path / "postgres")
    server.start()
    try:
        name = server.create_database()
        url = server.url(name)
        upgrade(url)
        url = f"{url}{'&' if '?' in url else '?'}application_name=hunter2"
        with (
            running_node(tmp_path / "data", database_url=url) as node,
            grpc.insecure_channel(node.listen) as channel,
        ):
            asyncio.run(publish(node, made(5, time.time_ns(), span_s=5)))
            wait_for(node.metrics, lambda it: holds(it, 5))
            assert "messages  5" in Command.of(node).ok("status").lines
            states = watch_health(channel)
            assert next(states) == HealthCheckResponse.SERVING
            allow_connections(server, name, allowed=False)
            assert next(states) == HealthCheckResponse.NOT_SERVING
            found = wait_for(node.metrics, lambda it: not it["status"]["ready"])
            assert found["status"]["unready"] == "the database does not answer"
            assert found["status"]["messages"] == 5
            assert sum(found["history"]["hours"]) == 5
            assert "hunter2" not in json.dumps(found)
            assert Command.of(node)("status", "--check").code == 1
            (problem,) = await_status(node, lambda it: it.problems).problems
            assert (problem.name, problem.critical) == ("database-unreachable", True)
            checked = Command.of(node)("status", "--check")
            assert (checked.code, len(checked.lines)) == (1, 1)
            assert checked.lines[0].startswith("CRITICAL database-unreachable: ")
            assert {"ready     no", "messages  5"} <= {*Command.of(node).ok("status").lines}
            server.stop()
            # The log follows the cause: not accepting connections first, then no server at all.
            eventually(lambda: [line for line in lines_of(node, "away") if "refused" in line])
            assert get(node.metrics, "/readyz") == (
                503,
                "not ready: the database does not answer\n",
            )
            assert get(node.metrics, "/healthz") == (200, "alive\n")
            assert "storenode_ready 0.0" in get(node.metrics, "/metrics")[1]
            server.start()
            allow_connections(server, name, allowed=True)
            assert next(states) == HealthCheckResponse.SERVING
            well = await_status(node, lambda it: it.ready and not it.problems)
            shown = wait_for(node.metrics, lambda it: it["held"]["age_s"] < 5)
            assert shown["status"]["revision"] >= well.revision
            assert node.terminate() == 0
        reasons = [json.loads(line)["reason"] for line in lines_of(node, "away")]
        assert all(one != other for one, other in pairwise(reasons))
        assert len(lines_of(node, "back")) == 1
    finally:
        server.stop()


def test_a_node_that_starts_is_alive_says_so_and_can_be_stopped(tmp_path: Path) -> None:
    port = ReservedPort()
    metrics = port.address
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://u:hunter2@127.0.0.1:{silent.getsockname()[1]}/d"
        node = NodeProcess(tmp_path / "data", ("--metrics-listen", metrics), url)
        node.launch()
        try:
            silent.settimeout(TIMEOUT_S)
            connection, _ = silent.accept()
            assert get(metrics, "/healthz") == (200, "alive\n")
            assert get(metrics, "/readyz") == (503, "not ready: the node is starting\n")
            assert "storenode_ready 0.0" in get(metrics, "/metrics")[1]
            found = status(metrics)
            state = found["status"]
            assert (state["ready"], state["unready"]) == (False, "the node is starting")
            assert (found["held"], found["history"], state["peers"]) == (None, None, [])
            node.signal(signal.SIGTERM)
            connection.close()
            assert node.wait() == 0
        finally:
            node.kill()
    assert "hunter2" not in node.log()


def asked(address: str, path: str, *headers: str) -> tuple[int, bytes]:
    """Return status and body of a request with nothing but these headers."""
    request = "\r\n".join((f"GET {path} HTTP/1.1", *headers, "", ""))
    head, _, body = raw_exchange(address, request.encode()).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def test_a_browser_is_answered_by_own_names_alone_and_a_scraper_by_any(node: NodeProcess) -> None:
    """Check what DNS rebinding meets: no page can leave out ``Accept-Language``."""
    browser = "Accept-Language: en"
    for host in ("rebound.example", "rebound.example:7422", "127.0.0.1.example", "", "node-a"):
        for path in ("/", "/status", "/status.json?x", "/status.js", "/nothing"):
            code, body = asked(node.metrics, path, f"Host: {host}")
            assert (code, b"--metrics-allow-host" in body) == (421, True), path
        for path in ("/metrics", "/metrics?x", "/healthz", "/readyz"):
            assert asked(node.metrics, path, f"Host: {host}")[0] == 200
            assert asked(node.metrics, path, f"host: {host}", browser)[0] == 421
    assert asked(node.metrics, "/status.json")[0] == 200, "browsers send a name"
    for host in ("127.0.0.1", "[::1]:7422", "localhost:1", "a.localhost", "watch.example:7422"):
        for path in ("/status", "/status.json", "/metrics", "/readyz"):
            assert asked(node.metrics, path, f"Host: {host}", browser)[0] == 200


OF_THE_CONTRACT = {
    "storenode_messages_stored",
    "storenode_messages_rejected",
    "storenode_messages",
    "storenode_query_seconds",
    "storenode_publish_batch_seconds",
    "storenode_index_entries",
    "storenode_oldest_timestamp_seconds",
    "storenode_sync_sessions",
    "storenode_sync_round_trips",
    "storenode_sync_bytes",
    "storenode_sync_differences",
    "storenode_transfer_messages",
    "storenode_peer_last_sync_timestamp_seconds",
    "storenode_unread_events",
}


def test_the_metrics_of_the_contract_are_there_and_can_be_parsed(node: NodeProcess) -> None:
    status, text = get(node.metrics, "/metrics")
    assert status == 200
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families.keys() >= OF_THE_CONTRACT
    sources = {
        sample.labels.get("source") for sample in families["storenode_messages_stored"].samples
    }
    assert sources == {"client", "transfer", "gossip", "resume", "restore", "relay", "nwaku"}
    assert families["storenode_ready"].samples[0].value == 1
    assert families["storenode_database_up"].samples[0].value == 1
    assert get(node.metrics, "/readyz?verbose=1") == (200, "ready\n")
    assert get(node.metrics, "/readyz", "HEAD") == (200, "")


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [
        (b"GET /elsewhere HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 "),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 "),
        (b"GET /metrics\r\n\r\n", b"HTTP/1.1 400 "),
        (b"\x00\xff\r\n\r\n", b"HTTP/1.1 400 "),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /" + b"a" * MAX_HTTP_HEAD_BYTES + b" HTTP/1.1\r\n\r\n", b"HTTP/1.1 431 "),
    ],
)
def test_other_requests_get_a_clear_status(
    node: NodeProcess, request_bytes: bytes, expected: bytes
) -> None:
    answer = raw_exchange(node.metrics, request_bytes)
    assert answer.startswith(expected)
    assert b"Connection: close" in answer


def test_half_sent_requests_keep_no_probe_out(node: NodeProcess) -> None:
    host, port = node.metrics.rsplit(":", 1)
    with ExitStack() as stack:
        for number in range(3 * MAX_UNFINISHED_REQUESTS):
            half = stack.enter_context(socket.create_connection((host, int(port))))
            half.sendall(b"GET /metrics HTTP/1.1\r\n")
            if number == 0:
                first = half
            if number % 64 == 0:
                assert get(node.metrics, "/healthz") == (200, "alive\n")
                assert get(node.metrics, "/readyz") == (200, "ready\n")
        first.settimeout(TIMEOUT_S)
        with suppress(ConnectionResetError):
            assert first.recv(1) == b"", "the oldest made room"
        assert get(node.metrics, "/metrics")[0] == 200
        half.settimeout(TIMEOUT_S)
        with suppress(ConnectionResetError):
            assert half.recv(1) == b"", "a request must be complete within seconds"
