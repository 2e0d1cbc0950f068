"""Tests of what a client command refuses before it calls a node, and how it says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from storenode.cli.main import main
from tests.support.command import Command
from tests.support.ports import HeldPort

TOPIC = "--content-topic=/app/1/chat/proto"


@pytest.fixture
def unused() -> HeldPort:
    """Return where connections are refused."""
    return HeldPort()


@pytest.mark.parametrize("arguments", [("query",), ("status",)])
def test_exit_code_3_when_no_node_answers(arguments: tuple[str, ...], unused: HeldPort) -> None:
    ended = Command()(*arguments, STORENODE_NODE=unused.address, STORENODE_ADMIN=unused.address)
    assert ended.code == 3
    assert ended.out == ""
    assert ended.err == (
        f"storenode: No node could be reached at {unused.address} (Connection refused): check the "
        "address, that the node runs, and the TLS options.\n"
    )


def test_a_name_that_is_not_known_is_reported_like_an_address_that_does_not_answer() -> None:
    ended = Command()("query", STORENODE_NODE="node.invalid:7420")
    assert ended.code == 3
    assert ended.err.startswith("storenode: No node could be reached at node.invalid:7420 (")
    assert "[" not in ended.err
    assert ended.err.endswith("): check the address, that the node runs, and the TLS options.\n")


def refused(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command in this process, which must refuse its usage, and return its one sentence."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    shown = capfd.readouterr()
    assert (ended.value.code, shown.out, shown.err.count("\n")) == (2, "", 1)
    return shown.err


def test_a_token_is_not_sent_in_clear_beyond_loopback(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("secret-word\n")
    said = refused(capfd, "query", "--token-file", str(token), "--node", "192.0.2.1:7420")
    assert "would travel in clear" in said
    assert "secret-word" not in said


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
        (("query", "--from", "1764300000"), "looks like seconds since 1970"),
        (("sync", "--to", "1764300000123"), "looks like milliseconds since 1970"),
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
        (("scan", "--limit", "0"), "--limit"),
        (("follow", "--cursor", "??"), "is not hexadecimal"),
        (("get", "id"), "--channel"),
        (("get", "--channel=c"), "ID[@HINT]"),
        (("causal-history", "--channel=c"), "HEAD[@HINT]"),
        (("status", "--timeout", "soon"), "is not a duration"),
        (("status", "--admin", "nowhere"), "write HOST:PORT"),
        (("query", "--node", "::1:7420"), "write HOST:PORT"),
        (("query", "--tls-cert", "/nowhere"), "go together"),
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
        ("--token-file", b"", "The token is empty"),
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
    assert sentence in refused(capfd, "query", flag, str(path))


def test_settings_of_the_environment_do_not_contradict_an_input_of_json(
    unused: HeldPort,
) -> None:
    line = b'{"message": {"payload": "00", "timestamp": 1}, "pubsub_topic": "/p"}\n'
    ended = Command()(
        *("publish", "--json-input", "--node", unused.address),
        stdin=line,
        STORENODE_CONTENT_TOPIC="/app/1/chat/proto",
        STORENODE_CHANNEL="c",
    )
    assert ended.code == 3
