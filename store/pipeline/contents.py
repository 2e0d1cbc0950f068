"""What the files of an archive hold: as Spark reads them, and by hour as workers do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.columns import spark_schema
from store.pipeline.errors import SPARK_ERRORS, USAGE, PipelineError, of_spark
from store.pipeline.files import batches_of
from store.pipeline.fingerprints import HASH_WORDS, ROWS, Fingerprints, add_rows, as_rows, collected
from store.pipeline.lake import Lake, LakeFile
from store.pipeline.limits import DAY_NS, HOUR_NS
from store.pipeline.paths import for_spark, literally
from store.pipeline.progress import Say, shown, silent
from store.pipeline.tasks import Batches, in_portions, spread

KEY: Final = ("ts", *HASH_WORDS)
"""The columns that tell messages apart: a timestamp, and a hash as words."""


def known_hours(
    session: SparkSession, lake: Lake, *, keep: bool, say: Say = silent
) -> Fingerprints:
    """What a lake holds by hour; days for which that is not known are read.

    ``keep`` notes what was found in the lake.
    """
    unknown = lake.unknown_days()
    hours = lake.hours()
    if unknown:
        files = lake.files(unknown)
        with shown(session, say, "read back", sum(each.rows for each in files)):
            found = fingerprints_of(session, files, HOUR_NS)
        hours |= found
        if keep:
            lake.note_hours(unknown, found)
    return hours


def fingerprints_of(
    session: SparkSession, files: Sequence[LakeFile], length_ns: int
) -> Fingerprints:
    """The fingerprints of the messages in some files.

    Raises:
        PipelineError: one cannot be read.
    """
    work = partial(_fingerprints, length_ns)
    try:
        return collected(over_files(session, work, files, ROWS).collect())
    except SPARK_ERRORS as error:
        raise of_spark(error) from error


def over_files(
    session: SparkSession,
    work: Callable[[list[LakeFile]], Batches],
    files: Iterable[LakeFile],
    schema: pa.Schema,
) -> DataFrame:
    """What ``work`` makes of each portion of some files, those of a day and shard together."""
    portions = in_portions(session, sorted(files, key=LakeFile.place), LakeFile.size)
    return spread(session, work, portions, schema)


def _fingerprints(length_ns: int, files: list[LakeFile]) -> Iterator[pa.RecordBatch]:
    found: Fingerprints = {}
    for each in files:
        for rows in batches_of(each.path, KEY):
            add_rows(found, rows, length_ns)
    if found:
        yield as_rows(found)


def require_nothing(session: SparkSession, path: str, what: str) -> None:
    """Make sure that there is nothing at a path that was `checked`, as Spark sees it.

    Raises:
        PipelineError: something is there, or nobody can look; ``what`` was to be written.
    """
    found = session.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        # A session of Spark Connect looks when it is asked for something, and no sooner.
        there = bool(found.load(literally(for_spark(path))).columns)
    except PySparkException as error:
        there = error.getCondition() != "PATH_NOT_FOUND"
    if there:
        raise PipelineError(
            f"{path} exists already: name a directory that does not, for {what}.", USAGE
        )


def read_files(session: SparkSession, paths: list[str], names: Iterable[str]) -> DataFrame:
    """Some columns of some files of a lake."""
    return session.read.schema(spark_schema(names)).parquet(*map(literally, paths))


def part_of(path: Column, name: str) -> Column:
    """What follows ``name`` in a path, up to the next slash."""
    return F.substring_index(F.substring_index(path, name, -1), "/", 1)


def without_known(
    session: SparkSession, lake: Lake, found: DataFrame, hours: list[int]
) -> DataFrame:
    """Leave out what the lake has of some hours already."""
    files = [each.path for each in lake.files({hour // DAY_NS for hour in hours})]
    if not files:
        return found
    known = read_files(session, files, KEY).where(
        (F.col("ts") - F.col("ts") % F.lit(HOUR_NS)).isin(hours)
    )
    return found.join(known, list(KEY), "left_anti")
