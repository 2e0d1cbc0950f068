"""The wire format of SDS messages in both revisions, against a slow reading rule by rule."""

from dataclasses import replace
from hashlib import sha256
from typing import TypeVar

import pytest
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import example, given
from hypothesis import strategies as st

from store.messages.record import RecordBatch, index_batch
from storenode.message.varint import delimited, varint
from storenode.sds.claims import proof_of
from storenode.sds.codec import (
    Entry,
    MessageKind,
    SdsMessage,
    SdsMetadata,
    decode,
    decode_message,
    encode,
    encode_message,
    encode_older,
    sds_key,
)
from storenode.sds.proofs import content_id, joined
from storenode.wire.sds.v1.message_pb2 import HistoryEntry, Message
from storenode.wire.storenode.internal.v1.sds_raw_pb2 import RawSdsMessage
from tests.interop.vectors import load

Parent = tuple[bytes, bytes | None]
M = TypeVar("M", bound=ProtoMessage)


def parse(kind: type[M], raw: bytes) -> M | None:
    try:
        return kind.FromString(raw)
    except DecodeError:
        return None


def is_known(message: ProtoMessage) -> bool:
    return len(UnknownFieldSet(message)) == 0


def read_parent(raw: bytes) -> Parent | None:
    entry = parse(HistoryEntry, raw)
    if entry is not None and is_known(entry) and entry.message_id != "":
        has_hint = entry.HasField("retrieval_hint")
        return entry.message_id.encode(), entry.retrieval_hint if has_hint else None
    try:
        text = raw.decode("utf-8", errors="strict")
    except UnicodeDecodeError:
        return None
    return None if text == "" else (raw, None)


def is_id(text: str) -> bool:
    return 1 <= len(text.encode()) <= 256


def read(payload: bytes) -> SdsMetadata | None:
    raw = parse(RawSdsMessage, payload)
    if raw is None or not is_known(raw):
        return None
    requests = [parse(HistoryEntry, request) for request in raw.repair_request]
    if not all(request is not None and is_known(request) for request in requests):
        return None
    if not is_id(raw.channel_id) or not is_id(raw.message_id):
        return None
    found = [read_parent(entry) for entry in raw.causal_history]
    parents = [parent for parent in found if parent is not None]
    if len(parents) < len(found) or len(found) > 256:
        return None
    has_lamport = raw.HasField("lamport_timestamp")
    return SdsMetadata(
        raw.channel_id.encode(),
        raw.message_id.encode(),
        raw.lamport_timestamp if has_lamport else None,
        raw.sender_id.encode(),
        parents,
    )


HINT = bytes(range(32))
UNKNOWN = b"\x20\x01"

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ids = st.sampled_from(["", "a", "id", "\0", "é" * 128, "é" * 128 + "x", "y" * 257]) | text
hints = st.none() | st.sampled_from([b"", HINT]) | st.binary(max_size=8)


def field(number: int, body: bytes) -> bytes:
    return delimited(varint(number << 3 | 2), body)


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


# A history entry of either revision, with and without what makes it unreadable.
entry_fields = st.one_of(
    ids.map(lambda name: field(1, name.encode())),
    hints.map(lambda hint: field(2, hint or b"")),
    text.map(lambda name: field(3, name.encode())),
    st.sampled_from([UNKNOWN, field(1, b"\xff"), number_field(1, 3), field(4, b"x")]),
)
history_entries = st.lists(entry_fields, max_size=3).map(b"".join) | st.one_of(
    text.map(str.encode), st.binary(max_size=8)
)

