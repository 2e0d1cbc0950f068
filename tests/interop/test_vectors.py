"""Vectors and traces of other implementations: filters, segments, messages, hashes, queries."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message as ProtoMessage

from store.domain.admission import Verdict
from storenode.message.hashing import message_hash
from storenode.message.rules import Policy
from storenode.sds.bloom import FilterShape, filter_of, holds
from storenode.sds.channel import MessageChannel
from storenode.sds.codec import (
    Entry,
    MessageKind,
    SdsMessage,
    SdsMetadata,
    decode,
    encode,
    encode_message,
)
from storenode.sds.config import ChannelConfig
from storenode.sds.events import (
    Acknowledged,
    Broadcast,
    BroadcastReason,
    Event,
    Message,
    Missing,
    Packet,
    PossiblyAcknowledged,
    Received,
    Sent,
)
from storenode.sds.segments import (
    Revision,
    Segment,
    SegmentError,
    SegmentSet,
    content_hash,
    read_segment,
    split,
)
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.segmentation.v1.segment_pb2 import SegmentMessage
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.interop.vectors import Case, case_name, hex_or_none, int_or_none, load
from tests.support.admission import admit

NAMES: dict[type[Event], str] = {
    Sent: "sds:out:message-sent",
    Received: "sds:in:message-received",
    Message: "sds:in:message-delivered",
    Acknowledged: "sds:out:message-acknowledged",
}
TRACE = Path(__file__).parent.parent / "vectors" / "sds_trace_clean.compact.json.gz"
Names = list[tuple[str, Any]]


@cache
def load_trace() -> dict[str, Any]:
    trace: dict[str, Any] = json.loads(gzip.decompress(TRACE.read_bytes()))
    return trace


@dataclass
class Replay:
    """The participants of the recording, and the packets that were sent."""

    trace: dict[str, Any]

    def __post_init__(self) -> None:
        self.channels: dict[str, MessageChannel] = {}
        self.wire = [self._wire(message) for message in self.trace["messages"]]

    def config(self, name: str) -> ChannelConfig:
        options = self.trace["config"]["explicit_options"]
        return ChannelConfig(
            self.trace["config"]["channel_id"],
            name,
            history_entries=options["causalHistorySize"],
            possible_acks=options["possibleAcksThreshold"],
            gap_entries=0,
            filter_every=1,
            name_heads=False,
            lost_after_ms=None,
            release_at_sweep=True,
            repair=None,
        )

    def run(self, step: dict[str, Any]) -> tuple[Names, bytes | None]:
        """Take one step, and return our events by the recording's names, and what was broadcast."""
        name, now, op = step["p"], step["t"], step["op"]
        if op == "create":
            self.channels[name] = MessageChannel(self.config(name), now, random.Random(name))
            return [], None
        events = self._events(self.channels[name], step, now)
        sent = [event.payload for event in events if isinstance(event, Broadcast)]
        return names_of(events), sent[0] if sent else None

    def _events(self, channel: MessageChannel, step: dict[str, Any], now: int) -> list[Event]:
        match step["op"]:
            case "send":
                content = bytes.fromhex(step["payload"])
                message_id = sha256(content).hexdigest()
                events = channel.send(now, content, message_id)
                return events + channel.published(message_id, bytes.fromhex(step["hint"]))
            case "sync":
                return channel.send_sync(now, self.trace["messages"][step["msg"]]["message_id"])
            case "receive":
                packet = Packet(self.wire[step["msg"]], bytes.fromhex(step["hint"]))
                return channel.receive(now, [packet])
            case "sweep_incoming":
                found: list[Event] = []
                channel._sweep_incoming(channel._running(now), found, report=True)
                return found
            case "sweep_outgoing":
                return []
            case other:
                raise AssertionError(other)

    def _wire(self, message: dict[str, Any]) -> bytes:
        bloom, content = message["bloom"], message.get("content")
        inserted = self.trace["final"].get(bloom["sender"], {}).get("bloom_inserted", [])
        payload = encode_message(
            SdsMessage(
                message["channel_id"],
                message["message_id"],
                message["sender_id"],
                message["lamport_timestamp"],
                tuple(
                    Entry(
                        entry["message_id"],
                        bytes.fromhex(entry["retrieval_hint"]),
                        entry["sender_id"],
                    )
                    for entry in message["causal_history"]
                ),
                filter_of(FilterShape(), inserted[: bloom["first_n"]]),
                content=bytes.fromhex(content) if content else None,
            )
        )
        assert len(payload) == message["wire_length"]
        assert sha256(payload).hexdigest() == message["wire_sha256"]
        return payload


