"""The traffic figures of an archive or a database: by hour and shard, by topic, by channel.

Spark groups the messages once, in three ways at a time. What reaches the driver is bounded: one row
for every day that has messages, one for every step of the time axis and shard, and the largest of
the topics, channels and gaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql.pandas.types import from_arrow_schema

from store.pipeline.limits import DAY_NS, HOUR_NS
from store.pipeline.message_sets import MessageSet
from store.pipeline.report.axis import Axis, axis_of, usual_days
from store.pipeline.report.limits import (
    MAX_AHEAD_SHARE,
    MAX_GAPS,
    MAX_NAME_CHARS,
    MAX_RANKED,
)
from store.pipeline.report.silence import silences
from store.pipeline.scan import start_of

_READ: Final = ("ts", "pubsub_topic", "content_topic", "payload", "channel")
_KEYS: Final = ("start_ns", "shard", "pubsub_topic", "content_topic", "channel")
_BY_HOUR: Final = ("start_ns", "shard")
_BY_TOPIC: Final = ("pubsub_topic", "content_topic")
_BY_CHANNEL: Final = ("channel",)
_GAPS: Final = pa.schema(
    [
        pa.field("shard", pa.int32()),
        pa.field("low_ns", pa.int64()),
        pa.field("next_ns", pa.int64()),
        pa.field("expected", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class RankedName:
    """A topic or channel: its name's parts, each cut off after `MAX_NAME_CHARS`, and its traffic.

    ``payload_bytes`` of all its messages; ``first_ns`` and ``last_ns`` are their timestamps.
    """

    names: tuple[str, ...]
    messages: int
    payload_bytes: int
    first_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True)
class Ranking:
    """The largest by number of messages, and the others together."""

    top: tuple[RankedName, ...]
    other_names: int
    other_messages: int
    other_bytes: int

    @property
    def names(self) -> int:
        """The number of names."""
        return len(self.top) + self.other_names

    def after(self, first: int) -> int:
        """Return the messages of all but the ``first`` largest."""
        return self.messages - sum(each.messages for each in self.top[:first])

    @property
    def messages(self) -> int:
        """Messages of all of them."""
        return sum(each.messages for each in self.top) + self.other_messages


@dataclass(frozen=True, slots=True)
class Cell:
    """The messages of a shard in a step of the axis, and how many of its hours had any."""

    messages: int
    active_hours: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Hours without any message, the end exclusive, of a shard; None: of all shards.

    ``expected`` messages would have come at the shard's usual rate.
    """

    shard: int | None
    start_ns: int
    end_ns: int
    expected: int

    @property
    def hours(self) -> int:
        """The number of its hours."""
        return (self.end_ns - self.start_ns) // HOUR_NS


@dataclass(frozen=True, slots=True)
class Traffic:
    """The figures of a place that holds messages.

    ``days``: messages and bytes of payload by UTC day since the epoch. ``steps``: messages by start
    of the axis' steps. ``cells``: by step and shard. ``gaps`` are the ``gap_count`` longest.
    """

    axis: Axis
    days: dict[int, tuple[int, int]]
    steps: dict[int, int]
    cells: dict[tuple[int, int], Cell]
    gaps: tuple[Gap, ...]
    gap_count: int
    topics: Ranking
    channels: Ranking
    not_sds: int

    @property
    def messages(self) -> int:
        """The number of messages, drawn or not."""
        return sum(messages for messages, _ in self.days.values())

    @property
    def payload_bytes(self) -> int:
        """Bytes of their payloads."""
        return sum(size for _, size in self.days.values())

    @property
    def not_drawn(self) -> int:
        """Messages beyond the ends of the axis."""
        return self.messages - sum(self.steps.values())

    @property
    def shards(self) -> list[int]:
        """The shards that have messages on the axis, ascending."""
        return sorted({shard for _, shard in self.cells})


def sized_messages(messages: MessageSet, low_ns: int, high_ns: int) -> DataFrame:
    """Return the messages of a range of time for `traffic_of`, with the sizes of payloads."""
    rows = messages.messages((*_READ, "shard"), low_ns, high_ns)
    return rows.withColumn("size", F.octet_length("payload")).drop("payload")


def traffic_of(messages: DataFrame, end_ns: int) -> Traffic | None:
    """Gather the figures; None: there are no messages.

    ``end_ns`` is up to when messages would be here if there were any: a silence may last so long.
    """
    with _grouped(messages) as groups:
        days = _days(groups)
        if not days:
            return None
        first, last = usual_days({day: count for day, (count, _) in days.items()})
        end_ns = end_ns // HOUR_NS * HOUR_NS
        axis = _axis(groups, first, last, end_ns)
        hours = _only(groups, _BY_HOUR).where(_drawn(axis.first_ns, axis.last_ns))
        cells = _cells(hours, axis)
        gaps, gap_count = _gaps(hours, end_ns)
        channels, topics = _only(groups, _BY_CHANNEL), _only(groups, _BY_TOPIC)
        said = channels.where(F.col("channel").isNotNull())
        of_channels, of_topics = _ranking(said, _BY_CHANNEL), _ranking(topics, _BY_TOPIC)
        return Traffic(
            axis,
            days,
            _steps(cells),
            cells,
            gaps,
            gap_count,
            of_topics,
            of_channels,
            _count(channels.where(F.col("channel").isNull())),
        )


