"""Running nodes that end by themselves, and asking nodes over plain HTTP and gRPC."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from tests.support.node import NodeProcess

TIMEOUT_S = 90.0


@dataclass(frozen=True)
class Ended:
    """The end of a node that was not meant to serve."""

    code: int
    output: str
    log: str

    @property
    def sentence(self) -> str:
        """The last line on standard error, which is for the operator."""
        return self.log.splitlines()[-1]


def run_to_end(data_dir: Path, *args: str, database_url: str | None = None, **env: str) -> Ended:
    """Start a node and wait for its end."""
    node = NodeProcess(data_dir, args, database_url, env)
    node.launch()
    try:
        output, _ = node.process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        pytest.fail(f"the node does not end; its log:\n{node.log()}")
    finally:
        node.kill()
    return Ended(node.process.returncode, output.decode(), node.log())


def get(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    """Return status and body of one request to the metrics listener."""
    with closing(HTTPConnection(address, timeout=TIMEOUT_S)) as connection:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()


def sampled(address: str, name: str) -> float:
    """Return the sum of the metrics whose lines begin with a name, or with a part of one."""
    lines = get(address, "/metrics")[1].splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def raw_exchange(address: str, request: bytes) -> bytes:
    """Return whatever the metrics listener answers to some bytes, until it closes."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


@contextmanager
def occupied_port() -> Iterator[str]:
    """Yield HOST:PORT of a socket that listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def health_of(channel: grpc.Channel) -> int:
    """Return the answer of one health check."""
    check = HealthStub(channel).Check
    status: int = check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S).status
    return status


def watch_health(channel: grpc.Channel) -> Iterator[int]:
    """Yield the states of the node as they change; ends with the call."""
    watch = HealthStub(channel).Watch
    for response in watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S):
        yield response.status


def log_lines(log: str) -> list[dict[str, Any]]:
    """Return the lines of a JSON log."""
    return [json.loads(line) for line in log.splitlines()]
