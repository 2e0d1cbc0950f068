"""`storenode publish` against a real node."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from storenode.cli.client.limits import MAX_INPUT_LINE_BYTES, MAX_INPUT_PAYLOAD_BYTES
from storenode.cli.client.message_builder import Envelope, MessageBuilder, SdsDraft
from storenode.client.messages import hash_of
from storenode.client.sds_messages import sds_view
from storenode.message.hashing import message_hash
from tests.support.command import TIMEOUT_S, Command

PUBSUB_TOPIC = "/waku/2/rs/1/0"
HOUR_NS = 3_600_000_000_000


def test_a_message_is_stored_under_its_hash_and_read_back(command: Command, topic: str) -> None:
    before_ns = time.time_ns()
    ended = command.ok("publish", "--content-topic", topic, "--meta", "0aff", "grüße")
    outcome, digest = ended.out.split()
    assert outcome == "STORED"
    (stored,) = command.ok("query", "--hash", digest, "--json").objects
    timestamp = stored["message"].pop("timestamp")
    assert before_ns <= timestamp <= time.time_ns()
    assert stored == {
        "message_hash": message_hash(
            PUBSUB_TOPIC, "grüße".encode(), topic, b"\x0a\xff", timestamp
        ).hex(),
        "message": {
            "payload": "grüße".encode().hex(),
            "content_topic": topic,
            "meta": "0aff",
        },
        "pubsub_topic": PUBSUB_TOPIC,
    }
    assert stored["message_hash"] == digest


def test_a_payload_of_any_bytes_comes_from_a_file_or_standard_input(
    command: Command, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "payload"
    path.write_bytes(b"\x00\xff\n\n")
    publish = ("publish", "--content-topic", topic)
    command.ok(*publish, "--file", str(path))
    command.ok(*publish, "--file", "-", stdin=b"from\nstdin\n")
    command.ok(*publish, "")
    payloads = [each["message"]["payload"] for each in scanned(command, topic)]
    assert payloads == ["00ff0a0a", b"from\nstdin\n".hex(), ""]


def test_each_line_is_a_message_with_a_timestamp_of_its_own(command: Command, topic: str) -> None:
    ended = command.ok(
        "publish", "--content-topic", topic, "--lines", "--json", stdin=b"same\nsame\n\nlast"
    )
    assert [each["outcome"] for each in ended.objects] == ["STORED"] * 4
    stored = scanned(command, topic)
    assert [bytes.fromhex(each["message"]["payload"]) for each in stored] == [
        *(b"same", b"same", b""),
        b"last",
    ]
    assert [each["message_hash"] for each in ended.objects] == [
        each["message_hash"] for each in stored
    ]


def test_what_scan_prints_can_be_published_again(command: Command, topic: str) -> None:
    publish = ("publish", "--content-topic", topic, "--meta", "00")
    command.ok(*publish, "--lines", stdin=b"one\ntwo\nthree\n")
    printed = command.ok("scan", "--content-topic", topic, "--json", "--cursors")
    again = command.ok("publish", "--json-input", "--json", stdin=printed.out.encode())
    assert [each["outcome"] for each in again.objects] == ["DUPLICATE"] * 3
    hashes = [each["message_hash"] for each in printed.objects if "message" in each]
    assert [each["message_hash"] for each in again.objects] == hashes


def test_a_line_that_is_no_message_ends_publishing_after_those_before(
    command: Command, topic: str
) -> None:
    good = {"message": {"payload": "00", "content_topic": topic, "timestamp": time.time_ns()}}
    text = json.dumps({**good, "pubsub_topic": PUBSUB_TOPIC}) + "\n\n{not json\n"
    ended = command("publish", "--json-input", stdin=text.encode())
    assert ended.code == 1
    assert "Line 3 of the input is no message: it is not JSON" in ended.err
    ended = command("publish", "--json-input", stdin=b'{"message": {"payload": 1}}')
    assert "Line 1 of the input is no message: the field 'payload'" in ended.err


def test_a_line_without_end_is_refused_after_the_lines_before(command: Command, topic: str) -> None:
    text = b"good\n" + b"x" * (MAX_INPUT_LINE_BYTES + 100_000)
    ended = command("publish", "--content-topic", topic, "--lines", stdin=text)
    assert ended.code == 1
    assert ended.out.startswith("STORED")
    assert "A line of the input has more than" in ended.err


def test_a_payload_that_no_node_takes_is_not_sent(command: Command, topic: str) -> None:
    payload = bytes(MAX_INPUT_PAYLOAD_BYTES + 1)
    ended = command("publish", "--content-topic", topic, stdin=payload)
    assert (ended.code, ended.out) == (1, "")
    assert "which no node takes" in ended.err


def test_a_folder_is_no_input(command: Command, topic: str, tmp_path: Path) -> None:
    ended = command("publish", "--content-topic", topic, "--file", str(tmp_path))
    assert (ended.code, ended.out) == (1, "")
    assert "The input cannot be read (Is a directory)" in ended.err


def test_a_rejected_message_is_exit_code_1_and_says_why(command: Command, topic: str) -> None:
    old = str(time.time_ns() - HOUR_NS)
    ended = command("publish", "--content-topic", topic, "--timestamp", old, "late")
    assert ended.code == 1
    outcome, digest, reason = ended.out.rstrip().split(None, 2)
    assert (outcome, len(digest)) == ("REJECTED", 64)
    assert reason
    assert "1 of 1 messages were rejected" in ended.err
    assert scanned(command, topic) == []


def test_one_bad_message_does_not_keep_the_others_out(command: Command, topic: str) -> None:
    lines = b"small\n" + b"x" * 200_000 + b"\nalso small\n"
    ended = command("publish", "--content-topic", topic, "--lines", "--json", stdin=lines)
    assert ended.code == 1
    assert [each["outcome"] for each in ended.objects] == ["STORED", "REJECTED", "STORED"]
    assert len(scanned(command, topic)) == 2


def test_an_ephemeral_message_is_not_stored(command: Command, topic: str) -> None:
    ended = command.ok("publish", "--content-topic", topic, "--ephemeral", "passing")
    assert ended.out.startswith("EPHEMERAL")
    assert scanned(command, topic) == []


def test_an_unconfirmed_message_is_exit_code_1_and_held(command: Command, topic: str) -> None:
    flags = ("--min-confirms", "1", "--confirm-timeout", "1s", "--json")
    ended = command("publish", "--content-topic", topic, *flags, "x")
    assert ended.code == 1
    (result,) = ended.objects
    assert (result["outcome"], result["confirms"]) == ("UNCONFIRMED", 0)
    assert result["reason"]
    assert [each["message_hash"] for each in scanned(command, topic)] == [result["message_hash"]]


def test_a_line_is_published_while_the_writer_still_writes(command: Command, topic: str) -> None:
    process = command.start("publish", "--content-topic", topic, "--lines", stdin=subprocess.PIPE)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith(b"STORED")
        process.stdin.write(b"second\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith(b"STORED")
        process.stdin.close()
        assert process.wait(TIMEOUT_S) == 0


def test_ctrl_c_ends_a_command_that_waits_for_input(command: Command, topic: str) -> None:
    process = command.start("publish", "--content-topic", topic, "--lines", stdin=subprocess.PIPE)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


def test_a_reader_of_results_that_leaves_is_told_from_a_success(
    command: Command, topic: str
) -> None:
    process = command.start("publish", "--content-topic", topic, "--lines", stdin=subprocess.PIPE)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"first\n")
        process.stdin.close()
        assert process.wait(TIMEOUT_S) == 1
        assert b"Standard output was closed" in process.stderr.read()


def test_bytes_that_are_not_utf_8_are_refused_as_an_option(command: Command, topic: str) -> None:
    ended = command("publish", "--content-topic", topic + "\udcff", "x")
    assert ended.code == 2
    assert "not UTF-8" in ended.err


def test_an_sds_message_names_its_channel_parents_and_id(command: Command, topic: str) -> None:
    hint = "ab" * 32
    flags = ("--channel", topic, "--sender", "alice", "--message-id", "m1")
    parents = ("--parent", "p0", "--parent", f"p1@{hint}")
    ended = command.ok("publish", "--content-topic", topic, *flags, *parents, "hello")
    outcome, digest, message_id = ended.out.split()
    assert (outcome, message_id) == ("STORED", "m1")
    (found,) = command.ok("get", "--channel", topic, "m1", "--json").objects
    assert found["entry"] == {"message_id": "m1", "retrieval_hint": digest}
    view = sds_view(bytes.fromhex(found["stored"]["message"]["payload"]))
    assert view is not None
    assert (view.sender_id, view.content) == ("alice", b"hello")


def test_lines_of_a_channel_depend_each_on_the_one_before(command: Command, topic: str) -> None:
    flags = ("--content-topic", topic, "--channel", topic, "--lines", "--json")
    published = command.ok("publish", *flags, stdin=b"a\nb\nc\n").objects
    head = published[-1]["message_id"]
    # The IDs that are chosen here prove their messages.
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
    envelope = Envelope("/p", "/c", first_ns, None, ephemeral=False)
    maker = MessageBuilder(envelope, SdsDraft("ch", "s", (), None), lambda: next(ticks, 1))
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


def scanned(command: Command, topic: str) -> list[dict[str, dict[str, str]]]:
    return command.ok("scan", "--content-topic", topic, "--json").objects
