"""A node from its first start to its end, as an operator sees it, and its database."""

from __future__ import annotations

import json
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from chaos.ports import ReservedPort
from storenode.wire.storenode.v1.store_pb2 import PublishRequest, PublishResponse
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from tests.integration.run.helpers import (
    TIMEOUT_S,
    get,
    health_of,
    log_lines,
    occupied_port,
    run_to_end,
    watch_health,
)
from tests.support.credentials import token_file
from tests.support.node import NodeProcess, running_node
from tests.support.polling import eventually
from tests.support.postgres import PostgresServer, copy_cluster

SERVING = HealthCheckResponse.SERVING
NOT_SERVING = HealthCheckResponse.NOT_SERVING


def test_a_fresh_directory_gives_a_serving_node_that_ends_in_order(tmp_path: Path) -> None:
    with running_node(tmp_path / "data") as node:
        assert " ".join(node.ready) == "event listen peer admin metrics database node_id"
        assert node.ready["event"] == "ready"
        assert node.ready["database"] == "embedded"
        assert node.peer == node.listen
        for address in (node.listen, node.admin):
            with grpc.insecure_channel(address) as channel:
                assert health_of(channel) == SERVING
        children = psutil.Process(node.process.pid).children(recursive=True)
        assert any("postgres" in child.name() for child in children)
        node.signal(signal.SIGTERM)
        rest, _ = node.process.communicate(timeout=TIMEOUT_S)
    assert node.process.returncode == 0
    assert rest == b"", "standard output holds the ready line alone"
    assert psutil.wait_procs(children, timeout=TIMEOUT_S)[1] == []


def test_a_node_keeps_its_id_and_ends_by_either_signal(tmp_path: Path, database_url: str) -> None:
    data_dir = tmp_path / "data"
    with running_node(data_dir, database_url=database_url) as first:
        assert first.ready["database"] == "external"
        refused = run_to_end(data_dir, database_url=database_url)
        first.signal(signal.SIGTERM)
        assert first.wait() == 0
    (sentence,) = (line for line in refused.log.splitlines() if line.startswith("storenode: "))
    assert f"is in use by process {first.process.pid}" in sentence
    assert (refused.code, refused.output) == (1, "")
    own = (line for line in first.log().splitlines() if not line.startswith("storenode: "))
    lines = log_lines("\n".join(own))
    assert {"serving", "draining", "ended"} <= {line["event"] for line in lines}
    assert all({"timestamp", "level", "component"} <= line.keys() for line in lines)
    assert stat.S_IMODE((data_dir / "node-id").stat().st_mode) == 0o600
    options = ("--log-format", "text", "--drain-timeout", "300ms")
    with (
        running_node(data_dir, *options, database_url=database_url) as second,
        grpc.insecure_channel(second.listen) as channel,
        endless_publisher(channel) as call,
    ):
        assert second.ready["node_id"] == first.ready["node_id"]
        second.signal(signal.SIGINT)
        assert second.wait() == 0
        with pytest.raises(grpc.RpcError):
            next(call)
    with pytest.raises(json.JSONDecodeError):
        log_lines(second.log())


@pytest.mark.parametrize("option", ["--listen", "--metrics-listen"])
def test_a_port_in_use_is_named_with_its_option_before_a_database_is_made(
    tmp_path: Path, option: str
) -> None:
    with occupied_port() as address:
        ended = run_to_end(tmp_path / "data", option, address)
    assert not (tmp_path / "data/postgres").exists()
    assert ended.code == 1
    assert ended.sentence == (
        f"storenode: {option} {address} cannot be listened on (Address already in use): stop what"
        " uses it, or give another address."
    )


