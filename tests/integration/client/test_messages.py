"""Messages that the client builds, groups and turns into JSON and back."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from storenode.wire.storenode.v1.admin_pb2 import NodeStatus, PeerStatus, SyncReport
from storenode.wire.storenode.v1.store_pb2 import PublishResult
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import WakuMessageKeyValue
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

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


def test_an_sds_message_is_written_and_read() -> None:
    payload = sds_payload("ch", "m1", b"hi", sender_id="s", lamport=9, parents=[("m0", b"h" * 32)])
    view = sds_view(payload)
    assert view is not None
    assert (view.channel_id, view.message_id, view.sender_id) == ("ch", "m1", "s")
    assert (view.lamport, view.content) == (9, b"hi")
    assert sds_view(b"plain text") is None


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
