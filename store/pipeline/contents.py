"""What the files of an archive hold: as rows of Spark, and by hour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.columns import ARROW, PARTITIONS
from store.pipeline.database import FOREVER
from store.pipeline.errors import SPARK_ERRORS, USAGE, PipelineError, of_spark, of_store
from store.pipeline.files import batches_of
from store.pipeline.fingerprints import HASH_WORDS, ROWS, Fingerprints, add_rows, as_rows, collected
from store.pipeline.lake import Lake, LakeFile
from store.pipeline.limits import DAY_NS, HOUR_NS
from store.pipeline.paths import for_spark, literally, on_store
from store.pipeline.progress import Say, shown, silent
from store.pipeline.storage import listed, require_reachable
from store.pipeline.tasks import Batches, in_portions, spread

KEY: Final = ("ts", *HASH_WORDS)
"""The columns that tell messages apart: a timestamp, and a hash as words."""


def known_hours(
    session: SparkSession, lake: Lake, *, keep: bool, say: Say = silent
) -> Fingerprints:
    """What a lake holds by hour; days for which that is not known are read.

    ``keep`` notes what was found in the lake.
    """
    hours = lake.hours()
    unknown = lake.unknown_days(hours)
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
    if on_store(path):
        there = _holds_files(path)
    else:
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


def _holds_files(path: str) -> bool:
    try:
        require_reachable(path)
        return bool(listed(path))
    except OSError as error:
        raise of_store(path, error, "output") from error


def read_files(
    session: SparkSession,
    files: Sequence[LakeFile],
    names: Iterable[str],
    low_ns: int = 0,
    high_ns: int = FOREVER,
) -> DataFrame:
    """Some columns of some files of a lake, of messages from ``low_ns`` up to ``high_ns``,
    exclusive; ``day`` and ``shard`` are those of a file's directory.
    """
    schema = pa.schema([ARROW.field(name) for name in names])
    work = partial(_messages, schema, low_ns, high_ns)
    return over_files(session, work, files, schema)


def _messages(
    schema: pa.Schema, low_ns: int, high_ns: int, files: list[LakeFile]
) -> Iterator[pa.RecordBatch]:
    names = [name for name in schema.names if name not in PARTITIONS]
    every = (low_ns, high_ns) == (0, FOREVER)
    wanted = names if every or "ts" in names else [*names, "ts"]
    for file in files:
        for rows in batches_of(file.path, wanted, low_ns, high_ns):
            found = rows if every else _between(rows, low_ns, high_ns)
            place = {"day": file.day, "shard": file.shard}
            columns = [
                pa.repeat(pa.scalar(place[each.name], each.type), len(found))
                if each.name in place
                else found[each.name]
                for each in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _between(rows: pa.RecordBatch, low_ns: int, high_ns: int) -> pa.RecordBatch:
    ts = rows["ts"]
    return rows.filter(pc.and_(pc.greater_equal(ts, low_ns), pc.less(ts, high_ns)))


def without_known(
    session: SparkSession, lake: Lake, found: DataFrame, hours: list[int]
) -> DataFrame:
    """Leave out what the lake has of some hours already."""
    files = lake.files({hour // DAY_NS for hour in hours})
    if not files:
        return found
    known = read_files(session, files, KEY, min(hours), max(hours) + HOUR_NS)
    known = known.where((F.col("ts") - F.col("ts") % F.lit(HOUR_NS)).isin(hours))
    return found.join(known, list(KEY), "left_anti")
