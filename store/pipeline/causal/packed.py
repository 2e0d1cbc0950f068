"""Rows of blocks on their way to the task that examines them: many in one value.

Spark brings together what belongs together. It does so row by row, and a row costs it more than to
examine it. So workers put rows of some blocks, a *bucket*, into one value as Arrow's bytes, and
Spark sorts these: a thousandth as many.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from store.pipeline.causal.claims import Claims
from store.pipeline.causal.rows import ROWS

BUCKET: Final = "bucket"
PACKED: Final = pa.schema([(BUCKET, pa.int64()), ("rows", pa.binary())])
_ROWS: Final = to_arrow_schema(ROWS)
_GATHERED_ROWS: Final = 131_072
_GATHERED_BYTES: Final = 64 * 1024 * 1024
"""What is put into values together: more rows make values larger, and take memory."""

_SALT_BYTES: Final = 16
_WORD_BYTES: Final = 8
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Buckets:
    """So many buckets. Nobody knows the salt, so nobody can choose channels that come together."""

    count: int
    salt: bytes = field(default_factory=lambda: secrets.token_bytes(_SALT_BYTES))

    def of(self, rows: pa.RecordBatch) -> NDArray[np.int64]:
        """The bucket of each row: that of its block."""
        coded = rows["channel"].dictionary_encode()
        words = self._words(coded.dictionary)[coded.indices.to_numpy()]
        return self._placed(words + rows["block"].to_numpy().astype(np.uint64) * _SPREAD)

    def of_channels(self, names: pa.Array) -> NDArray[np.int64]:
        """The bucket of all of each channel."""
        return self._placed(self._words(names))

    def _words(self, names: pa.Array) -> NDArray[np.uint64]:
        known = (text.encode() for text in names.to_pylist())
        digests = (blake2b(text, digest_size=_WORD_BYTES, key=self.salt).digest() for text in known)
        return np.frombuffer(b"".join(digests), np.uint64)

    def _placed(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = ((words * _SPREAD >> _HALF) % np.uint64(self.count)).astype(
            np.int64
        )
        return found


def packed_rows(rows: DataFrame, buckets: Buckets) -> DataFrame:
    """Rows (`ROWS`) as `PACKED`."""
    schema = from_arrow_schema(PACKED)
    return rows.select(*ROWS.fieldNames()).mapInArrow(partial(_packed, buckets), schema)


def packed_claims(claims: Claims, buckets: Buckets) -> DataFrame:
    """Claims as `PACKED`, each channel one block."""
    return claims.mapped(partial(_packed_claims, buckets), PACKED)


def unpacked(batches: Batches) -> Batches:
    """The rows that were packed, each batch of one `BUCKET`, which is a column more."""
    for batch in batches:
        for bucket, data in zip(batch[BUCKET], batch["rows"], strict=True):
            rows = pa.ipc.read_record_batch(data.as_buffer(), _ROWS)
            key = pa.array(np.full(len(rows), bucket.as_py(), np.int64))
            yield rows.append_column(BUCKET, key)


def _packed_claims(buckets: Buckets, batches: Batches) -> Batches:
    return _packed(buckets, map(rows_of_claims, batches))


def rows_of_claims(claims: pa.RecordBatch) -> pa.RecordBatch:
    """`CLAIMS` as `ROWS`, each channel one block."""
    lists, count = claims["parents"], len(claims)
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    found = {
        "block": pa.array(np.zeros(count, np.int32)),
        "own": pa.array(np.ones(count, np.bool_)),
        "tainted": pa.array(np.zeros(count, np.bool_)),
        "parents": pa.ListArray.from_arrays(pa.array(ends), lists.flatten().field("id")),
    }
    columns = [found[name] if name in found else claims[name] for name in _ROWS.names]
    return pa.RecordBatch.from_arrays(columns, schema=_ROWS)


def _packed(buckets: Buckets, batches: Batches) -> Batches:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + len(batch), size + batch.nbytes
        if rows >= _GATHERED_ROWS or size >= _GATHERED_BYTES:
            yield _together(held, buckets)
            held, rows, size = [], 0, 0
    if rows:
        yield _together(held, buckets)


def _together(held: list[pa.RecordBatch], buckets: Buckets) -> pa.RecordBatch:
    """The rows by bucket, one value for each."""
    columns = [pa.concat_arrays([each[name] for each in held]) for name in _ROWS.names]
    rows = pa.RecordBatch.from_arrays(columns, schema=_ROWS)
    bucket = buckets.of(rows)
    order = np.argsort(bucket, kind="stable")
    rows, bucket = rows.take(pa.array(order)), bucket[order]
    places = runs(bucket)
    values = [rows.slice(low, high - low).serialize().to_pybytes() for low, high in places]
    keys = bucket[[low for low, _ in places]]
    return pa.record_batch([pa.array(keys), pa.array(values)], schema=PACKED)


def runs(bucket: NDArray[np.int64]) -> list[tuple[int, int]]:
    """From where to where, exclusive, rows next to each other are of one bucket."""
    begins = np.flatnonzero(np.diff(bucket, prepend=-1)).tolist()
    return list(pairwise([*begins, len(bucket)]))
