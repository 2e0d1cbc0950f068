"""The client commands with TLS and tokens, against a node that demands both."""

from __future__ import annotations

from pathlib import Path

from tests.integration.client.conftest import Secured
from tests.support.command import Command
from tests.support.node import running_node


def test_a_client_with_its_token_publishes_and_reads(secured: Secured) -> None:
    flags = secured.flags("chat")
    secured.command.ok("publish", "--content-topic", "/app/1/chat/proto", "secret", *flags)
    (line,) = secured.command.ok("scan", *flags).lines
    assert line.endswith("  secret")
    assert secured.command("status", *flags).code == 1, "only an operator sees it"
    (status,) = secured.command.ok("status", "--json", *secured.flags("operator")).objects
    assert status["node_id"] == "node-a.example"


def test_a_node_may_demand_a_certificate_of_its_clients(
    secured: Secured, tmp_path: Path, database_url: str
) -> None:
    files = secured.files
    authority, node_pem, node_key = files / "ca.pem", files / "node.pem", files / "node.key"
    options = (
        *("--tls-cert", str(node_pem), "--tls-key", str(node_key)),
        *("--peer-listen", "127.0.0.1:0", "--client-ca", str(authority)),
    )
    trust = ("--tls-ca", str(authority))
    identity = ("--tls-cert", str(files / "client.pem"), "--tls-key", str(files / "client.key"))
    with running_node(tmp_path / "node", *options, database_url=database_url) as node:
        command = Command.of(node)
        command.ok("publish", "--content-topic", "/app/1/chat/proto", "x", *trust, *identity)
        assert len(command.ok("query", *trust, *identity).lines) == 1
        ended = command("query", *trust)
    assert (ended.code, ended.out) == (3, "")
    assert ended.err.count("\n") == 1
