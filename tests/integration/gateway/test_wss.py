"""Secure WebSockets: js-waku reads over them, and a renewed certificate needs no restart."""

from __future__ import annotations

import json
import random
import shutil
import socket
import ssl
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

import pytest

from storenode.client.message import Message
from tests.integration.gateway.javascript_clients import running_client
from tests.integration.gateway.messages import CLUSTER, SHARD, drawn, expected
from tests.support.gateway import GENEROUS, GatewayProcess, running_gateway
from tests.support.node import NodeProcess
from tests.support.secured import TIMEOUT_S, Pki, check_renewal, serial
from tests.support.waku_client import address_of

pytestmark = pytest.mark.timeout(900)  # the first test installs the clients

QUERIES: Final = 10


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """Make the authority of the gateway's certificates, and its first one."""
    made = Pki(tmp_path_factory.mktemp("certificates"))
    made.issue("127.0.0.1", file="wss")
    return made


@pytest.fixture(scope="module")
def secure(pki: Pki, node: NodeProcess) -> Iterator[GatewayProcess]:
    """Run a gateway with a listener of each kind."""
    files = pki.directory
    options = (
        *("--listen", "/ip4/127.0.0.1/tcp/0/tls/ws", "--cluster", str(CLUSTER)),
        *("--shard", str(SHARD), "--wss-cert", str(files / "wss.pem")),
        *("--wss-key", str(files / "wss.key"), *GENEROUS),
    )
    with running_gateway(files, node.listen, *options) as process:
        yield process


def test_js_waku_reads_over_a_secure_websocket(
    clients: Path, secure: GatewayProcess, pki: Pki, messages: list[Message]
) -> None:
    settings = json.dumps({"cluster": CLUSTER, "shard": SHARD})
    rng = random.Random(37)
    with running_client(
        clients,
        *("waku", secure.address("wss"), settings),
        NODE_EXTRA_CA_CERTS=str(pki.ca),
    ) as client:
        for number in range(QUERIES):
            query = drawn(rng, messages)
            assert client.ask(asdict(query)) == {"pages": expected(query, messages)}, number
    assert secure.counted('connections_total{transport="wss"}') >= 1


def secure_address(gateway: GatewayProcess) -> str:
    """Return HOST:PORT of the listener."""
    host, port = address_of(gateway.address("wss"))
    return f"{host}:{port}"


def test_a_renewed_certificate_is_shown_to_new_connections(
    secure: GatewayProcess, pki: Pki, tmp_path: Path
) -> None:
    def renew() -> None:
        Pki(tmp_path, pki.authority).issue("127.0.0.1", file="wss")
        for name in ("wss.key", "wss.pem"):
            shutil.move(tmp_path / name, pki.directory / name)

    trust = ssl.create_default_context(cafile=str(pki.ca))
    check_renewal(secure_address(secure), trust, renew)


def test_what_is_no_tls_is_refused(secure: GatewayProcess) -> None:
    with socket.create_connection(address_of(secure.address("wss")), TIMEOUT_S) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while plain.recv(4096):
            pass
    trust = ssl.create_default_context(cafile=None)
    with pytest.raises(ssl.SSLCertVerificationError):
        serial(secure_address(secure), trust)
    assert "Traceback" not in secure.log.read_text(encoding="utf-8")
