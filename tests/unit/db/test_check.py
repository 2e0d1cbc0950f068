"""A stored message agrees with its bytes, and any change of them is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.db.check import faults_of
from store.db.messages import admit_again, frame_of
from store.messages.record import COLUMNS, RecordBatch
from store.messages.transfer import decode_message, transferred
from storenode.message.rules import Policy
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


def stored(message: WakuMessage, pubsub_topic: str) -> RecordBatch:
    item = WakuMessageAndTopic(message=message, pubsub_topic=pubsub_topic)
    return admit([item], NOW, ANY_AGE).batch


def body(row: RecordBatch) -> bytes:
    return transferred(frame_of(row.hashes[0], row.heads[0] + row.payloads[0] + row.tails[0]))


def faults(row: RecordBatch) -> set[str]:
    admitted = admit_again([body(row)])
    values = tuple(getattr(row, column)[0] for column in COLUMNS)
    return set(faults_of(admitted.batch, admitted.positions[0], values))


SAMPLE = stored(
    WakuMessage(payload=b"hello", content_topic="/a/1/b/proto", timestamp=NOW, meta=b"m"),
    "/waku/2/rs/1/0",
)


@given(messages, topics)
def test_what_was_admitted_is_in_order(message: WakuMessage, pubsub_topic: str) -> None:
    row = stored(message, pubsub_topic)
    fields = decode_message(body(row))
    assert faults(row) == set()
    assert (fields.pubsub_topic, fields.content_topic) == (pubsub_topic, message.content_topic)
    assert fields.payload == message.payload
    assert fields.timestamp == message.timestamp
    assert fields.meta == message.meta


@given(messages, topics, st.data())
def test_any_changed_byte_is_noticed(
    message: WakuMessage, pubsub_topic: str, data: st.DataObject
) -> None:
    row = stored(message, pubsub_topic)
    frame = bytearray(row.heads[0] + row.payloads[0] + row.tails[0])
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] ^= 1 << data.draw(st.integers(0, 7))
    start, end = len(row.heads[0]), len(frame) - len(row.tails[0])
    changed = replace(
        row,
        heads=[bytes(frame[:start])],
        payloads=[bytes(frame[start:end])],
        tails=[bytes(frame[end:])],
    )
    # The hash is over what identifies a message, which leaves out version, proof and ephemeral.
    same = faults(changed) == set()
    assert not same or decode_message(body(changed))[:6] == decode_message(body(row))[:6]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (replace(SAMPLE, timestamps=[NOW - 1]), {"wrong timestamp"}),
        (replace(SAMPLE, hashes=[bytes(32)]), {"wrong hash"}),
        (replace(SAMPLE, topic_keys=[bytes(16)]), {"wrong topic"}),
        (replace(SAMPLE, payloads=[b"hallo"]), {"wrong hash", "wrong content digest"}),
        (replace(SAMPLE, content_digests=[bytes(16)]), {"wrong content digest"}),
        (replace(SAMPLE, payloads=[b"hell"]), {"damaged frame"}),
        (replace(SAMPLE, heads=[b""]), {"damaged frame"}),
        (replace(SAMPLE, heads=[SAMPLE.heads[0][:-1]]), {"damaged frame"}),
        (replace(SAMPLE, heads=[SAMPLE.heads[0] + b"h"], payloads=[b"ello"]), {"damaged frame"}),
        (replace(SAMPLE, tails=[SAMPLE.tails[0] + b"\x20\x01"]), {"damaged frame"}),
        (replace(SAMPLE, heads=[b"\x0a" + b"\xff" * 20]), {"damaged frame"}),
    ],
)
def test_each_fault_has_its_name(row: RecordBatch, expected: set[str]) -> None:
    assert faults(row) == expected
