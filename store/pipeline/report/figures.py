"""The figures of a report, gathered by Spark SQL as plain values.

Names of times end in ``_ns``. What reaches the driver is bounded: a row for each day, for each step
of the time axis and shard, and the largest topics, channels and gaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from store.domain.ports import Source
from store.pipeline.audit.summary import AuditReport
from store.pipeline.limits import DAY_NS, HOUR_NS
from store.pipeline.report.silence import silences
from store.pipeline.report.text import MAX_NAME_CHARS, moment
from store.pipeline.reports import time_text
from storenode.message.limits import NS_PER_S

Figures = dict[str, Any]

MAX_NAMES: Final = 1_000
"""Channels and topics that a report lists; the others are counted."""

MAX_GAPS: Final = 50
MAX_STEPS: Final = 168
"""Steps of the time axis: a week by the hour."""

STEPS_NS: Final = tuple(
    [hours * HOUR_NS for hours in (1, 2, 3, 6, 12)]
    + [days * DAY_NS for days in (1, 2, 7, 14, 28, 91, 182, 364, 728)]
)
"""The lengths that a step may have; the last is enough for all timestamps."""

OUTLIERS: Final = 0.005
"""The share of messages at either end that is not drawn if it would double the time axis."""

MAX_AHEAD_SHARE: Final = 0.5
"""The share of its length by which the time axis is extended for a silence at its end."""

LIVE: Final = (Source.CLIENT.value, Source.RELAY.value, Source.GOSSIP.value)
"""Sources of messages that are transmitted for the first time."""

EDGES_S: Final = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 300.0, 3_600.0, 86_400.0)
"""The upper bounds of the classes of lateness; the first is for times before the timestamp."""

_GAPS: Final = pa.schema(
    {"shard": pa.int32(), "low_ns": pa.int64(), "next_ns": pa.int64(), "expected": pa.int64()}
)
_GROUPS: Final = """
select grouping(start_ns) = 0 as by_hour, grouping(content_topic) = 0 as by_topic,
    start_ns, shard, pubsub_topic, content_topic, channel, count(*) as messages,
    sum(size) as payload_bytes, min(ts) as first_ns, max(ts) as last_ns
from (select *, ts - pmod(ts, {hour}) as start_ns from {rows})
group by grouping sets ((start_ns, shard), (pubsub_topic, content_topic), (channel))"""
_DAYS: Final = """
select start_ns div {day} as day, sum(messages) as messages, sum(payload_bytes) as payload_bytes
from {hours} group by 1 order by 1"""
_CELLS: Final = """
select start_ns - pmod(start_ns, {step}) as step_ns, shard, sum(messages) as messages,
    count(*) as active_hours
from {hours} group by 1, 2 order by 1, 2"""
_LARGEST: Final = """
select *, count(*) over () as names, sum(messages) over () as total,
    sum(payload_bytes) over () as total_bytes
from {groups} order by messages desc, payload_bytes desc, {keys} limit {limit}"""
_LATENESS: Final = """
select grouping(source) = 0 as by_source, source, is_live, class, count(*) as messages,
    percentile_approx(late_ns, array(0.5, 0.9, 0.99), 1000) as quantiles, max(late_ns) as most_ns
