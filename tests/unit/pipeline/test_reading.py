"""Rows of the database and messages: each is made of the other without a loss."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.messages.record import RecordBatch
from store.pipeline.columns import NAMES, SDS_COLUMNS
from store.pipeline.errors import PipelineError
from store.pipeline.restore import encoded
from store.pipeline.source import NO_SHARD, _decoded, shard_of
from storenode.message.rules import Policy
from storenode.message.varint import varint
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.support.admission import admit
from tests.unit.builders import NOW_NS, entries, entry

WITHOUT_SDS = tuple(name for name in NAMES if name not in SDS_COLUMNS)
ANY = Policy(max_drift_ns=None, publisher=False)


def plain_tail_bytes(ts: int, pubsub_topic: str, content_topic: str) -> int:
    """Compute the protobuf-encoded size of a tail without optional fields, in bytes."""
    topics = (pubsub_topic.encode(), content_topic.encode())
    return 1 + len(varint(2 * ts)) + sum(1 + len(varint(len(t))) + len(t) for t in topics)


def rows_of(batch: RecordBatch) -> pa.RecordBatch:
    """Build the rows that the query returns; a tail without optional fields is null."""
    topics = [batch.topics[key] for key in batch.topic_keys]
    tails = [
        None if 2**55 <= ts < 2**62 and len(tail) == plain_tail_bytes(ts, *names) else tail
        for ts, names, tail in zip(batch.timestamps, topics, batch.tails, strict=True)
    ]
    return pa.record_batch(
        {
            "ts": pa.array(batch.timestamps, pa.int64()),
            "hash": pa.array(batch.hashes, pa.binary()),
            "payload": pa.array(batch.payloads, pa.binary()),
            "pubsub_topic": pa.array([pubsub for pubsub, _ in topics], pa.string()),
            "content_topic": pa.array([content for _, content in topics], pa.string()),
            "tail": pa.array(tails, pa.binary()),
        }
    )


@given(st.lists(entries.filter(lambda item: not item.message.ephemeral), max_size=12))
def test_a_row_is_the_message_that_was_admitted(items: list[WakuMessageAndTopic]) -> None:
    batch = admit(items, NOW_NS, ANY).batch
    rows = _decoded(rows_of(batch), WITHOUT_SDS).to_pylist()
    again = admit([WakuMessageAndTopic.FromString(encoded(row)) for row in rows], NOW_NS, ANY).batch
    assert (again.hashes, again.heads, again.payloads, again.tails) == (
        batch.hashes,
        batch.heads,
        batch.payloads,
        batch.tails,
    )


@pytest.mark.parametrize("tail", [b"", b"\x12\x01", b"\xff" * 9])
def test_a_tail_that_is_damaged_is_named_by_its_timestamp(tail: bytes) -> None:
    rows = rows_of(admit([entry(b"x", timestamp=NOW_NS)], NOW_NS, ANY).batch)
    with pytest.raises(PipelineError, match=f"the first with the timestamp {NOW_NS}:"):
        _decoded(rows.set_column(5, "tail", pa.array([tail], pa.binary())), WITHOUT_SDS)


@pytest.mark.parametrize(
    ("topic", "shard"),
    [
        ("/waku/2/rs/1/0", 0),
        ("/waku/2/rs/99/7", 7),
        ("/waku/2/rs/1/64", 0),
        ("/waku/2/rs/1/65535", 63),
        ("/waku/2/rs/1/007", NO_SHARD),
        ("/waku/2/default-waku/proto", NO_SHARD),
    ],
)
def test_strangers_cannot_make_a_directory_each(topic: str, shard: int) -> None:
    assert shard_of(topic) == shard
