"""What can be wrong with a row, against the project's own hash and rules, one message at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from store.pipeline.checking import (
    CHECKED,
    NOT_ELIGIBLE,
    ROW_FAULTS,
    TOO_LONG,
    WRONG_HASH,
    WRONG_PLACE,
    WRONG_WORDS,
    row_faults,
)
from store.pipeline.columns import ARROW
from storenode.message.hashing import message_hash
from storenode.message.limits import MAX_TOPIC_BYTES

Row = dict[str, Any]
SCHEMA = pa.schema([ARROW.field(name).with_nullable(True) for name in CHECKED])


def sound(
    ts: int = 1,
    payload: bytes = b"",
    meta: bytes | None = None,
    shard: int = 0,
    content: str = "c",
) -> Row:
    topic = f"/waku/2/rs/1/{shard}"
    digest = message_hash(topic, payload, content, meta, ts)
    words = np.frombuffer(digest, "<i8").tolist()
    return {
        "ts": ts,
        "hash": digest,
        **{f"h{place}": word for place, word in enumerate(words)},
        "pubsub_topic": topic,
        "content_topic": content,
        "payload": payload,
        "meta": meta,
        "ephemeral": None,
    }


def found(rows: list[Row], shards: list[int]) -> dict[str, list[int]]:
    """Of each kind the rows that have it; the rows are a part of a batch."""
    batch = pa.RecordBatch.from_pylist([sound(), *rows, sound()], SCHEMA).slice(1, len(rows))
    faults = row_faults(batch, shards)
    assert tuple(faults) == ROW_FAULTS
    return {kind: np.flatnonzero(which).tolist() for kind, which in faults.items() if which.any()}


@given(
    st.lists(
        st.builds(
            sound,
            st.integers(1, 2**63 - 1),
            st.binary(max_size=40),
            st.none() | st.binary(max_size=8),
            st.integers(0, 63),
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_what_is_as_it_should_be_has_no_fault(rows: list[Row]) -> None:
    assert found(rows, [int(row["pubsub_topic"].rsplit("/", 1)[1]) for row in rows]) == {}


def test_each_fault_is_found_where_it_is() -> None:
    rows = [sound(number + 1) for number in range(8)]
    rows[1]["payload"] = b"other"
    rows[2]["h3"] += 1
    rows[3]["ephemeral"] = True
    rows[4]["hash"] = rows[4]["hash"][:31]
    rows[6] = sound(7, content="x" * (MAX_TOPIC_BYTES + 1))
    rows[7] = sound(8, content="x\0")
    assert found(rows, [0, 0, 0, 0, 0, 9, 0, 0]) == {
        NOT_ELIGIBLE: [3, 7],
        WRONG_HASH: [1, 4],
        WRONG_WORDS: [2, 4],
        TOO_LONG: [6],
        WRONG_PLACE: [5],
    }


def test_what_is_missing_is_wrong() -> None:
    rows = [sound() | {name: None} for name in ("ts", "hash", "h0", "pubsub_topic", "payload")]
    assert found(rows, [0]) == {
        NOT_ELIGIBLE: [0, 3],
        WRONG_HASH: [0, 1, 3, 4],
        WRONG_WORDS: [1, 2],
        TOO_LONG: [3],
        WRONG_PLACE: [3],
    }


def test_a_topic_that_is_no_text_is_none() -> None:
    batch = pa.RecordBatch.from_pylist([sound()], SCHEMA)
    place = SCHEMA.get_field_index("content_topic")
    noise = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    faults = row_faults(batch.set_column(place, SCHEMA.field(place), noise), [0])
    assert [kind for kind, which in faults.items() if which.any()] == [NOT_ELIGIBLE, WRONG_HASH]
