"""`restore`: messages of an archive back into a store node's database.

Everything that is to come back is verified before the first message is stored; then it goes through
the node's own admission and writer (`store.pipeline.storing`). What the database has is left alone:
a restore that was killed is run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql.pandas.types import from_arrow_schema

from store.pipeline.checking import CHECKED, ROW_FAULTS, row_faults
from store.pipeline.columns import file_columns
from store.pipeline.contents import KEY, read_files
from store.pipeline.database import FOREVER, connected, lock_restoring, read_state, restored_since
from store.pipeline.encode import COLUMNS
from store.pipeline.errors import SPARK_ERRORS, USAGE, PipelineError, of_spark
from store.pipeline.fingerprints import numbers_of
from store.pipeline.lake import Lake
from store.pipeline.limits import DAY_NS, MAX_CONNECTIONS
from store.pipeline.outputs import read_rows
from store.pipeline.paths import checked
from store.pipeline.progress import Say, shown, silent
from store.pipeline.source import FORMAT

_COUNTS: Final = pa.schema([(f"count{place}", pa.int64()) for place in range(len(ROW_FAULTS) + 1)])


@dataclass(frozen=True)
class Restored:
    """What a run did: messages that it took from the archive, and those that were not there."""

    given: int
    new: int
    dry_run: bool = False

    @property
    def sound(self) -> bool:
        """Always: what goes wrong is an error."""
        return True

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return {"messages": self.given, "new": self.new, "dry_run": self.dry_run}

    def lines(self) -> list[str]:
        """The same in words."""
        if self.dry_run:
            return [f"Would restore {self.given:,} messages that the database may have or not."]
        return [f"Restored {self.new:,} messages; {self.given - self.new:,} were there."]


@dataclass(frozen=True)
class Restoring:
    """What to restore and where to: times in nanoseconds, the end exclusive.

    ``diff`` is the output of a diff: only messages that it names are restored.
    """

    lake: Lake
    url: str
    low_ns: int = 0
    high_ns: int = FOREVER
    diff: str | None = None
    connections: int = MAX_CONNECTIONS
    dry_run: bool = False
    say: Say = silent


def restore(session: SparkSession, job: Restoring) -> Restored:
    """Store what an archive holds of a range, or of a diff.

    Raises:
        PipelineError: there is no archive, something in it is damaged (nothing was stored then),
            or the database does not serve (whole transactions are stored then).
    """
    try:
        rows = _wanted(session, job)
        if rows is None:
            return Restored(0, 0, job.dry_run)
        with shown(session, job.say, "check"):
            given = _checked(rows)
        if job.dry_run or not given:
            return Restored(given, 0, job.dry_run)
        with connected(job.url) as connection:
            lock_restoring(connection)
            before = read_state(connection, FOREVER).position
            with shown(session, job.say, "restore", given):
                _store(rows, job)
            return Restored(given, restored_since(connection, before))
    except SPARK_ERRORS as error:
        raise of_spark(error) from error


def _wanted(session: SparkSession, job: Restoring) -> DataFrame | None:
    low, high = job.low_ns // DAY_NS, -(-job.high_ns // DAY_NS)
    files = [each for each in job.lake.open().files() if low <= each.day < high]
    if not files:
        return None
    rows = read_files(session, files, (*file_columns(), "shard"), job.low_ns, job.high_ns)
    if job.diff is None:
        return rows
    return rows.join(_ids(session, job.diff), list(KEY), "left_semi")


def require_diff(path: str) -> str:
    """The path of what a diff has written, as far as can be told without asking Spark.

    Raises:
        PipelineError: it is no path, or one of this machine where no directory is.
    """
    found = checked(path, "A diff")
    if found.startswith("/") and not Path(found).is_dir():
        raise _no_diff(path)
    return found


def _ids(session: SparkSession, path: str) -> DataFrame:
    try:
        found = read_rows(session, require_diff(path), KEY)
        names = set(found.columns)
    except SPARK_ERRORS as error:
        raise _no_diff(path) from error
    if not set(KEY) <= names:
        raise PipelineError(f"{path} is not the output of a diff.", USAGE)
    return found.select(*KEY)


def _no_diff(path: str) -> PipelineError:
    return PipelineError(
        f"{path} cannot be read as the output of a diff: name a directory that"
        " `storenode pipeline diff --output` has written.",
        USAGE,
    )


def _checked(rows: DataFrame) -> int:
    """Number of rows, all of which are the messages that they say."""
    shard = F.col("shard").cast("long").alias("directory")
    found = rows.select(*CHECKED, shard).mapInArrow(_counted, from_arrow_schema(_COUNTS))
    counts = found.groupBy().sum().collect()[0]
    number, *faults = (each or 0 for each in counts)
    for kind, count in zip(ROW_FAULTS, faults, strict=True):
        if count:
            raise PipelineError(
                f"Nothing was restored, since {count:,} messages of the archive are"
                f" damaged ({kind}): `storenode pipeline verify` lists them."
            )
    return int(number)


def _counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """How many rows there are, and with each kind of fault."""
    for rows in batches:
        faults = row_faults(rows, numbers_of(rows["directory"]))
        counts = [len(rows), *(int(faults[kind].sum()) for kind in ROW_FAULTS)]
        yield pa.record_batch([pa.array([count]) for count in counts], schema=_COUNTS)


def _store(rows: DataFrame, job: Restoring) -> None:
    parts = rows.select(*COLUMNS).coalesce(job.connections)
    parts.write.format(FORMAT).mode("append").options(url=job.url).save()
