"""Rows of Spark as Parquet files of an archive, one for each directory of a task."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql.pandas.types import from_arrow_schema

from store.pipeline.columns import ARROW, NAMES, PARTITIONS, file_columns
from store.pipeline.files import for_writing, settle
from store.pipeline.fingerprints import HASH_WORDS
from store.pipeline.limits import HOUR_NS, ROW_GROUP_BYTES

WRITTEN: Final = pa.schema([("path", pa.string()), ("rows", pa.int64())])
"""A file that was written: its path relative to the table, and its number of rows."""

_FILES: Final = pa.schema([ARROW.field(name) for name in file_columns()])
_PARENTS: Final = ("parents.list.element.id", "parents.list.element.hint")
_LEAVES: Final = (*(name for name in _FILES.names if name != "parents"), *_PARENTS)
_RANDOM: Final = frozenset({"hash", *HASH_WORDS})
"""Columns whose bytes are as good as random: they cannot be compressed."""

_DISTINCT: Final = _RANDOM | {"ts", "payload"}
"""Columns whose values seldom repeat: no dictionary is tried for them."""

_BOUNDED: Final = ("ts", "pubsub_topic", "content_topic", "channel", "message_id", "lamport")
"""Columns with statistics."""

_ZSTD_LEVEL: Final = 1
"""Payloads are mostly encrypted: a higher level takes half as much time again and saves nothing."""

_FOLDERS: Final = 3
"""Directories above a file that are synced: its shard, its day, and the table."""


def write_files(rows: DataFrame, folder: str, partitions: int, *, by_hour: bool) -> dict[str, int]:
    """Write rows with all columns below a folder; return the paths within it and their rows.

    The rows of an hour of a day and shard are in one file, in the order of time; those of the whole
    day unless ``by_hour``.
    """
    hour = F.expr(f"ts div {HOUR_NS}" if by_hour else "0")
    ordered = (
        rows.select(*NAMES)
        .repartition(partitions, *PARTITIONS, hour)
        .sortWithinPartitions(*PARTITIONS, "ts", "hash")
    )
    done = ordered.mapInArrow(partial(write_batches, folder), from_arrow_schema(WRITTEN))
    return {row["path"]: row["rows"] for row in done.collect()}


def write_batches(folder: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write rows that are sorted by day and shard to one file for each; yield `WRITTEN`.

    Raises:
        OSError: something cannot be written.
    """
    written = []
    file: _File | None = None
    for batch in batches:
        for directory, rows in _by_directory(batch):
            if file is None or file.directory != directory:
                if file is not None:
                    written.append(file.close())
                file = _File(folder, directory)
            file.add(rows)
    if file is not None:
        written.append(file.close())
        settle((f"{folder}/{name}" for name, _ in written), _FOLDERS)
        paths, counts = zip(*written, strict=True)
        yield pa.record_batch([pa.array(paths), pa.array(counts)], schema=WRITTEN)


class _File:
    """A file that grows by a row group at a time."""

    def __init__(self, folder: str, directory: tuple[int, int]) -> None:
        self.directory = directory
        day, shard = directory
        self._name = f"day={np.datetime64(day, 'D')}/shard={shard}/part-{uuid.uuid4().hex}.parquet"
        self._rows = 0
        self._batches: list[pa.RecordBatch] = []
        self._sink = for_writing(f"{folder}/{self._name}")
        self._writer = pq.ParquetWriter(
            self._sink,
            _FILES,
            compression={name: "none" if name in _RANDOM else "zstd" for name in _LEAVES},
            compression_level={name: _ZSTD_LEVEL for name in _LEAVES if name not in _RANDOM},
            use_dictionary=[name for name in _LEAVES if name not in _DISTINCT],
            write_statistics=list(_BOUNDED),
            store_schema=False,
        )

    def add(self, rows: pa.RecordBatch) -> None:
        self._batches.append(rows)
        self._rows += rows.num_rows
        if sum(each.nbytes for each in self._batches) >= ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> tuple[str, int]:
        self._flush()
        self._writer.close()
        self._sink.close()
        return self._name, self._rows

    def _flush(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._batches = []


def _by_directory(batch: pa.RecordBatch) -> Iterator[tuple[tuple[int, int], pa.RecordBatch]]:
    """Yield the rows of each day and shard, which are next to each other."""
    day, shard = (
        batch[name].cast(pa.int32()).to_numpy(zero_copy_only=False) for name in PARTITIONS
    )
    rows = pa.RecordBatch.from_arrays([batch[name] for name in _FILES.names], schema=_FILES)
    edges = np.flatnonzero((np.diff(day) != 0) | (np.diff(shard) != 0)) + 1
    for low, high in pairwise([0, *edges.tolist(), len(day)]):
        if low < high:
            yield (int(day[low]), int(shard[low])), rows.slice(low, high - low)
