"""`storenode query`, `scan`, `follow`, `get`, `causal-history` and `status` against a real node."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.command import TIMEOUT_S, Command
from tests.support.forged import claiming, genuine, genuine_id
from tests.support.node import COMMAND, NodeProcess, clean_environment
from tests.support.polling import eventually

PUBSUB_TOPIC = "/waku/2/rs/1/0"
COUNT = 25


@pytest.fixture
def hashes(command: Command, topic: str) -> list[str]:
    """Hashes of the stored messages 0 to 24 on the topic, in order."""
    text = "".join(f"message {number}\n" for number in range(COUNT))
    flags = ("--content-topic", topic, "--lines", "--json")
    return [
        each["message_hash"] for each in command.ok("publish", *flags, stdin=text.encode()).objects
    ]


def filtered(topic: str) -> tuple[str, ...]:
    return ("--pubsub-topic", PUBSUB_TOPIC, "--content-topic", topic)


def hashes_in(objects: list[dict[str, str]]) -> list[str]:
    return [each["message_hash"] for each in objects if "message_hash" in each]


def test_query_goes_on_from_a_cursor(command: Command, topic: str, hashes: list[str]) -> None:
    flags = (*filtered(topic), "--limit", "10", "--forward", "--json", "--cursors")
    first = command.ok("query", *flags).objects
    assert first[-1] == {"pagination_cursor": hashes[9]}
    second = command.ok("query", *flags, "--cursor", hashes[9]).objects
    assert hashes_in(second) == hashes[10:20]
    last = command.ok("query", *flags, "--cursor", hashes[19]).objects
    assert hashes_in(last) == hashes[20:]
    assert "pagination_cursor" not in last[-1]


def test_query_for_people_says_that_more_match(
    command: Command, topic: str, hashes: list[str]
) -> None:
    ended = command.ok("query", *filtered(topic), "--limit", "10")
    assert len(ended.lines) == 10
    assert ended.err == f"More match: add --cursor {hashes[-10]} or --all.\n"
    assert command.ok("query", *filtered(topic)).err == ""


@pytest.mark.parametrize("direction", ["--forward", "--backward"])
def test_query_fetches_every_page(
    command: Command, topic: str, hashes: list[str], direction: str
) -> None:
    flags = (*filtered(topic), "--limit", "10", "--all", direction, "--json")
    found = hashes_in(command.ok("query", *flags).objects)
    pages = [hashes[:10], hashes[10:20], hashes[20:]]
    if direction == "--backward":
        pages = [hashes[15:], hashes[5:15], hashes[:5]]
    assert found == [digest for page in pages for digest in page]


def test_query_by_hash_and_presence(command: Command, hashes: list[str]) -> None:
    flags = ("--hash", hashes[3], "--hash", "0x" + hashes[1])
    assert hashes_in(command.ok("query", *flags, "--json").objects) == [hashes[1], hashes[3]]
    ended = command("query", *flags, "--hash", "00" * 32, "--no-data")
    assert (ended.code, ended.lines) == (1, [hashes[1], hashes[3]])
    assert ended.err == f"Not held: {'00' * 32}.\n"


def test_query_by_time(command: Command, topic: str, hashes: list[str]) -> None:
    objects = command.ok("query", *filtered(topic), "--json").objects
    times = [str(each["message"]["timestamp"]) for each in objects]
    flags = ("--from", times[5], "--to", times[8], "--json")
    assert hashes_in(command.ok("query", *filtered(topic), *flags).objects) == hashes[5:8]


@pytest.mark.parametrize("flags", [("--hash", "00"), ("--cursor", "00"), ("--cursor", "00" * 32)])
def test_query_errors_are_exit_code_1_and_the_nodes_sentence(
    command: Command, flags: tuple[str, ...]
) -> None:
    ended = command("query", *flags)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("storenode: ")
    assert ended.err.count("\n") == 1


def test_scan_prints_everything_in_order(command: Command, topic: str, hashes: list[str]) -> None:
    flags = ("--content-topic", topic, "--page-size", "10")
    assert hashes_in(command.ok("scan", *flags, "--json").objects) == hashes
    assert command.ok("scan", *flags, "--no-data").lines == hashes
    assert hashes_in(command.ok("scan", *flags, "--json", "--limit", "12").objects) == hashes[:12]


def test_scan_goes_on_from_a_cursor(command: Command, topic: str, hashes: list[str]) -> None:
    flags = ("--content-topic", topic, "--page-size", "10", "--json", "--cursors")
    objects = command.ok("scan", *flags, "--limit", "12").objects
    # The second page was cut short: only the first has a cursor.
    cursors = [each["cursor"] for each in objects if "cursor" in each]
    assert objects.index({"cursor": cursors[0]}) == 10
    assert len(cursors) == 1
    rest = command.ok("scan", *flags, "--cursor", cursors[0]).objects
    assert hashes_in(rest) == hashes[10:]


def test_a_line_for_people_has_time_hash_topic_and_payload(
    command: Command, topic: str, hashes: list[str]
) -> None:
    line = command.ok("scan", "--content-topic", topic, "--limit", "1").lines[0]
    moment, digest, shown_topic, payload = line.split("  ")
    assert command.ok("query", "--hash", digest).lines == [line]
    assert command.ok("query", f"--hash=0X{digest}", "--output=raw").out == f"{payload}\n"
    assert moment.endswith("Z")
    assert (digest, shown_topic, payload) == (hashes[0], topic, "message 0")


def test_nothing_that_was_published_reaches_the_terminal_as_a_control_character(
    command: Command, topic: str
) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\x9b1m"
    command.ok("publish", "--content-topic", topic + evil, evil)
    sds = ("--channel", topic, "--sender", evil, "--message-id", f"id{evil}", "--parent", evil)
    command.ok("publish", "--content-topic", topic, *sds, evil)
    printed = [
        command.ok("scan").out,
        command.ok("scan", "--json").out,
        command("get", "--channel", topic, f"id{evil}", evil).out,
        command.ok("causal-history", "--channel", topic, f"id{evil}").out,
        command.ok("causal-history", "--channel", topic, f"id{evil}", "--json").out,
        command("publish", "--content-topic", "/a", "--pubsub-topic", "\x01", "x").out,
    ]
    for text in printed:
        assert text
        assert not set(evil) & set(text) - set("]0;owned[2J1m")


def test_follow_prints_the_backlog_and_ends_when_it_is_live(
    command: Command, topic: str, hashes: list[str]
) -> None:
    flags = ("--content-topic", topic, "--from-beginning", "--until-live")
    ended = command.ok("follow", *flags, "--json")
    assert sorted(hashes_in(ended.objects)) == sorted(hashes)
    assert ended.err == ""
    ended = command.ok("follow", *flags)
    assert len(ended.lines) == COUNT
    note, _, cursor = ended.err.strip().rpartition(" ")
    assert note == "To go on from here: --cursor"
    assert (
        command.ok("follow", "--content-topic", topic, "--cursor", cursor, "--until-live").lines
        == []
    )


def test_follow_prints_messages_as_they_come_and_ends_at_its_limit(
    command: Command, topic: str, hashes: list[str]
) -> None:
    assert hashes
    flags = ("--content-topic", topic, "--json", "--cursors", "--limit", "2")
    with command.start("follow", *flags) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert first["live"] is True
        for text in ("new 1", "new 2"):
            command.ok("publish", "--content-topic", topic, text)
            message = json.loads(process.stdout.readline())
            assert bytes.fromhex(message["message"]["payload"]) == text.encode()
            assert json.loads(process.stdout.readline())["live"] is True
        assert process.wait(TIMEOUT_S) == 0
        assert process.stdout.read() == b""


def test_follow_resumes_where_ctrl_c_ended_it(command: Command, topic: str) -> None:
    with command.start("follow", "--content-topic", topic, "--cursors") as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    cursor = line.split()[-1]
    command.ok("publish", "--content-topic", topic, "meanwhile")
    flags = ("--content-topic", topic, "--cursor", cursor, "--until-live")
    (found,) = command.ok("follow", *flags).lines
    assert found.endswith("meanwhile")


def test_follow_for_people_names_its_cursor_when_ctrl_c_ends_it(
    command: Command, topic: str
) -> None:
    with command.start("follow", "--content-topic", topic, "--from-beginning") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        command.ok("publish", "--content-topic", topic, "one")
        assert process.stdout.readline().endswith(b"one\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0
        assert process.stderr.read().startswith(b"To go on from here: --cursor ")


def test_a_reader_that_leaves_ends_a_command_quietly(command: Command, hashes: list[str]) -> None:
    assert hashes
    for arguments in (("scan",), ("follow", "--from-beginning")):
        process = command.start(*arguments, "--cursors")
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            if arguments[0] == "follow":
                command.ok("publish", "--content-topic", "/a/1/b/proto", "wake it")
            assert process.wait(TIMEOUT_S) == 0
            assert process.stderr.read() == b""


def test_an_output_that_cannot_be_written_is_an_error(
    command: Command, hashes: list[str], tmp_path: Path
) -> None:
    assert hashes
    path = tmp_path / "unwritable"
    path.touch()
    with path.open("rb") as read_only:
        done = subprocess.run(
            [COMMAND, "scan"],
            stdout=read_only,
            stderr=subprocess.PIPE,
            env=clean_environment(**command.env),
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith(b"storenode: The output could not be written (")


def test_get_prints_what_is_held_and_lists_what_is_missing(command: Command, topic: str) -> None:
    sds = ("--content-topic", topic, "--channel", topic, "--sender", "alice")
    digest = command.ok("publish", *sds, "--message-id", "m1", "hello").out.split()[1]
    other = "cd" * 32
    ended = command("get", "--channel", topic, "m1", f"m2@0x{other}")
    assert ended.code == 1
    shown, missing = ended.lines
    assert shown.split("  ")[1:] == [digest, "m1", "alice: hello", "(not verified)"]
    assert missing == f"missing: m2  {other}"
    assert ended.err == "1 message is missing: this node does not hold what is listed as missing.\n"
    objects = command("get", "--channel", topic, "m1", f"m2@{other}", "--json").objects
    assert objects[0]["stored"]["message_hash"] == digest
    assert objects[1:] == [{"missing": {"message_id": "m2", "retrieval_hint": other}}]
    (by_hint,) = command.ok("get", "--channel", topic, "m1", f"--hint=0x{digest}", "--json").objects
    assert by_hint == objects[0]


def test_forged_messages_do_not_hide_the_genuine_one(command: Command, topic: str) -> None:
    name, now = genuine_id(topic, b"genuine"), time.time_ns()
    payloads = [claiming(topic, name, b"forged %d" % number) for number in range(17)]
    lines = [
        {
            "pubsub_topic": PUBSUB_TOPIC,
            "message": {
                "payload": payload.hex(),
                "content_topic": topic,
                "timestamp": now + number,
            },
        }
        for number, payload in enumerate([*payloads, genuine(topic, b"genuine")])
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    published = command.ok("publish", "--json-input", "--json", stdin=text.encode()).objects
    hint = published[0]["message_hash"]
    for given in ("get", "causal-history"):
        for entry in (name, f"{name}@{hint}"):
            said = [
                line.split("  ", 3)[3]
                for line in command.ok(given, "--channel", topic, entry).lines
            ]
            assert "alice: genuine" in said
            assert "alice: forged 0  (FORGED)" in said
            assert all(each == "alice: genuine" or each.endswith("(FORGED)") for each in said)
            objects = command.ok(given, "--channel", topic, entry, "--json").objects
            assert [each["proven"] for each in objects if "stored" in each].count(True) == 1
    # What came before the genuine message cannot be called forged.
    scanned = command.ok("scan", "--content-topic", topic).lines
    assert scanned[0].endswith("alice: forged 0  (not verified)")
    assert scanned[-1].endswith("alice: genuine")


def test_causal_history_prints_parents_first_then_what_is_missing(
    command: Command, topic: str
) -> None:
    sds = ("--content-topic", topic, "--channel", topic)

    def publish(name: str, *parents: str) -> None:
        flags = [flag for parent in parents for flag in ("--parent", parent)]
        command.ok("publish", *sds, "--message-id", name, *flags, f"text {name}")

    publish("a")
    publish("b", "a", "lost")
    publish("c", "a")
    publish("d", "b", "c")
    walk = ("causal-history", "--channel", topic, "d")
    ended = command.ok(*walk, "--no-data")
    *lines, missing = ended.lines
    order = [line.split()[1] for line in lines]
    assert (order[0], order[-1], sorted(order)) == ("a", "d", ["a", "b", "c", "d"])
    assert missing == "missing: lost"
    assert ended.err.startswith("1 message is missing: ")
    known = command.ok(*walk, "--known", "b", "--json").objects
    assert [each["entry"]["message_id"] for each in known] == ["a", "c", "d"]
    near = command.ok(*walk, "--max-messages", "1", "--json")
    assert near.objects[0]["entry"]["message_id"] == "d"
    assert near.objects[-1] == {"truncated": True}
    assert near.err.startswith("A limit ended the walk")
    shallow = command.ok(*walk, "--max-depth", "1", "--json").objects
    assert sorted(o["entry"]["message_id"] for o in shallow if "entry" in o) == ["b", "c", "d"]
    text = command.ok(*walk).lines[0]
    assert text.endswith("  a  text a  (not verified)")


def test_coverage_counts_parents_that_are_missing(command: Command, topic: str) -> None:
    sds = ("--content-topic", topic, "--channel", topic)
    command.ok("publish", *sds, "--message-id", "b", "--parent", "a", "--parent", "lost", "b")

    def missing(*flags: str) -> set[int]:
        """Of the hour of the message, and the one before."""
        steps = command.ok("coverage", "--channel", topic, "--json", *flags).objects[-2:]
        return {int(step["missing_parents"]) for step in steps if "missing_parents" in step}

    assert eventually(lambda: 2 in missing())
    assert missing("--content-topic", topic) == set()
    command.ok("publish", *sds, "--message-id", "lost", "found")
    assert eventually(lambda: 1 in missing())
    assert "1 parent missing" in command.ok("coverage", "--channel", topic).out


def test_an_sds_filter_leaves_out_what_is_published_elsewhere(command: Command, topic: str) -> None:
    sds = ("--content-topic", topic, "--channel", topic, "--message-id", "m1")
    command.ok("publish", *sds, "hello")
    for walk in ("get", "causal-history"):
        elsewhere = ("--channel", topic, "m1", "--content-topic", topic + "x", "--json")
        ended = command(walk, *elsewhere)
        assert (ended.code, ended.objects) == (1, [{"missing": {"message_id": "m1"}}])


def test_status_shows_what_the_node_says(
    command: Command, node: NodeProcess, hashes: list[str]
) -> None:
    # The node counts what its feed has seen: a follower that is live has seen it too.
    command.ok("follow", "--from-beginning", "--until-live")
    (status,) = command.ok("status", "--json").objects
    assert status["ready"] is True
    assert status["node_id"] == node.ready["node_id"]
    assert status["messages"] >= len(hashes)
    assert 0 < status["oldest_timestamp"] <= status["newest_timestamp"]
    assert status["peers"] == []
    rows = dict(line.split(None, 1) for line in command.ok("status").lines)
    assert rows["ready"] == "yes"
    assert rows["node"] == status["node_id"]
    assert int(rows["messages"].replace(",", "")) >= len(hashes)
