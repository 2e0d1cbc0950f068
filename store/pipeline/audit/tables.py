"""The tables that an audit consists of, computed by Spark for a range of a history."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql.pandas.types import from_arrow_schema

from store.pipeline.audit.examine import (
    CHANNEL,
    CHANNELS,
    CLAIMED,
    CLAIMS,
    CONFLICTS,
    COUNTS,
    CYCLE,
    FINDINGS,
    HEAD,
    INCOMPLETE,
    MISSING,
    ORPHAN,
    REFERENCES,
    ROWS,
    VIOLATION,
    Kinds,
    examine,
)
from store.pipeline.columns import empty
from store.pipeline.database import FOREVER
from store.pipeline.errors import PipelineError
from store.pipeline.fingerprints import HASH_WORDS
from store.pipeline.limits import DAY_NS
from store.pipeline.message_sets import DatabaseMessages, MessageSet
from store.pipeline.parquet import shuffle_partitions, start_of, sums
from storenode.message.limits import HASH_BYTES
from storenode.message.text import printable
from storenode.sds.limits import MAX_ID_BYTES

MAX_CHANNEL_ENTRIES: Final = 5_000_000
"""IDs and references of one channel, which one task holds in memory: some 300 MB for a million."""

BUCKET_ENTRIES: Final = 250_000
"""About so many IDs and references are examined together, of one or of many channels."""

ALWAYS: Final = frozenset({CHANNEL, MISSING, VIOLATION, CYCLE, CLAIMED, ORPHAN})
"""The kinds of findings that every audit looks for."""

WRITTEN: Final = frozenset({INCOMPLETE, HEAD})
"""The kinds that are only written to an output."""

COUNTED: Final = (*COUNTS, "missing", "cycles")
CLAIMS_READ: Final = (*CLAIMS, "sender", "hash")
_NAMED: Final = ("ts", "channel", "message_id")
_CONTENT: Final = ("ts", "h0", "hash", "payload")
_SALT_BITS: Final = 62


@dataclass(frozen=True)
class AuditTables:
    """The findings, and what is computed from them.

    ``findings`` are as `FINDINGS`, ``channels`` as `CHANNELS`, ``references`` as `REFERENCES`,
    ``conflicts`` as `CONFLICTS`; ``counts`` are those of all channels.
    """

    findings: DataFrame
    channels: DataFrame
    references: DataFrame
    conflicts: DataFrame
    counts: dict[str, int]


@dataclass(frozen=True)
class History:
    """A range of the messages of a set, in nanoseconds, the end exclusive.

    ``kinds`` are the findings to look for. ``rows`` are the messages of SDS that are audited, if
    these are not all.
    """

    messages: MessageSet
    low_ns: int = 0
    high_ns: int = FOREVER
    kinds: Kinds = ALWAYS
    rows: DataFrame | None = None

    def claims(self) -> DataFrame:
        """Return the messages of SDS."""
        if self.rows is not None:
            return self.rows
        rows = self.messages.messages(CLAIMS_READ, self.low_ns, self.high_ns)
        found = rows.where(F.col("channel").isNotNull())
        # They are used several times, and a database should be read once.
        return checkpointed(found) if isinstance(self.messages, DatabaseMessages) else found


def checkpointed(rows: DataFrame) -> DataFrame:
    """Compute rows now, and keep them on two executors while the result is in use."""
    return rows.localCheckpoint(eager=True, storageLevel=StorageLevel.MEMORY_AND_DISK_2)


def sums_by_channel(messages: DataFrame) -> DataFrame:
    """Return count, XOR and entries of messages by channel and UTC day since the epoch.

    ``channel`` is null for messages without SDS; ``entries`` are IDs and references.
    """
    entries = F.sum(F.lit(1) + F.coalesce(F.size("parents"), F.lit(0))).alias("entries")
    day = (start_of(DAY_NS) / F.lit(DAY_NS)).cast("int").alias("day")
    return messages.groupBy("channel", day).agg(*sums(), entries)


SUMMED: Final = ("ts", *HASH_WORDS, "channel", "parents")
"""The columns that `sums_by_channel` needs."""


def require_bounded(sums_: DataFrame) -> int:
    """Return the number of entries of all channels."""
    by_channel = (
        sums_.where(F.col("channel").isNotNull())
        .groupBy("channel")
        .agg(F.sum("entries").alias("entries"))
    )
    (row,) = by_channel.agg(
        F.sum("entries").alias("all"),
        F.max("entries").alias("most"),
        F.max_by("channel", "entries").alias("channel"),
    ).collect()
    if row["all"] is None:
        return 0
    if row["most"] > MAX_CHANNEL_ENTRIES:
        raise PipelineError(
            f"The channel {printable(row['channel'])} has {row['most']:,} IDs and references, and"
            f" at most {MAX_CHANNEL_ENTRIES:,} can be audited together: audit a shorter time, with"
            " --from and --to."
        )
    return int(row["all"])


def audit_tables(history: History, entries: int) -> AuditTables:
    """Compute the tables of a history with about so many ``entries``."""
    claims = history.claims()
    found = _examined(history, claims, None, entries)
    if found.counts["missing"]:
        found = _with_references(history, claims, found, entries)
    if found.counts["copies"]:
        found = replace(found, conflicts=_conflicts(history, found.findings))
    return found


def _examined(
    history: History, claims: DataFrame, outside: DataFrame | None, entries: int
) -> AuditTables:
    """Return the tables without references and conflicts.

    ``outside`` are IDs (channel, message_id, lamport) that are held and not audited.
    """
    rows = _rows(claims)
    if outside is not None:
        rows = rows.unionByName(_outside_rows(outside))
    session = history.messages.session
    buckets = max(4 * shuffle_partitions(session), -(-entries // BUCKET_ENTRIES))
    # Nobody can choose channels that come together in one bucket.
    salt = F.lit(secrets.randbits(_SALT_BITS))
    bucket = F.pmod(F.xxhash64(salt, "channel"), F.lit(buckets)).alias("bucket")
    kinds = history.kinds

    def examined(group: pa.Table) -> pa.Table:
        return _examine(kinds, group)

    found = rows.groupBy(bucket).applyInArrow(examined, from_arrow_schema(FINDINGS))
    findings = checkpointed(found)
    channels = checkpointed(channels_of(findings))
    references, conflicts = empty(session, REFERENCES), empty(session, CONFLICTS)
    return AuditTables(findings, channels, references, conflicts, counts_of(channels))


def _examine(kinds: Kinds, rows: pa.Table) -> pa.Table:
    (batch,) = rows.select(ROWS.names).cast(ROWS).combine_chunks().to_batches()
    return pa.Table.from_batches(examine(batch, kinds), FINDINGS)


def _rows(claims: DataFrame) -> DataFrame:
    """Return claims as `ROWS`."""
    return claims.select(
        "channel",
        "message_id",
        F.lit(True).alias("own"),
        "lamport",
        "ts",
        "h0",
        F.transform(
            F.coalesce("parents", F.array().cast("array<struct<id:string,hint:binary>>")),
            lambda each: _shortened(F.coalesce(each.id, F.lit(""))),
        ).alias("parents"),
    )


def _shortened(parent: Column) -> Column:
    """Return an ID, or something shorter in place of one that is too long for any message.

    It is too long as well, so nothing is held under it, and its digest makes it unique. All parents
    of the largest channel fit into one column of Arrow, which has at most 2 GiB of text.
    """
    length = F.octet_length(parent)
    first = F.substring(parent.cast("binary"), 1, MAX_ID_BYTES).cast("string")
    short = F.concat(
        F.make_valid_utf8(first),
        F.lit("… ("),
        length.cast("string"),
        F.lit(" bytes, SHA-256 "),
        F.sha2(parent.cast("binary"), 256),
        F.lit(")"),
    )
    return F.when(length > MAX_ID_BYTES, short).otherwise(parent)


def _outside_rows(outside: DataFrame) -> DataFrame:
    zero = F.lit(0).cast("long")
    return outside.select(
        "channel",
        "message_id",
        F.lit(False).alias("own"),
        "lamport",
        zero.alias("ts"),
        zero.alias("h0"),
        F.array().cast("array<string>").alias("parents"),
    )


def channels_of(findings: DataFrame) -> DataFrame:
    """Return the counts and the last complete point of each channel, as `CHANNELS`."""
    kind = F.col("kind")

    def of_channel(column: Column | str) -> Column:
        return F.max(F.when(kind == CHANNEL, column))

    def distinct(wanted: str) -> Column:
        return F.count_distinct(F.when(kind == wanted, F.col("other")))

    return (
        findings.where(kind.isin(CHANNEL, MISSING, CYCLE))
        .groupBy("channel")
        .agg(
            *(of_channel(F.col("counts")[at]).alias(name) for at, name in enumerate(COUNTS)),
            distinct(MISSING).alias("missing"),
            distinct(CYCLE).alias("cycles"),
            *(of_channel(F.col(n)).alias(f"point_{n}") for n in ("message_id", "lamport", "ts")),
        )
        .select(*CHANNELS.names)
    )


def counts_of(channels: DataFrame) -> dict[str, int]:
    """Return the number of channels, and the sums of everything that is counted of them."""
    sums_ = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in COUNTED]
    (row,) = channels.agg(F.count(F.lit(1)).alias("channels"), *sums_).collect()
    found: dict[str, int] = row.asDict()
    return found


def _with_references(
    history: History, claims: DataFrame, found: AuditTables, entries: int
) -> AuditTables:
    """Return the tables without parents that are held elsewhere, and references to the others."""
    references = _references(found.findings, claims)
    outside = _outside(history, references)
    if outside is not None and not (outside := checkpointed(outside)).isEmpty():
        found = _examined(history, claims, outside, entries)
        references = _references(found.findings, claims)
    named = history.messages.messages(_NAMED, history.low_ns, history.high_ns)
    located = references.join(elsewhere(references, named), ["channel", "parent"], "left")
    return replace(found, references=checkpointed(located.select(*REFERENCES.names)))


def _references(findings: DataFrame, claims: DataFrame) -> DataFrame:
    return checkpointed(references_to(findings.where(F.col("kind") == MISSING), claims))


def _outside(history: History, references: DataFrame) -> DataFrame | None:
    """Return IDs that are missing in the range and held all the same; None: there are none."""
    found: list[DataFrame] = []
    read = history.messages.messages
    if not references.where(F.col("hint").isNotNull()).isEmpty():
        found.append(find_without_sds(references, read(("ts", "hash", "channel"), 0, FOREVER)))
    for low_ns, high_ns in ((0, history.low_ns), (history.high_ns, FOREVER)):
        if low_ns < high_ns:
            found.append(
                find_outside_range(references, read((*_NAMED, "lamport"), low_ns, high_ns))
            )
    return reduce(DataFrame.unionByName, found) if found else None


def _conflicts(history: History, findings: DataFrame) -> DataFrame:
    """Read contents of the time only in which IDs were claimed several times."""
    claimed = findings.where(F.col("kind") == CLAIMED)
    ((first_ns, last_ns),) = claimed.agg(F.min("ts"), F.max("ts")).collect()
    messages = history.messages.messages(_CONTENT, first_ns, last_ns + 1)
    return checkpointed(conflicting(claimed, messages))


_EDGE: Final = ("channel", "message_id", "parent")
_ID: Final = ("channel", "parent")


def references_to(missing: DataFrame, claims: DataFrame) -> DataFrame:
    """Return the messages that name missing parents, as `REFERENCES` without ``elsewhere``.

    ``missing`` are findings of that kind, ``claims`` the history with ``sender`` and ``hash``. A
    hint that is no message hash is null. A parent that several claimants of one ID name is there
    for each of them.
    """
    edges = missing.select("channel", "message_id", F.col("other").alias("parent"))
    named = claims.select(
        *("channel", "message_id", "sender", "lamport", "ts", "hash"),
        F.explode("parents").alias("named"),
    ).withColumn("parent", F.col("named.id"))
    hint = F.when(F.octet_length("named.hint") == HASH_BYTES, F.col("named.hint"))
    return (
        edges.join(named.withColumn("hint", hint).drop("named"), list(_EDGE), "left")
        .dropDuplicates([*_EDGE, "hash", "hint"])
        .select(*_ID, "hint", "message_id", "sender", "lamport", "ts", "hash")
    )


def find_outside_range(references: DataFrame, claims: DataFrame) -> DataFrame:
    """Return (channel, message_id, lamport) of parents that messages outside of a range claim."""
    wanted = references.select(*_ID).distinct()
    return (
        claims.where(F.col("channel").isNotNull())
        .withColumnRenamed("message_id", "parent")
        .join(wanted, list(_ID), "semi")
        .select("channel", F.col("parent").alias("message_id"), "lamport")
    )


def find_without_sds(references: DataFrame, messages: DataFrame) -> DataFrame:
    """Return (channel, message_id, lamport) of parents whose hint names a held message without SDS.

    ``messages`` have ``hash`` and ``channel``. A message whose payload is not of SDS, such as an
    encrypted one, is found only by its hint. A hint to a message of SDS finds nothing.
    """
    hints = references.where(F.col("hint").isNotNull()).select(*_ID, "hint").distinct()
    plain = messages.where(F.col("channel").isNull()).select(F.col("hash").alias("hint"))
    return (
        hints.join(plain, "hint", "semi")
        .select("channel", F.col("parent").alias("message_id"))
        .distinct()
        .withColumn("lamport", F.lit(None).cast("long"))
    )


def elsewhere(references: DataFrame, claims: DataFrame) -> DataFrame:
    """Return (channel, parent, elsewhere) of parents that another channel holds, the least one."""
    wanted = references.select(*_ID).distinct()
    holders = claims.select(
        F.col("channel").alias("elsewhere"), F.col("message_id").alias("parent")
    )
    return (
        wanted.join(holders, "parent")
        .where(F.col("elsewhere") != F.col("channel"))
        .groupBy(*_ID)
        .agg(F.min("elsewhere").alias("elsewhere"))
    )


def conflicting(claimants: DataFrame, messages: DataFrame) -> DataFrame:
    """Return the IDs that messages with different contents claim, as `CONFLICTS`.

    ``claimants`` are findings of that kind; ``messages`` have ``ts``, ``h0``, ``hash`` and
    ``payload``. A message that was sent again with the same payload is no conflict. ``ts`` is the
    earliest; ``hashes`` are two messages with different contents.
    """
    contents = claimants.select("channel", "message_id", "ts", "h0").join(
        messages.withColumn("content", F.sha2("payload", 256)).drop("payload"), ["ts", "h0"]
    )
    each = contents.groupBy("channel", "message_id", "content").agg(
        F.count(F.lit(1)).alias("claimants"), F.min("ts").alias("ts"), F.min("hash").alias("hash")
    )
    found = each.groupBy("channel", "message_id").agg(
        F.sum("claimants").alias("claimants"),
        F.count(F.lit(1)).alias("contents"),
        F.min("ts").alias("ts"),
        F.array(F.min("hash"), F.max("hash")).alias("hashes"),
    )
    return found.where("contents > 1")
