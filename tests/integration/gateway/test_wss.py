"""Secure WebSockets: js-waku reads over them, and a renewed certificate needs no restart."""

from __future__ import annotations

import json
import random
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

import pytest
import trustme

from storenode.client.message import Message
from tests.integration.gateway.javascript_clients import running_client
from tests.integration.gateway.messages import CLUSTER, SHARD, drawn, expected
from tests.support.gateway import GENEROUS, GatewayProcess, running_gateway
from tests.support.node import NodeProcess
from tests.support.polling import PAUSE_S
from tests.support.secured import write_identity
from tests.support.waku_client import address_of

pytestmark = pytest.mark.timeout(900)  # the first test installs the clients

QUERIES: Final = 25
TIMEOUT_S: Final = 60.0


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Who signs the gateway's certificates."""
    return trustme.CA()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Path:
    """``ca.pem``, and ``wss.pem`` with its key."""
    folder = tmp_path_factory.mktemp("certificates")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    write_identity(folder, "wss", authority.issue_cert("127.0.0.1"))
    return folder


@pytest.fixture(scope="module")
def secure(files: Path, node: NodeProcess) -> Iterator[GatewayProcess]:
    """A gateway with a listener of each kind."""
    options = (
        *("--listen", "/ip4/127.0.0.1/tcp/0/tls/ws", "--cluster", str(CLUSTER)),
        *("--shard", str(SHARD), "--wss-cert", str(files / "wss.pem")),
        *("--wss-key", str(files / "wss.key"), *GENEROUS),
    )
    with running_gateway(files, node.listen, *options) as process:
        yield process


def test_js_waku_reads_over_a_secure_websocket(
    clients: Path, secure: GatewayProcess, files: Path, messages: list[Message]
) -> None:
    settings = json.dumps({"cluster": CLUSTER, "shard": SHARD})
    chance = random.Random(37)
    with running_client(
        clients,
        *("waku", secure.address("wss"), settings),
        NODE_EXTRA_CA_CERTS=str(files / "ca.pem"),
    ) as client:
        for number in range(QUERIES):
            query = drawn(chance, messages)
            assert client.ask(asdict(query)) == {"pages": expected(query, messages)}, number
    assert secure.counted('connections_total{transport="wss"}') >= 1


def serial(gateway: GatewayProcess, trust: ssl.SSLContext) -> object:
    """The number of the certificate that the gateway shows."""
    host, port = address_of(gateway.address("wss"))
    with (
        socket.create_connection((host, port), TIMEOUT_S) as plain,
        trust.wrap_socket(plain, server_hostname=host) as connection,
    ):
        return (connection.getpeercert() or {})["serialNumber"]


def test_a_renewed_certificate_is_shown_to_new_connections(
    secure: GatewayProcess, files: Path, authority: trustme.CA, tmp_path: Path
) -> None:
    trust = ssl.create_default_context(cafile=str(files / "ca.pem"))
    first, deadline = serial(secure, trust), time.monotonic() + TIMEOUT_S
    write_identity(tmp_path, "wss", authority.issue_cert("127.0.0.1"))
    for name in ("wss.key", "wss.pem"):
        shutil.move(tmp_path / name, files / name)
    while serial(secure, trust) == first:
        assert time.monotonic() < deadline, "the old certificate is still shown"
        time.sleep(PAUSE_S)


def test_what_is_no_tls_is_refused(secure: GatewayProcess) -> None:
    with socket.create_connection(address_of(secure.address("wss")), TIMEOUT_S) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while plain.recv(4096):
            pass
    trust = ssl.create_default_context(cafile=None)
    with pytest.raises(ssl.SSLCertVerificationError):
        serial(secure, trust)
    assert "Traceback" not in secure.log.read_text(encoding="utf-8")
