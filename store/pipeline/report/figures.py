"""The figures of a report, gathered by Spark SQL as plain values.

Names of times end in ``_ns``. What reaches the driver is bounded: a row for each day, for each step
of the time axis, for each shard, and the largest topics and channels.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from store.pipeline.audit.summary import AuditReport
from store.pipeline.limits import DAY_NS, HOUR_NS
from store.pipeline.report.text import MAX_NAME_CHARS
from store.pipeline.reports import time_text
from storenode.message.limits import NS_PER_S

Figures = dict[str, Any]

MAX_NAMES: Final = 1_000
"""Channels and topics that a report lists; the others are counted."""

MAX_STEPS: Final = 168
"""Steps of the time axis: a week by the hour."""

STEPS_NS: Final = tuple(
    [hours * HOUR_NS for hours in (1, 2, 3, 6, 12)]
    + [days * DAY_NS for days in (1, 2, 7, 14, 28, 91, 182, 364, 728)]
)
"""The lengths that a step may have; the last is enough for all timestamps."""

_GROUPS: Final = """
select grouping(start_ns) = 0 as by_hour, grouping(content_topic) = 0 as by_topic,
    start_ns, shard, pubsub_topic, content_topic, channel, count(*) as messages,
    sum(size) as payload_bytes, min(ts) as first_ns, max(ts) as last_ns
from (select *, ts - pmod(ts, {hour}) as start_ns from {rows})
group by grouping sets ((start_ns, shard), (pubsub_topic, content_topic), (channel))"""
_DAYS: Final = """
select string(date_from_unix_date(int(start_ns div {day}))) as day, sum(messages) as messages,
    sum(payload_bytes) as payload_bytes
from {hours} group by 1 order by 1"""
_STEPS: Final = """
select start_ns - pmod(start_ns, {step}) as start_ns, sum(messages) as messages
from {hours} group by 1"""
_SHARDS: Final = """
select shard, sum(messages) as messages, sum(payload_bytes) as payload_bytes,
    count(*) as active_hours
from {hours} group by 1 order by 1"""
_LARGEST: Final = """
select *, count(*) over () as names, sum(messages) over () as total,
    sum(payload_bytes) over () as total_bytes
from {groups} order by messages desc, payload_bytes desc, {keys} limit {limit}"""


def axis_of(first_ns: int, last_ns: int) -> range:
    """Return the finest steps from one time to another, inclusive: whole steps since 1970."""
    first_ns = first_ns // HOUR_NS * HOUR_NS
    end_ns = last_ns // HOUR_NS * HOUR_NS + HOUR_NS
    for step_ns in STEPS_NS:
        low_ns, high_ns = first_ns // step_ns * step_ns, -(-end_ns // step_ns) * step_ns
        if high_ns - low_ns <= MAX_STEPS * step_ns:
            break
    return range(low_ns, high_ns, step_ns)


def traffic_of(session: SparkSession, messages: DataFrame) -> Figures | None:
    """Return messages by time and by shard, and the largest topics and channels.

    ``messages`` have ``ts``, ``shard``, both topics, ``payload`` and ``channel``. None: there are
    none.
    """
    columns = ("ts", "shard", "pubsub_topic", "content_topic", "channel")
    rows = messages.selectExpr(*columns, "octet_length(payload) as size")
    groups = session.sql(_GROUPS, rows=rows, hour=HOUR_NS).cache()
    try:
        hours = groups.where("by_hour").select("start_ns", "shard", "messages", "payload_bytes")
        days = session.sql(_DAYS, hours=hours, day=DAY_NS).collect()
        if not days:
            return None
        ((first_ns, last_ns),) = hours.selectExpr("min(start_ns)", "max(start_ns)").collect()
        axis = axis_of(first_ns, last_ns)
        found = session.sql(_STEPS, hours=hours, step=axis.step).collect()
        steps: dict[int, int] = dict(found)
        channels = groups.where("not by_hour and not by_topic")
        ((not_sds,),) = (
            channels.where("channel is null").selectExpr("coalesce(sum(messages), 0)").collect()
        )
        named = channels.where("channel is not null")
        return {
            "messages": sum(row["messages"] for row in days),
            "payload_bytes": sum(row["payload_bytes"] for row in days),
            "from_ns": first_ns,
            "to_ns": last_ns + HOUR_NS,
            "step_s": axis.step // NS_PER_S,
            "days": [row.asDict() for row in days],
            "steps": [{"start_ns": at, "messages": steps.get(at, 0)} for at in axis],
            "shards": [row.asDict() for row in session.sql(_SHARDS, hours=hours).collect()],
            "topics": _ranking(session, groups.where("by_topic"), "pubsub_topic", "content_topic"),
            "channels": _ranking(session, named, "channel"),
            "messages_not_sds": not_sds,
        }
    finally:
        groups.unpersist()


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


def completeness_of(found: AuditReport) -> Figures:
    """Return the result of an audit: the least complete channels, and the first missing parents."""
    counts = found.counts
    return {
        **{name: counts[name] for name in ("channels", "missing", "incomplete")},
        "faults": counts["violations"] + counts["cycles"] + counts["conflicts"],
        "least_complete": found.listed["channels"],
        "missing_parents": found.listed["missing"],
        "left_out": found.too_large,
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
