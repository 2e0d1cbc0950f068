"""`restore`: messages of an archive back into a store node's database.

All messages are verified before the first one is stored. Then they go through the node's own
admission and writer (`store.pipeline.storing`). Messages that the database has are skipped, so a
restore that was killed is run again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from store.pipeline.checks import count_faults
from store.pipeline.columns import file_columns
from store.pipeline.database import FOREVER, connected, lock_restoring, read_state, restored_since
from store.pipeline.delta import DeltaArchive
from store.pipeline.encode import COLUMNS
from store.pipeline.errors import SPARK_ERRORS, USAGE, PipelineError, of_spark
from store.pipeline.files import checked
from store.pipeline.limits import MAX_CONNECTIONS
from store.pipeline.outputs import read_rows
from store.pipeline.progress import Say, shown, silent
from store.pipeline.scan import KEY, read_files
from store.pipeline.storing import store_task


@dataclass(frozen=True)
class RestoreReport:
    """The number of messages that a run took from the archive, and of those that were new.

    ``conflicts``: those that were not stored since the database has others with their hashes.
    """

    given: int
    new: int
    conflicts: int = 0
    dry_run: bool = False

    @property
    def sound(self) -> bool:
        """True where the database has every message that was to be restored."""
        return not self.conflicts

    def as_json(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "messages": self.given,
            "new": self.new,
            "conflicts": self.conflicts,
            "dry_run": self.dry_run,
        }

    def lines(self) -> list[str]:
        """Return the report in words."""
        if self.dry_run:
            return [f"Would restore {self.given:,} messages that the database may have or not."]
        there = self.given - self.new - self.conflicts
        found = [f"Restored {self.new:,} messages; {there:,} were there."]
        if self.conflicts:
            found.append(
                f"Not restored: {self.conflicts:,} messages whose hashes other messages have in"
                " the database; the log of each task has their digests."
            )
        return found


@dataclass(frozen=True)
class RestoreJob:
    """An archive, a database, and a range of time in nanoseconds, the end exclusive.

    ``diff`` is the output of a diff: only messages that it names are restored.
    """

    archive: DeltaArchive
    url: str
    low_ns: int = 0
    high_ns: int = FOREVER
    diff: str | None = None
    connections: int = MAX_CONNECTIONS
    dry_run: bool = False
    say: Say = silent


def restore(session: SparkSession, job: RestoreJob) -> RestoreReport:
    """Store the messages that an archive holds of a range, or of a diff.

    Raises:
        PipelineError: there is no archive, something in it is damaged (nothing was stored then),
            or the database does not serve (whole transactions are stored then).
    """
    try:
        rows = _wanted(session, job)
        if rows is None:
            return RestoreReport(0, 0, dry_run=job.dry_run)
        with shown(session, job.say, "check"):
            given = _checked(rows)
        if job.dry_run or not given:
            return RestoreReport(given, 0, dry_run=job.dry_run)
        with connected(job.url) as connection:
            lock_restoring(connection)
            before = read_state(connection, FOREVER).position
            with shown(session, job.say, "restore", given):
                conflicts = _store(rows, job)
            return RestoreReport(given, restored_since(connection, before), conflicts)
    except SPARK_ERRORS as error:
        raise of_spark(error) from error


def _wanted(session: SparkSession, job: RestoreJob) -> DataFrame | None:
    files = job.archive.open().files_between(job.low_ns, job.high_ns)
    if not files:
        return None
    rows = read_files(session, files, (*file_columns(), "shard"), job.low_ns, job.high_ns)
    if job.diff is None:
        return rows
    return rows.join(_ids(session, job.diff), list(KEY), "left_semi")


def require_diff(path: str) -> str:
    """Return the path of the output of a diff, checked without Spark.

    Raises:
        PipelineError: it is no path, or one of this machine where no directory is.
    """
    found = checked(path, "A diff")
    if found.startswith("/") and not Path(found).is_dir():
        raise _no_diff(path)
    return found


def _ids(session: SparkSession, path: str) -> DataFrame:
    try:
        return read_rows(session, require_diff(path), KEY)
    except KeyError as error:
        raise PipelineError(f"{path} is not the output of a diff.", USAGE) from error


def _no_diff(path: str) -> PipelineError:
    return PipelineError(
        f"{path} cannot be read as the output of a diff: name a directory that"
        " `storenode pipeline diff --output` has written.",
        USAGE,
    )


def _checked(rows: DataFrame) -> int:
    """Count the rows, all of which must be the messages that they say."""
    number, faults = count_faults(rows)
    for kind, count in faults.items():
        raise PipelineError(
            f"Nothing was restored, since {count:,} messages of the archive are damaged ({kind}):"
            " `storenode pipeline verify` lists them."
        )
    return number


def _store(rows: DataFrame, job: RestoreJob) -> int:
    """Store the rows, and return how many are conflicts."""
    parts = rows.select(*COLUMNS).coalesce(job.connections)
    stored = parts.mapInArrow(partial(store_task, job.url), "conflicts long").collect()
    return sum(row["conflicts"] for row in stored)
