"""Frames and records of messages: what protobuf would write, and judged without being decoded."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from store.domain.admission import Verdict
from store.messages import frames, transfer
from store.messages.fields import ADMISSION_CHUNK_BYTES, ADMISSION_CHUNK_MESSAGES, chunk_messages
from store.messages.transfer import transferred
from storenode.message.rules import Policy, Reason
from storenode.message.varint import delimited, varint
from storenode.sds.codec import SdsMetadata
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.v1.store_pb2 import (
    CausalHistoryPage,
    FollowPage,
    ScanPage,
    SdsMessagesPage,
    SdsStoredMessage,
)
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryResponse, WakuMessageKeyValue
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.support.admission import Decoding, admit
from tests.unit.builders import NOW_NS, entries, entry, hashes, utf8_text

POLICY = Policy(max_drift_ns=10**10)
TRANSFERRED = Policy(max_drift_ns=10**10, publisher=False)


@given(entries)
@example(entry(b""))
@example(entry(b"", version=0, meta=b"", proof=b"", ephemeral=False))
@example(entry(bytes(127)))
@example(entry(bytes(128)))
@example(entry(bytes(16_383)))
@example(entry(bytes(16_384), ephemeral=True))
def test_a_frame_is_what_protobuf_writes_for_the_message_with_its_payload_present(
    item: WakuMessageAndTopic,
) -> None:
    admission = admit([item], NOW_NS, POLICY)
    body = item.message.SerializeToString()
    message = body if item.message.payload else b"\x0a\x00" + body
    expected = delimited(
        b"\x0a",
        delimited(b"\x0a", admission.hashes[0])
        + delimited(b"\x12", message)
        + delimited(b"\x1a", item.pubsub_topic.encode()),
    )
    if item.message.ephemeral:
        assert admission.ephemerals[0].frame == expected
    else:
        assert admission.batch.frame(0) == expected
        assert admission.batch.payloads == [item.message.payload]


@given(st.lists(entries, max_size=5))
def test_joined_frames_are_a_page(items: list[WakuMessageAndTopic]) -> None:
    batch = admit(items, NOW_NS, POLICY).batch
    joined = b"".join(map(batch.frame, range(len(batch))))
    assert len(joined) <= batch.frame_bytes <= len(joined) + 2 * len(batch)
    page = ScanPage.FromString(joined)
    assert [key_value.message_hash for key_value in page.messages] == batch.hashes
    assert [key_value.message.payload for key_value in page.messages] == batch.payloads
    assert [key_value.message.timestamp for key_value in page.messages] == batch.timestamps


def test_fields_out_of_order_and_repeated_become_canonical() -> None:
    item = WakuMessageAndTopic(pubsub_topic="/p")
    timestamp = entry().message.SerializeToString()[-10:]
    item.message.MergeFromString(timestamp + b"\x18\x00\x12\x01b\x0a\x02no\x0a\x03yes")
    batch = admit([item], NOW_NS, POLICY).batch
    assert batch.payloads == [b"yes"]
    assert batch.tails == [b"\x12\x01b\x18\x00" + timestamp + b"\x1a\x02/p"]


@given(st.lists(entries, max_size=6), st.sets(st.integers(0, 5)))
def test_selected_messages_are_a_batch_of_their_own(
    items: list[WakuMessageAndTopic], chosen: set[int]
) -> None:
    batch = admit(items, NOW_NS, POLICY).batch
    batch.sds_index = list(range(0, len(batch), 2))
    batch.sds = [SdsMetadata(b"c", b"%d" % index, 1, b"", []) for index in batch.sds_index]
    indexes = sorted(index for index in chosen if index < len(batch))
    part = batch.select(indexes)
    part.check()
    assert [part.frame(place) for place in range(len(part))] == [batch.frame(i) for i in indexes]
    described = {
        part.hashes[at]: one.message_id for at, one in zip(part.sds_index, part.sds, strict=True)
    }
    assert described == {batch.hashes[i]: b"%d" % i for i in indexes if i % 2 == 0}


@pytest.mark.parametrize("size_bytes", [1, 300, 3_000, 30_000, 150_000])
def test_a_chunk_is_bounded_in_messages_and_in_bytes(size_bytes: int) -> None:
    for count in (1, 7, 500, 5_000):
        chunk = chunk_messages(count, count * size_bytes)
        assert 1 <= chunk <= ADMISSION_CHUNK_MESSAGES
        assert chunk == 1 or chunk * size_bytes <= ADMISSION_CHUNK_BYTES
    assert chunk_messages(5_000, 5_000 * 250) == ADMISSION_CHUNK_MESSAGES
    assert chunk_messages(0, 0) == 1, "no endless loop"


# Pages

key_values = st.builds(
    WakuMessageKeyValue,
    message_hash=hashes,
    message=st.builds(
        WakuMessage,
        payload=st.binary(max_size=300),
        content_topic=utf8_text,
        timestamp=st.none() | st.integers(-(2**63), 2**63 - 1),
    ),
    pubsub_topic=utf8_text,
)
pages_of_key_values = st.lists(key_values, max_size=4)
cursors = st.binary(max_size=200)
hints = st.none() | st.binary(max_size=40)


def frame(message: WakuMessageKeyValue) -> bytes:
    return ScanPage(messages=[message]).SerializeToString()


def joined(messages: list[WakuMessageKeyValue]) -> bytes:
    return b"".join(map(frame, messages))


@given(pages_of_key_values, cursors, st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4))
def test_a_scan_page_is_what_protobuf_writes(
    messages: list[WakuMessageKeyValue], cursor: bytes, timestamps: list[int]
) -> None:
    expected = ScanPage(messages=messages, cursor=cursor, timestamps=timestamps)
    assert frames.scan_page(joined(messages), cursor, timestamps) == expected.SerializeToString()


@given(pages_of_key_values, cursors, st.booleans())
def test_a_follow_page_is_what_protobuf_writes(
    messages: list[WakuMessageKeyValue], cursor: bytes, live: bool
) -> None:
    expected = FollowPage(messages=messages, cursor=cursor, live=live)
    assert frames.follow_page(joined(messages), cursor, live=live) == expected.SerializeToString()


@given(utf8_text, st.integers(0, 2**32 - 1), utf8_text)
def test_a_failed_query_is_what_protobuf_writes_with_its_request_id_present(
    request_id: str, status: int, desc: str
) -> None:
    expected = StoreQueryResponse(request_id=request_id, status_code=status, status_desc=desc)
    encoded = frames.query_failure(request_id, status, desc)
    assert encoded == (b"" if request_id else b"\x0a\x00") + expected.SerializeToString()


@given(st.lists(hashes, max_size=4))
def test_frames_without_data_hold_the_hash_alone(digests: list[bytes]) -> None:
    expected = [WakuMessageKeyValue(message_hash=digest) for digest in digests]
    assert frames.presences(digests) == joined(expected)
    assert frames.presences(digests) == b"".join(map(frames.presence, digests))


@given(
    st.lists(st.tuples(utf8_text, hashes, key_values), max_size=3),
    st.lists(st.tuples(utf8_text, hints), max_size=3),
    st.booleans(),
)
def test_an_sds_page_is_what_protobuf_writes(
    stored: list[tuple[str, bytes, WakuMessageKeyValue]],
    missing: list[tuple[str, bytes | None]],
    truncated: bool,
) -> None:
    spliced = frames.sds_page(
        b"".join(frames.sds_stored_message(name.encode(), d, frame(m)) for name, d, m in stored),
        [(name.encode(), hint) for name, hint in missing],
        truncated=truncated,
    )
    entries = [
        SdsStoredMessage(entry=HistoryEntry(message_id=name, retrieval_hint=digest), stored=message)
        for name, digest, message in stored
    ]
    absent = [HistoryEntry(message_id=name, retrieval_hint=hint) for name, hint in missing]
    for page in (SdsMessagesPage, CausalHistoryPage):
        expected = page(messages=entries, missing=absent, truncated=truncated)
        assert spliced == expected.SerializeToString()


# Messages that are judged without being decoded

USUAL = entry(b"x" * 200).SerializeToString()
SMALL = entry(b"x", version=1).SerializeToString()
NOW = varint(2 * NOW_NS)


def refuse_to_decode(_: bytes) -> None:
    """Fail: a message was decoded."""
    raise AssertionError("a message was decoded")


@pytest.mark.parametrize("size", [1, 79, 80, 81, 127, 128, 129, 200, 1_000, 16_000, 16_383])
@pytest.mark.parametrize("version", [None, 0, 1, 127])
def test_a_usual_message_is_not_decoded(
    monkeypatch: pytest.MonkeyPatch, size: int, version: int | None
) -> None:
    messages = [entry(bytes((number,)) * size, version=version) for number in range(3)]
    encoded = [message.SerializeToString() for message in messages]
    expected = admit(messages, NOW_NS, POLICY, Decoding)
    assert expected.verdicts == [Verdict.ACCEPTED] * 3
    if len(messages[0].message.SerializeToString()) < 1 << 14:
        undecoded = SimpleNamespace(FromString=refuse_to_decode)
        monkeypatch.setattr(transfer, "WakuMessageAndTopic", undecoded)
    assert admit(encoded, NOW_NS, POLICY) == expected


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a message with some of its bytes changed, left out or added."""
    data = bytearray(draw(st.sampled_from([USUAL, SMALL]) | entries.map(encode)))
    for _ in range(draw(st.integers(0, 3))):
        # The other fields are at both ends.
        end = draw(st.booleans())
        at = min(draw(st.integers(0, 90)), len(data))
        at = len(data) - at if end else at
        length = draw(st.sampled_from([0, 0, 1, 1, 2]))
        data[at : at + length] = draw(st.binary(max_size=2))
    return bytes(data)


