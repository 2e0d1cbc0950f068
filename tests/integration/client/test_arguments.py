"""Refusals of clients before they call a node, and a node that demands certificates."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest

from chaos.ports import ReservedPort
from storenode.cli.main import main
from storenode.connection.channel import TlsIdentity, check_connection, open_channel
from storenode.connection.errors import ClientOptionError
from tests.integration.client.conftest import Secured
from tests.support.command import Command
from tests.support.node import running_node

TOPIC = "--content-topic=/app/1/chat/proto"


@pytest.fixture
def unused() -> ReservedPort:
    """Return where connections are refused."""
    return ReservedPort()


def refused(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """Run a command in this process, which must fail, and return its one sentence."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    shown = capfd.readouterr()
    assert (ended.value.code, shown.out, shown.err.count("\n")) == (code, "", 1)
    return shown.err


@pytest.mark.parametrize("command", ["query --node", "status --admin"])
@pytest.mark.parametrize("host", ["127.0.0.1", "node.invalid"])
def test_exit_code_3_when_no_node_answers(
    capfd: pytest.CaptureFixture[str], unused: ReservedPort, command: str, host: str
) -> None:
    node = f"{host}:{unused.number}"
    begin, _, rest = refused(capfd, *command.split(), node, code=3).partition(" (")
    assert begin == f"storenode: No node could be reached at {node}"
    cause, _, advice = rest.partition("): ")
    assert advice == "check the address, that the node runs, and the TLS options.\n"
    assert "[" not in cause
    assert cause == "Connection refused" or host == "node.invalid"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("publish", "hello"), "Missing option --content-topic"),
        (("publish", TOPIC, "hello", "--file", "x"), "not both"),
        (("publish", TOPIC, "hello", "--lines"), "not both"),
        (("publish", "--json-input", "hello"), "leave out the payload"),
        (("publish", "--json-input", TOPIC), "leave out the payload"),
        (("publish", "--json-input", "--channel", "c"), "leave out the payload"),
        (("publish", TOPIC, "--sender", "s", "hello"), "need a --channel"),
        (("publish", TOPIC, "--parent", "p", "hello"), "need a --channel"),
        (("publish", TOPIC, "--channel=c", "--message-id=i", "--lines"), "leave out --lines"),
        (("publish", TOPIC, "--meta", "xyz", "hello"), "is not hexadecimal"),
        (("publish", TOPIC, "--timestamp", "noon", "hello"), "is not a time"),
        (("publish", TOPIC, "--min-confirms=-1", "hello"), "--min-confirms"),
        (("publish", TOPIC, "--confirm-timeout=0", "hello"), "more than 0"),
        (("publish", TOPIC, "--file", "/nowhere/at/all"), "cannot be opened"),
        (("publish", TOPIC), "The input is empty"),
        (("publish", "-t", "/a/1/b/c", "--file", "/dev/null"), "The input is empty"),
        (("qery",), "Did you mean 'query'?"),
        (("query", "--limt", "3"), "Did you mean one of: '--limit'"),
        (("query", "--from", "noon"), "is not a time"),
        (("query", "--hash", "0g"), "is not hexadecimal"),
        (("query", "--hash", "12"), "--hash: '12' has 2 hexadecimal digits: write all 64 of"),
        (("query", "--cursor", "0x1234"), "--cursor: '0x1234' has 4 hexadecimal digits"),
        (("query", "--from=2", "--to=1"), "--to is earlier than --from"),
        (("scan", "--from=2", "--to=1"), "--to is earlier than --from"),
        (("coverage", "--from=2", "--to=1"), "--to is earlier than --from"),
        (("sync", "--from=2", "--to=1"), "--to is earlier than --from"),
        (("sync", "--ids", "/nowhere"), "does not exist"),
        (("sync", "--ids", "/"), "is a directory"),
        (("sync", "--ids", "/dev/null", "--from", "0"), "leave --from and --to out"),
        (("query", "--limit", "-1"), "--limit"),
        (("query", "--limit", "4294967296"), "is not in the range"),
        (("scan", "--limit", "0"), "--limit"),
        (("get", "id"), "--channel"),
        (("get", "--channel=c"), "ID[@HINT]"),
        (("causal-history", "--channel=c"), "HEAD[@HINT]"),
        (("status", "--timeout", "soon"), "is not a duration"),
        (("status", "--admin", "nowhere"), "write HOST:PORT"),
        (("query", "--tls-cert", "/nowhere"), "go together"),
        (("query", "--tls-key", "/nowhere"), "go together"),
        (("query", "--tls-ca", "/nowhere"), "cannot be read"),
        (("query", "--token-file", "/nowhere"), "cannot be read"),
        (("query", "--no-such-option"), "No such option"),
        (("query", "superfluous"), "superfluous"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_one_sentence(
    capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refused(capfd, *arguments)


@pytest.mark.parametrize(
    ("flag", "content", "sentence"),
    [
        ("--token-file", b"secret-word\n", "would travel in clear"),
        ("--token-file", b"\xff\xfe", "is not text"),
        ("--token-file", b"two words", "The token is empty or holds"),
        ("--token-file", b"x" * 20_000, "has more than"),
        ("--tls-ca", b"\x30\x82", "is not PEM"),
    ],
)
def test_a_credential_file_with_something_else_is_refused(
    capfd: pytest.CaptureFixture[str], flag: str, content: bytes, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    said = refused(capfd, "query", "--node", "192.0.2.1:7420", flag, str(path))
    assert sentence in said
    assert "secret-word" not in said


def test_settings_of_the_environment_do_not_contradict_an_input_of_json(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    unused: ReservedPort,
    tmp_path: Path,
) -> None:
    path = tmp_path / "input"
    path.write_text('{"message": {"payload": "00", "timestamp": 1}, "pubsub_topic": "/p"}\n')
    monkeypatch.setenv("STORENODE_CONTENT_TOPIC", "/app/1/chat/proto")
    monkeypatch.setenv("STORENODE_CHANNEL", "c")
    sent = ("publish", "--json-input", f"--file={path}", "--node", unused.address)
    assert "No node could be reached" in refused(capfd, *sent, code=3)


TLS = TlsIdentity(ca=b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")


@pytest.mark.parametrize(
    "text",
    ["", ":1", "host", "host:", "host:0", "host:65536", "host:x", "::1:7420", "[]:1", "[a]:1"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ClientOptionError, match="write HOST:PORT"):
        check_connection(text, None, None)


async def test_a_token_is_sent_over_loopback_and_over_tls_and_never_in_clear_beyond() -> None:
    for node in ("10.0.0.1:7420", "node.example:7420", "[2001:db8::1]:7420"):
        with pytest.raises(ClientOptionError, match="would travel in clear"):
            open_channel(node, "secret", None)
    for node, tls in (("127.0.0.1:7420", None), ("[::1]:7420", None), ("node.example:7420", TLS)):
        channel, metadata = open_channel(node, "secret", tls)
        await channel.close(grace=None)
        assert metadata == (("authorization", "Bearer secret"),)


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "naïve", "tab\t"])
def test_a_token_that_is_no_header_value_is_refused(token: str) -> None:
    with pytest.raises(ClientOptionError, match="token is empty or holds"):
        open_channel("127.0.0.1:7420", token, None)


def test_a_node_may_demand_a_certificate_of_its_clients(
    secured: Secured, tmp_path: Path, database_url: str
) -> None:
    files = secured.files
    authority, node_pem, node_key = files / "ca.pem", files / "node.pem", files / "node.key"
    options = (
        *("--tls-cert", str(node_pem), "--tls-key", str(node_key)),
        *("--peer-listen", "127.0.0.1:0", "--client-ca", str(authority)),
        *("--http-listen", "127.0.0.1:0"),
    )
    trust = ("--tls-ca", str(authority))
    identity = ("--tls-cert", str(files / "client.pem"), "--tls-key", str(files / "client.key"))
    with running_node(tmp_path / "node", *options, database_url=database_url) as node:
        command = Command.of(node)
        command.ok("publish", "--content-topic", "/app/1/chat/proto", "x", *trust, *identity)
        assert len(command.ok("query", *trust, *identity).lines) == 1
        ended = command("query", *trust)
        context = ssl.create_default_context(cafile=authority)
        url = f"https://{node.http}/api/v1/status"
        with pytest.raises(httpx.TransportError):
            httpx.get(url, verify=context)
        context.load_cert_chain(files / "client.pem", files / "client.key")
        assert httpx.get(url, verify=context).json()["ready"]
    assert (ended.code, ended.out) == (3, "")
    assert ended.err.count("\n") == 1
