"""The examples in other languages, at a real node: hashes, payloads, cursors, TLS, errors."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from storenode.message.hashing import message_hash
from tests.integration.clients.languages import Program
from tests.support.command import Command
from tests.support.credentials import secured_node
from tests.support.node import NodeProcess
from tests.support.pages import as_shown, steps

pytestmark = pytest.mark.timeout(900)  # the first test of a language builds the example

CONTENT = ("--content-topic", "/my-chat/1/lobby/proto")
PUBSUB = ("--pubsub-topic", "/waku/2/rs/1/0")
TEXTS = ("one", "größer 明", "  three  ")
FULL_RESPONSE_BYTES = 4 * 1024 * 1024
LARGE_TEXT = "x" * (140 * 1024)


def publish(node: NodeProcess, *texts: str) -> None:
    lines = "".join(f"{text}\n" for text in texts).encode()
    Command.of(node).ok("publish", *PUBSUB, *CONTENT, "--lines", stdin=lines)


def listed(node: NodeProcess, *call: str) -> list[str]:
    """Return what a call of the Python client finds, as the programs print it."""
    lines = []
    for each in Command.of(node).ok(*call, *CONTENT, "--json").objects:
        message = each["message"]
        payload = bytes.fromhex(message["payload"])
        where = each["pubsub_topic"], message["content_topic"]
        digest = message_hash(where[0], payload, where[1], None, message["timestamp"])
        lines.append(f"{digest.hex()} {payload.decode()}")
    return lines


def follow(program: Program, cursor: Path, count: int) -> list[str]:
    """Return the lines of a follow that is interrupted after ``count`` of them."""
    process = program.start("follow", str(cursor))
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(count)]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (0, "")
    return "".join([*lines, out]).splitlines()


def test_the_commands_of_the_page_print_what_it_shows(program: Program) -> None:
    todo = steps(program.language.section)
    assert len(todo) == 2
    as_shown(todo, {"PATH": os.environ["PATH"], **program.env}, program.folder)


def test_published_messages_have_the_hashes_that_the_library_computes(
    ways: list[Program], node: NodeProcess
) -> None:
    for program in ways:
        printed = [program.lines("publish", text)[0].split() for text in TEXTS]
        assert {outcome for outcome, _ in printed} == {"STORED"}
        stored = listed(node, "scan")
        assert all(f"{printed[n][1]} {text}" in stored for n, text in enumerate(TEXTS))


def test_reads_return_payloads(ways: list[Program], node: NodeProcess) -> None:
    publish(node, *TEXTS)
    expected = listed(node, "scan")
    assert [line.split(" ", 1)[1] for line in expected][-3:] == [*TEXTS]
    for program in ways:
        assert program.lines("scan") == expected
        assert program.lines("query") == listed(node, "query", *PUBSUB, "--limit", "10")


def test_a_follow_resumes_from_its_cursor(
    ways: list[Program], node: NodeProcess, tmp_path: Path
) -> None:
    publish(node, *TEXTS)
    for number, program in enumerate(ways):
        before = listed(node, "follow", "--from-beginning", "--until-live")
        cursor = tmp_path / f"cursor-{number}"
        assert follow(program, cursor, len(before)) == before
        publish(node, "later", "still later")
        after = listed(node, "follow", "--from-beginning", "--until-live")[len(before) :]
        assert [line.split(" ", 1)[1] for line in after] == ["later", "still later"]
        assert follow(program, cursor, len(after)) == after


def test_errors_of_a_node_are_shown_as_its_sentences(ways: list[Program], tmp_path: Path) -> None:
    cursor = tmp_path / "cursor"
    cursor.write_text("no cursor")
    for program in ways:
        done = program("follow", str(cursor))
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("the cursor is not one of Follow: ")
        assert done.stderr.endswith("(InvalidArgument)\n")


def test_a_token_is_sent_over_tls(program: Program, tmp_path: Path) -> None:
    with secured_node(tmp_path, {"app": ["read", "publish"]}) as node:
        files = {
            "STORENODE_TLS_CA": str(tmp_path / "ca.pem"),
            "STORENODE_TOKEN_FILE": str(tmp_path / "app.token"),
        }
        secure = replace(program, env={"STORENODE_NODE": node.listen, **files})
        assert secure.lines("publish", "secret")[0].startswith("STORED ")
        assert secure.lines("scan")[0].endswith(" secret")
        assert secure("follow", "cursor").stderr.endswith("(PermissionDenied)\n")
        for name, file, reason in (
            ("STORENODE_TOKEN_FILE", "forged.token", "(Unauthenticated)"),
            ("STORENODE_TLS_CA", "stranger.pem", "verify"),
        ):
            done = replace(secure, env={**secure.env, name: str(tmp_path / file)})("scan")
            assert (done.returncode, done.stdout) == (1, "")
            assert reason in done.stderr
            assert "token-of-nobody" not in done.stderr


def test_a_node_that_is_away_and_security_by_halves_are_reported(program: Program) -> None:
    away = replace(program, env={"STORENODE_NODE": "127.0.0.1:1"})
    assert away("scan").stderr.endswith("(Unavailable)\n")
    half = replace(program, env={**program.env, "STORENODE_TOKEN_FILE": "token"})
    assert (half("scan").returncode, half("scan").stdout) == (1, "")
    assert "neither" in half("scan").stderr


def test_full_responses_fit_the_limits_that_clients_have_by_default(
    program: Program, node: NodeProcess
) -> None:
    publish(node, *[LARGE_TEXT] * (2 * FULL_RESPONSE_BYTES // len(LARGE_TEXT)))
    assert program.lines("scan") == listed(node, "scan")
