"""Callers that send nothing, read nothing, vanish, or are there when the node restarts."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import httpx
import pytest

from tests.integration.http.api import TIMEOUT_S, Api, message
from tests.integration.http.conftest import HTTP
from tests.integration.run.helpers import sampled
from tests.support.node import NodeProcess, running_node
from tests.support.polling import eventually

CONNECTIONS: Final = 8
LARGE_BYTES: Final = 100 * 1024
LARGE: Final = 160
"""A size above what the kernel buffers for a connection."""

STALLED: Final = 7
"""The number of stalled readers that take all of the memory, which is for six pages."""

TOPIC: Final = "/bounds/1/large/proto"


@pytest.fixture(scope="module")
def node(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
) -> Iterator[NodeProcess]:
    """Yield a node with few connections and little memory for answers, and large messages."""
    directory = tmp_path_factory.mktemp("bounds") / "node"
    few = ("--max-connections", str(CONNECTIONS), "--max-unsent-size", "2MiB")
    with running_node(directory, *HTTP, *few, database_url=new_store()) as process:
        api = Api.of(process)
        for _ in range(LARGE // 20):
            api.publish(*(message(TOPIC, os.urandom(LARGE_BYTES)) for _ in range(20)))
        api.client.close()
        yield process


def connected(node: NodeProcess) -> socket.socket:
    """Return a connection whose kernel holds little for a caller that does not read."""
    host, _, port = node.http.rpartition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.settimeout(TIMEOUT_S)
    connection.connect((host, int(port)))
    return connection


def count(node: NodeProcess, name: str) -> float:
    """Return the present value of a metric with its labels."""
    return sampled(node.metrics, f"{name} ")


def until(node: NodeProcess, name: str, value: float) -> None:
    """Wait until a metric has a value."""
    eventually(lambda: count(node, name) == value)


def ended(connection: socket.socket) -> bytes:
    """Return what comes until the node closes the connection."""
    parts = []
    try:
        while part := connection.recv(1 << 20):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def read(node: NodeProcess) -> int:
    """Read everything; how many messages there are."""
    with httpx.stream("GET", f"http://{node.http}/api/v1/scan", timeout=TIMEOUT_S) as answer:
        return sum("messageHash" in line for line in answer.iter_lines())


SCANS: Final = {
    "scan": b"GET /api/v1/scan HTTP/1.1\r\nhost: localhost\r\n\r\n",
    # include_data
    "connect_Scan": b"POST /storenode.v1.Store/Scan HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/connect+proto\r\ncontent-length: 7\r\n\r\n"
    b"\x00\x00\x00\x00\x02\x20\x01",
}


@pytest.mark.parametrize("operation", SCANS)
def test_who_reads_nothing_gives_way_to_who_reads(node: NodeProcess, operation: str) -> None:
    request = SCANS[operation]
    with ExitStack() as stack:
        stalled = [stack.enter_context(connected(node)) for _ in range(STALLED)]
        for each in stalled:
            each.sendall(request)
        # The status of its failure, which it was not sent: its answer had begun.
        broken = f'storenode_http_requests_total{{code="413",operation="{operation}"}}'
        while not count(node, broken):
            assert read(node) == LARGE
    until(node, "storenode_http_connections", 0)


def test_a_deadline_that_is_over_while_the_answer_leaves_breaks_it_off(node: NodeProcess) -> None:
    # include_data
    request = (
        b"POST /storenode.v1.Store/Query HTTP/1.1\r\nhost: localhost\r\n"
        b"connect-timeout-ms: 2000\r\n"
        b"content-type: application/proto\r\ncontent-length: 2\r\n\r\n\x10\x01"
    )
    with connected(node) as stalled:
        stalled.sendall(request)
        until(node, 'storenode_http_requests_total{code="408",operation="connect_Query"}', 1)


def test_connections_beyond_the_bound_and_those_that_send_nothing_are_closed(
    node: NodeProcess,
) -> None:
    refused = 'storenode_http_connections_refused_total{reason="%s"}'
    with ExitStack() as stack:
        follower = stack.enter_context(connected(node))
        follower.sendall(b"GET /api/v1/follow HTTP/1.1\r\nhost: localhost\r\n\r\n")
        waiting = [stack.enter_context(connected(node)) for _ in range(CONNECTIONS - 1)]
        until(node, "storenode_http_connections", CONNECTIONS)
        waiting[0].sendall(b"GET /api/v1/st")
        with connected(node) as one_more:
            assert ended(one_more) == b""
        assert count(node, refused % "full") == 1
        assert [ended(each) for each in waiting] == [b""] * len(waiting)
        # A reader that is silent because nothing is published is marked so, and stays.
        received = b""
        while b": still here" not in received:
            received += follower.recv(4_096)
    assert count(node, refused % "slow") == len(waiting)
    assert httpx.get(f"http://{node.http}/api/v1/status").status_code == 200


def test_a_follower_that_vanishes_leaves_nothing(node: NodeProcess) -> None:
    with httpx.stream("GET", f"http://{node.http}/api/v1/follow", timeout=TIMEOUT_S) as answer:
        lines = answer.iter_lines()
        assert "event: page" in lines
        assert count(node, "storenode_followers") == 1
    until(node, "storenode_followers", 0)
    until(node, "storenode_http_connections", 0)
