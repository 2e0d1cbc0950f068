from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from store.messages.fields import ADMISSION_CHUNK_BYTES, ADMISSION_CHUNK_MESSAGES, chunk_messages
from store.messages.record import RecordBatch
from storenode.message.rules import Policy
from storenode.message.varint import delimited
from storenode.sds.codec import SdsMetadata
from storenode.wire.storenode.v1.store_pb2 import ScanPage
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.support.admission import admit
from tests.unit.builders import NOW_NS, entries, entry

POLICY = Policy(max_drift_ns=10**10)


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


def _cut_keys(batch: RecordBatch) -> None:
    batch.topic_keys, batch.topics = [b"k", b"k"], {b"k": ("p", "c")}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda batch: batch.tails.pop(), "differ in length"),
        (lambda batch: batch.hashes.__setitem__(0, b"short"), "not 32 bytes"),
        (lambda batch: batch.hashes.__setitem__(1, batch.hashes[0]), "occurs twice"),
        (lambda batch: batch.topics.clear(), "not those of its topics"),
        (_cut_keys, "not 16 bytes"),
        (lambda batch: batch.sds.pop(), "SDS columns"),
        (lambda batch: batch.sds_index.reverse(), "not ascending"),
        (lambda batch: batch.sds_index.__setitem__(1, 2), "not in it"),
    ],
)
def test_check_names_the_broken_invariant(
    damage: Callable[[RecordBatch], object], words: str
) -> None:
    batch = admit([entry(b"1"), entry(b"2")], NOW_NS, POLICY).batch
    batch.sds_index, batch.sds = [0, 1], [SdsMetadata(b"c", b"m", 1, b"", [])] * 2
    batch.check()
    damage(batch)
    with pytest.raises(ValueError, match=words):
        batch.check()


@pytest.mark.parametrize("size_bytes", [1, 300, 3_000, 30_000, 150_000])
def test_a_chunk_is_bounded_in_messages_and_in_bytes(size_bytes: int) -> None:
    for count in (1, 7, 500, 5_000):
        chunk = chunk_messages(count, count * size_bytes)
        assert 1 <= chunk <= ADMISSION_CHUNK_MESSAGES
        assert chunk == 1 or chunk * size_bytes <= ADMISSION_CHUNK_BYTES
    assert chunk_messages(5_000, 5_000 * 250) == ADMISSION_CHUNK_MESSAGES
    assert chunk_messages(0, 0) == 1, "no endless loop"
