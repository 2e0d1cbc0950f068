"""`storenode publish`, `query`, `scan`, `follow`, `get` and others against a real node."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storenode.cli.client.publish import MessageBuilder
from storenode.cli.client.source import MAX_LINE_BYTES, MAX_PAYLOAD_BYTES
from storenode.client.messages import hash_of
from storenode.client.sds_messages import sds_view
from tests.support.command import TIMEOUT_S, Command, Ended
from tests.support.node import COMMAND, NodeProcess

PUBSUB_TOPIC: Final = "/waku/2/rs/1/0"
HOUR_NS = 3_600_000_000_000


def test_payloads_come_from_files_and_lines_and_can_be_published_again(
    command: Command, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "payload"
    path.write_bytes(b"\x00\xff\n\n")
    publish = ("publish", "--content-topic", topic)
    command.ok(*publish, "--file", str(path))
    command.ok(*publish, "--file", "-", stdin=b"from\nstdin\n")
    command.ok(*publish, "")
    ended = command.ok(*publish, "--lines", "--json", stdin=b"same\nsame\n\nlast")
    assert [each["outcome"] for each in ended.objects] == ["STORED"] * 4
    printed = command.ok("scan", "--content-topic", topic, "--json", "--cursors")
    stored = [each for each in printed.objects if "message" in each]
    payloads = [b"\x00\xff\n\n", b"from\nstdin\n", b"", b"same", b"same", b"", b"last"]
    assert [bytes.fromhex(each["message"]["payload"]) for each in stored] == payloads
    hashes = [each["message_hash"] for each in stored]
    assert [each["message_hash"] for each in ended.objects] == hashes[3:]
    again = command.ok("publish", "--json-input", "--json", stdin=printed.out.encode()).objects
    assert [each["outcome"] for each in again] == ["DUPLICATE"] * 7
    assert [each["message_hash"] for each in again] == hashes


GOOD = {"message": {"payload": "00", "content_topic": "/a/1/b/proto"}, "pubsub_topic": PUBSUB_TOPIC}
INPUTS: list[tuple[tuple[str, ...], bytes, str | None, str]] = [
    (("--json-input",), b"\n\n{not json\n", None, "Line 4 of the input is no message: it is"),
    (("--json-input",), b'{"message": {"payload": 1}}', None, "Line 2 of the input is no mes"),
    (("--lines",), b"x" * (MAX_LINE_BYTES + 100_000), "STORED", "line of the input has more"),
    ((), bytes(MAX_PAYLOAD_BYTES + 1), "", "which no node takes"),
    (("--file", "FOLDER"), b"", "", "The input cannot be read (Is a directory)"),
]


@pytest.mark.parametrize(("flags", "text", "out", "sentence"), INPUTS)
def test_an_input_that_cannot_be_published_ends_it_after_what_came_before(
    command: Command,
    topic: str,
    tmp_path: Path,
    *,
    flags: tuple[str, ...],
    text: bytes,
    out: str | None,
    sentence: str,
) -> None:
    first = b""
    if "--json-input" in flags:
        good = {**GOOD, "message": {**GOOD["message"], "timestamp": time.time_ns()}}  # type: ignore[dict-item]
        first = json.dumps(good).encode() + b"\n"
    else:
        flags = ("--content-topic", topic, *flags)
        first = b"good\n" if out else b""
    arguments = [str(tmp_path) if each == "FOLDER" else each for each in flags]
    ended = command("publish", *arguments, stdin=first + text)
    assert ended.code == 1
    assert out is None or ended.out[:6] == out
    assert sentence in ended.err


def test_what_the_node_does_not_store_is_reported(command: Command, topic: str) -> None:
    publish = ("publish", "--content-topic", topic)
    old = str(time.time_ns() - HOUR_NS)
    ended = command(*publish, "--timestamp", old, "late")
    outcome, digest, reason = ended.out.rstrip().split(None, 2)
    assert (ended.code, outcome, len(digest), bool(reason)) == (1, "REJECTED", 64, True)
    assert "1 of 1 messages were rejected" in ended.err
    assert command.ok(*publish, "--ephemeral", "--meta", "0aff", "x").out.startswith("EPHEMERAL")
    ended = command(*publish, "--min-confirms=1", "--confirm-timeout=1s", "--json", "x")
    assert (ended.code, ended.objects[0]["outcome"]) == (1, "UNCONFIRMED")
    ended = command("publish", "--content-topic", topic + "\udcff", "x")
    assert (ended.code, "not UTF-8" in ended.err) == (2, True)


@pytest.mark.parametrize("end", ["closed", "interrupted", "unread"])
def test_lines_are_published_while_the_writer_still_writes(
    command: Command, topic: str, end: str
) -> None:
    process = command.start("publish", "--content-topic", topic, "--lines", stdin=subprocess.PIPE)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        if end == "unread":
            process.stdout.close()
            process.stdin.write(b"first\n")
        else:
            for line in (b"first\n", b"second\n"):
                process.stdin.write(line)
                process.stdin.flush()
                assert process.stdout.readline().startswith(b"STORED")
        if end == "interrupted":
            process.send_signal(signal.SIGINT)
        else:
            process.stdin.close()
        code, reported = process.wait(TIMEOUT_S), process.stderr.read()
    assert code == {"closed": 0, "interrupted": 130, "unread": 1}[end]
    assert b"Traceback" not in reported
    assert (b"Standard output was closed" in reported) == (end == "unread")


def test_sds_messages_name_their_channel_parents_and_ids(command: Command, topic: str) -> None:
    channel = ("--content-topic", topic, "--channel", topic)
    flags = ("--sender", "alice", "--message-id", "m1", "--parent", "p0")
    ended = command.ok("publish", *channel, *flags, "--parent", f"p1@{'ab' * 32}", "hello")
    outcome, digest, message_id = ended.out.split()
    assert (outcome, message_id) == ("STORED", "m1")
    (found,) = command.ok("get", "--channel", topic, "m1", "--json").objects
    assert found["entry"] == {"message_id": "m1", "retrieval_hint": digest}
    view = sds_view(bytes.fromhex(found["stored"]["message"]["payload"]))
    assert view is not None
    assert (view.sender_id, view.content) == ("alice", b"hello")
    published = command.ok("publish", *channel, "--lines", "--json", stdin=b"a\nb\nc\n").objects
    head = published[-1]["message_id"]
    # The IDs that are chosen here prove their messages, each of which depends on the one before.
    assert "(not verified)" not in command.ok("get", "--channel", topic, head).out
    walked = command.ok("causal-history", "--channel", topic, head, "--json").objects
    assert [each["entry"]["message_id"] for each in walked] == [
        each["message_id"] for each in published
    ]


@given(
    st.lists(st.integers(1, 1_000), min_size=1, max_size=8),
    st.none() | st.integers(0, 2**63 - 1),
)
def test_timestamps_and_lamport_times_only_grow(clock: list[int], first_ns: int | None) -> None:
    ticks = iter([each for tick in clock for each in (tick * 10**6, tick * 10**6)])
    maker = MessageBuilder(
        pubsub_topic="/p",
        content_topic="/c",
        timestamp_ns=first_ns,
        channel_id="ch",
        sender_id="s",
        clock=lambda: next(ticks, 1),
    )
    messages = [maker.make(b"same") for _ in clock]
    timestamps = [each.message.timestamp for each in messages]
    assert timestamps[0] == (first_ns if first_ns is not None else timestamps[0])
    views = [view for each in messages if (view := sds_view(each.message.payload)) is not None]
    lamports = [view.lamport or 0 for view in views]
    assert len({view.message_id for view in views}) == len(clock)
    assert lamports == sorted(set(lamports))
    if first_ns is None or first_ns + len(clock) < 2**63:
        assert timestamps == sorted(set(timestamps))
        assert len({hash_of(each) for each in messages if each.message.timestamp}) >= len(clock) - 1


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