@contextmanager
def _grouped(messages: DataFrame) -> Iterator[DataFrame]:
    """Number, bytes and span of the messages by each of the three groupings; read once."""
    rows = messages.withColumn("start_ns", start_of(HOUR_NS))
    sets = [[rows[name] for name in keys] for keys in (_BY_HOUR, _BY_TOPIC, _BY_CHANNEL)]
    groups = rows.groupingSets(sets, *(rows[name] for name in _KEYS)).agg(
        F.grouping_id().alias("grouping"),
        F.count(F.lit(1)).alias("messages"),
        F.sum("size").alias("bytes"),
        F.min("ts").alias("first_ns"),
        F.max("ts").alias("last_ns"),
    )
    groups = groups.cache()
    try:
        yield groups
    finally:
        groups.unpersist()


def _only(groups: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Return the rows of one grouping, whose ID has a bit for each column that it is not by."""
    wanted = sum(1 << place for place, name in enumerate(reversed(_KEYS)) if name not in keys)
    return groups.where(F.col("grouping") == wanted)


def _days(groups: DataFrame) -> dict[int, tuple[int, int]]:
    day = F.floor(F.col("start_ns") / F.lit(DAY_NS)).alias("day")
    found = _only(groups, _BY_HOUR).groupBy(day).agg(F.sum("messages"), F.sum("bytes"))
    return {row[0]: (row[1], row[2]) for row in found.toLocalIterator()}


def _axis(groups: DataFrame, first_day: int, last_day: int, end_ns: int) -> Axis:
    """Return an axis over the usual days, and the silence after them if there is room."""
    rows = _only(groups, _BY_HOUR).where(_drawn(first_day * DAY_NS, (last_day + 1) * DAY_NS))
    row = rows.agg(F.min("start_ns"), F.max("start_ns")).collect()[0]
    ahead = int(MAX_AHEAD_SHARE * (row[1] - row[0]))
    return axis_of(row[0], max(row[1], min(end_ns - 1, row[1] + ahead)))


def _drawn(first_ns: int, last_ns: int) -> Column:
    return (F.col("start_ns") >= first_ns) & (F.col("start_ns") < last_ns)


def _cells(hours: DataFrame, axis: Axis) -> dict[tuple[int, int], Cell]:
    step = (F.col("start_ns") - F.col("start_ns") % F.lit(axis.step_ns)).alias("step_ns")
    found = hours.groupBy(step, "shard").agg(
        F.sum("messages").alias("messages"), F.count(F.lit(1)).alias("hours")
    )
    return {
        (row["step_ns"], row["shard"]): Cell(row["messages"], row["hours"])
        for row in found.collect()
    }


def _steps(cells: dict[tuple[int, int], Cell]) -> dict[int, int]:
    steps: dict[int, int] = {}
    for (start_ns, _), cell in cells.items():
        steps[start_ns] = steps.get(start_ns, 0) + cell.messages
    return steps


def _gaps(hours: DataFrame, end_ns: int) -> tuple[tuple[Gap, ...], int]:
    """Return the gaps that cost most, and the number of all.

    What is silent everywhere is listed once, and not for every shard.
    """
    whole = hours.groupBy("start_ns").agg(F.sum("messages").alias("messages"))
    everywhere = _silent(whole.withColumn("shard", F.lit(None).cast("int")), end_ns)
    single = _silent(hours.select("start_ns", "messages", "shard"), end_ns)
    single = single.join(everywhere, ["low_ns", "next_ns"], "left_anti")
    found = everywhere.unionByName(single).cache()
    try:
        largest = found.orderBy(F.desc("expected"), "low_ns", "shard").limit(MAX_GAPS).collect()
        return tuple(_gap(row) for row in largest), found.count()
    finally:
        found.unpersist()


def _gap(row: Row) -> Gap:
    return Gap(row["shard"], row["low_ns"], row["next_ns"], int(row["expected"]))


def _silent(hours: DataFrame, end_ns: int) -> DataFrame:
    """Return (shard, low_ns, next_ns, expected) of the gaps between the hours with messages."""

    def gaps_of(rows: pa.Table) -> pa.Table:
        shard = rows["shard"][0].as_py()
        starts, messages = (
            rows[name].combine_chunks().to_numpy() for name in ("start_ns", "messages")
        )
        found = silences(starts, messages, end_ns)
        columns = zip(*found, strict=True) if found else ([], [], [])
        return pa.table([[shard] * len(found), *map(list, columns)], schema=_GAPS)

    wanted = hours.select("shard", "start_ns", "messages")
    return wanted.groupBy("shard").applyInArrow(gaps_of, from_arrow_schema(_GAPS))


def _cut_off(name: str) -> Column:
    """Truncate a name to one character more than is shown, so that a cut can be detected."""
    return F.substring(name, 1, MAX_NAME_CHARS + 1).alias(name)


def _ranking(groups: DataFrame, keys: tuple[str, ...]) -> Ranking:
    total = groups.agg(F.count(F.lit(1)), F.sum("messages"), F.sum("bytes")).collect()[0]
    names = [_cut_off(name) for name in keys]
    ordered = groups.orderBy(F.desc("messages"), F.desc("bytes"), *keys).limit(MAX_RANKED)
    rows = ordered.select(*names, "messages", "bytes", "first_ns", "last_ns").collect()
    top = tuple(_named(row, keys) for row in rows)
    return Ranking(
        top,
        total[0] - len(top),
        (total[1] or 0) - sum(each.messages for each in top),
        (total[2] or 0) - sum(each.payload_bytes for each in top),
    )


def _named(row: Row, keys: tuple[str, ...]) -> RankedName:
    names = tuple(row[name] for name in keys)
    return RankedName(names, row["messages"], row["bytes"], row["first_ns"], row["last_ns"])


def _count(groups: DataFrame) -> int:
    found: Any = groups.agg(F.sum("messages")).collect()[0][0]
    return found or 0
