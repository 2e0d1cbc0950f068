"""`diff`: the messages that either of two sets lacks, at any size and offline.

Fingerprints are compared by day, then by hour within the days that differ, then by minute. IDs are
read only of the minutes that differ. The result is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.errors import SPARK_ERRORS, of_spark
from store.pipeline.files import require_new_directory
from store.pipeline.fingerprints import LEVELS_NS, differing
from store.pipeline.message_sets import ID_COLUMNS, MessageSet
from store.pipeline.parquet import write_rows
from store.pipeline.spark import Say, shown, silent

SIDES: Final = ("first", "second")
"""The values of the column ``lacks``: the set that lacks the message."""

_WRITTEN: Final = "the IDs that differ"


@dataclass
class DiffReport:
    """The number of slices that differ by level, and of messages that either set lacks."""

    first: str
    second: str
    slices: dict[str, int] = field(default_factory=dict)
    lacking: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIDES, 0))
    output: str | None = None

    @property
    def sound(self) -> bool:
        """True if both hold the same messages."""
        return not any(self.lacking.values())

    def as_json(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "first": self.first,
            "second": self.second,
            "equal": self.sound,
            "first_lacks": self.lacking["first"],
            "second_lacks": self.lacking["second"],
            "differing": self.slices,
            "output": self.output,
        }

    def lines(self) -> list[str]:
        """Return the report in words."""
        if self.sound:
            return [f"{self.first} and {self.second} hold the same messages."]
        found = [
            f"{name} lacks {self.lacking[side]:,} messages."
            for side, name in (("first", self.first), ("second", self.second))
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
    bounds: tuple[int | None, int | None] = (None, None),
    say: Say = silent,
) -> DiffReport:
    """Compare two sets, and write the IDs that either lacks to a directory.

    ``bounds`` are times in nanoseconds, the end exclusive; None: no bound. ``output`` becomes
    Parquet with the columns `ID_COLUMNS`, partitioned by ``lacks``.
    """
    result = DiffReport(first.name, second.name, output=output)
    low_ns, high_ns = bounds
    target = None if output is None else require_output(output)
    starts: list[int] | None = None
    for level, length_ns in LEVELS_NS.items():
        starts = [
            start
            for start in differing(
                first.fingerprints(level, starts), second.fingerprints(level, starts)
            )
            if (low_ns is None or start + length_ns > low_ns)
            and (high_ns is None or start < high_ns)
        ]
        result.slices[level] = len(starts)
        say(f"diff: {len(starts):,} differ by {level}")
        if not starts:
            return result
    assert starts is not None
    try:
        with shown(session, say, "diff"):
            found = _compared(first.ids(starts, level), second.ids(starts, level))
            found = _bounded(found, low_ns, high_ns).cache()
            _count(found, result)
            if target is not None:
                write_rows(found, target, "lacks", SIDES)
            found.unpersist()
    except SPARK_ERRORS as error:
        raise of_spark(error) from error
    return result


def require_output(output: str) -> str:
    """Return the path that the IDs are to be written to, checked."""
    return require_new_directory(output, _WRITTEN)


def _compared(first: DataFrame, second: DataFrame) -> DataFrame:
    """Return `ID_COLUMNS` and ``lacks`` of the messages that only one set holds."""
    both = first.withColumn("sides", F.lit(1)).unionByName(second.withColumn("sides", F.lit(2)))
    seen = both.groupBy(*ID_COLUMNS).agg(F.bit_or("sides").alias("sides"))
    lacks = F.when(F.col("sides") == 1, SIDES[1]).otherwise(SIDES[0])
    return seen.where("sides <> 3").select(*ID_COLUMNS, lacks.alias("lacks"))


def _bounded(found: DataFrame, low_ns: int | None, high_ns: int | None) -> DataFrame:
    if low_ns is not None:
        found = found.where(F.col("ts") >= low_ns)
    return found if high_ns is None else found.where(F.col("ts") < high_ns)


def _count(found: DataFrame, result: DiffReport) -> None:
    for row in found.groupBy("lacks").count().collect():
        result.lacking[row["lacks"]] = row["count"]
