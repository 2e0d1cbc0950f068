"""`diff`: the messages that either of two sets lacks, at any size and offline.

Fingerprints are compared by hour, and IDs are read only of the hours that differ. The result is
exact.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.columns import ARROW
from store.pipeline.database import FOREVER
from store.pipeline.errors import SPARK_ERRORS, of_spark, of_store
from store.pipeline.files import checked, delete, listed
from store.pipeline.fingerprints import differing
from store.pipeline.limits import HOUR_NS
from store.pipeline.message_sets import MessageSet
from store.pipeline.parquet import KEY, start_of, write_rows
from store.pipeline.reports import JobReport
from store.pipeline.spark import PROGRESS, logged

SIDES: Final = ("first", "second")
"""The values of the column ``lacks``: the set that lacks the message."""

ID_COLUMNS: Final = (*KEY, "hash")
"""The columns of an ID: the timestamp, and the hash as words and as bytes."""

_WRITTEN: Final = pa.schema([*map(ARROW.field, ID_COLUMNS), pa.field("lacks", pa.string())])


@dataclass
class DiffReport(JobReport):
    """The number of hours that differ, and of messages that either set lacks."""

    first: str
    second: str
    hours_differing: int = 0
    first_lacks: int = 0
    second_lacks: int = 0
    output: str | None = None

    @property
    def sound(self) -> bool:
        """True if both hold the same messages."""
        return not (self.first_lacks or self.second_lacks)

    def as_json(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {**asdict(self), "equal": self.sound}

    def lines(self) -> list[str]:
        """Return the report as text."""
        if self.sound:
            return [f"{self.first} and {self.second} hold the same messages."]
        found = [
            f"{self.first} lacks {self.first_lacks:,} messages.",
            f"{self.second} lacks {self.second_lacks:,} messages.",
        ]
        if self.output is not None:
            found.append(f"Their IDs are in {self.output}.")
        return found


def diff(
    session: SparkSession,
    first: MessageSet,
    second: MessageSet,
    *,
    output: str | None = None,
    bounds: tuple[int, int] = (0, FOREVER),
) -> DiffReport:
    """Compare two sets, and write the IDs that either lacks to a directory.

    ``bounds`` are times in nanoseconds, the end exclusive. ``output`` becomes Parquet with the
    columns `ID_COLUMNS`, partitioned by ``lacks``.
    """
    result = DiffReport(first.name, second.name, output=output)
    low_ns, high_ns = bounds
    hours = [
        hour
        for hour in differing(first.hours, second.hours)
        if hour + HOUR_NS > low_ns and hour < high_ns
    ]
    result.hours_differing = len(hours)
    PROGRESS.info("diff: %s hours differ", f"{len(hours):,}")
    if not hours:
        return result
    try:
        with logged("diff"):
            wanted = session.createDataFrame(pa.table({"start_ns": pa.array(hours, pa.int64())}))
            sides = [
                each.messages(ID_COLUMNS, *bounds, hours).withColumn("side", F.lit(side))
                for side, each in enumerate((first, second), 1)
            ]
            ids = sides[0].unionByName(sides[1]).withColumn("start_ns", start_of(HOUR_NS))
            found = _compared(ids.join(F.broadcast(wanted), "start_ns", "left_semi")).cache()
            counts: dict[str, int] = dict(found.groupBy("lacks").count().toLocalIterator())
            result.first_lacks, result.second_lacks = (counts.get(side, 0) for side in SIDES)
            if output is not None:
                _write(found, checked(output))
            found.unpersist()
    except SPARK_ERRORS as error:
        raise of_spark(error) from error
    return result


def _write(found: DataFrame, target: str) -> None:
    written = {
        row["path"]
        for row in write_rows(found.sortWithinPartitions("lacks"), target, _WRITTEN, ["lacks"])
    }
    try:
        delete(target, set(listed(target)) - written)  # what failed tasks have left
    except OSError as error:
        raise of_store(target, error, "output") from error


def _compared(ids: DataFrame) -> DataFrame:
    """Return `ID_COLUMNS` and ``lacks`` of the messages that only one set holds."""
    seen = ids.groupBy(*ID_COLUMNS).agg(F.bit_or("side").alias("sides"))
    lacks = F.when(F.col("sides") == 1, SIDES[1]).otherwise(SIDES[0])
    return seen.where("sides <> 3").select(*ID_COLUMNS, lacks.alias("lacks"))