def encode(message: WakuMessageAndTopic) -> bytes:
    """Return the encoding of a message."""
    return message.SerializeToString()


def assert_judged_as_decoded(encoded: list[bytes], policy: Policy = POLICY) -> None:
    messages = list[WakuMessageAndTopic]()
    readable = list[bytes]()
    for each in encoded:
        with suppress(DecodeError):
            messages.append(WakuMessageAndTopic.FromString(each))
            readable.append(each)
    found = admit(encoded, NOW_NS, policy)
    assert len(found.verdicts) == len(encoded)
    malformed = [each.label for each in found.refusals.values()].count(Reason.MALFORMED)
    assert malformed == len(encoded) - len(readable)
    assert found.batch == admit(readable, NOW_NS, policy).batch
    assert admit(readable, NOW_NS, policy) == admit(messages, NOW_NS, policy, Decoding)


@given(st.lists(damaged(), max_size=6))
@example([USUAL, USUAL])
@example([USUAL, SMALL, USUAL])
@example([USUAL[:-1], USUAL])
@example([USUAL + b"\x12\x00"])
@example([USUAL.replace(NOW, varint(2 * (NOW_NS + 10**11)))])
def test_the_verdict_is_that_on_the_decoded_message(encoded: list[bytes]) -> None:
    assert_judged_as_decoded(encoded)


