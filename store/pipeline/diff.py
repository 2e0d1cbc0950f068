"""`diff`: the messages that either of two sets lacks, or has with other content, at any size.

Hours are compared by their fingerprints and by salted sums of their messages' content digests; IDs
are read only of the hours that differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.columns import ARROW, CONTENT_DIGEST
from store.pipeline.database import ALL, Range
from store.pipeline.errors import of_store, spark_errors
from store.pipeline.files import checked, delete, listed
from store.pipeline.fingerprints import differing
from store.pipeline.limits import HOUR_NS, MAX_LISTED
from store.pipeline.message_sets import MessageSet
from store.pipeline.parquet import CONTENT, KEY, contents_by_hour, start_of, write_rows
from store.pipeline.reports import JobReport
from store.pipeline.spark import PROGRESS, logged

SIDES: Final = ("first", "second")
"""The values of the column ``lacks``: the set that lacks the message."""

ID_COLUMNS: Final = (*KEY, "hash")
"""The columns of an ID: the timestamp, and the hash as words and as bytes."""

CONTENT_COLUMNS: Final = (*ID_COLUMNS, CONTENT_DIGEST)

_WRITTEN: Final = pa.schema([*map(ARROW.field, ID_COLUMNS), pa.field("lacks", pa.string())])


@dataclass
class DiffReport(JobReport):
    """The number of hours that differ, and of messages that either set lacks.

    ``conflicts`` are messages with one hash and two contents; the first are ``conflicting``.
    """

    first: str
    second: str
    hours_differing: int = 0
    first_lacks: int = 0
    second_lacks: int = 0
    conflicts: int = 0
    conflicting: list[str] = field(default_factory=list)
    output: str | None = None

    @property
    def sound(self) -> bool:
        """True if both hold the same messages."""
        return not (self.first_lacks or self.second_lacks or self.conflicts)

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
        if self.conflicts:
            found.append(f"{self.conflicts:,} messages have one hash and other content there:")
        return found + [f"  {each}" for each in self.conflicting]


@spark_errors()
def diff(
    session: SparkSession,
    first: MessageSet,
    second: MessageSet,
    *,
    output: str | None = None,
    bounds: Range = ALL,
) -> DiffReport:
    """Compare two sets, and write the IDs that either lacks to a directory.

    ``bounds`` are times in nanoseconds, the end exclusive. ``output`` becomes Parquet with the
    columns `ID_COLUMNS`, partitioned by ``lacks``.
    """
    result = DiffReport(first.name, second.name, output=output)
    sides = (first, second)
    with logged("diff"):
        rows = [each.messages(CONTENT, bounds) for each in sides]
        hours = differing(*map(contents_by_hour, rows))
        result.hours_differing = len(hours)
        PROGRESS.info("diff: %s hours differ", f"{len(hours):,}")
        if hours:
            rows = [each.messages(CONTENT_COLUMNS, bounds, hours) for each in sides]
            found = compared(session, rows, hours).cache()
            counts: dict[Any, int] = dict(found.groupBy("lacks").count().toLocalIterator())
            result.first_lacks, result.second_lacks = (counts.get(side, 0) for side in SIDES)
            result.conflicts = counts.get(None, 0)
            result.conflicting = conflict_lines(found, second.name) if result.conflicts else []
            if output is not None:
                _write(found.where("lacks is not null"), checked(output))
            found.unpersist()
    return result


def conflict_lines(found: DataFrame, where: str) -> list[str]:
    """Return the first conflicts of `compared` as text; ``where`` is the second side."""
    rows = found.where("lacks is null").orderBy("ts", "hash").limit(MAX_LISTED).collect()
    return [
        f"{row['hash'].hex()} at {row['ts']}: content digest {row['first_digest'].hex()}, and"
        f" {row['second_digest'].hex()} in {where}"
        for row in rows
    ]


def _write(found: DataFrame, target: str) -> None:
    written = {
        row["path"]
        for row in write_rows(found.sortWithinPartitions("lacks"), target, _WRITTEN, ["lacks"])
    }
    try:
        delete(target, set(listed(target)) - written)  # what failed tasks have left
    except OSError as error:
        raise of_store(target, error, "output") from error


def compared(session: SparkSession, sides: Sequence[DataFrame], hours: Sequence[int]) -> DataFrame:
    """Return the messages of some hours that one side lacks, or that have another content there.

    Both sides have `CONTENT_COLUMNS`. The result has `ID_COLUMNS`, the content digest of each side,
    and ``lacks``, which is null for messages that neither lacks.
    """
    wanted = session.createDataFrame(pa.table({"start_ns": pa.array(hours, pa.int64())}))
    first, second = (each.withColumn("side", F.lit(side)) for side, each in enumerate(sides, 1))
    rows = first.unionByName(second).withColumn("start_ns", start_of(HOUR_NS))
    digests = [
        F.max(F.when(F.col("side") == side, F.col(CONTENT_DIGEST))).alias(f"{name}_digest")
        for side, name in enumerate(SIDES, 1)
    ]
    seen = (
        rows.join(F.broadcast(wanted), "start_ns", "left_semi")
        .groupBy(*ID_COLUMNS)
        .agg(F.bit_or("side").alias("sides"), *digests)
    )
    lacks = F.when(F.col("sides") == 1, SIDES[1]).when(F.col("sides") == 2, SIDES[0])
    return seen.where("sides <> 3 or first_digest <> second_digest").withColumn("lacks", lacks)
