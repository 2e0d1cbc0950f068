"""`storenode publish` against a real node."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storenode.cli.client.publish import MessageBuilder
from storenode.cli.client.source import MAX_LINE_BYTES, MAX_PAYLOAD_BYTES
from storenode.client.messages import hash_of
from storenode.client.sds_messages import sds_view
from tests.support.command import TIMEOUT_S, Command

PUBSUB_TOPIC = "/waku/2/rs/1/0"
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
