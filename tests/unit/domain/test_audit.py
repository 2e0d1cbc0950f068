"""A stored message agrees with its bytes, and any change of them is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.domain.audit import RowFault, StoredMessage, audit, sds_row
from store.messages.record import RecordBatch, unframe
from storenode.message.rules import Policy
from storenode.sds import codec
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.support.admission import admit

NOW = 1_790_000_000_000_000_000
ANY_AGE = Policy(max_drift_ns=None, publisher=False)

topics = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=40)
messages = st.builds(
    WakuMessage,
    payload=st.one_of(st.binary(max_size=40), st.integers(100, 20_000).map(bytes)),
    content_topic=topics,
    version=st.none() | st.integers(0, 2**32 - 1),
    timestamp=st.integers(1, NOW),
    meta=st.none() | st.binary(max_size=64),
    rate_limit_proof=st.none() | st.binary(max_size=200),
    ephemeral=st.none() | st.just(value=False),
)


def stored(message: WakuMessage, pubsub_topic: str) -> StoredMessage:
    item = WakuMessageAndTopic(message=message, pubsub_topic=pubsub_topic)
    batch: RecordBatch = admit([item], NOW, ANY_AGE).batch
    return StoredMessage(
        batch.timestamps[0],
        batch.hashes[0],
        batch.topic_keys[0],
        batch.content_digests[0],
        batch.heads[0],
        batch.payloads[0],
        batch.tails[0],
    )


SAMPLE = stored(
    WakuMessage(payload=b"hello", content_topic="/a/1/b/proto", timestamp=NOW, meta=b"m"),
    "/waku/2/rs/1/0",
)


@given(messages, topics)
def test_what_was_admitted_is_in_order(message: WakuMessage, pubsub_topic: str) -> None:
    row = stored(message, pubsub_topic)
    fields = unframe(row.head, row.payload, row.tail)
    assert audit(row) == ((), (pubsub_topic, message.content_topic))
    assert fields.payload == message.payload
    assert fields.timestamp == message.timestamp
    assert fields.meta == message.meta


@given(messages, topics, st.data())
def test_any_changed_byte_is_noticed(
    message: WakuMessage, pubsub_topic: str, data: st.DataObject
) -> None:
    row = stored(message, pubsub_topic)
    frame = bytearray(row.head + row.payload + row.tail)
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] ^= 1 << data.draw(st.integers(0, 7))
    head, rest = frame[: len(row.head)], frame[len(row.head) :]
    changed = replace(
        row,
        head=bytes(head),
        payload=bytes(rest[: len(row.payload)]),
        tail=bytes(rest[len(row.payload) :]),
    )
    # The hash is over what identifies a message, which leaves out version, proof and ephemeral.
    same = audit(changed)[0] == ()
    before = unframe(row.head, row.payload, row.tail)
    assert not same or unframe(changed.head, changed.payload, changed.tail)[:6] == before[:6]


@pytest.mark.parametrize(
    ("row", "faults"),
    [
        (replace(SAMPLE, ts=NOW - 1), {RowFault.TIMESTAMP}),
        (replace(SAMPLE, hash=bytes(32)), {RowFault.HASH}),
        (replace(SAMPLE, topic=bytes(16)), {RowFault.TOPIC}),
        (replace(SAMPLE, payload=b"hallo"), {RowFault.HASH, RowFault.CONTENT_DIGEST}),
        (replace(SAMPLE, content_digest=bytes(16)), {RowFault.CONTENT_DIGEST}),
        (replace(SAMPLE, payload=b"hell"), {RowFault.FRAME}),
        (replace(SAMPLE, head=b""), {RowFault.FRAME}),
        (replace(SAMPLE, head=SAMPLE.head[:-1]), {RowFault.FRAME}),
        (replace(SAMPLE, head=SAMPLE.head + b"h", payload=b"ello"), {RowFault.FRAME}),
        (replace(SAMPLE, tail=SAMPLE.tail + b"\x20\x01"), {RowFault.FRAME}),
        (replace(SAMPLE, head=b"\x0a" + b"\xff" * 20), {RowFault.FRAME}),
    ],
)
def test_each_fault_has_its_name(row: StoredMessage, faults: set[RowFault]) -> None:
    assert set(audit(row)[0]) == faults


@given(st.none() | st.integers(0, 2**64 - 1))
def test_the_row_of_an_sds_message(lamport: int | None) -> None:
    parents = [("one", b"hint"), ("two", None)]
    payload = codec.encode("c", "m", sender_id="s", lamport=lamport, parents=parents)
    row = sds_row(payload)
    assert row is not None
    signed = row[5]
    assert signed == lamport or (lamport is not None and signed == lamport - 2**64)
    assert signed is None or -(2**63) <= signed < 2**63
    keys = codec.sds_key(b"c", b"m"), codec.channel_key(b"c")
    parent_keys = codec.sds_key(b"c", b"one"), codec.sds_key(b"c", b"two")
    assert row == (
        *(*keys, b"c", b"m", b"s", signed),
        *(parent_keys, (b"one", b"two"), (b"hint", None), False),
    )
    assert sds_row(b"") is sds_row(b"hello") is None