def state_of(channel: MessageChannel) -> dict[str, int]:
    return {
        "lamport": channel.clock.value,
        "log": len(channel.log),
        "in": len(channel.incoming),
        "out": len(channel.outgoing),
        "bloom": len(channel.filter),
    }


def names_of(events: list[Event]) -> Names:
    """Return our events as the recording has them, without `Broadcast` of content."""
    found: Names = []
    for event in events:
        match event:
            case Broadcast(reason=BroadcastReason.SYNC):
                found.append(("sds:out:sync-sent", event.message_id))
            case Broadcast():
                pass
            case Received(kind=MessageKind.SYNC):
                found.append(("sds:in:sync-received", event.message_id))
            case PossiblyAcknowledged():
                seen = [event.message_id, event.filters]
                found.append(("sds:out:message-possibly-acknowledged", seen))
            case Missing():
                ids = [entry.message_id for entry in event.messages]
                found.append(("sds:in:message-missing", ids))
            case Sent() | Received() | Message() | Acknowledged():
                found.append((NAMES[type(event)], event.message_id))
            case other:
                raise AssertionError(other)
    return found


BLOOM_VECTORS = load("bloom")
BLOOM_CASES: list[Case] = [
    case for case in BLOOM_VECTORS["cases"] if case["k_hashes_option"] is None
]
ASCII = [case for case in BLOOM_CASES if all(item.isascii() for item in case["inserted"])]
# The other implementation hashes UTF-16 there, so only such IDs can agree.
ASCII_HASHES = [vector for vector in BLOOM_VECTORS["hash_vectors"] if vector["item"].isascii()]


def _shape(case: Case) -> FilterShape:
    return FilterShape(case["capacity"], case["error_rate"])


@pytest.mark.parametrize("case", BLOOM_CASES, ids=case_name)
def test_sizes_follow_from_capacity_and_error_rate(case: Case) -> None:
    shape = _shape(case)
    assert (shape.hashes, shape.bits) == (case["k"], case["m_bits"])
    assert shape.size_bytes == case["byte_length"] == case["m_words"] * 8


@pytest.mark.parametrize("case", ASCII, ids=case_name)
def test_filters_have_the_same_bytes_and_answers(case: Case) -> None:
    shape = _shape(case)
    encoded = filter_of(shape, case["inserted"])
    assert encoded.hex() == case["bytes"]
    for item in case["lookup_true_inserted"] + case["lookup_true_false_positive"]:
        assert holds(encoded, shape.probe(item))
    for item in case["lookup_false"]:
        assert not holds(encoded, shape.probe(item))


@pytest.mark.parametrize("vector", ASCII_HASHES, ids=lambda vector: repr(vector["item"]))
def test_positions_are_the_same(vector: Case) -> None:
    assert FilterShape(10_000, 0.001).positions(vector["item"]) == vector["positions_k10_m150000"]
    assert FilterShape(10, 0.01).positions(vector["item"]) == vector["positions_k7_m100"]


@pytest.mark.parametrize("edge", BLOOM_VECTORS["deserialise_edge"], ids=case_name)
def test_only_the_right_length_is_information(edge: Case) -> None:
    assert FilterShape().reads(bytes(edge["byte_length"])) == (edge["name"] == "exact")


HASH = bytes(range(32))
DATA = bytes.fromhex(f"0a20{HASH.hex()}10f403180120033a03aabbcc")
PARITY = bytes.fromhex(f"0a20{HASH.hex()}10f4032003280130013a021122")
MINIMAL = bytes.fromhex(f"0a20{HASH.hex()}2001")


def test_segments_of_nim_are_read() -> None:
    assert read_segment(DATA) == Segment(SegmentSet(HASH, 3, 500), 1, b"\xaa\xbb\xcc")
    assert read_segment(MINIMAL) == Segment(SegmentSet(HASH, 1, 0), 0, b"")
    with pytest.raises(SegmentError, match="parity"):
        read_segment(PARITY)


