"""`diff`: which messages does either of two places lack? Reconciliation at any size, offline.

Fingerprints are compared by day, then by hour within the days that differ, then by minute; only of
the minutes that differ are IDs read. The result is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.contents import require_nothing
from store.pipeline.errors import SPARK_ERRORS, of_spark
from store.pipeline.fingerprints import LEVELS_NS, differing
from store.pipeline.outputs import write_rows
from store.pipeline.paths import require_new_directory
from store.pipeline.progress import Say, shown, silent
from store.pipeline.sides import ID_COLUMNS, Side

SIDES: Final = ("first", "second")
"""Which of the two lacks a message: the value of the column ``lacks``."""

_WRITTEN: Final = "the IDs that differ"


@dataclass
class Differences:
    """How the comparison went: slices that differ by level, and messages that either side lacks."""

    first: str
    second: str
    slices: dict[str, int] = field(default_factory=dict)
    lacking: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIDES, 0))
    output: str | None = None

    @property
    def sound(self) -> bool:
        """Whether both hold the same."""
        return not any(self.lacking.values())

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
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
        """The same in words."""
        if self.sound:
            return [f"{self.first} and {self.second} hold the same messages."]
        told = [
            f"{name} lacks {self.lacking[side]:,} messages."
            for side, name in (("first", self.first), ("second", self.second))
        ]
        if self.output is not None:
            told.append(f"Their IDs are in {self.output}.")
        return told


def diff(
    session: SparkSession,
    first: Side,
    second: Side,
    *,
    output: str | None = None,
    bounds: tuple[int | None, int | None] = (None, None),
    say: Say = silent,
) -> Differences:
    """Compare two places, and write the IDs that either lacks to a directory.

    ``bounds`` are times in nanoseconds, the end exclusive; None: no bound. What is in
    ``output`` is Parquet with the columns of `ID_COLUMNS`, by ``lacks``.

    Raises:
        PipelineError: one of them cannot be read, or ``output`` exists already.
    """
    result = Differences(first.name, second.name, output=output)
    low_ns, high_ns = bounds
    target = None if output is None else require_output(output)
    if target is not None:
        require_nothing(session, target, _WRITTEN)
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
    """Where Spark is to write the IDs, as far as can be told without asking it.

    Raises:
        PipelineError: as `store.pipeline.paths.require_new_directory`.
    """
    return require_new_directory(output, _WRITTEN)


def _compared(first: DataFrame, second: DataFrame) -> DataFrame:
    """`ID_COLUMNS` and ``lacks`` of what is on one side only."""
    both = first.withColumn("sides", F.lit(1)).unionByName(second.withColumn("sides", F.lit(2)))
    seen = both.groupBy(*ID_COLUMNS).agg(F.bit_or("sides").alias("sides"))
    lacks = F.when(F.col("sides") == 1, SIDES[1]).otherwise(SIDES[0])
    return seen.where("sides <> 3").select(*ID_COLUMNS, lacks.alias("lacks"))


def _bounded(found: DataFrame, low_ns: int | None, high_ns: int | None) -> DataFrame:
    if low_ns is not None:
        found = found.where(F.col("ts") >= low_ns)
    return found if high_ns is None else found.where(F.col("ts") < high_ns)


def _count(found: DataFrame, result: Differences) -> None:
    for row in found.groupBy("lacks").count().collect():
        result.lacking[row["lacks"]] = row["count"]