def test_probes_see_the_end_before_the_node_is_gone(tmp_path: Path, database_url: str) -> None:
    names = ("--listen", "--peer-listen", "--admin-listen", "--metrics-listen")
    options = [part for option in names for part in (option, "[::1]:0")]
    with (
        running_node(
            tmp_path / "data", *options, "--log-level", "error", database_url=database_url
        ) as node,
        grpc.insecure_channel(node.listen) as channel,
    ):
        assert node.listen != node.peer
        for address in (node.peer, node.admin):
            assert address.startswith("[::1]:")
            with grpc.insecure_channel(address) as other:
                assert health_of(other) == SERVING
        states = watch_health(channel)
        assert next(states) == SERVING
        node.signal(signal.SIGTERM)
        assert next(states) == NOT_SERVING
        with pytest.raises(grpc.RpcError) as ending:
            next(states)
        assert ending.value.code() is grpc.StatusCode.UNAVAILABLE
        assert node.wait() == 0
    assert node.log() == ""


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with (
        running_node(copy_cluster(tmp_path / "data"), "--drain-timeout", "1h") as node,
        grpc.insecure_channel(node.listen) as channel,
        endless_publisher(channel),
    ):
        states = watch_health(channel)
        assert next(states) == SERVING
        children = psutil.Process(node.process.pid).children(recursive=True)
        node.signal(signal.SIGTERM)
        assert next(states) == NOT_SERVING
        node.signal(signal.SIGTERM)
        assert node.wait() == 1
        assert psutil.wait_procs(children, timeout=TIMEOUT_S)[1] == [], "Postgres ends too"


STOPPED_WHILE_IMPORTED = """
import os, signal, sys
from storenode.cli.main import main
imports = {"store.runtime.node": signal.SIGTERM}
def stop(event, given):
    if event == "import" and given[0] in imports:
        os.kill(os.getpid(), imports.pop(given[0]))
sys.addaudithook(stop)
main(["run", "--data-dir", sys.argv[1], "--metrics-listen", "127.0.0.1:0"])
"""


def test_a_node_that_is_stopped_before_it_is_imported_ends_in_order(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STOPPED_WHILE_IMPORTED, str(copy_cluster(tmp_path / "data"))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert {"start_broken_off", "ended"} <= {line["event"] for line in log_lines(ended.stderr)}


def tokens_of(*names: str) -> str:
    """Return a token file of clients that may read."""
    return token_file(dict.fromkeys(names, 'rights = ["read"]'))


def admitted(channel: grpc.Channel, client: str) -> bool:
    """Return True if a call of a client is served, and not refused for its token."""
    metadata = (("authorization", f"Bearer token-of-{client}"),)
    call = StoreStub(channel).Query.future(StoreQueryRequest(), TIMEOUT_S, metadata)
    assert call.code() in (grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED)
    return bool(call.code() is grpc.StatusCode.OK)


def test_a_valid_token_is_served_and_a_revoked_one_is_not(
    tmp_path: Path, database_url: str
) -> None:
    """Change the file without a signal, and leave half of it there for a moment."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(tokens_of("kept", "revoked"))
    options = ("--client-token-file", str(tokens))
    with (
        running_node(tmp_path / "data", *options, database_url=database_url) as node,
        grpc.insecure_channel(node.listen) as channel,
    ):
        assert admitted(channel, "revoked")
        tokens.write_text(tokens_of("kept")[:30])
        tokens.write_text(tokens_of("kept"))

        def revoked() -> bool:
            assert admitted(channel, "kept")
            return not admitted(channel, "revoked")

        eventually(revoked)
        tokens.write_text(tokens_of("kept", "new"))
        node.signal(signal.SIGHUP)
        eventually(lambda: admitted(channel, "new"))
        assert "token_file_reloaded" in {line["event"] for line in log_lines(node.log())}


@contextmanager
def endless_publisher(channel: grpc.Channel) -> Iterator[Iterator[PublishResponse]]:
    """Begin a `PublishStream` that its client does not end within the block."""
    ends, requests = socket.socketpair()

    def endless() -> Iterator[PublishRequest]:
        yield PublishRequest()
        requests.recv(1)

    responses = iter(StoreStub(channel).PublishStream(endless()))
    assert next(responses) == PublishResponse()
    yield responses
    ends.close()
    requests.close()


def test_a_crash_leaves_the_stacks_in_the_log(tmp_path: Path, database_url: str) -> None:
    with running_node(tmp_path / "data", database_url=database_url) as node:
        node.process.send_signal(signal.SIGUSR1)
        eventually(lambda: "most recent call first" in node.log())
        # Its loop renders them: the stacks are written by now, and a second dump may begin.
        assert get(node.metrics, "/metrics")[0] == 200, "asked for its stacks, it goes on"
        node.process.send_signal(signal.SIGSEGV)
        assert node.wait() == -signal.SIGSEGV
        crash = node.log().partition("Fatal Python error: Segmentation fault")[2]
        assert "most recent call first" in crash
        assert "store/cli/run.py" in crash


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
            [f"at {unused.address} could not be reached", "Connection refused"],
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
