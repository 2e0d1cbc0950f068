"""Rows as blocks of a binary COPY."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from store.db.writing.bulk import hash_block, in_order
from store.messages.record import RecordBatch

HASHES = st.lists(st.binary(min_size=32, max_size=32), max_size=20, unique=True)
TIMES = st.lists(st.integers(1, 3), min_size=20, max_size=20)


def cells(row: bytes) -> list[bytes]:
    """Return the values of one row."""
    values, at = [], 2
    for _ in range(int.from_bytes(row[:2], "big")):
        size = int.from_bytes(row[at : at + 4], "big")
        values.append(row[at + 4 : at + 4 + size])
        at += 4 + size
    assert at == len(row)
    return values


@given(HASHES, TIMES)
def test_rows_of_hashes_are_whole_and_in_the_order_of_the_key(
    hashes: list[bytes], times: list[int]
) -> None:
    batch = RecordBatch(
        timestamps=times[: len(hashes)],
        hashes=hashes,
        topic_keys=[digest[-16:] for digest in hashes],
        content_digests=[digest[:16] for digest in hashes],
        heads=[b""] * len(hashes),
        payloads=[b""] * len(hashes),
        tails=[b""] * len(hashes),
    )
    block = hash_block(in_order(batch, np.ones(len(hashes), np.int64)))
    row_bytes = 2 + 2 * (4 + 8)
    rows = [cells(block[at : at + row_bytes]) for at in range(0, len(block), row_bytes)]
    expected = {
        (digest[:8], timestamp.to_bytes(8, "big"))
        for digest, timestamp in zip(hashes, times, strict=False)
    }
    assert {tuple(row) for row in rows} == expected
    assert len(rows) == len(hashes)
    keys = [int.from_bytes(row[0], signed=True) for row in rows]
    assert keys == sorted(keys)