def test_the_same_fields_are_written_as_the_same_bytes() -> None:
    parity = SegmentMessage.FromString(PARITY)
    assert (parity.data_segment_count, parity.parity_segment_count) == (3, 1)
    for data in (DATA, PARITY, MINIMAL):
        assert SegmentMessage.FromString(data).SerializeToString() == data


def test_parts_have_the_sizes_of_nim() -> None:
    """Check the sizes: at 102,400 bytes a segment has a part of 102,272; at 320, of 192."""
    for segment_bytes, part_bytes in ((102_400, 102_272), (320, 192)):
        encoded = split(bytes(part_bytes * 2 + 1), segment_bytes, Revision.NIM)
        parts = [read_segment(each).part for each in encoded]
        assert [len(part) for part in parts] == [part_bytes, part_bytes, 1]
        assert all(len(each) <= segment_bytes for each in encoded)


def test_the_published_text_numbers_the_fields_otherwise() -> None:
    """Check the fields: 1 hash, 2 index, 3 count, 4 part; defaults are left out."""
    first, second = split(b"abcde", 3, Revision.PUBLISHED)
    name = content_hash(b"abcde").hex()
    assert first.hex() == f"0a20{name}18022203616263"
    assert second.hex() == f"0a20{name}1001180222026465"


def test_the_hash_is_keccak_of_before_sha3() -> None:
    empty = "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"
    assert content_hash(b"").hex() == empty


SDS_VECTORS = load("sds_message")
ENCODED: list[Case] = SDS_VECTORS["encode"]
HEX_ID = "5950b220023ae23d7df91a16008402c6ab734a6c9b2322da6cd25b718d74c4a"
LEGACY = {
    **{f"legacy-string-hex-first-{digit}": [digit + HEX_ID] for digit in "13579bdf"},
    "legacy-string-short-dep1": ["dep1"],
    "legacy-string-decimal-1": ["1"],
    "legacy-strings-hex-ids": [
        "bd5f2f2ab7bb787362555e1d14bc0c603394b3ed1e880bff356b1671a8152305",
        "b" + HEX_ID,
    ],
}


def _metadata(fields: Case) -> SdsMetadata:
    return SdsMetadata(
        fields["channel_id"].encode(),
        fields["message_id"].encode(),
        int_or_none(fields.get("lamport_timestamp")),
        fields["sender_id"].encode(),
        [
            (entry["message_id"].encode(), hex_or_none(entry.get("retrieval_hint")))
            for entry in fields["causal_history"]
        ],
    )


@pytest.mark.parametrize(
    "case", [case for case in ENCODED if case["fields"]["message_id"]], ids=case_name
)
def test_messages_of_another_implementation_are_read(case: Case) -> None:
    assert decode(bytes.fromhex(case["bytes"])) == _metadata(case["fields"])


def test_the_empty_message_is_not_an_sds_message() -> None:
    nameless = [case for case in ENCODED if not case["fields"]["message_id"]]
    assert [decode(bytes.fromhex(case["bytes"])) for case in nameless] == [None]


@pytest.mark.parametrize("case", SDS_VECTORS["decode_only"], ids=case_name)
def test_odd_bytes_are_read_by_our_rules(case: Case) -> None:
    found, name = decode(bytes.fromhex(case["bytes"])), case["name"]
    if name == "truncated":
        assert found is None
        return
    assert found is not None
    if name == "out-of-order":
        assert found == _metadata(case["proto_decode"]["decoded"])
    elif name == "int32-negative-lamport":
        assert found.lamport == 2**64 - 1
    else:
        assert found.parents == [(parent.encode(), None) for parent in LEGACY[name]]


def _is_plain(case: Case) -> bool:
    fields = case["fields"]
    senders = [entry for entry in fields["causal_history"] if "sender_id" in entry]
    return not senders and not fields["repair_request"]


