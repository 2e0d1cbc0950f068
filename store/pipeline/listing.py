"""The files that one state of a Delta table names, as Arrow columns.

A hundred thousand files take tens of megabytes, and only those that are asked for become objects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate
from operator import itemgetter
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from store.pipeline.limits import COMPACT_AT_FILES, COMPACT_FILES_AT_ONCE, COMPACTION_STEPS

_COLUMNS: Final = ("path", "partition.day", "partition.shard", "size_bytes", "num_records")
_NAMES: Final = ("path", "day", "shard", "size_bytes", "rows")
_DIRECTORY: Final = ["day", "shard"]
_size_bytes: Final = itemgetter(3)

Row = tuple[str, int, int, int, int]
"""Path within the table, day since the epoch, shard, bytes, messages."""


class Listing:
    """The files of the state that a table was read in, by day."""

    def __init__(self, table: DeltaTable) -> None:
        found = pa.table(table.get_add_actions(flatten=True)).select(_COLUMNS)
        found = found.rename_columns(_NAMES)
        days = found["day"].cast(pa.date32()).cast(pa.int32())
        found = found.set_column(found.column_names.index("day"), "day", days)
        # A copy: delta-rs keeps everything that it returned while any of the columns is in use.
        self._files = found.take(pc.sort_indices(days))

    def __len__(self) -> int:
        """Return the number of files."""
        return int(self._files.num_rows)

    @property
    def messages(self) -> int:
        """The number of messages in the files."""
        return pc.sum(self._files["rows"]).as_py() or 0

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return pc.sum(self._files["size_bytes"]).as_py() or 0

    def paths(self) -> set[str]:
        """Return the paths of all files within the table."""
        return set(map(unquote, self._files["path"].to_pylist()))

    def rows(self, days: Collection[int] | None = None) -> Iterator[Row]:
        """Yield the files, of some days only if they are given."""
        if days is None:
            return _rows(self._files)
        wanted = pa.array([day for day in days if -(2**31) <= day < 2**31], pa.int32())
        return _rows(self._files.filter(pc.is_in(self._files["day"], value_set=wanted)))

    def crowded(self) -> list[Row]:
        """Return files that should be compacted to one per directory.

        Files of about the same size are compacted together, so that a message is written a few
        times in all. The directories are the earliest that have `COMPACT_FILES_AT_ONCE` together.
        """
        small = self._files.filter(pc.less(self._files["size_bytes"], COMPACTION_STEPS[-1] // 2))
        counted = small.group_by(_DIRECTORY).aggregate([("path", "count")])
        full = counted.filter(pc.greater_equal(counted["path_count"], COMPACT_AT_FILES))
        found: dict[tuple[int, int], list[Row]] = {}
        for each in _rows(small.join(full.select(_DIRECTORY), _DIRECTORY, join_type="left semi")):
            found.setdefault((each[1], each[2]), []).append(each)
        chosen: list[Row] = []
        for _, directory in sorted(found.items()):
            if len(chosen) >= COMPACT_FILES_AT_ONCE:
                break
            chosen += _compacted_together(directory)
        return chosen


def _rows(files: pa.Table) -> Iterator[Row]:
    columns = (files[name].to_pylist() for name in _NAMES)
    for path, day, shard, size, rows in zip(*columns, strict=True):
        yield unquote(path), day, shard, size, rows or 0


def _compacted_together(files: Iterable[Row]) -> list[Row]:
    """Return the files of one directory that are to become one: none, or at least two."""
    by_size = sorted(files, key=_size_bytes)
    for target in COMPACTION_STEPS:
        small = [each for each in by_size if _size_bytes(each) < target // 2]
        if len(small) >= COMPACT_AT_FILES:
            sizes = accumulate(map(_size_bytes, small))
            return [each for each, size in zip(small, sizes, strict=True) if size <= target]
    return []
