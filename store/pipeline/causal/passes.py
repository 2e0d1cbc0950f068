"""One pass of Spark over blocks, each of which one task holds in memory.

Rows are shuffled and sorted by bucket (`pipeline.causal.packed`), which Spark does on disk where it
must. A task then takes whole buckets together up to `EXAMINED_ENTRIES`; a bucket has much more
than that only where a block of it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from hashlib import sha256
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from store.pipeline.causal.claims import Claims
from store.pipeline.causal.examine import examine
from store.pipeline.causal.limits import EXAMINED_ENTRIES, MAX_BLOCK_ENTRIES
from store.pipeline.causal.packed import BUCKET, Buckets, packed_claims, packed_rows, runs, unpacked
from store.pipeline.causal.rows import FINDINGS, Kinds
from store.pipeline.tasks import good_tasks
from storenode.sds.limits import MAX_ID_BYTES

_BUCKETS_PER_PART: Final = 16

Batches = Iterator[pa.RecordBatch]


def examined(
    session: SparkSession,
    rows: DataFrame | None,
    kinds: Kinds,
    entries: int,
    claims: Claims | None = None,
) -> DataFrame:
    """Findings (`FINDINGS`) of some kinds, in about so many ``entries``.

    In rows (`ROWS`), in ``claims`` of which each channel is one block, or in both together.
    """
    parts = max(good_tasks(session), -(-entries // MAX_BLOCK_ENTRIES))
    buckets = Buckets(parts * _BUCKETS_PER_PART)
    packed = [] if rows is None else [packed_rows(rows, buckets)]
    if claims is not None:
        packed.append(packed_claims(claims, buckets))
    placed = reduce(DataFrame.unionByName, packed).repartition(parts, BUCKET)
    ordered = placed.sortWithinPartitions(BUCKET)
    return ordered.mapInArrow(partial(_partition, kinds, EXAMINED_ENTRIES), FINDINGS)


def _partition(kinds: Kinds, entries: int, batches: Batches) -> Batches:
    for rows in whole_blocks(unpacked(batches), entries):
        yield from examine(rows, kinds)


def whole_blocks(batches: Batches, entries: int) -> Batches:
    """Rows of whole buckets, with at most so many entries each time, more only of a larger bucket.

    In ``batches`` the rows of a block have the same `BUCKET`, and rows of one are next to each
    other.
    """
    held: list[pa.RecordBatch] = []
    count = 0
    for _, parts in groupby(_of_one_bucket(batches), lambda rows: rows[BUCKET][0].as_py()):
        bucket = list(map(shortened, parts))
        size = sum(map(entries_of, bucket))
        if held and count + size > entries:
            yield _joined(held)
            held, count = [], 0
        held += bucket
        count += size
    if held:
        yield _joined(held)


def _of_one_bucket(batches: Batches) -> Batches:
    for rows in batches:
        for low, high in runs(rows[BUCKET].to_numpy()):
            yield rows.slice(low, high - low)


def entries_of(rows: pa.RecordBatch) -> int:
    """How many IDs and references rows have."""
    return len(rows) + len(rows["parents"].flatten())


def shortened(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, with names of parents that are too long for an ID replaced by short ones.

    Nothing can be held under such a name. What replaces it is too long as well, and by its digest
    as good as unique.
    """
    lists = rows["parents"]
    names = lists.flatten()
    if not len(names) or (pc.max(pc.binary_length(names)).as_py() or 0) <= MAX_ID_BYTES:
        return rows
    texts = [name if _fits(name) else _short(name) for name in names.to_pylist()]
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    replaced = pa.ListArray.from_arrays(pa.array(offsets), pa.array(texts, pa.string()))
    return rows.set_column(rows.schema.get_field_index("parents"), "parents", replaced)


def _fits(name: str | None) -> bool:
    return name is None or len(name.encode()) <= MAX_ID_BYTES


def _short(name: str | None) -> str:
    assert name is not None
    digest = sha256(name.encode()).hexdigest()
    return f"{name[:MAX_ID_BYTES]}… ({len(name.encode())} bytes, SHA-256 {digest})"


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