@pytest.mark.parametrize("case", [case for case in ENCODED if _is_plain(case)], ids=case_name)
def test_messages_without_repair_are_written_as_the_same_bytes(case: Case) -> None:
    fields = case["fields"]
    written = encode(
        fields["channel_id"],
        fields["message_id"],
        sender_id=fields["sender_id"],
        lamport=int_or_none(fields.get("lamport_timestamp")),
        parents=[
            (entry["message_id"], hex_or_none(entry.get("retrieval_hint")))
            for entry in fields["causal_history"]
        ],
        bloom_filter=hex_or_none(fields.get("bloom_filter")),
        content=hex_or_none(fields.get("content")),
    )
    assert written.hex() == case["bytes"]


WAKU_VECTORS = load("waku_message")
BYTES_FIELDS = {"payload", "meta"}


def _fields(message: WakuMessage) -> dict[str, object]:
    """Return present fields in the vectors' notation, without the opaque rate limit proof."""
    found: dict[str, object] = {
        "payload": message.payload.hex(),
        "content_topic": message.content_topic,
    }
    for field, value in message.ListFields():
        if field.name == "timestamp":
            found[field.name] = str(value)
        elif field.name in BYTES_FIELDS:
            found[field.name] = value.hex()
        elif field.name != "rate_limit_proof":
            found[field.name] = value
    return found


def _without_proof(fields: Case) -> Case:
    return {name: value for name, value in fields.items() if name != "rate_limit_proof"}


@pytest.mark.parametrize("case", WAKU_VECTORS["encode"], ids=case_name)
def test_messages_read_and_write_the_same_bytes(case: Case) -> None:
    raw = bytes.fromhex(case["bytes"])
    message = WakuMessage.FromString(raw)
    assert _fields(message) == _without_proof(case["fields"])
    assert message.HasField("rate_limit_proof") == ("rate_limit_proof" in case["fields"])
    assert message.SerializeToString() == raw


@pytest.mark.parametrize("case", WAKU_VECTORS["core_encoder"], ids=case_name)
def test_a_client_s_message_gets_the_client_s_hash(case: Case) -> None:
    raw = bytes.fromhex(case["bytes"])
    message = WakuMessage.FromString(raw)
    assert _fields(message) == _without_proof(case["fields"])
    item = WakuMessageAndTopic(pubsub_topic=case["pubsub_topic"], message=message)
    admission = admit([item], message.timestamp, Policy(max_drift_ns=0))
    assert [digest.hex() for digest in admission.hashes] == [case["message_hash"]]
    expected = Verdict.EPHEMERAL if message.ephemeral else Verdict.ACCEPTED
    assert admission.verdicts == [expected]


STEPS: list[dict[str, Any]] = load_trace()["steps"]
SYNC_BEHIND_WAITING_MESSAGE = 874
"""A sync message whose only unmet cause waits in the buffer: there it counts as met."""


def expected_names(step: dict[str, Any]) -> Names:
    """Return the recorded events, each missing message once, and without the news that none is."""
    found: Names = []
    for name, value in step.get("events", []):
        if name == "sds:in:message-missing":
            if value:
                found.append((name, list(dict.fromkeys(value))))
        else:
            found.append((name, value))
    return found


def is_duplicate(step: dict[str, Any], seen: set[tuple[str, int]]) -> bool:
    if step["op"] != "receive" or step["via"] == "echo":
        return False
    packet = step["p"], step["msg"]
    known = packet in seen and load_trace()["messages"][step["msg"]]["kind"] == "content"
    seen.add(packet)
    return known


def test_every_step_gives_the_same_bytes_events_and_state_and_so_does_the_end() -> None:
    replay = Replay(load_trace())
    taken: set[tuple[str, int]] = set()
    duplicates = 0
    for step in STEPS:
        names, sent = replay.run(step)
        if is_duplicate(step, taken):
            duplicates += 1
            assert names == []
        else:
            assert names == expected_names(step), step["i"]
        if step["op"] in {"send", "sync"}:
            assert sent == replay.wire[step["msg"]], step["i"]
        else:
            assert sent is None
        state = state_of(replay.channels[step["p"]])
        if step["i"] == SYNC_BEHIND_WAITING_MESSAGE:
            state["in"] -= 1
        assert state == step["state"], step["i"]
    assert duplicates > 30
    for name, final in load_trace()["final"].items():
        channel = replay.channels[name]
        channel.check()
        entries = list(channel.log.entries())
        assert [[e.message_id, e.lamport, e.sender_id] for e in entries] == final["log"]
        assert [e.hint.hex() for e in entries if e.hint] == final["log_retrieval_hints"]
        assert channel.clock.value == final["lamport"]
        assert sha256(channel.filter.encode()).hexdigest() == final["bloom_sha256"]
        assert len(channel.outgoing) == len(final["outgoing_buffer"])
        assert len(channel.incoming) == len(final["incoming_buffer"])


