"""The wire format of messages, and segments of contents."""

import random
from dataclasses import replace
from hashlib import sha256
from typing import Any, TypeVar

import pytest
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import example, given, settings
from hypothesis import strategies as st

from store.messages.record import RecordBatch, index_batch
from storenode.message.varint import delimited, varint
from storenode.sds import segments
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
from storenode.sds.limits import (
    MAX_ATTEMPTS,
    MAX_CANDIDATES,
    MAX_LINKED_ATTEMPTS,
    MAX_PLACES,
    MAX_SEGMENTS,
    MAX_SETS,
)
from storenode.sds.log import Key
from storenode.sds.proofs import content_id, joined
from storenode.sds.segments import (
    Reassembly,
    Revision,
    Segment,
    SegmentError,
    SegmentSet,
    SetName,
    join,
    read_segment,
    split,
)
from storenode.wire.sds.v1.message_pb2 import HistoryEntry, Message
from storenode.wire.storenode.internal.v1.sds_raw_pb2 import RawSdsMessage
from storenode.wire.waku.segmentation.v1.segment_pb2 import SegmentMessage, SegmentMessageProto
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


DAY_MS = 86_400_000
REVISIONS = st.sampled_from(Revision)


@given(st.integers(0, 5_000), st.integers(256, 700), REVISIONS, st.randoms())
def test_parts_in_any_order_and_twice_are_the_content(
    length: int, segment_bytes: int, revision: Revision, rng: random.Random
) -> None:
    content = rng.randbytes(length)
    encoded = split(content, segment_bytes, revision)
    sized = encoded if revision is Revision.NIM else [read_segment(each).part for each in encoded]
    assert all(len(each) <= segment_bytes for each in sized)
    log = {(number, "id"): data for number, data in enumerate(encoded + encoded)}
    reassembly = Reassembly(DAY_MS)
    found: list[bytes | None] = []
    for place in rng.sample(list(log), len(log)):
        name = reassembly.add(0, "alice", read_segment(log[place]), place)
        reassembly.check()
        if name is not None:
            places = next(reassembly.attempts(name))
            found.append(join(name[1], [read_segment(log[each]).part for each in places]))
            reassembly.remove(name)
    # The second copies are a set of their own, or candidates that were not needed.
    assert found[0] == content
    assert all(each == content for each in found)


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_or_within_bounds(data: bytes) -> None:
    try:
        segment = read_segment(data)
    except SegmentError:
        return
    assert len(segment.whole.content_hash) == 32
    assert 0 <= segment.index < segment.whole.count <= MAX_SEGMENTS


def published(**fields: Any) -> SegmentMessageProto:  # noqa: ANN401 - as of the message
    return SegmentMessageProto(**{"entire_message_hash": bytes(32), **fields})


def of_nim(**fields: Any) -> SegmentMessage:  # noqa: ANN401 - as of the message
    return SegmentMessage(original_payload_hash=bytes(32), data_segment_count=1, **fields)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x0a\x7f", "no segment"),
        (b"", "0 bytes, not 32"),
        (published(), "number 0 of 0"),
        (published(entire_message_hash=bytes(31), data_segment_count=1), "31 bytes"),
        (published(data_segment_count=2, data_segment_index=2), "number 2 of 2"),
        (published(data_segment_count=256), "number 0 of 256"),
        (published(data_segment_count=1, is_parity=True), "parity"),
        (of_nim(segment_payload=b"12"), "content has 0 bytes"),
        (of_nim(original_payload_length=2**32 - 1), "content has 4294967295 bytes"),
    ],
)
def test_what_lies_about_its_numbers_is_refused(
    data: bytes | SegmentMessage | SegmentMessageProto, why: str
) -> None:
    encoded = data if isinstance(data, bytes) else data.SerializeToString()
    with pytest.raises(SegmentError, match=why):
        read_segment(encoded)


def test_a_content_too_large_for_its_segments_is_refused() -> None:
    assert len(split(bytes(256 * MAX_SEGMENTS), 256, Revision.PUBLISHED)) == MAX_SEGMENTS
    with pytest.raises(ValueError, match="65280 fit into 255 segments"):
        split(bytes(256 * MAX_SEGMENTS + 1), 256, Revision.PUBLISHED)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3_000),
        st.sampled_from("abc"),
        st.integers(0, 3),
        st.integers(1, 3),
        st.integers(0, 2),
    ),
    max_size=120,
)


