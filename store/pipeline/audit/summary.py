"""The report of an audit: counts of everything, and the first few of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.audit.examine import COUNTS, CYCLE, VIOLATION
from store.pipeline.audit.tables import MAX_CHANNEL_ENTRIES, AuditTables, sizes_of
from store.pipeline.limits import MAX_LISTED
from store.pipeline.reports import JobReport, time_text
from storenode.message.text import printable

_NOTHING_MISSING: Final[dict[str, Any]] = {
    "missing_since": None,
    "naming_senders": 0,
    "named_by": [],
}
MAX_SENDERS: Final = 3
"""The number of listed senders whose messages name missing parents of a channel."""

_FAULTY: Final = "missing + incomplete + violations + cycles"
_FAULTS: Final = ("missing", "incomplete", "violations", "cycles", "conflicts")
_TITLES: Final = {
    "missing": "missing parents",
    "incomplete": "messages with an incomplete past",
    "orphans": "of these orphans, without any held parent",
    "violations": "parents not before their child by Lamport timestamp",
    "cycles": "cycles",
    "conflicts": "IDs claimed by different messages",
}


@dataclass
class AuditReport(JobReport):
    """The result of an audit: ``counts`` of everything, and the first `MAX_LISTED` of some kinds.

    ``listed`` has a list for each of `LISTED`; ``too_large`` are channels that were left out.
    """

    name: str
    counts: dict[str, int]
    listed: dict[str, list[dict[str, Any]]]
    too_large: list[dict[str, Any]] = field(default_factory=list)
    missing_file: str | None = None

    @property
    def sound(self) -> bool:
        """True if every past is complete and no message contradicts another."""
        return not (self.too_large or any(self.counts[name] for name in _FAULTS))

    def as_json(self) -> dict[str, Any]:
        """Return the report for JSON."""
        found = super().as_json()
        return {**found.pop("counts"), **found}

    def lines(self) -> list[str]:
        """Return the report as text."""
        counts = self.counts
        summary = (
            f"Audited {counts['messages']:,} messages of {counts['channels']:,} channels in"
            f" {self.name}: {counts['heads']:,} heads, {counts['forks']:,} forks,"
            f" {counts['merges']:,} merges, {counts['copies']:,} messages sent again."
        )
        lines = [summary]
        for name, title in _TITLES.items():
            if counts[name]:
                lines.append(f"{title}: {counts[name]:,}")
                lines += self._listed(name)
        lines += [
            f"The channel {printable(each['channel'])} has {each['entries']:,} IDs and references,"
            f" and at most {MAX_CHANNEL_ENTRIES:,} can be audited together: audit a shorter time,"
            " with --from and --to."
            for each in self.too_large
        ]
        if not self.sound:
            lines += ["channels, the least complete first:", *self._listed("channels")]
        if self.missing_file is not None:
            lines.append(
                f"The missing IDs are in {self.missing_file}: ask peers for them with"
                " `storenode sync --ids`."
            )
        lines.append("Every past is complete." if self.sound else "The history has gaps or faults.")
        return lines

    def _listed(self, name: str) -> Iterator[str]:
        few = self.listed.get(name, [])
        yield from (f"  {LISTED[name](each)}" for each in few)
        if few and self.counts[name] > len(few):
            yield f"  and {self.counts[name] - len(few):,} more"


def summarized(name: str, tables: AuditTables, sums_: DataFrame) -> AuditReport:
    """Return the report on a history called ``name``, which has some `sums_by_channel`."""
    references, faults = tables["references"], tables["faults"]
    channels = _first(tables["channels"], F.expr(_FAULTY).desc(), "channel")
    named = _naming_senders(references, [row["channel"] for row in channels if row["missing"]])
    violations = faults.where(F.col("kind") == VIOLATION)
    late = violations.selectExpr("channel", "message_id", "lamport", "ts", "other as parent")
    cycles = faults.where(F.col("kind") == CYCLE).groupBy("channel", F.col("other").alias("cycle"))
    circles = cycles.agg(F.count_distinct("message_id").alias("messages"))
    counts = counts_of(tables["channels"]) | {"conflicts": tables["conflicts"].count()}
    order = ("ts", "channel", "message_id")

    def of(kind: str, rows: DataFrame, *order: str) -> list[dict[str, Any]]:
        return _first(rows, *order) if counts[kind] else []  # a query takes Spark a while

    listed = {
        "channels": [
            {**_with_point(row), **named.get(row["channel"], _NOTHING_MISSING)} for row in channels
        ],
        "missing": of("missing", _missing(references), *order),
        "violations": of("violations", late, *order, "parent"),
        "cycles": of("cycles", circles, "channel", "cycle"),
        "conflicts": of("conflicts", tables["conflicts"], *order),
    }
    large, _ = sizes_of(sums_)
    return AuditReport(name, counts, listed, [row.asDict() for row in large])


def counts_of(channels: DataFrame) -> dict[str, int]:
    """Return the number of channels, and the sums of everything that is counted of them."""
    names = (*COUNTS, "missing", "cycles")
    sums_ = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in names]
    (row,) = channels.agg(F.count(F.lit(1)).alias("channels"), *sums_).collect()
    found: dict[str, int] = row.asDict()
    return found


def _first(rows: DataFrame, *order: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - columns or names
    """Return the first rows for JSON: bytes as hexadecimal digits, and clocks without a sign."""
    found = []
    for row in rows.orderBy(*order).limit(MAX_LISTED).collect():
        values = row.asDict()
        for name, value in values.items():
            if isinstance(value, bytes | bytearray):
                values[name] = bytes(value).hex()
            elif name == "hashes":
                values[name] = [bytes(each).hex() for each in value]
            elif name in {"lamport", "point_lamport"} and value is not None:
                values[name] = value % 2**64
        found.append(values)
    return found


def _with_point(row: dict[str, Any]) -> dict[str, Any]:
    point = {name: row.pop(f"point_{name}") for name in ("message_id", "lamport", "ts")}
    return {**row, "last_complete": None if point["message_id"] is None else point}


def _missing(references: DataFrame) -> DataFrame:
    """Return the missing parents, each once, with the message that named it first."""
    first = F.min_by(F.struct("message_id", "sender"), F.struct("ts", "hash"))
    found = references.groupBy("channel", "parent").agg(
        F.min("hint").alias("hint"),
        F.count_distinct("message_id").alias("named_by"),
        first.alias("first"),
        F.min("ts").alias("ts"),
    )
    return found.selectExpr(
        *("channel", "parent as message_id", "hint", "named_by"),
        *("first.message_id as first_named_by", "first.sender as sender", "ts"),
    )


def _naming_senders(references: DataFrame, channels: list[str]) -> dict[str, dict[str, Any]]:
    """Return by channel since when its messages name missing parents, and who names most."""
    if not channels:
        return {}
    by_sender = (
        references.where(F.col("channel").isin(channels))
        .groupBy("channel", "sender")
        .agg(F.count_distinct("parent").alias("named"), F.min("ts").alias("since"))
    )
    most = F.sort_array(F.collect_list(F.expr("struct(-named, sender is null, sender)")))
    found = by_sender.groupBy("channel").agg(
        F.min("since").alias("since"),
        F.count(F.lit(1)).alias("senders"),
        F.slice(most, 1, MAX_SENDERS).getField("sender").alias("first"),
    )
    return {
        row["channel"]: {
            "missing_since": row["since"],
            "naming_senders": row["senders"],
            "named_by": row["first"],
        }
        for row in found.collect()
    }


def _channel_line(each: dict[str, Any]) -> str:
    point = each["last_complete"]
    upto = "complete from nowhere on" if point is None else (
        f"complete up to {printable(point['message_id'])} (Lamport {point['lamport']}) of"
        f" {time_text(point['ts'])}"
    )  # fmt: skip
    return (
        f"{printable(each['channel'])}: {each['messages']:,} messages, {each['missing']:,} missing,"
        f" {each['incomplete']:,} incomplete, {upto}, {each['heads']:,} heads"
    )


def _missing_line(each: dict[str, Any]) -> str:
    line = f"{printable(each['message_id'])} of {printable(each['channel'])}"
    if each["first_named_by"] is not None:
        line += f", named by {each['named_by']:,}, first by {printable(each['first_named_by'])}"
    if each["sender"]:
        line += f" of {printable(each['sender'])}"
    if each["ts"] is not None:
        line += f" at {time_text(each['ts'])}"
    return line


def _violation_line(each: dict[str, Any]) -> str:
    return (
        f"{printable(each['parent'])} is a parent of {printable(each['message_id'])} (Lamport"
        f" {each['lamport']}) of {printable(each['channel'])}"
    )


def _cycle_line(each: dict[str, Any]) -> str:
    return (
        f"{each['messages']:,} IDs of {printable(each['channel'])} are in their own past, such as"
        f" {printable(each['cycle'])}"
    )


def _conflict_line(each: dict[str, Any]) -> str:
    return (
        f"{printable(each['message_id'])} of {printable(each['channel'])}: {each['contents']:,}"
        f" contents in {each['claimants']:,} messages, such as {' and '.join(each['hashes'])}"
    )


LISTED: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "channels": _channel_line,
    "missing": _missing_line,
    "violations": _violation_line,
    "cycles": _cycle_line,
    "conflicts": _conflict_line,
}
"""The lists of a report, each with the function that renders an entry as a line."""
