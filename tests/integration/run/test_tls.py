"""TLS on all listeners, and a certificate that is renewed or wrong."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from tests.integration.run.helpers import health_of, log_lines, run_to_end
from tests.support.node import NodeProcess, running_node
from tests.support.polling import PAUSE_S
from tests.support.secured import Pki

SERVING = HealthCheckResponse.SERVING
NODE_NAME = "a.nodes.example"


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


def options(pki: Pki, *more: str) -> list[str]:
    """Return options of a node that is called NODE_NAME."""
    cert, key = pki.issue(NODE_NAME, "also.example", "127.0.0.1")
    return [
        *("--tls-cert", str(cert), "--tls-key", str(key), "--tls-ca", str(pki.ca)),
        *("--peer-listen", "127.0.0.1:0", *more),
    ]


def channel_to(pki: Pki, address: str, name: str | None = None) -> grpc.Channel:
    """Return a connection that trusts the authority."""
    credentials = grpc.ssl_channel_credentials(pki.authority.cert_pem.bytes())
    options = [("grpc.ssl_target_name_override", name)] if name else []
    return grpc.secure_channel(address, credentials, options)


def test_every_grpc_listener_speaks_tls_and_the_certificate_names_the_node(
    tmp_path: Path, database_url: str, pki: Pki
) -> None:
    with running_node(tmp_path / "data", *options(pki), database_url=database_url) as node:
        assert node.ready["node_id"] == NODE_NAME
        assert len({node.listen, node.peer, node.admin}) == 3
        for address in (node.listen, node.admin):
            with channel_to(pki, address) as channel:
                assert health_of(channel) == SERVING
            with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError):
                health_of(channel)
        assert not (tmp_path / "data" / "node-id").exists()
        warnings = [line for line in log_lines(node.log()) if line["event"] == "peers_locked_out"]
        assert len(warnings) == 1
        assert "--allow-peer" in warnings[0]["reason"]
        # A renewed certificate is used without a restart, and a damaged one is not.
        pki.issue("renewed.example")
        assert eventually_named(pki, node, "renewed.example")
        (tmp_path / "node.pem").write_text("damaged")
        with channel_to(pki, node.listen, name="renewed.example") as channel:
            assert health_of(channel) == SERVING


def eventually_named(pki: Pki, node: NodeProcess, name: str) -> bool:
    """Return True as soon as a handshake shows a name; the timeout of the test is the limit."""
    while True:
        try:
            with channel_to(pki, node.listen, name=name) as channel:
                return bool(health_of(channel) == SERVING)
        except grpc.RpcError:
            time.sleep(PAUSE_S)


def test_a_certificate_that_cannot_be_used_is_refused_by_name(tmp_path: Path, pki: Pki) -> None:
    given = options(pki)
    (tmp_path / "node.key").write_text("no key")
    ended = run_to_end(tmp_path / "data", *given)
    assert ended.code == 2
    assert f"{tmp_path / 'node.key'} is not a PEM file" in ended.sentence
    assert not (tmp_path / "data").exists()