PAYLOAD = delimited(b"\x0a", b"x" * 200)
TOPIC = delimited(b"\x12", b"topic")


@pytest.mark.parametrize(
    ("before", "time", "after"),
    [
        (TOPIC + b"\x50", NOW, TOPIC),
        (b"\x50", NOW, TOPIC),
        (TOPIC, NOW, TOPIC),
        (TOPIC + b"\x50\x50", NOW, TOPIC),
        (TOPIC + b"\x18\x80\x50", NOW, TOPIC),
        (TOPIC + b"\x18\x01", NOW, TOPIC),
        (TOPIC + b"\x20\x01\x50", NOW, TOPIC),
        (TOPIC + b"\x50", NOW, b""),
        (TOPIC + b"\x50", NOW, TOPIC[:-1]),
        (TOPIC + b"\x50", NOW, TOPIC + b"\x12\x01a"),
        (TOPIC + b"\x50", NOW, b"\x12\x85\x00topic"),
        (TOPIC + b"\x50", NOW, delimited(b"\x12", b"\xff")),
        (b"\x12\x00\x50", NOW, TOPIC),
        (b"\x12\x85\x00topic\x50", NOW, TOPIC),
        (delimited(b"\x12", b"\xed\xa0\x80") + b"\x50", NOW, TOPIC),
        (delimited(b"\x12", b"c" * 3_000) + b"\x50", NOW, TOPIC),
        (TOPIC + b"\x50", varint(2 * NOW_NS + 1), TOPIC),
        (TOPIC + b"\x50", varint(2 * 5), TOPIC),
        (TOPIC + b"\x50", NOW[:-1] + b"\x00", TOPIC),
        (TOPIC + b"\x50", NOW[:-1] + b"\x81", TOPIC),
        (TOPIC + b"\x50", NOW[:-1] + b"\xbf\x00", TOPIC),
        (TOPIC + b"\x50", b"\x02" + NOW[1:], TOPIC),
    ],
)
@pytest.mark.parametrize(
    "payload", [PAYLOAD, b"\x0a\x00", b"\x0a\x81\x00x", b"\x0a\xa0\x80\x01", b""]
)
def test_every_odd_form_is_judged_as_if_it_was_decoded(
    payload: bytes, before: bytes, time: bytes, after: bytes
) -> None:
    odd = delimited(b"\x0a", payload + before + time) + after
    assert_judged_as_decoded(
        [odd, USUAL, b"\x12" + odd[1:], odd[:3] + b"\x12" + odd[4:]], TRANSFERRED
    )


