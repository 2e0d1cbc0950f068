"""One pass of Spark over blocks, each of which one task holds in memory.

Rows are shuffled and sorted by block, which Spark does on disk where it must. A task then takes
whole blocks together until they have `MAX_BLOCK_ENTRIES`, so it never holds more than twice that.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from pipeline.causal.examine import examine
from pipeline.causal.limits import MAX_BLOCK_ENTRIES
from pipeline.causal.rows import FINDINGS, Kinds
from sds.limits import MAX_ID_BYTES

_KEY: Final = "key"

Batches = Iterator[pa.RecordBatch]


def examined(rows: DataFrame, kinds: Kinds, entries: int) -> DataFrame:
    """Findings (`FINDINGS`) of some kinds in rows (`ROWS`) with about so many ``entries``."""
    session = rows.sparkSession
    configured = int(session.conf.get("spark.sql.shuffle.partitions") or "1")
    parts = max(configured, -(-entries // MAX_BLOCK_ENTRIES))
    # A number is sorted in a fraction of the time that channels take. Nobody can know the salt, so
    # nobody can choose channels that come together.
    key = F.xxhash64(F.lit(secrets.randbits(62)), "channel", "block")
    placed = rows.withColumn(_KEY, key).repartition(parts, _KEY).sortWithinPartitions(_KEY)
    return placed.mapInArrow(partial(_partition, kinds), FINDINGS)


def _partition(kinds: Kinds, batches: Batches) -> Batches:
    for rows in whole_blocks(batches, MAX_BLOCK_ENTRIES):
        yield from examine(rows, kinds)


def whole_blocks(batches: Batches, entries: int) -> Batches:
    """Rows of whole blocks, with about so many entries each time, more only in larger blocks.

    In ``batches`` the rows of a block have the same ``key``, and rows of one key are next to each
    other.
    """
    held: list[pa.RecordBatch] = []
    count, wanted = 0, entries
    for batch in batches:
        held.append(shortened(batch))
        count += entries_of(held[-1])
        if count < wanted:
            continue
        joined = _joined(held)
        cut = _last_begin(joined)
        if cut:
            yield joined.slice(0, cut)
            joined = joined.slice(cut)
        held, count = [joined], entries_of(joined)
        wanted = max(entries, 2 * count)
    if held:
        yield _joined(held)


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


def _last_begin(rows: pa.RecordBatch) -> int:
    """The first row with the last key."""
    return int(pc.index(rows[_KEY], rows[_KEY][-1]).as_py())
