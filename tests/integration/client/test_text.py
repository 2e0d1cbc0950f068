"""Text for a terminal, times, JSON and messages of the client: safe, exact, read back."""

from __future__ import annotations

import json
import re
import time
import unicodedata
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storenode.cli.client.session import entry
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
from storenode.client.sds_messages import sds_payload
from storenode.common.errors import ArgumentError
from storenode.message.limits import MAX_TIMESTAMP_NS
from storenode.message.text import parse_hex
from storenode.wire.storenode.v1.admin_pb2 import NodeStatus, PeerStatus, SyncReport
from storenode.wire.storenode.v1.store_pb2 import PublishResult
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import WakuMessageKeyValue
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

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


def test_a_preview_shows_text_as_text_and_bytes_as_hexadecimal() -> None:
    assert preview("grüße 👋".encode()) == "grüße 👋"
    assert preview(b"\xff\x00") == "0xff00"
    assert preview(b"a\nb") == r"a\nb"
    assert preview(b"x" * 500) == "x" * (PREVIEW_CHARS - 3) + "..."


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
