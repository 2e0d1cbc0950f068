"""The lateness of messages: the time of their commit minus their own timestamp.

Only a database has it, and only for messages whose commits it still has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.domain.partitioning import Bounds
from store.domain.ports import Source
from store.pipeline.database import State
from store.pipeline.limits import MAX_CONNECTIONS
from store.pipeline.reading import run_query
from store.pipeline.report.axis import Axis
from store.pipeline.scan import spread
from store.pipeline.slices import Slice, good_slice_rows, grouped, plan_slices
from storenode.message.limits import NS_PER_S

LIVE: Final = (Source.CLIENT.value, Source.GOSSIP.value)
"""Sources of messages that are on their way for the first time; the others bring what is old."""

EDGES_S: Final = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 300.0, 3_600.0, 86_400.0)
"""Where classes of lateness end; the first holds what came before its own time."""

_READ: Final = pa.schema([("ts", pa.int64()), ("late_ns", pa.int64()), ("source", pa.string())])
_SOURCE: Final = ("source",)
_CLASS: Final = ("live", "class")
_STEP: Final = ("live", "step_ns")
_OF_SOURCE: Final = 0b0111
"""The grouping of `_SOURCE`: a bit for each key that it is not by."""

_ACCURACY: Final = 1_000
_QUANTILES: Final = (0.5, 0.9, 0.99)

# The commits of a slice's messages span it, which most commits do not.
_STATEMENT: Final = """
select m.ts, (extract(epoch from c.committed_at) * 1000000000)::bigint - m.ts as late_ns,
       c.source
from storenode.export_messages m left join storenode.export_commits c
  on c.batch = m.batch and c.max_ts >= {low} and c.min_ts < {high}
where m.ts >= {low} and m.ts < {high}
 and m.batch not in (select batch from storenode.export_commits where position > {position})"""


@dataclass(frozen=True, slots=True)
class Lateness:
    """The distribution of the lateness of messages, in seconds; negative: before their own time."""

    messages: int
    median_s: float
    p90_s: float
    p99_s: float
    most_s: float


@dataclass(frozen=True, slots=True)
class LatenessSummary:
    """The lateness of a database's messages.

    ``sources``: of all, by where they came from. ``classes``: number of messages of `LIVE` sources
    in each class of `EDGES_S`, the last for what is later still. ``steps``: of `LIVE` sources, by
    start of the axis' steps. Of ``unknown`` messages the commits are gone.
    """

    sources: dict[str, Lateness]
    classes: tuple[int, ...]
    steps: dict[int, Lateness]
    unknown: int

    @property
    def live(self) -> int:
        """Messages of `LIVE` sources."""
        return sum(self.classes)

    def share_within(self, seconds: float) -> float:
        """Return the share of the messages of `LIVE` sources up to a lateness; 0 without any.

        Raises:
            ValueError: ``seconds`` is none of `EDGES_S`.
        """
        within = sum(self.classes[: EDGES_S.index(seconds) + 1])
        return within / self.live if self.live else 0.0


def arrivals_of(
    session: SparkSession,
    url: str,
    state: State,
    bounds: Bounds,
    *,
    axis: Axis,
    connections: int = MAX_CONNECTIONS,
) -> LatenessSummary:
    """Gather the figures of a database's messages; ``state`` has its fingerprints by hour."""
    size = good_slice_rows(state.messages, connections)
    slices = plan_slices(state.fingerprints, state.partitions, bounds, size)
    work = partial(_read, url, state.position)
    return _gathered(spread(session, work, grouped(slices, connections), _READ), axis)


def _read(url: str, position: int, slices: list[Slice]) -> Iterator[pa.RecordBatch]:
    for each in slices:
        statement = _STATEMENT.format(low=each.low_ns, high=each.high_ns, position=position)
        for batch in run_query(url, statement):
            yield batch.cast(_READ)


def _gathered(rows: DataFrame, axis: Axis) -> LatenessSummary:
    """Group once, in three ways at a time: nothing but the few groups is kept."""
    found = _groups(rows, axis).collect()
    live = [row for row in found if row["live"]]
    classes = {row["class"]: row["messages"] for row in live if row["class"] is not None}
    return LatenessSummary(
        {row["source"]: _lateness(row) for row in found if row["source"] is not None},
        tuple(classes.get(number, 0) for number in range(len(EDGES_S) + 1)),
        {row["step_ns"]: _lateness(row) for row in live if row["step_ns"] is not None},
        sum(
            row["messages"] for row in found if row["grouping"] == _OF_SOURCE and not row["source"]
        ),
    )


def _groups(rows: DataFrame, axis: Axis) -> DataFrame:
    step = F.col("ts") - F.col("ts") % F.lit(axis.step_ns)
    drawn = (F.col("ts") >= axis.first_ns) & (F.col("ts") < axis.last_ns)
    keyed = rows.select(
        "source",
        F.col("source").isin(*LIVE).alias("live"),
        _class().alias("class"),
        F.when(drawn, step).alias("step_ns"),
        "late_ns",
    )
    sets = [[keyed[name] for name in keys] for keys in (_SOURCE, _CLASS, _STEP)]
    every = [keyed[name] for name in (*_SOURCE, *_CLASS, "step_ns")]
    return keyed.groupingSets(sets, *every).agg(F.grouping_id().alias("grouping"), *_quantiles())


def _class() -> Column:
    """Return the number of the class that a message's lateness is in."""
    late = F.col("late_ns")
    beyond = (F.when(late > int(edge * NS_PER_S), 1).otherwise(0) for edge in EDGES_S)
    total = F.lit(0)
    for each in beyond:
        total = total + each
    return total


def _quantiles() -> list[Column]:
    return [
        F.count(F.lit(1)).alias("messages"),
        F.percentile_approx("late_ns", list(_QUANTILES), _ACCURACY).alias("quantiles"),
        F.max("late_ns").alias("most_ns"),
    ]


def _lateness(row: Row) -> Lateness:
    median, p90, p99 = (each / NS_PER_S for each in row["quantiles"])
    return Lateness(row["messages"], median, p90, p99, row["most_ns"] / NS_PER_S)
