"""An archive as rows of Spark, for the data source of `store.pipeline.source`.

Files and row groups that by the log and their own statistics hold nothing that is wanted are not
read. A stream's offset is a version of the Delta table: first the files of a version, then those
that each later one added, but not what compaction made of others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from store.pipeline.columns import PARTITIONS, SOURCE
from store.pipeline.database import FOREVER
from store.pipeline.errors import PipelineError, of_store
from store.pipeline.files import batches_of
from store.pipeline.filters import Condition, Conditions, Wanted
from store.pipeline.lake import Lake, LakeFile
from store.pipeline.limits import DAY_NS, MAX_PORTION_ROWS, MIN_PORTION_ROWS
from store.pipeline.portions import shared_out
from store.pipeline.storage import chunks
from store.pipeline.tasks import spare_loaded

if TYPE_CHECKING:
    from store.pipeline.source import Options

_BEFORE_ALL: Final = -1


class FilesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, files: list[LakeFile]) -> None:
        super().__init__(None)
        self.files = files


class ArchiveReader(DataSourceReader):
    """Plans files, and reads them."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._wanted = Wanted(options.schema, conditions_of(options))

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take over what is judged here."""
        return self._wanted.conditions.push(filters)

    def partitions(self) -> Sequence[InputPartition]:
        """Files that can hold what is wanted, about as many messages for each task."""
        lake = Lake(self._options.path).open()
        return _partitions(lake.files(), self._wanted.conditions, self._options.tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        assert isinstance(partition, FilesPartition)
        return _rows(partition.files, self._wanted)


class ArchiveStreamReader(DataSourceStreamReader):
    """Reads version by version; an offset is ``{"version": N}``."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._wanted = Wanted(options.schema, conditions_of(options))

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Behind which the first batch begins."""
        return {"version": self._options.start or _BEFORE_ALL}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How much a batch holds at most, as far as versions allow."""
        return ReadMaxRows(self._options.max_rows)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Up to where the next batch goes: one version at least, if there is one."""
        lake = Lake(self._options.path).open()
        first, last = start["version"], lake.version
        if first == _BEFORE_ALL or isinstance(limit, ReadAllAvailable):
            return {"version": last}
        rows = 0
        for version in range(first + 1, last + 1):
            rows += sum(each.rows for each in added_by(lake, version))
            if rows >= self._options.max_rows:
                return {"version": version}
        return {"version": last}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The same for the same offsets, as long as the log has their versions."""
        lake = Lake(self._options.path).open(
            end["version"] if start["version"] == _BEFORE_ALL else None
        )
        if start["version"] == _BEFORE_ALL:
            files = lake.files()
        else:
            versions = range(start["version"] + 1, end["version"] + 1)
            files = [each for version in versions for each in added_by(lake, version)]
        return _partitions(files, self._wanted.conditions, self._options.tasks) if files else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        assert isinstance(partition, FilesPartition)
        return _rows(partition.files, self._wanted)


def conditions_of(options: Options) -> Conditions:
    """What the options say, as conditions."""
    found = Conditions()
    if options.low_ns > 0:
        found.held.append(Condition("ts", ">=", (options.low_ns,)))
    if options.high_ns < FOREVER:
        found.held.append(Condition("ts", "<", (options.high_ns,)))
    return found


def added_by(lake: Lake, version: int) -> list[LakeFile]:
    """The files with messages that were not in the archive before a version of its table.

    Raises:
        PipelineError: the log no longer has it.
    """
    path = f"{lake.messages}/_delta_log/{version:020}.json"
    try:
        lines = b"".join(chunks(path)).splitlines()
    except FileNotFoundError as error:
        raise PipelineError(
            f"The log of {lake.path} no longer has version {version}, which the stream has to read"
            " next: begin with a new checkpoint."
        ) from error
    except OSError as error:
        raise of_store(lake.path, error) from error
    actions = (json.loads(line).get("add") for line in lines)
    return [_file(lake, each) for each in actions if each is not None and each["dataChange"]]


def _file(lake: Lake, added: dict[str, Any]) -> LakeFile:
    values = added["partitionValues"]
    day = int(np.datetime64(values["day"], "D").astype(np.int64))
    rows = int(json.loads(added["stats"])["numRecords"])
    path = f"{lake.messages}/{unquote(added['path'])}"
    return LakeFile(path, day, int(values["shard"]), added["size"], rows)


def _partitions(
    files: list[LakeFile], conditions: Conditions, tasks: int
) -> Sequence[InputPartition]:
    low_ns, high_ns = conditions.times()
    wanted = [
        each
        for each in sorted(files, key=LakeFile.place)
        if each.day * DAY_NS < high_ns
        and (each.day + 1) * DAY_NS > low_ns
        and conditions.wants(each.shard)
    ]
    rows = sum(each.rows for each in wanted)
    share = min(MAX_PORTION_ROWS, max(MIN_PORTION_ROWS, -(-rows // tasks)))
    # Without any partition Spark has one of its own read.
    return [FilesPartition(part) for part in shared_out(wanted, LakeFile.size, share) or [[]]]


def _rows(files: list[LakeFile], wanted: Wanted) -> Iterator[pa.RecordBatch]:
    spare_loaded()
    in_files = [name for name in wanted.read if name not in PARTITIONS]
    # A file that only its directory is wanted of has to be counted.
    columns = in_files or ["ts"]
    for file in files:
        place = {"day": file.day, "shard": file.shard}
        for rows in batches_of(file.path, columns, may_hold=wanted.conditions.may_hold):
            for name in PARTITIONS:
                scalar = pa.scalar(place[name], SOURCE.field(name).type)
                rows = rows.append_column(name, pa.repeat(scalar, len(rows)))  # noqa: PLW2901
            yield wanted.of(rows)
