"""Adding messages to an archive: written, read back, and published in one commit."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from pipeline.columns import PARTITIONS, file_columns, spark_schema
from pipeline.contents import (
    KEY,
    fingerprints_of,
    known_hours,
    part_of,
    read_files,
    without_known,
)
from pipeline.database import State
from pipeline.errors import SPARK_ERRORS, PipelineError, of_spark
from pipeline.fingerprints import NOTHING, Fingerprints, aggregates, collected, start_of
from pipeline.lake import Lake, LakeFile, Written
from pipeline.limits import DAY_NS, HOUR_NS
from pipeline.paths import literally
from pipeline.progress import Say, shown, silent


class Appender:
    """Adds messages to a lake that is open, and knows what it holds.

    ``held`` is that by hour, computed from the files and not from what was meant to be in them;
    ``messages`` and ``files`` count what was published.
    """

    def __init__(self, session: SparkSession, lake: Lake, say: Say = silent) -> None:
        self._session = session
        self._lake = lake
        self._say = say
        self.held = known_hours(session, lake, keep=True, say=say)
        self.messages = 0
        self.files = 0

    def append(
        self, rows: DataFrame, hours: Iterable[int], state: State, messages: int = 0
    ) -> None:
        """Publish the rows of some hours that the lake does not have yet, all or none.

        ``state`` is what the rows were read from; about so many ``messages`` are shown as progress.

        Raises:
            PipelineError: the rows could not be read or written, or somebody else has published.
        """
        partial = [hour for hour in hours if hour in self.held]
        run = f"run-{uuid.uuid4().hex}"
        try:
            with shown(self._session, self._say, "archive", messages):
                found = without_known(self._session, self._lake, rows, partial)
                write_files(found, f"{self._lake.messages}/{run}")
            written, added = read_back(self._session, self._lake, run)
        except SPARK_ERRORS as error:
            raise of_spark(error) from error
        if written:
            self._publish(written, added, state)

    def _publish(self, written: list[Written], added: Fingerprints, state: State) -> None:
        self._lake.publish(written, {"position": str(state.position), "store": state.store_id})
        for hour, each in added.items():
            self.held[hour] = self.held.get(hour, NOTHING).joined(each)
        self._lake.note_hours({hour // DAY_NS for hour in added}, self.held)
        self.messages += sum(each.rows for each in written)
        self.files += len(written)

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
        run = f"run-{uuid.uuid4().hex}"
        paths = [each.path for each in files]
        rows = sum(each.rows for each in files)
        try:
            with shown(self._session, self._say, "compact", rows):
                write_files(_gathered(self._session, paths), f"{self._lake.messages}/{run}")
            written, added = read_back(self._session, self._lake, run)
        except SPARK_ERRORS as error:
            raise of_spark(error) from error
        if added != fingerprints_of(self._session, paths, HOUR_NS):
            raise PipelineError(
                "Small files that were made into larger ones did not hold the same, so they stay:"
                " `storenode pipeline verify` says whether the archive is sound."
            )
        self._lake.replace(files, written)
        self._lake.note_hours({each.day for each in files}, self.held)


def _gathered(session: SparkSession, paths: list[str]) -> DataFrame:
    """All columns of some files, those of a directory in one task and in order."""
    place = F.col("_metadata.file_path")
    day, shard = (part_of(place, f"/{name}=") for name in PARTITIONS)
    rows = read_files(session, paths, file_columns()).select(
        "*", day.cast("date").alias("day"), shard.cast("int").alias("shard")
    )
    return rows.repartition(*PARTITIONS).sortWithinPartitions(*PARTITIONS, "ts", "hash")


def write_files(rows: DataFrame, path: str) -> None:
    """Write rows with all columns as files by day and shard."""
    ordered = rows.select(*file_columns(), *PARTITIONS)
    ordered.write.mode("append").partitionBy(*PARTITIONS).parquet(path)


def read_back(session: SparkSession, lake: Lake, run: str) -> tuple[list[Written], Fingerprints]:
    """The files that a run has written, and what they hold by hour."""
    folder = f"{lake.messages}/{run}"
    schema = spark_schema(KEY)
    rows = (
        session.read.schema(schema).option("recursiveFileLookup", "true").parquet(literally(folder))
    )
    by_file = (
        rows.groupBy("_metadata.file_path", "_metadata.file_size", start_of(HOUR_NS))
        .agg(*aggregates(), F.min("ts").alias("low"), F.max("ts").alias("high"))
        .collect()
    )
    files: dict[str, Written] = {}
    for row in by_file:
        path = f"{run}/{row['file_path'].split(f'/{run}/', 1)[1]}"
        one = Written(
            path,
            _between(path, "day="),
            int(_between(path, "shard=")),
            row["file_size"],
            row["count"],
            row["low"],
            row["high"],
        )
        files[path] = _joined(files[path], one) if path in files else one
    return sorted(files.values(), key=lambda each: each.path), collected(by_file)


def _joined(one: Written, other: Written) -> Written:
    return Written(
        one.path,
        one.day,
        one.shard,
        one.size_bytes,
        one.rows + other.rows,
        min(one.min_ts, other.min_ts),
        max(one.max_ts, other.max_ts),
    )


def _between(path: str, name: str) -> str:
    try:
        return path.split(name, 1)[1].split("/", 1)[0]
    except IndexError as error:
        raise PipelineError(f"A file was written where none belongs: {path}.") from error
