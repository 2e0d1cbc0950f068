"""The metrics listener of a running node."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families

from store.observe.http import MAX_HTTP_HEAD_BYTES, MAX_UNFINISHED_REQUESTS
from tests.integration.run.helpers import TIMEOUT_S, get, raw_exchange
from tests.support.node import NodeProcess, running_node
from tests.support.postgres import copy_cluster

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


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running_node(copy_cluster(tmp_path_factory.mktemp("node") / "data")) as node:
        yield node


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
