"""Adding messages to an archive: written, read back, and published in one commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from store.pipeline.actions import Written
from store.pipeline.columns import NAMES, PARTITIONS
from store.pipeline.contents import (
    KEY,
    fingerprints_of,
    known_hours,
    read_files,
    without_known,
)
from store.pipeline.database import FOREVER, State
from store.pipeline.errors import SPARK_ERRORS, PipelineError, of_spark
from store.pipeline.files import batches_of, rows_and_bytes
from store.pipeline.fingerprints import NOTHING, ROWS, Fingerprints, add_rows, as_rows, collected
from store.pipeline.lake import Lake, LakeFile
from store.pipeline.limits import DAY_NS, HOUR_NS
from store.pipeline.manifest import Manifest
from store.pipeline.progress import Say, shown, silent
from store.pipeline.reading import Portion
from store.pipeline.recording import record
from store.pipeline.tasks import in_portions, spread
from store.pipeline.writing import WRITTEN, write_batches

_CONTENTS: Final = pa.schema(
    [
        *ROWS,
        pa.field("path", pa.string()),
        pa.field("size_bytes", pa.int64()),
        pa.field("low", pa.int64()),
        pa.field("high", pa.int64()),
    ]
)
"""What the files of a task hold of an hour, with no ``path``; or a file's path in the table, the
number of its messages, its size, its earliest and latest time.
"""


class Appender:
    """Adds messages to a lake that is open, and knows what it holds.

    ``held`` is that by hour, computed from the files and not from what was meant to be in them,
    though maybe by an earlier job; ``messages`` and ``files`` count what was published.
    """

    def __init__(self, session: SparkSession, lake: Lake, say: Say = silent) -> None:
        self._session = session
        self._lake = lake
        self._say = say
        self.held = known_hours(session, lake, keep=True, say=say)
        self.messages = 0
        self.files = 0
        self._manifest: Manifest | None = None
        self._fresh: set[int] = set()

    def append(
        self,
        portions: Sequence[Portion],
        late: DataFrame | None,
        hours: Iterable[int],
        state: State,
        *,
        messages: int = 0,
        what: str = "archive",
    ) -> None:
        """Publish messages that the lake does not have yet, all or none.

        ``portions`` of the database are new as a whole, and are written where they are read.
        ``late`` rows are of some ``hours``, of which the lake has some already; None: there are
        none. ``state`` is what is read; about so many ``messages`` are shown as progress, which
        is called ``what``.

        Raises:
            PipelineError: they could not be read or written, or somebody else has published.
        """
        run = self._lake.begin_run()
        folder = f"{self._lake.messages}/{run}"
        done: list[Row] = []
        try:
            with shown(self._session, self._say, what, messages):
                if portions:
                    done += write_files(read_anew(self._session, portions, folder))
                if late is not None:
                    partial_hours = [hour for hour in hours if hour in self.held]
                    rows = without_known(self._session, self._lake, late, partial_hours)
                    done += write_files(as_files(_gathered(rows), folder))
            written, added = read_back(self._session, self._lake, _within(run, done))
        except SPARK_ERRORS as error:
            raise of_spark(error) from error
        if written:
            self._publish(written, added, state)
        else:
            self._lake.end_run(run)

    def _publish(self, written: list[Written], added: Fingerprints, state: State) -> None:
        self._lake.publish(written, {"position": str(state.position), "store": state.store_id})
        self._fresh.update(added.keys() - self.held.keys())
        for hour, each in added.items():
            self.held[hour] = self.held.get(hour, NOTHING).joined(each)
        self._lake.note_hours({hour // DAY_NS for hour in added}, self.held)
        self.messages += sum(each.rows for each in written)
        self.files += len(written)

    def confirmed(self, hours: Iterable[int]) -> Fingerprints:
        """What the files hold of some hours now: read again, but for what this has written itself.

        Raises:
            PipelineError: a file is gone or cannot be read.
        """
        wanted = set(hours)
        days = {hour // DAY_NS for hour in wanted - self._fresh}
        found = fingerprints_of(self._session, self._lake.files(days), HOUR_NS) if days else {}
        return {
            hour: self.held[hour] if hour in self._fresh else found.get(hour, NOTHING)
            for hour in wanted
        }

    def record(self) -> None:
        """Write to the archive's manifest what it does not say yet, as `recording.record`."""
        self._manifest = record(self._session, self._lake, self.held, self._manifest)

    def compact(self) -> int:
        """Make small files into larger ones; returns how many are gone.

        As with messages that are new: written, read back, compared, and published in one commit.

        Raises:
            PipelineError: files could not be read or written, they do not hold the same, or
                somebody else has published.
        """
        gone = 0
        while files := self._lake.crowded():
            self._replace(files)
            gone += len(files)
        return gone

    def _replace(self, files: list[LakeFile]) -> None:
        run = self._lake.begin_run()
        messages = sum(each.rows for each in files)
        try:
            with shown(self._session, self._say, "compact", messages):
                rows = _gathered(read_files(self._session, files, NAMES))
                done = write_files(as_files(rows, f"{self._lake.messages}/{run}"))
            written, added = read_back(self._session, self._lake, _within(run, done))
        except SPARK_ERRORS as error:
            raise of_spark(error) from error
        if added != fingerprints_of(self._session, files, HOUR_NS):
            raise PipelineError(
                "Small files that were made into larger ones did not hold the same, so they stay:"
                " `storenode pipeline verify` says whether the archive is sound."
            )
        self._lake.replace(files, written)
        self._lake.note_hours({each.day for each in files}, self.held)


