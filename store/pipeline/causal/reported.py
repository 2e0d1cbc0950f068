"""What an audit says: counts of everything, and of each kind the first few."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.causal.rows import COUNTS, CYCLE, UNSEARCHED, VIOLATION
from store.pipeline.claims import Tried
from store.pipeline.limits import MAX_LISTED
from store.pipeline.reports import time_text
from storenode.message.printing import printable

_COUNTED: Final = (*COUNTS, "missing", "cycles")
_NOTHING_LACKS: Final[dict[str, Any]] = {"missing_since": None, "naming_senders": 0, "named_by": []}
MAX_SENDERS: Final = 3
"""Senders that are named of those whose messages name what a channel lacks."""

_FAULTS: Final = ("missing", "incomplete", "violations", "cycles", "conflicts", "unsearched")


REFERENCES: Final = pa.schema(
    [
        ("channel", pa.string()),
        ("parent", pa.string()),
        ("hint", pa.binary()),
        ("message_id", pa.string()),
        ("sender", pa.string()),
        ("lamport", pa.int64()),
        ("ts", pa.int64()),
        ("hash", pa.binary()),
        ("elsewhere", pa.string()),
    ]
)
"""Who named parents that are missing."""

CONFLICTS: Final = pa.schema(
    [
        ("channel", pa.string()),
        ("message_id", pa.string()),
        ("claimants", pa.int64()),
        ("contents", pa.int64()),
        ("ts", pa.int64()),
        ("hashes", pa.list_(pa.binary())),
    ]
)
"""IDs that messages with different contents claim."""


@dataclass(frozen=True)
class Tables:
    """What was found, as tables of Spark.

    ``findings`` are `FINDINGS`, ``channels`` as by `audited.channels_of`, ``references`` as by
    `missing.references_to` and with ``elsewhere`` (`REFERENCES`), ``conflicts`` as by
    `conflicts.conflicting` (`CONFLICTS`); ``counts`` are those of `counts_of`.
    """

    findings: DataFrame
    channels: DataFrame
    references: DataFrame
    conflicts: DataFrame
    counts: dict[str, int]


@dataclass
class Audited:
    """The result of an audit. Lists have at most `MAX_LISTED` entries, ``counts`` are of all."""

    name: str
    counts: dict[str, int]
    channels: list[dict[str, Any]]
    missing: list[dict[str, Any]]
    violations: list[dict[str, Any]]
    cycles: list[dict[str, Any]]
    conflicts: list[dict[str, Any]]
    unsearched: list[str] = field(default_factory=list)
    output: str | None = None
    missing_file: str | None = None
    claims: Tried = field(default_factory=Tried)
    pasts: DataFrame | None = field(default=None, compare=False, repr=False)
    """All channels, as in `Tables`."""

    @property
    def complete(self) -> bool:
        """Whether every past is complete and no message contradicts another."""
        return not any(self.counts[name] for name in _FAULTS)

    @property
    def sound(self) -> bool:
        """Whether that is so, and what was said of other stores is borne out."""
        return self.complete and not self.claims.untrue

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return {
            "name": self.name,
            "sound": self.sound,
            **self.counts,
            "claims": self.claims.kept,
            "claims_tried_against": self.claims.against,
            "claims_untrue": self.claims.untrue,
            "listed": {
                "channels": self.channels,
                "missing": self.missing,
                "violations": self.violations,
                "cycles": self.cycles,
                "conflicts": self.conflicts,
                "unsearched": self.unsearched,
                "claims_untrue": self.claims.listed,
            },
            "output": self.output,
            "missing_file": self.missing_file,
        }

    def lines(self) -> list[str]:
        """The same in words."""
        told = [self._summary()]
        told += self._listed("missing parents", "missing", map(_missing_line, self.missing))
        told += self._listed("messages with an incomplete past", "incomplete", iter(()))
        told += self._listed("of these orphans, without any held parent", "orphans", iter(()))
        told += self._listed(
            "parents not before their child by Lamport timestamp",
            "violations",
            map(_violation_line, self.violations),
        )
        told += self._listed("cycles", "cycles", map(_cycle_line, self.cycles))
        told += self._listed(
            "IDs claimed by different messages", "conflicts", map(_conflict_line, self.conflicts)
        )
        told += self._listed(
            "channels with cycles that may be too large to be looked for",
            "unsearched",
            map(printable, self.unsearched),
        )
        if not self.complete:
            told.append("channels, the least complete first:")
            told += [f"  {_channel_line(each)}" for each in self.channels]
            told += _more(self.counts["channels"] - len(self.channels))
        if self.output is not None:
            told.append(f"All of it is in {self.output}.")
        if self.missing_file is not None:
            told.append(
                f"The missing IDs are in {self.missing_file}: ask peers for them with"
                " `storenode sync --ids`."
            )
        told += self.claims.lines()
        told.append(
            "Every past is complete." if self.complete else "The history has gaps or faults."
        )
        return told

    def _summary(self) -> str:
        counts = self.counts
        return (
            f"Audited {counts['messages']:,} messages of {counts['channels']:,} channels in"
            f" {self.name}: {counts['heads']:,} heads, {counts['forks']:,} forks,"
            f" {counts['merges']:,} merges, {counts['copies']:,} messages sent again."
        )

    def _listed(self, what: str, name: str, lines: Iterator[str]) -> Iterator[str]:
        count = self.counts[name]
        if not count:
            return
        yield f"{what}: {count:,}"
        listed = [f"  {line}" for line in lines]
        yield from listed
        yield from _more(count - len(listed) if listed else 0)


def _more(count: int) -> Iterator[str]:
    if count > 0:
        yield f"  and {count:,} more"


def counts_of(findings: DataFrame, channels: DataFrame) -> dict[str, int]:
    """How many channels there are, and all that is counted of them; channels that are unsearched.

    At once, since whatever is asked of Spark takes it a while.
    """
    unsearched = findings.where(F.col("kind") == UNSEARCHED)
    counted = channels.select(F.lit(1).alias("channels"), *_COUNTED, F.lit(0).alias("unsearched"))
    both = counted.unionByName(
        unsearched.select(
            *(F.lit(0).alias(name) for name in ("channels", *_COUNTED)),
            F.lit(1).alias("unsearched"),
        )
    )
    sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in both.columns]
    found: dict[str, int] = both.agg(*sums).collect()[0].asDict()
    return found


def reported(name: str, tables: Tables) -> Audited:
    """Gather what is said of a history called ``name``; everything is computed here.

    Each table that is asked takes Spark a while, so those without rows are not.
    """
    findings, references, counts = tables.findings, tables.references, dict(tables.counts)
    worst = _first(tables.channels, F.desc(_worse()), "channel")
    lacking = _lacking(references, [row["channel"] for row in worst if row["missing"]])

    def of(name: str, rows: DataFrame, *order: str) -> list[Row]:
        return _first(rows, *order) if counts[name] else []

    order = ("ts", "channel", "message_id")
    missing = of("missing", _missing(references), "ts", "channel", "parent")
    violations = of("violations", findings.where(F.col("kind") == VIOLATION), *order, "other")
    cycles = of("cycles", _cycles(findings), "channel", "cycle")
    unsearched = of("unsearched", findings.where(F.col("kind") == UNSEARCHED), "channel")
    # What is in conflict is claimed several times.
    conflicts = of("copies", tables.conflicts, *order)
    many = len(conflicts) == MAX_LISTED
    counts["conflicts"] = tables.conflicts.count() if many else len(conflicts)
    return Audited(
        name,
        counts,
        [{**_channel(row), **lacking.get(row["channel"], _NOTHING_LACKS)} for row in worst],
        list(map(_missed, missing)),
        list(map(_violation, violations)),
        [row.asDict() for row in cycles],
        list(map(_conflict, conflicts)),
        [row["channel"] for row in unsearched],
    )


def _worse() -> Any:  # noqa: ANN401 - a column
    return F.col("missing") + F.col("incomplete") + F.col("violations") + F.col("cycles")


def _first(rows: DataFrame, *order: Any) -> list[Row]:  # noqa: ANN401 - columns or their names
    found: list[Row] = rows.orderBy(*order).limit(MAX_LISTED).collect()
    return found


def _missing(references: DataFrame) -> DataFrame:
    """Missing parents, each once, with who named it first."""
    return references.groupBy("channel", "parent").agg(
        F.count_distinct("message_id").alias("named_by"),
        F.min("hint").alias("hint"),
        F.min("elsewhere").alias("elsewhere"),
        F.min_by(F.struct("message_id", "sender", "lamport"), F.struct("ts", "hash")).alias("who"),
        F.min("ts").alias("ts"),
    )


def _lacking(references: DataFrame, channels: list[str]) -> dict[str, dict[str, Any]]:
    """By channel, since when its messages name what is missing, and which senders do so most."""
    if not channels:
        return {}
    by_sender = (
        references.where(F.col("channel").isin(channels))
        .groupBy("channel", "sender")
        .agg(F.count_distinct("parent").alias("named"), F.min("ts").alias("since"))
    )
    place = F.row_number().over(
        Window.partitionBy("channel").orderBy(F.desc("named"), F.asc_nulls_last("sender"))
    )
    found = (
        by_sender.withColumn("place", place)
        .groupBy("channel")
        .agg(
            F.min("since").alias("since"),
            F.count(F.lit(1)).alias("senders"),
            F.collect_list(
                F.when(F.col("place") <= MAX_SENDERS, F.struct("place", "sender", "named"))
            ).alias("first"),
        )
    )
    return {
        row["channel"]: {
            "missing_since": row["since"],
            "naming_senders": row["senders"],
            "named_by": [each["sender"] for each in sorted(row["first"])],
        }
        for row in found.collect()
    }


def _cycles(findings: DataFrame) -> DataFrame:
    on = findings.where(F.col("kind") == CYCLE).groupBy("channel", F.col("other").alias("cycle"))
    return on.agg(F.count_distinct("message_id").alias("messages"))


def _lamport(signed: int | None) -> int | None:
    return None if signed is None else signed % 2**64


def _channel(row: Row) -> dict[str, Any]:
    found = {name: row[name] for name in ("channel", *_COUNTED)}
    complete = None
    if row["point_message_id"] is not None:
        complete = {
            "message_id": row["point_message_id"],
            "lamport": _lamport(row["point_lamport"]),
            "ts": row["point_ts"],
        }
    return {**found, "last_complete": complete}


def _missed(row: Row) -> dict[str, Any]:
    return {
        "channel": row["channel"],
        "message_id": row["parent"],
        "hint": None if row["hint"] is None else bytes(row["hint"]).hex(),
        "held_in_channel": row["elsewhere"],
        "named_by": row["named_by"],
        "first_named_by": None if row["who"] is None else row["who"]["message_id"],
        "sender": None if row["who"] is None else row["who"]["sender"],
        "ts": row["ts"],
    }


def _violation(row: Row) -> dict[str, Any]:
    return {
        "channel": row["channel"],
        "message_id": row["message_id"],
        "lamport": _lamport(row["lamport"]),
        "ts": row["ts"],
        "parent": row["other"],
    }


def _conflict(row: Row) -> dict[str, Any]:
    hashes = [bytes(each).hex() for each in row["hashes"]]
    return {**row.asDict(), "hashes": hashes}


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
    if each["held_in_channel"] is not None:
        line += f"; held in the channel {printable(each['held_in_channel'])}"
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
