"""Rows of the database and messages: each is made of the other without a loss."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.messages.record import RecordBatch
from store.pipeline.columns import NAMES, SDS_COLUMNS
from store.pipeline.decode import NO_SHARD, DamagedRows, decoded, needed, shard_of
from store.pipeline.encode import encoded
from store.pipeline.reading import SDS
from storenode.message.rules import Policy
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.support.admission import admit
from tests.unit.builders import NOW_NS, entries

WITHOUT_SDS = tuple(name for name in NAMES if name not in SDS_COLUMNS)
ANY = Policy(max_drift_ns=None, publisher=False)


def view(batch: RecordBatch) -> pa.RecordBatch:
    """What the view `export_messages` has of a batch."""
    return pa.record_batch(
        {
            "ts": pa.array(batch.timestamps, pa.int64()),
            "hash": pa.array(batch.hashes, pa.binary()),
            "topic": pa.array(batch.topic_keys, pa.binary()),
            "payload": pa.array(batch.payloads, pa.binary()),
            "tail": pa.array(batch.tails, pa.binary()),
        }
    )


def as_published(item: WakuMessageAndTopic) -> dict[str, Any]:
    message = item.message
    return {
        "ts": message.timestamp,
        "pubsub_topic": item.pubsub_topic,
        "content_topic": message.content_topic,
        "payload": message.payload,
        "version": message.version if message.HasField("version") else None,
        "meta": message.meta if message.HasField("meta") else None,
        "rate_limit_proof": (
            message.rate_limit_proof if message.HasField("rate_limit_proof") else None
        ),
        "ephemeral": message.ephemeral if message.HasField("ephemeral") else None,
    }


@given(st.lists(entries, max_size=12), st.integers(0, 3))
def test_what_is_stored_is_read_and_encoded_again(
    items: list[WakuMessageAndTopic], skipped: int
) -> None:
    kept = [item for item in items if not item.message.ephemeral]
    admission = admit(kept, NOW_NS, ANY)
    batch = admission.batch
    first: dict[int, WakuMessageAndTopic] = {}
    for place, item in zip(admission.positions, kept, strict=True):
        if place >= 0:
            first.setdefault(place, item)
    # A batch may be a part of a larger one, whose buffers begin elsewhere.
    rows = decoded(view(batch)[skipped:], None, WITHOUT_SDS).to_pylist()
    for place, row in enumerate(rows, min(skipped, len(batch))):
        wanted = as_published(first[place])
        assert {name: row[name] for name in wanted} == wanted
        assert row["hash"] == batch.hashes[place]
        assert np.array([row[f"h{word}"] for word in range(4)]).tobytes() == row["hash"]
        assert row["shard"] == shard_of(row["pubsub_topic"])
        assert WakuMessageAndTopic.FromString(encoded(row)) == first[place]
    again = admit([WakuMessageAndTopic.FromString(encoded(row)) for row in rows], NOW_NS, ANY)
    assert again.batch.tails == batch.tails[skipped:]
    assert again.batch.heads == batch.heads[skipped:]


@given(
    st.lists(entries.filter(lambda item: not item.message.ephemeral), min_size=1, max_size=6),
    st.data(),
)
def test_damage_is_found_or_harmless(items: list[WakuMessageAndTopic], data: st.DataObject) -> None:
    """Whatever a tail holds, reading ends, and never goes beyond it."""
    batch = admit(items, NOW_NS, ANY).batch
    place = data.draw(st.integers(0, len(batch.tails) - 1))
    tail = batch.tails[place]
    at = data.draw(st.integers(0, len(tail) - 1))
    batch.tails[place] = data.draw(
        st.sampled_from(
            [tail[:at], tail[:at] + data.draw(st.binary(max_size=12)), tail[:at] + b"\xff" * 11]
        )
        | st.integers(0, 255).map(lambda octet: tail[:at] + bytes((octet,)) + tail[at + 1 :])
    )
    found = [place]
    try:
        assert len(decoded(view(batch), None, WITHOUT_SDS)) == len(batch)
    except DamagedRows as error:
        found = error.places.tolist()
    assert found == [place]


@given(st.lists(st.integers(0, 30), max_size=25), st.data())
def test_rows_of_sds_find_their_messages(times: list[int], data: st.DataObject) -> None:
    """Also where several messages have one timestamp, and rows are about none of these."""
    made = sorted((ts, sha256(b"%d" % number).digest()) for number, ts in enumerate(times))
    about = {each: data.draw(st.booleans()) for each in made}
    foreign = sorted(
        (ts, sha256(b"-%d" % ts).digest()) for ts in data.draw(st.sets(st.integers(0, 40)))
    )
    told = sorted([*(each for each in made if about[each]), *foreign])
    messages = pa.record_batch(
        {
            "ts": pa.array([ts for ts, _ in made], pa.int64()),
            "hash": pa.array([each for _, each in made], pa.binary()),
        }
    )
    columns = [[ts for ts, _ in told], [each for _, each in told], *([[b"c"] * len(told)] * 3)]
    columns += [list(range(len(told))), [[]] * len(told), [[]] * len(told)]
    sds = pa.table(
        [pa.array(values, kind) for values, kind in zip(columns, SDS.types, strict=True)],
        schema=SDS,
    )
    found = decoded(messages, sds, ("hash", "channel", "lamport")).to_pylist()
    wanted = {each: number for number, (_, each) in enumerate(told)}
    for row, each in zip(found, made, strict=True):
        assert row["lamport"] == (wanted[each[1]] if about[each] else None)
        assert row["channel"] == ("c" if about[each] else None)


def test_only_what_is_needed_is_asked_for() -> None:
    assert needed(("ts",)) == ["ts", "hash"]
    assert needed(("h0",)) == ["ts", "hash"]
    assert needed(("channel",)) == ["ts", "hash"]
    assert needed(("shard",)) == ["ts", "hash", "topic", "tail"]
    assert needed(("payload", "meta")) == ["ts", "hash", "payload", "tail"]


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
