"""The files that one state of an archive's table names, as columns of Arrow: a hundred thousand of
them take tens of megabytes, and only those that are asked for become objects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from store.pipeline.limits import COMPACT_AT_FILES, COMPACT_FILES_AT_ONCE, COMPACTION_STEPS

_COLUMNS: Final = ("path", "partition.day", "partition.shard", "size_bytes", "num_records")
_NAMES: Final = ("path", "day", "shard", "size_bytes", "rows")
_DIRECTORY: Final = ["day", "shard"]

Row = tuple[str, int, int, int, int]
"""Path within the table, day since the epoch, shard, bytes, messages."""


class Listing:
    """The files of the state that a table was read in, by day."""

    def __init__(self, table: DeltaTable) -> None:
        found = pa.table(table.get_add_actions(flatten=True)).select(_COLUMNS)
        found = found.rename_columns(_NAMES)
        days = found["day"].cast(pa.date32()).cast(pa.int32())
        found = found.set_column(found.column_names.index("day"), "day", days)
        # A copy: while any of the columns is held, delta-rs keeps all that it gave.
        self._files = found.take(pc.sort_indices(days))

    def __len__(self) -> int:
        """How many files there are."""
        return int(self._files.num_rows)

    @property
    def messages(self) -> int:
        """How many messages they have."""
        return pc.sum(self._files["rows"]).as_py() or 0

    @property
    def paths(self) -> pa.ChunkedArray:
        """As the log has them."""
        return self._files["path"]

    @property
    def days(self) -> set[int]:
        """The days that have files."""
        return set(pc.unique(self._files["day"]).to_pylist())

    def rows(self, days: Collection[int] | None = None) -> Iterator[Row]:
        """The files, of some days only if they are given."""
        return _rows(self._of(days))

    def names(self) -> set[str]:
        """The paths of all files within the table."""
        return {_plain(path) for part in self.paths.chunks for path in part.to_pylist()}

    def named(self, names: Collection[str]) -> Iterator[Row]:
        """The files at some paths within the table."""
        paths = (path for part in self.paths.chunks for path in part.to_pylist())
        places = [place for place, path in enumerate(paths) if _plain(path) in names]
        return _rows(self._files.take(pa.array(places, pa.int64())))

    def digests(self, days: Collection[int] | None = None) -> dict[int, str]:
        """By day what stands for the set of its files; of some days only if they are given."""
        chosen = self._of(days)
        of_day = chosen["day"].to_numpy()
        begins = np.flatnonzero(np.diff(of_day, prepend=of_day[:1] - 1))
        found: dict[int, str] = {}
        for low, high in pairwise([*begins.tolist(), len(of_day)]):
            paths = chosen["path"].slice(low, high - low).to_pylist()
            names = sorted(f"/{_plain(each)}" for each in paths)
            found[int(of_day[low])] = sha256("\n".join(names).encode()).hexdigest()
        return found

    def crowded(self) -> list[Row]:
        """Files that should be made one per directory, since it has so many of their size.

        Of so many directories as have `COMPACT_FILES_AT_ONCE` together, the earliest first.
        """
        below = pc.less(self._files["size_bytes"], COMPACTION_STEPS[-1] // 2)
        small = self._files.filter(below)
        counted = small.group_by(_DIRECTORY).aggregate([("path", "count")])
        full = counted.filter(pc.greater_equal(counted["path_count"], COMPACT_AT_FILES))
        found: dict[tuple[int, int], list[Row]] = {}
        rows = _rows(small.join(full.select(_DIRECTORY), _DIRECTORY, join_type="left semi"))
        for each in rows:
            found.setdefault((each[1], each[2]), []).append(each)
        chosen: list[Row] = []
        for _, directory in sorted(found.items()):
            if len(chosen) >= COMPACT_FILES_AT_ONCE:
                break
            chosen += _together(directory)
        return chosen

    def _of(self, days: Collection[int] | None) -> pa.Table:
        if days is None:
            return self._files
        wanted = pa.array([day for day in days if -(2**31) <= day < 2**31], pa.int32())
        return self._files.filter(pc.is_in(self._files["day"], value_set=wanted))


def _rows(files: pa.Table) -> Iterator[Row]:
    columns = (files[name].to_pylist() for name in _NAMES)
    for path, day, shard, size, rows in zip(*columns, strict=True):
        yield _plain(path), day, shard, size, rows or 0


def _plain(path: str) -> str:
    return unquote(path) if "%" in path else path


def _together(files: Iterable[Row]) -> list[Row]:
    """Files of one directory that are to be made one: none, or two at least."""
    by_size = sorted(files, key=_size_bytes)
    for target in COMPACTION_STEPS:
        small = [each for each in by_size if _size_bytes(each) < target // 2]
        if len(small) >= COMPACT_AT_FILES:
            sizes = accumulate(map(_size_bytes, small))
            return [each for each, size in zip(small, sizes, strict=True) if size <= target]
    return []


def _size_bytes(file: Row) -> int:
    return file[3]
