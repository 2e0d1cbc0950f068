"""`storenode query`, `scan`, `follow`, `get`, `causal-history` and `status` against a real node."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.support.command import TIMEOUT_S, Command, Ended
from tests.support.node import COMMAND, NodeProcess

PUBSUB_TOPIC: Final = "/waku/2/rs/1/0"
TOPIC: Final = "/test/1/read/proto"
COUNT: Final = 25


@pytest.fixture(scope="module")
def stored(command: Command) -> list[dict[str, Any]]:
    """Publish the messages 0 to 24 on one topic, and return them in order."""
    text = "".join(f"message {number}\n" for number in range(COUNT))
    command.ok("publish", "--content-topic", TOPIC, "--lines", stdin=text.encode())
    return command.ok("scan", "--content-topic", TOPIC, "--json").objects


@pytest.fixture(scope="module")
def hashes(stored: list[dict[str, Any]]) -> list[str]:
    return [each["message_hash"] for each in stored]


def hashes_in(ended: Ended) -> list[str]:
    return [each["message_hash"] for each in ended.objects if "message_hash" in each]


def test_query_prints_pages_and_names_what_is_missing(command: Command, hashes: list[str]) -> None:
    flags = ("query", "--content-topic", TOPIC, "--limit", "10")
    backward = command.ok(*flags, "--all", "--backward", "--json")
    assert hashes_in(backward) == [*hashes[15:], *hashes[5:15], *hashes[:5]]
    ended = command.ok(*flags)
    assert len(ended.lines) == 10
    assert ended.err == f"More match: add --cursor {hashes[-10]} or --all.\n"
    assert command.ok("query", "--content-topic", TOPIC).err == ""
    named = ("--hash", hashes[3], "--hash", "0x" + hashes[1], "--hash", "00" * 32)
    ended = command("query", *named, "--no-data")
    assert (ended.code, ended.lines) == (1, [hashes[1], hashes[3]])
    assert ended.err == f"Not held: {'00' * 32}.\n"


def test_scan_ends_at_its_limit_and_prints_no_cursor_of_a_page_cut_short(
    command: Command, hashes: list[str]
) -> None:
    flags = ("scan", "--content-topic", TOPIC, "--page-size", "10")
    assert command.ok(*flags, "--no-data").lines == hashes
    objects = command.ok(*flags, "--json", "--cursors", "--limit", "12").objects
    assert [each.get("message_hash") for each in objects if "cursor" not in each] == hashes[:12]
    assert ["cursor" in each for each in objects] == [False] * 10 + [True] + [False] * 2
    line = command.ok(*flags, "--limit", "1").lines[0]
    moment, digest, shown_topic, payload = line.split("  ")
    assert moment.endswith("Z")
    assert (digest, shown_topic, payload) == (hashes[0], TOPIC, "message 0")
    assert command.ok("query", f"--hash=0X{digest}", "--output=raw").out == f"{payload}\n"


def test_follow_prints_the_backlog_and_ends_when_it_is_live(
    command: Command, hashes: list[str]
) -> None:
    flags = ("follow", "--content-topic", TOPIC, "--until-live")
    ended = command.ok(*flags, "--from-beginning", "--json")
    assert (sorted(hashes_in(ended)), ended.err) == (sorted(hashes), "")
    ended = command.ok(*flags, "--from-beginning")
    assert len(ended.lines) == COUNT
    note, _, cursor = ended.err.strip().rpartition(" ")
    assert note == "To go on from here: --cursor"
    assert command.ok(*flags, "--cursor", cursor).lines == []


def test_follow_prints_messages_as_they_come_and_ends_at_its_limit(
    command: Command, topic: str
) -> None:
    command.ok("publish", "--content-topic", topic, "from before")
    flags = ("--content-topic", topic, "--json", "--cursors", "--limit", "2")
    with command.start("follow", *flags) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["live"] is True
        for text in ("new 1", "new 2"):
            command.ok("publish", "--content-topic", topic, text)
            message = json.loads(process.stdout.readline())
            assert bytes.fromhex(message["message"]["payload"]) == text.encode()
            assert json.loads(process.stdout.readline())["live"] is True
        assert process.wait(TIMEOUT_S) == 0
        assert process.stdout.read() == b""


@pytest.mark.parametrize("flag", ["--cursors", "--from-beginning"])
def test_follow_resumes_where_ctrl_c_ended_it(command: Command, topic: str, flag: str) -> None:
    with command.start("follow", "--content-topic", topic, flag) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if flag == "--from-beginning":
            command.ok("publish", "--content-topic", topic, "one")
        line = process.stdout.readline().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0
        reported = process.stderr.read().decode()
    if flag == "--from-beginning":
        assert line.endswith("one\n")
        assert reported.startswith("To go on from here: --cursor ")
    else:
        assert reported == ""
    cursor = (reported or line).split()[-1]
    command.ok("publish", "--content-topic", topic, "meanwhile")
    flags = ("--content-topic", topic, "--cursor", cursor, "--until-live")
    (found,) = command.ok("follow", *flags).lines
    assert found.endswith("meanwhile")


@pytest.mark.usefixtures("stored")
def test_a_reader_that_leaves_ends_a_command_quietly_and_an_unwritable_output_does_not(
    command: Command,
) -> None:
    for arguments in (("scan",), ("follow", "--from-beginning")):
        with command.start(*arguments, "--cursors") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            if arguments[0] == "follow":
                command.ok("publish", "--content-topic", "/a/1/b/proto", "wake it")
            assert process.wait(TIMEOUT_S) == 0
            assert process.stderr.read() == b""
    shell = Command(command.env, program=("sh", "-c", '"$0" "$@" >/dev/full', COMMAND))
    ended = shell("scan")
    assert ended.code == 1
    assert ended.err.startswith("storenode: The output could not be written (")


def publisher(command: Command, topic: str) -> Callable[..., Ended]:
    """Return a function that publishes an SDS message with parents."""

    def publish(name: str, *parents: str) -> Ended:
        flags = [flag for parent in parents for flag in ("--parent", parent)]
        sds = ("--channel", topic, "--sender", "alice", "--message-id", name)
        return command.ok("publish", "--content-topic", topic, *sds, *flags, f"text {name}")

    return publish


def test_get_prints_what_is_stored_and_lists_what_is_missing(command: Command, topic: str) -> None:
    digest = publisher(command, topic)("m1").out.split()[1]
    other = "cd" * 32
    ended = command("get", "--channel", topic, "m1", f"m2@0x{other}")
    shown, missing = ended.lines
    assert shown.split("  ")[1:] == [digest, "m1", "alice: text m1", "(not verified)"]
    assert (ended.code, missing) == (1, f"missing: m2  {other}")
    assert ended.err == "1 message is missing: this node does not hold what is listed as missing.\n"
    (by_hint,) = command.ok("get", "--channel", topic, f"m1@{digest}", "--json").objects
    assert by_hint["stored"]["message_hash"] == digest
    for walk in ("get", "causal-history"):
        elsewhere = ("--channel", topic, "m1", "--content-topic", topic + "x", "--json")
        ended = command(walk, *elsewhere)
        assert (ended.code, ended.objects) == (1, [{"missing": {"message_id": "m1"}}])


def test_causal_history_prints_parents_first_then_what_is_missing(
    command: Command, topic: str
) -> None:
    publish = publisher(command, topic)
    for name, *parents in (("a",), ("b", "a", "lost"), ("c", "a"), ("d", "b", "c")):
        publish(name, *parents)
    walk = ("causal-history", "--channel", topic, "d")
    ended = command.ok(*walk, "--no-data")
    *lines, missing = ended.lines
    order = [line.split()[1] for line in lines]
    assert (order[0], order[-1], sorted(order)) == ("a", "d", ["a", "b", "c", "d"])
    assert missing == "missing: lost"
    assert ended.err.startswith("1 message is missing: ")
    near = command.ok(*walk, "--max-messages", "1", "--json")
    assert near.objects[-1] == {"truncated": True}
    assert near.err.startswith("A limit ended the walk")


@pytest.mark.usefixtures("stored")
def test_status_shows_what_the_node_says(command: Command, node: NodeProcess) -> None:
    # The node counts what its feed has seen: a follower that is live has seen it too.
    command.ok("follow", "--from-beginning", "--until-live")
    (status,) = command.ok("status", "--json").objects
    assert (status["ready"], status["node_id"]) == (True, node.ready["node_id"])
    assert (status["messages"] >= COUNT, status["peers"]) == (True, [])
    assert 0 < status["oldest_timestamp"] <= status["newest_timestamp"]
    rows = dict(line.split(None, 1) for line in command.ok("status").lines)
    assert (rows["ready"], rows["node"]) == ("yes", status["node_id"])
    assert int(rows["messages"].replace(",", "")) >= COUNT