from (
    select source, late_ns, source in ({client}, {relay}, {gossip}) as is_live,
        size(filter({edges}, edge -> late_ns > edge)) as class
    from (select *, committed_ns - ts as late_ns from {rows})
)
group by grouping sets ((source), (is_live, class))"""


class Axis(NamedTuple):
    """Steps of ``step_ns`` from ``low_ns`` up to ``high_ns``, exclusive; all multiples of a step.

    ``first_ns`` and ``last_ns``, exclusive, are the whole hours that are drawn.
    """

    low_ns: int
    high_ns: int
    step_ns: int
    first_ns: int
    last_ns: int

    @property
    def starts(self) -> list[int]:
        """The starts of the steps."""
        return list(range(self.low_ns, self.high_ns, self.step_ns))


def axis_of(first_ns: int, last_ns: int) -> Axis:
    """Return the finest axis from one time to another, inclusive."""
    first_ns = first_ns // HOUR_NS * HOUR_NS
    end_ns = last_ns // HOUR_NS * HOUR_NS + HOUR_NS
    for step_ns in STEPS_NS:
        low_ns, high_ns = first_ns // step_ns * step_ns, -(-end_ns // step_ns) * step_ns
        if high_ns - low_ns <= MAX_STEPS * step_ns:
            break
    return Axis(low_ns, high_ns, step_ns, first_ns, end_ns)


def axis_in(traffic: Mapping[str, Any]) -> Axis:
    """Return the axis of the figures of `traffic_of`."""
    return axis_of(traffic["from_ns"], traffic["to_ns"] - 1)


def usual_days(messages: Mapping[int, int]) -> tuple[int, int]:
    """Return the first and last day, since the epoch, to draw; one must have messages.

    Few messages with timestamps far from all others are left out if that makes the axis less than
    half as long.
    """
    days = sorted(messages)
    low, high = (_inner(each, messages) for each in (days, days[::-1]))
    for first, last in ((days[0], high), (low, days[-1]), (low, high)):
        if 2 * (last - first + 1) < days[-1] - days[0] + 1:
            return first, last
    return days[0], days[-1]


def _inner(days: list[int], messages: Mapping[int, int]) -> int:
    """Return the first of some days before which at most a share of `OUTLIERS` is."""
    spare, before = OUTLIERS * sum(messages.values()), 0
    for day in days:
        before += messages[day]
        if before > spare:
            return day
    return days[-1]


def traffic_of(session: SparkSession, messages: DataFrame, end_ns: int) -> Figures | None:
    """Return messages by time and shard, gaps, and the largest topics and channels.

    ``messages`` have ``ts``, ``shard``, both topics, ``payload`` and ``channel``; ``end_ns`` is the
    time up to which they are complete. None: there are no messages.
    """
    columns = ("ts", "shard", "pubsub_topic", "content_topic", "channel")
    rows = messages.selectExpr(*columns, "octet_length(payload) as size")
    groups = session.sql(_GROUPS, rows=rows, hour=HOUR_NS).cache()
    try:
        hours = groups.where("by_hour").select("start_ns", "shard", "messages", "payload_bytes")
        days = session.sql(_DAYS, hours=hours, day=DAY_NS).collect()
        if not days:
            return None
        first_day, last_day = usual_days({row["day"]: row["messages"] for row in days})
        hours = hours.where(
            f"start_ns between {first_day * DAY_NS} and {last_day * DAY_NS + DAY_NS - 1}"
        )
        ((first_ns, last_ns),) = hours.selectExpr("min(start_ns)", "max(start_ns)").collect()
        end_ns = end_ns // HOUR_NS * HOUR_NS
        ahead_ns = int(MAX_AHEAD_SHARE * (last_ns - first_ns))
        axis = axis_of(first_ns, max(last_ns, min(end_ns - 1, last_ns + ahead_ns)))
        cells = session.sql(_CELLS, hours=hours, step=axis.step_ns).collect()
        gaps, gap_count = _gaps(hours, end_ns)
        channels = groups.where("not by_hour and not by_topic")
        ((not_sds,),) = (
            channels.where("channel is null").selectExpr("coalesce(sum(messages), 0)").collect()
        )
        named = channels.where("channel is not null")
        return {
            "messages": (total := sum(row["messages"] for row in days)),
            "payload_bytes": sum(row["payload_bytes"] for row in days),
            "from_ns": axis.first_ns,
            "to_ns": axis.last_ns,
            "step_s": axis.step_ns // NS_PER_S,
            "not_drawn": total - sum(row["messages"] for row in cells),
            "days": [_day(*row) for row in days],
            "steps": _steps(axis, cells),
            "cells": [_cell(*row) for row in cells],
            "gap_count": gap_count,
            "gaps": gaps,
            "topics": _ranking(session, groups.where("by_topic"), "pubsub_topic", "content_topic"),
            "channels": _ranking(session, named, "channel"),
            "messages_not_sds": not_sds,
        }
    finally:
        groups.unpersist()


def _day(day: int, messages: int, size: int) -> Figures:
    text = f"{moment(day * DAY_NS):%Y-%m-%d}"
    return {"day": text, "messages": messages, "payload_bytes": size}


def _cell(start_ns: int, shard: int, messages: int, active_hours: int) -> Figures:
    found = {"start_ns": start_ns, "shard": shard, "messages": messages}
    return {**found, "active_hours": active_hours}


def _steps(axis: Axis, cells: list[Row]) -> list[Figures]:
    steps = dict.fromkeys(axis.starts, 0)
    for row in cells:
        steps[row["step_ns"]] += row["messages"]
    return [{"start_ns": start, "messages": messages} for start, messages in steps.items()]


def _gaps(hours: DataFrame, end_ns: int) -> tuple[list[Figures], int]:
    """Return the gaps that cost most, and the number of all.

    A silence of all shards is listed once, with the shard None.
    """
    whole = hours.groupBy("start_ns").sum("messages").toDF("start_ns", "messages")
    everywhere = _silent(whole.selectExpr("cast(null as int) as shard", "*"), end_ns)
    single = _silent(hours.select("shard", "start_ns", "messages"), end_ns)
    single = single.join(everywhere, ["low_ns", "next_ns"], "left_anti")
    found = everywhere.unionByName(single).cache()
    try:
        largest = found.orderBy("expected", "low_ns", "shard", ascending=[False, True, True])
        gaps = [
            {"shard": row["shard"], "start_ns": row["low_ns"]}
            | {"hours": (row["next_ns"] - row["low_ns"]) // HOUR_NS}
            | {"expected_messages": row["expected"]}
            for row in largest.limit(MAX_GAPS).collect()
        ]
        return gaps, found.count()
    finally:
        found.unpersist()


def _silent(hours: DataFrame, end_ns: int) -> DataFrame:
    """Return (shard, low_ns, next_ns, expected) of the gaps between the hours with messages."""

    def gaps_of(rows: pa.Table) -> pa.Table:
        starts, messages = (
            rows[name].combine_chunks().to_numpy() for name in ("start_ns", "messages")
        )
        found = silences(starts, messages, end_ns)
        columns = zip(*found, strict=True) if found else ([], [], [])
        shards = [rows["shard"][0].as_py()] * len(found)
        return pa.table([shards, *map(list, columns)], schema=_GAPS)

    return hours.groupBy("shard").applyInArrow(gaps_of, from_arrow_schema(_GAPS))


def _ranking(session: SparkSession, groups: DataFrame, *keys: str) -> Figures:
    """Return the largest names by messages, and what the others have together."""
    cut = [
        f"if(char_length({key}) > {MAX_NAME_CHARS},"
        f" concat(substring({key}, 1, {MAX_NAME_CHARS}), '…'), {key}) as {key}"
        for key in keys
    ]
    figures = ("messages", "payload_bytes", "first_ns", "last_ns")
    order = ", ".join(keys)
    found = session.sql(
        _LARGEST.replace("{keys}", order), groups=groups.select(*keys, *figures), limit=MAX_NAMES
    )
    rows = [
        row.asDict()
        for row in found.selectExpr(*cut, *figures, "names", "total", "total_bytes").collect()
    ]
    names, total, total_bytes = (
        (rows[0]["names"], rows[0]["total"], rows[0]["total_bytes"]) if rows else (0, 0, 0)
    )
    top = [{name: row[name] for name in (*keys, *figures)} for row in rows]
    return {
        "count": names,
        "messages": total,
        "top": top,
        "others": names - len(top),
        "others_messages": total - sum(row["messages"] for row in top),
        "others_payload_bytes": total_bytes - sum(row["payload_bytes"] for row in top),
    }


def lateness_of(session: SparkSession, messages: DataFrame) -> Figures:
    """Return the time from the timestamps of messages to their commits.

    ``messages`` have ``ts``, ``committed_ns`` and ``source``, null where the commit is gone.
    """
    edges = ", ".join(f"{int(each * NS_PER_S)}L" for each in EDGES_S)
    query = _LATENESS.replace("{edges}", f"array({edges})")
    names: dict[str, Any] = dict(zip(("client", "relay", "gossip"), LIVE, strict=True))
    found = session.sql(query, rows=messages, **names).collect()
    classes = {row["class"]: row["messages"] for row in found if row["is_live"]}
    by_source = {row["source"]: row for row in found if row["by_source"]}
    unknown = by_source.pop(None, None)
    return {
        "unknown": 0 if unknown is None else unknown["messages"],
        "sources": {source: _late(row) for source, row in sorted(by_source.items())},
        "classes": [
            {"up_to_s": edge, "messages": classes.get(number, 0)}
            for number, edge in enumerate([*EDGES_S, None])
        ],
    }


def _late(row: Row) -> Figures:
    median, p90, p99 = (each / NS_PER_S for each in row["quantiles"])
    return {
        "messages": row["messages"],
        "median_s": median,
        "p90_s": p90,
        "p99_s": p99,
        "most_s": row["most_ns"] / NS_PER_S,
    }


def completeness_of(found: AuditReport) -> Figures:
    """Return the result of an audit: the least complete channels, and the first missing parents."""
    counts = found.counts
    return {
        **{name: counts[name] for name in ("channels", "missing", "incomplete")},
        "faults": counts["violations"] + counts["cycles"] + counts["conflicts"],
        "least_complete": found.listed["channels"],
        "missing_parents": found.listed["missing"],
    }


def to_json(value: Any) -> Any:  # noqa: ANN401 - any figure
    """Return figures for JSON: times as RFC 3339, under names without ``_ns``."""
    if isinstance(value, dict):
        return {
            name.removesuffix("_ns"): time_text(each)
            if name.endswith("_ns") and each is not None
            else to_json(each)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [to_json(each) for each in value]
    return value