QUERIES_VECTORS = load("store_query")
KINDS: dict[str, type[StoreQueryRequest | StoreQueryResponse]] = {
    "StoreQueryRequest": StoreQueryRequest,
    "StoreQueryResponse": StoreQueryResponse,
}
ALWAYS_SHOWN = {
    "StoreQueryRequest": [
        "request_id",
        "include_data",
        "content_topics",
        "message_hashes",
        "pagination_forward",
    ],
    "StoreQueryResponse": ["request_id", "messages"],
    "WakuMessage": ["payload", "content_topic"],
}
TEXT_NUMBERS = {"time_start", "time_end", "pagination_limit", "timestamp"}


def _shown(name: str, value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, ProtoMessage):
        return _query_fields(value)
    if isinstance(value, str | bool | int):
        return str(value) if name in TEXT_NUMBERS else value
    assert isinstance(value, Iterable)
    return [_shown(name, element) for element in value]


def _query_fields(message: ProtoMessage) -> dict[str, object]:
    """Return the message in the vectors' notation."""
    names = {field.name for field, _ in message.ListFields()}
    names |= set(ALWAYS_SHOWN.get(message.DESCRIPTOR.name, []))
    return {name: _shown(name, getattr(message, name)) for name in names}


QUERIES = [
    pytest.param(kind, case, id=f"{name}-{case_name(case)}")
    for name, kind in (("request", StoreQueryRequest), ("response", StoreQueryResponse))
    for case in QUERIES_VECTORS[name]
]


@pytest.mark.parametrize(("kind", "case"), QUERIES)
def test_queries_read_and_write_the_same_bytes(kind: type[ProtoMessage], case: Case) -> None:
    raw = bytes.fromhex(case["bytes"])
    message = kind.FromString(raw)
    assert _query_fields(message) == case["fields"]
    assert message.SerializeToString() == raw


HASHES_VECTORS = load("message_hash")
HASHES_CASES: list[Case] = HASHES_VECTORS["cases"]


def _has_agreed_hash(case: Case) -> bool:
    timestamp = int_or_none(case["timestamp"])
    return timestamp is not None and timestamp != 0 and -(2**63) <= timestamp < 2**63


HASHED = [case for case in HASHES_CASES if _has_agreed_hash(case)]
REFUSED = [
    case for case in HASHES_CASES if not _has_agreed_hash(case) and case["timestamp"] is not None
]


def _hash(case: Case) -> bytes:
    return message_hash(
        case["pubsub_topic"],
        bytes.fromhex(case["payload"]),
        case["content_topic"],
        hex_or_none(case["meta"]),
        int(case["timestamp"]),
    )


@pytest.mark.parametrize("case", HASHED, ids=case_name)
def test_the_hash_is_that_of_other_implementations(case: Case) -> None:
    assert _hash(case).hex() == case["hash"]


@pytest.mark.parametrize("case", REFUSED, ids=case_name)
def test_a_timestamp_that_wraps_elsewhere_is_refused(case: Case) -> None:
    with pytest.raises(ValueError, match="has no hash"):
        _hash(case)


@pytest.mark.parametrize("case", HASHES_VECTORS["js_date_inputs"], ids=case_name)
def test_dates_give_the_hash_of_their_nanoseconds(case: Case) -> None:
    spec = next(case for case in HASHES_CASES if case["name"] == "spec-meta-12")
    dated = {**spec, "timestamp": case["equivalent_ns"]}
    if int(case["equivalent_ns"]) == 0:
        with pytest.raises(ValueError, match="timestamp 0 has no hash"):
            _hash(dated)
    else:
        assert _hash(dated).hex() == case["hash"]
