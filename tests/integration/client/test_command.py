"""Commands against a real node, and the text, times, JSON and messages that they print."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storenode.cli.client.publish import MessageBuilder
from storenode.cli.client.session import entry
from storenode.cli.client.source import MAX_LINE_BYTES, MAX_PAYLOAD_BYTES
from storenode.cli.client.text import PREVIEW_CHARS, TIME, format_time, parse_time_ns, preview, safe
from storenode.client.errors import PublishError
from storenode.client.message import Message, Published, nanoseconds
from storenode.client.messages import (
    hash_of,
    new_message,
    new_request,
    outcome_name,
    publish_requests,
)
from storenode.client.plain import message_from_plain, to_plain
from storenode.client.sds_messages import sds_payload, sds_view
from storenode.common.errors import ArgumentError
from storenode.message.limits import MAX_TIMESTAMP_NS
from storenode.message.text import parse_hex
from storenode.wire.storenode.v1.admin_pb2 import NodeStatus, PeerStatus, SyncReport
from storenode.wire.storenode.v1.store_pb2 import PublishResult
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import WakuMessageKeyValue
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
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
    st.lists(st.integers(1, 1_000), min_size=1, max_size=8), st.none() | st.integers(0, 2**63 - 1)
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


UNSAFE_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def moves_nothing(text: str) -> bool:
    return not any(unicodedata.category(each) in UNSAFE_CATEGORIES for each in text)


@given(st.text(st.characters(exclude_categories=())))
@example("\x1b[2J\x1b]0;title\x07")
@example("\u202etxt.exe")
@example("\x9b31m\x7f")
@example("line\u2028break\ud800")
def test_no_text_reaches_the_terminal_with_a_control_character(text: str) -> None:
    assert moves_nothing(safe(text))


@given(st.binary(max_size=1_000))
def test_a_preview_is_short_and_safe_for_any_payload(payload: bytes) -> None:
    shown = preview(payload)
    assert moves_nothing(shown)
    assert len(shown) <= PREVIEW_CHARS


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("0", 0),
        ("-5", -5),
        ("1700000000123456789", 1_700_000_000_123_456_789),
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1970-01-01t01:00:00.5+01:00", 500_000_000),
        ("1969-12-31 23:59:59.999999999z", -1),
        ("2026-11-20T09:30:00-00:30", 1_795_168_800_000_000_000),
        ("2026-11-20T09:30Z", 1_795_167_000_000_000_000),
        (str(MAX_TIMESTAMP_NS), MAX_TIMESTAMP_NS),
    ],
)
def test_times_are_read_to_the_nanosecond(text: str, time_ns: int) -> None:
    assert parse_time_ns(text) == (time_ns, None)


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-11-20", "2026-11-19T23:00:00.000Z"),
        ("2026-06-20", "2026-06-19T22:00:00.000Z"),
        ("2026-11-20 05:00", "2026-11-20T04:00:00.000Z"),
        ("2026-11-20T09:30:01.5", "2026-11-20T08:30:01.500Z"),
    ],
)
def test_a_time_without_a_zone_is_local_and_noted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, utc: str
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        time_ns, local = parse_time_ns(text)
        TIME.convert(text, None, None)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert format_time(time_ns) == utc
    assert local is not None
    assert f"{text} is taken in the local zone: {local.isoformat()}" in capsys.readouterr().err


def test_a_duration_is_a_time_before_now() -> None:
    before_ns = time.time_ns()
    time_ns, local = parse_time_ns("1h 30 minutes")
    assert local is None
    assert 0 <= time_ns - (before_ns - 5_400 * 10**9) <= time.time_ns() - before_ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "0001-01-01",
        "2026-02-30T00:00:00Z",
        "2026-11-20T25:00:00Z",
        "2026-11-20T09:30:00.1234567890Z",
        "9999-01-01T00:00:00Z",
        "9223372036854775808",
        "99999999999999999999",
        "1.5",
        "٣",
    ],
)
def test_what_is_no_time_is_refused_by_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time|is beyond the times"):
        parse_time_ns(text)


@given(st.integers(-MAX_TIMESTAMP_NS - 1, MAX_TIMESTAMP_NS))
def test_a_printed_time_is_the_time_without_its_microseconds(time_ns: int) -> None:
    lowest_ns = -MAX_TIMESTAMP_NS - 1
    printed = format_time(time_ns)
    if time_ns - lowest_ns > 1_000_000:
        assert parse_time_ns(printed) == (time_ns // 1_000_000 * 1_000_000, None)


def test_hexadecimal_is_read_in_either_case() -> None:
    assert parse_hex(" 0aFF ") == parse_hex("0x0aff") == b"\x0a\xff"
    with pytest.raises(ValueError, match="is not hexadecimal"):
        parse_hex("0x0x0a")


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (1_764_300_000, "looks like seconds since 1970; write 1764300000000000000, "),
        (1_764_300_000_123, "looks like milliseconds since 1970; write 1764300000123000000, "),
        (1_764_300_000_123_456, "microseconds since 1970; write 1764300000123456000, "),
    ],
)
def test_a_time_in_a_coarser_unit_is_refused_with_its_nanoseconds(
    number: int, sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse_time_ns(str(number))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        nanoseconds(number)


def test_an_entry_has_a_hint_only_after_the_last_at_sign() -> None:
    hint = "ab" * 32
    assert entry(f"alice@home@{hint}") == ("alice@home", bytes.fromhex(hint))
    assert entry("alice@home") == ("alice@home", None)
    assert entry(f"alice@{hint[:-1]}") == (f"alice@{hint[:-1]}", None)
    assert entry(f"@{hint}") == (f"@{hint}", None)
    assert entry(f"alice@0x{hint}") == ("alice", bytes.fromhex(hint))


FOUR_MIB = 4 * 1024 * 1024
INT64 = st.integers(-(2**63), 2**63 - 1)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


MESSAGES = st.builds(
    WakuMessage,
    payload=st.binary(max_size=50),
    content_topic=st.text(max_size=20),
    version=maybe(st.integers(0, 2**32 - 1)),
    timestamp=maybe(INT64.filter(bool)),
    meta=maybe(st.binary(max_size=64)),
    rate_limit_proof=maybe(st.binary(max_size=10)),
    ephemeral=maybe(st.booleans()),
)


def sample(payload: bytes = b"x", timestamp_ns: int = 1) -> WakuMessageAndTopic:
    return new_message(payload, "/app/1/chat/proto", "/waku/2/rs/1/0", timestamp_ns)


@given(st.lists(st.integers(0, 1_000_000), max_size=12))
def test_requests_keep_the_order_and_stay_below_four_mib(sizes: list[int]) -> None:
    messages = [sample(bytes(size), number + 1) for number, size in enumerate(sizes)]
    requests = list(publish_requests(messages))
    assert [m for request in requests for m in request.messages] == messages
    assert all(request.ByteSize() < FOUR_MIB for request in requests)


def test_a_request_has_at_most_a_thousand_messages_and_carries_the_confirmations() -> None:
    messages = [sample(timestamp_ns=number + 1) for number in range(2_500)]
    requests = list(publish_requests(messages, min_confirms=2, confirm_timeout_s=1.5))
    assert [len(request.messages) for request in requests] == [1_000, 1_000, 500]
    assert {request.min_confirms for request in requests} == {2}
    assert requests[0].confirm_timeout.ToMilliseconds() == 1_500
    assert not new_request(messages[:1]).HasField("confirm_timeout")


def test_a_message_too_large_for_any_request_travels_alone() -> None:
    small, huge = sample(), sample(bytes(5_000_000), 2)
    requests = list(publish_requests([small, huge, small]))
    assert [list(request.messages) for request in requests] == [[small], [huge], [small]]


@given(MESSAGES, st.text(max_size=20))
def test_what_scan_prints_is_read_back_exactly(message: WakuMessage, topic: str) -> None:
    stored = WakuMessageKeyValue(message=message, pubsub_topic=topic)
    if message.timestamp:
        stored.message_hash = hash_of(stored)
    read = message_from_plain(json.loads(json.dumps(to_plain(stored))))
    assert read == WakuMessageAndTopic(message=message, pubsub_topic=topic)


def test_json_has_names_of_the_schema_numbers_and_hexadecimal_bytes() -> None:
    report = SyncReport(messages_sent=2**63, seconds=0.5)
    status = to_plain(NodeStatus(oldest_timestamp=-5, peers=[PeerStatus(last_report=report)]))
    shown = status["peers"][0]["last_report"]
    assert (status["oldest_timestamp"], status["messages"]) == (-5, 0)
    assert (shown["messages_sent"], shown["seconds"]) == (2**63, 0.5)
    result = PublishResult(message_hash=b"\x0a\xff", outcome=PublishResult.REJECTED, confirms=1)
    refused = {"message_hash": "0aff", "outcome": "REJECTED", "reason": "", "confirms": 1}
    assert to_plain(result) == refused
    newer = PublishResult.FromString(b"\x10\x63")
    assert (outcome_name(newer), to_plain(newer)["outcome"]) == ("99", 99)
    with pytest.raises(PublishError, match="use a newer client"):
        Published.decode(newer).check(Message(b"", "/app/1/chat/proto"))
    # Fields with presence are printed when they are set.
    assert to_plain(WakuMessageKeyValue(message_hash=b"")) == {"message_hash": ""}
    set_ones = {"payload": "", "content_topic": "", "meta": "", "ephemeral": False}
    assert to_plain(WakuMessage(meta=b"", ephemeral=False)) == set_ones


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ([], "not a JSON object"),
        ({"pubsub_topic": "/p"}, '"message" is missing'),
        ({"message": "text"}, "'message' is not a JSON object"),
        ({"message": {}, "topic": "/p"}, "'topic' is unknown"),
        ({"message": {"payload": "0g"}}, "'payload' is not hexadecimal"),
        ({"message": {"payload": 7}}, "'payload' is not text with hexadecimal digits"),
        ({"message": {"timestamp": "7"}}, "'timestamp' is not a whole number"),
        ({"message": {"timestamp": 1.5}}, "'timestamp' is not a whole number"),
        ({"message": {"timestamp": True}}, "'timestamp' is not a whole number"),
        ({"message": {"timestamp": 2**63}}, "'timestamp' has a wrong value"),
        ({"message": {"ephemeral": 1}}, "'ephemeral' is not true or false"),
        ({"message": {"content_topic": 1}}, "'content_topic' has a wrong value"),
        ({"message": {"content_topic": "\ud800"}}, "'content_topic' has a wrong value"),
        ({"message": {"timestamp": 5}, "message_hash": "00"}, "is not the hash of the message"),
        ({"message": {}, "message_hash": "00"}, "has no hash"),
    ],
)
def test_json_that_is_no_message_is_refused_with_the_field(value: object, cause: str) -> None:
    with pytest.raises(ArgumentError, match=cause):
        message_from_plain(value)


@pytest.mark.parametrize(
    ("channel", "message_id", "parents"),
    [("", "m", 0), ("c", "", 0), ("c", "m" * 257, 0), ("c", "m", 257)],
)
def test_what_no_node_would_read_as_sds_is_not_written(
    channel: str, message_id: str, parents: int
) -> None:
    history = [(f"p{number}", None) for number in range(parents)]
    with pytest.raises(ValueError, match="would not be read as an SDS message"):
        sds_payload(channel, message_id, b"", parents=history)