fields = st.one_of(
    st.tuples(st.sampled_from([1, 2, 3]), ids).map(lambda pair: field(pair[0], pair[1].encode())),
    st.integers(0, 2**64 - 1).map(lambda value: number_field(10, value)),
    history_entries.map(lambda raw: field(11, raw)),
    history_entries.map(lambda raw: field(13, raw)),
    st.tuples(st.sampled_from([12, 20]), st.binary(max_size=10)).map(lambda pair: field(*pair)),
    st.sampled_from(
        [
            UNKNOWN,
            number_field(2, 1),
            number_field(11, 1),
            field(10, b"\x01"),
            b"\x55\x01\x02\x03\x04",
            b"\x13\x14",
            b"\x8a\x00\x01s",
            b"\xda\x00\x03\x0a\x01p",
            b"\x50\x85\x00",
            field(3, b"\xed\xa0\x80"),
        ]
    ),
)
ID_FIELDS = field(2, b"m") + field(3, b"c")
near_messages = st.tuples(
    st.sampled_from([b"", ID_FIELDS, ID_FIELDS]),
    st.lists(fields, max_size=6).map(b"".join),
    st.sampled_from([b"", ID_FIELDS, b"\x5a"]),
).map(b"".join)


@given(near_messages | st.binary(max_size=200))
@example(field(2, b"m") * 2 + field(3, b"c"))
@example(b"\x50\x85\x80\x00" + field(3, b"x") + ID_FIELDS + field(1, b"s"))
@example(ID_FIELDS + number_field(10, 0))
@example(ID_FIELDS + field(13, b""))
@example(ID_FIELDS + field(1, b""))
@example(b"\x92\x00\x01m" + field(3, b"c"))
@example(b"\xa2\x01\x00" + ID_FIELDS)
@example(ID_FIELDS + b"\xa2\x01\x05x")
@example(b"b plain text that begins like a field")
@example(field(2, b"m" * 256) + field(3, b"c" * 256))
@example(field(2, b"m") + field(3, b"c" * 257))
@example(ID_FIELDS + field(13, field(1, b"r") + UNKNOWN))
# With an unknown field inside, the bytes are no HistoryEntry but still UTF-8.
@example(ID_FIELDS + field(11, field(1, b"p") + UNKNOWN))
@example(ID_FIELDS + field(11, field(2, HINT + b"\xff")))
@example(ID_FIELDS + field(11, b"p" * 300))
@example(ID_FIELDS + field(11, field(1, b"p")) * 256)
@example(ID_FIELDS + field(11, field(1, b"p")) * 257)
@example(ID_FIELDS + field(11, b"legacy") * 257)
def test_decoding_agrees_with_the_slow_reading(payload: bytes) -> None:
    assert decode(payload) == read(payload)


@given(near_messages, st.data())
def test_damaged_messages_agree_with_the_slow_reading(payload: bytes, data: st.DataObject) -> None:
    damaged = bytearray(payload or b"\0")
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    raw = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    assert decode(raw) == read(raw)


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
hashes = st.binary(min_size=32, max_size=32).map(bytes.hex)
entries = st.builds(
    Entry, st.one_of(hashes, texts), st.none() | st.binary(max_size=40), st.none() | texts
)
messages = st.builds(
    SdsMessage,
    texts,
    st.one_of(hashes, texts),
    st.one_of(st.just(""), texts),
    st.integers(0, 2**64 - 1),
    st.lists(entries, max_size=5).map(tuple),
    st.none() | st.binary(min_size=1, max_size=40),
    st.lists(entries, max_size=3).map(tuple),
    st.none() | st.binary(min_size=1, max_size=40),
)


@given(messages)
def test_what_is_encoded_is_decoded(message: SdsMessage) -> None:
    payload = encode_message(message)
    assert decode_message(payload) == message
    assert message.kind is (MessageKind.CONTENT if message.content else MessageKind.SYNC)
    found = decode(payload)
    assert found is not None
    parents = [(entry.message_id.encode(), entry.hint) for entry in message.history]
    assert (found.lamport, found.parents) == (message.lamport, parents)
    names = (message.channel_id, message.message_id, message.sender_id)
    assert (found.channel_id, found.message_id, found.sender_id) == tuple(map(str.encode, names))