@settings(max_examples=60)
@given(STEPS)
def test_sets_are_those_of_a_naive_reading(steps: list[tuple[int, str, int, int, int]]) -> None:
    # Sets by what they have in common; tried once every index has a place, dropped by age.
    patience_ms, now_ms = 10_000, 0
    reassembly = Reassembly(patience_ms)
    naive: dict[SetName, tuple[int, dict[int, list[Key]]]] = {}
    for number, (later_ms, sender, hashed, count, index) in enumerate(steps):
        now_ms += later_ms
        if index >= count:
            continue
        name = sender, SegmentSet(bytes([hashed]) * 32, count)
        found = reassembly.add(now_ms, sender, Segment(name[1], index, b""), (number, "id"))
        _, places = naive.get(name, (now_ms, {}))
        places.setdefault(index, []).append((number, "id"))
        naive[name] = now_ms, places
        if set(places) == set(range(count)):
            assert found == name
            newest = tuple(places[each][-1] for each in range(count))
            assert next(reassembly.attempts(name)) == newest
            assert reassembly.remove(name) == count
            del naive[name]
        else:
            assert found is None
        old = {key for key, (at_ms, _) in naive.items() if now_ms - at_ms >= patience_ms}
        assert {name for name, _ in reassembly.sweep(now_ms)} == old
        naive = {key: each for key, each in naive.items() if key not in old}
        reassembly.check()
        assert len(reassembly.sets) == len(naive)


def test_one_sender_cannot_push_out_the_sets_of_others() -> None:
    reassembly = Reassembly(DAY_MS)
    honest = SegmentSet(bytes(32), 2)
    reassembly.add(0, "honest", Segment(honest, 0, b""), (0, "id"))
    for number in range(MAX_SETS * 2):
        flood = SegmentSet(number.to_bytes(32), MAX_SEGMENTS)
        reassembly.add(0, "hostile", Segment(flood, 0, b""), (number, "flood"))
        reassembly.sweep(0)
        assert len(reassembly.sets) <= MAX_SETS
    assert reassembly.add(0, "honest", Segment(honest, 1, b""), (1, "id")) is not None


def test_sets_of_many_invented_senders_are_bounded() -> None:
    reassembly = Reassembly(DAY_MS)
    for number in range(MAX_PLACES + 2_000):
        whole = SegmentSet((number // 200).to_bytes(32), MAX_SEGMENTS)
        segment = Segment(whole, number % 200, b"")
        reassembly.add(0, f"sender {number // 200 % 500}", segment, (number, "id"))
        reassembly.sweep(0)
        assert reassembly.places <= MAX_PLACES
    assert len(reassembly.sets) <= MAX_SETS
    reassembly.check()


def test_forged_sets_of_a_sender_do_not_push_out_its_content() -> None:
    reassembly = Reassembly(DAY_MS)
    genuine = SegmentSet(bytes(32), 3)
    for index in range(2):
        reassembly.add(0, "alice", Segment(genuine, index, b""), (index, "id"))
    for number in range(MAX_SETS * 2):
        forged = SegmentSet(number.to_bytes(32, "little"), number % 250 + 2, number)
        reassembly.add(0, "alice", Segment(forged, 0, b""), (number, "forged"))
        reassembly.sweep(0)
        reassembly.check()
    assert reassembly.add(0, "alice", Segment(genuine, 2, b""), (2, "id")) == ("alice", genuine)


def test_candidates_and_attempts_are_bounded() -> None:
    # Two thousand forged segments that name each other: every attempt seems right.
    reassembly = Reassembly(DAY_MS)
    name = "hostile", SegmentSet(bytes(32), 2)
    attempts = 0
    for number in range(1_000):
        first, last = f"a{number}", f"b{number}"
        for index, key, causes in ((0, first, []), (1, last, [first])):
            added = reassembly.add(
                0, "hostile", Segment(name[1], index, b""), (number, key), causes=causes
            )
            if added is not None:
                attempts += len(list(reassembly.attempts(name)))
        reassembly.check()
        assert reassembly.places <= 2 * MAX_CANDIDATES
    assert attempts == MAX_LINKED_ATTEMPTS + MAX_ATTEMPTS
    assert reassembly.is_exhausted(name)


def test_choices_are_left_where_no_attempt_is(monkeypatch: pytest.MonkeyPatch) -> None:
    reassembly, whole = Reassembly(1), SegmentSet(bytes(32), 200)
    for number in range(200 * MAX_CANDIDATES):
        part = Segment(whole, number // MAX_CANDIDATES, b"")
        name = reassembly.add(0, "mallory", part, (number, str(number)))
    assert name is not None
    assert len(list(reassembly.attempts(name))) == MAX_ATTEMPTS
    choices = iter([*reassembly.sets[name].choices(200)])
    monkeypatch.setattr(segments._Set, "choices", lambda *_: choices)
    assert not list(reassembly.attempts(name))
    assert len(list(choices)) > 200
