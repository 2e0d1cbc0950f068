"""A binary COPY becomes the columns that were copied; anything else is refused."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.pipeline.copied import SIGNATURE, batches_of
from store.pipeline.errors import PipelineError

SCHEMA = pa.schema(
    [("number", pa.int64()), ("octets", pa.binary()), ("list", pa.list_(pa.binary()))]
)
BYTEA_OID = 17
HEADER = SIGNATURE + bytes(8)
TRAILER = b"\xff\xff"

Value = int | bytes | list[bytes | None] | None
octets = st.binary(max_size=20)
rows = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | octets,
        st.none() | st.lists(st.none() | octets, max_size=5),
    ),
    max_size=12,
)


def cell(value: Value) -> bytes:
    """A value after its length, as the server writes it."""
    if value is None:
        return struct.pack(">i", -1)
    if isinstance(value, int):
        return struct.pack(">iq", 8, value)
    if isinstance(value, bytes):
        return struct.pack(">i", len(value)) + value
    head = struct.pack(">iii", int(bool(value)), int(None in value), BYTEA_OID)
    sizes = struct.pack(">ii", len(value), 1) if value else b""
    return cell(head + sizes + b"".join(map(cell, value)))


def copied(given: Sequence[Sequence[Value]]) -> list[bytes]:
    """The messages of a server that copies some rows out."""
    made = [struct.pack(">h", len(row)) + b"".join(map(cell, row)) for row in given]
    messages = [*made, TRAILER]
    return [HEADER + messages[0], *messages[1:]]


@given(rows, st.integers(1, 200))
def test_what_was_copied_is_read(given_rows: list[tuple[Value, ...]], batch_bytes: int) -> None:
    batches = list(batches_of(copied(given_rows), SCHEMA, batch_bytes))
    assert all(batch.num_rows for batch in batches)
    for batch in batches:
        batch.validate(full=True)
    found = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    assert found == given_rows


@given(rows.filter(bool), st.data())
def test_damage_ends_in_a_sentence_or_in_other_values(
    given_rows: list[tuple[Value, ...]], data: st.DataObject
) -> None:
    """Whatever a server sends, reading ends, and never goes beyond what was sent."""
    messages = copied(given_rows)
    place = data.draw(st.integers(0, len(messages) - 1))
    message = messages[place]
    at = data.draw(st.integers(0, len(message) - 1))
    messages[place] = data.draw(
        st.sampled_from([message[:at], message[:at] + b"\x7f\xff\xff\xff" + message[at + 4 :]])
        | st.integers(0, 255).map(lambda octet: message[:at] + bytes((octet,)) + message[at + 1 :])
    )
    with suppress(PipelineError):
        for batch in batches_of(messages, SCHEMA, 1_000):
            batch.validate(full=True)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [b"PGCOPY"],
        [HEADER],
        copied([(1, b"", [])])[:-1],
        [HEADER + b"\0\1"],
        [*copied([]), TRAILER],
    ],
)
def test_an_answer_that_is_cut_off_is_told(messages: list[bytes]) -> None:
    with pytest.raises(PipelineError, match="something else than rows"):
        list(batches_of(messages, SCHEMA, 1_000))


def test_a_list_cannot_claim_more_elements_than_were_sent() -> None:
    """What is kept for a list is bounded by the bytes that came, not by the number they state."""
    huge = struct.pack(">iiiii", 1, 0, BYTEA_OID, 2**31 - 1, 1)
    row = struct.pack(">h", 3) + cell(1) + cell(b"") + struct.pack(">i", len(huge)) + huge
    with pytest.raises(PipelineError, match="something else than rows"):
        list(batches_of([HEADER + row, TRAILER], SCHEMA, 1_000))