@given(st.lists(hashes, max_size=12), st.binary(min_size=1, max_size=20))
def test_the_older_revision_is_read_as_ids(history: list[str], content: bytes) -> None:
    message = SdsMessage(
        "room", "id", "", 5, tuple(map(Entry, history)), b"filter", content=content
    )
    assert decode_message(encode_older(message)) == message


def test_recorded_histories_of_the_older_revision_are_read() -> None:
    legacy = [each for each in load("sds_message")["decode_only"] if "legacy" in each["name"]]
    assert len(legacy) > 10
    for case in legacy:
        payload = bytes.fromhex(case["bytes"])
        metadata = decode(payload)
        assert metadata is not None
        history = decode_message(payload).history
        assert [each.message_id.encode() for each in history] == [
            key for key, _ in metadata.parents
        ]
        assert all(entry.hint is None and entry.sender_id is None for entry in history)


def test_a_participant_reads_fields_that_it_does_not_know() -> None:
    message = SdsMessage("room", "id", "s", 5, (Entry("a" * 64, b"h"),), content=b"x")
    unknown = bytes([0x9A, 0x06, 1, 65])
    entry = field(1, b"a" * 64) + field(2, b"h") + unknown
    later = encode_message(replace(message, history=())) + field(11, entry) + unknown
    assert decode_message(later) == message


def test_the_ids_that_prove_their_message() -> None:
    whole = content_id("c", "s", 5, (Entry("parent", HINT),), b"content")
    hashed, history = sha256(b"content").hexdigest(), [("parent", None)]
    quoting = joined([b"sds.v1", b"anything"])
    given = [
        (True, whole, "c", "s", 5, history, b"content"),
        (True, hashed, "c", "other", 6, [], b"content"),
        (False, whole, "d", "s", 5, history, b"content"),
        (False, whole, "c", "t", 5, history, b"content"),
        (False, whole, "c", "s", 6, history, b"content"),
        (False, whole, "c", "s", 5, [("other", None)], b"content"),
        (False, whole, "c", "s", 5, history, b"contents"),
        (False, hashed.upper(), "c", "s", 5, [], b"content"),
        (False, sha256(b"").hexdigest(), "c", "s", 5, [], b""),
        (False, sha256(quoting).hexdigest(), "c", "s", 5, [], quoting),
        (False, "é" * 32, "c", "s", 5, [], b"content"),
    ]
    for proven, name, channel, sender, lamport, parents, content in given:
        raw = encode(
            channel, name, sender_id=sender, lamport=lamport, parents=parents, content=content
        )
        found = decode(raw)
        assert found is not None
        assert found.proven is proven, name
        if content:
            assert bool(proof_of(decode_message(raw))) is proven, "a participant judges alike"


def test_encoding_leaves_absent_fields_absent() -> None:
    assert encode("c", "m") == ID_FIELDS
    filled = Message.FromString(encode("c", "m", lamport=0, bloom_filter=b"", content=b""))
    assert filled.HasField("lamport_timestamp")
    assert filled.HasField("bloom_filter")
    assert filled.HasField("content")


def test_a_lamport_timestamp_past_64_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="18446744073709551616"):
        encode("c", "m", lamport=2**64)


def test_a_batch_lists_its_readable_messages_only() -> None:
    batch = RecordBatch(payloads=[b"text", ID_FIELDS, b"", encode("c", "n")])
    batch.sds_index = [0]
    index_batch(batch)
    assert batch.sds_index == [1, 3]
    assert [metadata.message_id for metadata in batch.sds] == [b"m", b"n"]


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_key_is_the_start_of_a_length_prefixed_sha256(channel: bytes, name: bytes) -> None:
    preimage = b"".join(len(part).to_bytes(4, "big") + part for part in (channel, name))
    assert sds_key(channel, name) == sha256(preimage).digest()[:16]
