"""TLS on all listeners, mutual TLS for peers, and certificates that are renewed or wrong."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from storenode.wire.storenode.v1.store_pb2 import ScanRequest
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
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


def channel_to(
    pki: Pki, address: str, identity: tuple[Path, Path] | None = None, name: str | None = None
) -> grpc.Channel:
    """Return a connection that trusts the authority, and shows a certificate if given."""
    cert, key = (path.read_bytes() for path in identity) if identity else (None, None)
    credentials = grpc.ssl_channel_credentials(pki.authority.cert_pem.bytes(), key, cert)
    options = [("grpc.ssl_target_name_override", name)] if name else []
    return grpc.secure_channel(address, credentials, options)


def scan_code(channel: grpc.Channel, node_id: str) -> grpc.StatusCode:
    """Return the status of a scan of a peer."""
    scan = StoreStub(channel).Scan
    metadata = (
        ("storenode-node-id", node_id),
        ("storenode-store-id", "00000000-0000-0000-0000-000000000001"),
        ("storenode-version", "1"),
    )
    call = scan(ScanRequest(), metadata=metadata, timeout=60)
    try:
        for _page in call:
            continue
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


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


def test_only_allowed_peers_with_a_certificate_may_read(
    tmp_path: Path, database_url: str, pki: Pki
) -> None:
    friend = pki.issue("b.nodes.example", file="friend")
    stranger = pki.issue("c.nodes.example", file="stranger")
    args = options(pki, "--allow-peer", "b.nodes.example")
    with running_node(tmp_path / "data", *args, database_url=database_url) as node:
        with channel_to(pki, node.peer, friend) as channel:
            assert scan_code(channel, "b.nodes.example") is grpc.StatusCode.OK
            assert scan_code(channel, "c.nodes.example") is not grpc.StatusCode.OK
        with channel_to(pki, node.peer, stranger) as channel:
            assert scan_code(channel, "c.nodes.example") is grpc.StatusCode.PERMISSION_DENIED
        with channel_to(pki, node.peer) as channel, pytest.raises(grpc.RpcError) as refused:
            health_of(channel)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        lines = log_lines(node.log())
        assert "peers_locked_out" not in {line["event"] for line in lines}
        assert lines, "handshakes that fail do not spoil the log"


def test_clients_show_certificates_when_an_authority_for_them_is_named(
    tmp_path: Path, database_url: str, pki: Pki
) -> None:
    args = options(pki, "--client-ca", str(pki.ca))
    with running_node(tmp_path / "data", *args, database_url=database_url) as node:
        with channel_to(pki, node.listen, pki.issue("me", file="me")) as channel:
            assert health_of(channel) == SERVING
        with channel_to(pki, node.listen) as channel, pytest.raises(grpc.RpcError):
            health_of(channel)


def test_a_renewed_certificate_is_used_without_a_restart(
    tmp_path: Path, database_url: str, pki: Pki
) -> None:
    with running_node(tmp_path / "data", *options(pki), database_url=database_url) as node:
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
    """Show one of what `storenode check-config` refuses, which makes the same checks."""
    args = options(pki)
    (tmp_path / "node.key").write_text("no key")
    ended = run_to_end(tmp_path / "data", *args)
    assert ended.code == 2
    assert f"{tmp_path / 'node.key'} is not a PEM file" in ended.sentence
    assert not (tmp_path / "data").exists()