def _gathered(rows: DataFrame) -> DataFrame:
    """Rows with all columns, those of a directory in one task, so in one file, and in order."""
    return rows.repartition(*PARTITIONS).sortWithinPartitions(*PARTITIONS, "ts", "hash")


def read_anew(session: SparkSession, portions: Sequence[Portion], folder: str) -> DataFrame:
    """Read portions of a database, and write them to a folder: what was written, as `WRITTEN`."""
    return spread(session, partial(_copied, folder), portions, WRITTEN)


def _copied(folder: str, portion: Portion) -> Iterator[pa.RecordBatch]:
    return write_batches(folder, portion.read())


def as_files(rows: DataFrame, folder: str) -> DataFrame:
    """Write rows with all columns to a folder: what was written, as `WRITTEN`."""
    schema = from_arrow_schema(WRITTEN)
    return rows.select(*NAMES).mapInArrow(partial(write_batches, folder), schema)


def write_files(written: DataFrame) -> list[Row]:
    """Have files written; those of the tasks that ended well."""
    return written.collect()


def _within(run: str, done: Iterable[Row]) -> dict[str, int]:
    """The files of a run by their paths in the table, and how many rows each has."""
    return {f"{run}/{row['path']}": row["rows"] for row in done}


def read_back(
    session: SparkSession, lake: Lake, rows_of: Mapping[str, int]
) -> tuple[list[Written], Fingerprints]:
    """Files by their paths in the table, and what they hold by hour.

    Raises:
        PipelineError: one holds another number of rows than ``rows_of`` says.
    """
    found = looked_at(session, lake, rows_of)
    files = {row["path"]: _written(row) for row in found if row["path"] is not None}
    for path, rows in sorted(rows_of.items()):
        if rows != (files[path].rows if path in files else 0):
            raise PipelineError(
                f"{lake.messages}/{path} does not hold what was written to it: nothing was"
                " published."
            )
    hours = collected(row for row in found if row["path"] is None)
    return [each for _, each in sorted(files.items())], hours


def looked_at(session: SparkSession, lake: Lake, rows_of: Mapping[str, int]) -> list[Row]:
    """What workers find in files, as `_CONTENTS`: a row for each, and for each task one an hour."""
    portions = in_portions(session, sorted(rows_of.items()), lambda each: each[1])
    return spread(session, partial(_contents, lake.messages), portions, _CONTENTS).collect()


def _contents(folder: str, files: list[tuple[str, int]]) -> Iterator[pa.RecordBatch]:
    """What each of some files holds, and what all of them hold by hour."""
    hours: Fingerprints = {}
    for name, _ in files:
        path = f"{folder}/{name}"
        count, low, high = 0, FOREVER, 0
        for rows in batches_of(path, KEY):
            add_rows(hours, rows, HOUR_NS)
            count += len(rows)
            ends = pc.min_max(rows["ts"])
            low, high = min(low, ends["min"].as_py()), max(high, ends["max"].as_py())
        if count:
            told = {"path": name, "count": count, "low": low, "high": high}
            told["size_bytes"] = rows_and_bytes(path)[1]
            yield pa.RecordBatch.from_pylist([told], _CONTENTS)
    if hours:
        known = as_rows(hours)
        rest = [pa.nulls(len(known), each.type) for each in list(_CONTENTS)[len(ROWS) :]]
        yield pa.record_batch([*known.columns, *rest], schema=_CONTENTS)


def _written(row: Row) -> Written:
    path = row["path"]
    shard = int(_between(path, "shard="))
    ends = row["low"], row["high"]
    return Written(path, _between(path, "day="), shard, row["size_bytes"], row["count"], *ends)


def _between(path: str, name: str) -> str:
    try:
        return path.split(name, 1)[1].split("/", 1)[0]
    except IndexError as error:
        raise PipelineError(f"A file was written where none belongs: {path}.") from error
