"""Messages as files of an archive: Parquet, by day and shard, written in bounded memory.

Rows come in any order, though mostly in that of time. Of each directory there is one file that
grows, until too many are open. Rows are held until there are enough of them for a row group.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from store.pipeline.columns import ARROW, PARTITIONS, file_columns
from store.pipeline.fingerprints import HASH_WORDS
from store.pipeline.limits import HELD_BYTES, OPEN_FILES, ROW_GROUP_BYTES
from store.pipeline.storage import for_writing, settle

WRITTEN: Final = pa.schema([pa.field("path", pa.string()), pa.field("rows", pa.int64())])
"""A file that was written: its path within the folder, and how many rows went in."""

_FILES: Final = pa.schema([ARROW.field(name) for name in file_columns()])
_PARENTS: Final = ("parents.list.element.id", "parents.list.element.hint")
_LEAVES: Final = (*(name for name in _FILES.names if name != "parents"), *_PARENTS)
_NOISE: Final = frozenset({"hash", *HASH_WORDS})
"""Columns whose bytes are as good as random: nothing is to be had from compressing them."""

_DISTINCT: Final = _NOISE | {"ts", "payload"}
"""Columns whose values hardly ever repeat: no dictionary is tried for them first."""

_BOUNDED: Final = ("ts", "pubsub_topic", "content_topic", "channel", "message_id", "lamport")
"""Columns of whose values the least and the greatest are noted."""

_ZSTD_LEVEL: Final = 1
"""Payloads are mostly encrypted: a higher level costs half as much again, and saves nothing."""

_FOLDERS: Final = 4
"""Above a file: its shard, its day, the run, and the folder of all runs."""

Directory = tuple[int, int]


def write_batches(folder: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write rows with all columns into files of a folder; what was written, as `WRITTEN`.

    Raises:
        OSError: something cannot be written.
    """
    files = _Files(folder)
    for batch in batches:
        files.add(batch)
    written = files.close()
    if written:
        paths, rows = zip(*written, strict=True)
        yield pa.record_batch([pa.array(paths), pa.array(rows)], schema=WRITTEN)


class _File:
    """A file that grows."""

    def __init__(self, path: str) -> None:
        self.rows = 0
        self.held_bytes = 0
        self._held: list[pa.RecordBatch] = []
        self._sink = for_writing(path)
        self._writer = pq.ParquetWriter(
            self._sink,
            _FILES,
            compression={name: "none" if name in _NOISE else "zstd" for name in _LEAVES},
            compression_level={name: _ZSTD_LEVEL for name in _LEAVES if name not in _NOISE},
            use_dictionary=[name for name in _LEAVES if name not in _DISTINCT],
            write_statistics=list(_BOUNDED),
            store_schema=False,
        )

    def add(self, rows: pa.RecordBatch) -> None:
        self._held.append(rows)
        self.held_bytes += rows.nbytes
        self.rows += rows.num_rows

    def flush(self) -> None:
        """Write what is held as one row group."""
        if self._held:
            table = pa.Table.from_batches(self._held)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._held, self.held_bytes = [], 0

    def close(self) -> None:
        self.flush()
        self._writer.close()
        self._sink.close()


@dataclass
class _Files:
    """The files of one task; of each directory the last one is open."""

    folder: str
    _open: dict[Directory, tuple[str, _File]] = field(default_factory=dict)
    _written: list[tuple[str, int]] = field(default_factory=list)

    def add(self, batch: pa.RecordBatch) -> None:
        for directory, rows in _by_directory(batch):
            file = self._file(directory)
            file.add(rows)
            if file.held_bytes >= ROW_GROUP_BYTES:
                file.flush()
        while sum(file.held_bytes for _, file in self._open.values()) > HELD_BYTES:
            max((file for _, file in self._open.values()), key=lambda file: file.held_bytes).flush()

    def close(self) -> list[tuple[str, int]]:
        """Everything that was written: path in the folder, rows."""
        for directory in list(self._open):
            self._close(directory)
        settle((f"{self.folder}/{name}" for name, _ in self._written), _FOLDERS)
        return self._written

    def _file(self, directory: Directory) -> _File:
        """The open file of a directory, which becomes the last one that was used."""
        found = self._open.pop(directory, None)
        if found is None:
            if len(self._open) >= OPEN_FILES:
                self._close(next(iter(self._open)))
            day, shard = directory
            name = f"day={day_text(day)}/shard={shard}/part-{uuid.uuid4().hex}.parquet"
            found = name, _File(f"{self.folder}/{name}")
        self._open[directory] = found
        return found[1]

    def _close(self, directory: Directory) -> None:
        name, file = self._open.pop(directory)
        file.close()
        self._written.append((name, file.rows))


def day_text(day: int) -> str:
    """A day since the epoch as in the name of its directory."""
    return str(np.datetime64(day, "D"))


def _by_directory(batch: pa.RecordBatch) -> Iterator[tuple[Directory, pa.RecordBatch]]:
    """The rows of each day and shard, as they follow each other."""
    day, shard = (
        batch[name].cast(pa.int32()).to_numpy(zero_copy_only=False) for name in PARTITIONS
    )
    rows = pa.RecordBatch.from_arrays([batch[name] for name in _FILES.names], schema=_FILES)
    order = np.lexsort((shard, day))
    day, shard = day[order], shard[order]
    edges = np.flatnonzero((np.diff(day) != 0) | (np.diff(shard) != 0)) + 1
    bounds = [0, *edges.tolist(), len(order)]
    if len(bounds) > 2:
        rows = rows.take(pa.array(order))
    for low, high in pairwise(bounds):
        if low < high:
            yield (int(day[low]), int(shard[low])), rows.slice(low, high - low)