def test_messages_may_be_duplicates_of_each_other_however_they_are_encoded() -> None:
    odd = USUAL + b"\x98\x06\x01"
    assert (
        WakuMessageAndTopic.FromString(odd).message == WakuMessageAndTopic.FromString(USUAL).message
    )
    admission = admit([odd, USUAL, USUAL, odd], NOW_NS, POLICY)
    assert admission.verdicts == [Verdict.ACCEPTED, *[Verdict.DUPLICATE] * 3]
    assert admission.positions == [0] * 4
    assert len(admission.batch) == 1


# Transfers


def stored_frame(item: WakuMessageAndTopic) -> bytes:
    """Return the frame of a message as the node stores it."""
    item = WakuMessageAndTopic.FromString(item.SerializeToString())
    item.message.ClearField("ephemeral")
    return admit([item], NOW_NS, TRANSFERRED).batch.frame(0)


@given(entries)
@example(entry(b""))
@example(entry(b"", version=0, meta=b"", proof=b""))
@example(entry(bytes(40)))
@example(entry(bytes(127)))
@example(entry(bytes(128)))
@example(entry(bytes(16_384), pubsub="/p" * 100))
@example(entry(bytes(150_000), pubsub="/p" * 400))
def test_a_stored_frame_becomes_what_protobuf_writes_with_its_payload_present(
    item: WakuMessageAndTopic,
) -> None:
    item.message.ClearField("ephemeral")
    message = item.message.SerializeToString()
    if not item.message.payload:
        message = b"\x0a\x00" + message
    sent = delimited(b"\x0a", message) + delimited(b"\x12", item.pubsub_topic.encode())
    assert transferred(stored_frame(item)) == sent


@given(entries)
def test_what_is_sent_comes_in_as_it_was_stored(item: WakuMessageAndTopic) -> None:
    frame = stored_frame(item)
    assert admit([transferred(frame)], NOW_NS, TRANSFERRED).batch.frame(0) == frame
