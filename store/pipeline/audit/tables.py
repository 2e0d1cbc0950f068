"""The tables that an audit consists of, computed by Spark from the claims of a history."""

from __future__ import annotations

import secrets
from typing import Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql.pandas.types import from_arrow_schema

from store.pipeline.audit.examine import (
    CHANNEL,
    CHANNELS,
    CLAIMED,
    CLAIMS,
    COUNTS,
    CYCLE,
    FINDINGS,
    MISSING,
    REFERENCES,
    ROWS,
    VIOLATION,
    examine,
)
from store.pipeline.columns import HASH_WORDS
from store.pipeline.limits import DAY_NS
from store.pipeline.message_sets import MessageSet
from store.pipeline.parquet import shuffle_partitions, start_of, sums
from storenode.message.limits import HASH_BYTES
from storenode.sds.limits import MAX_ID_BYTES

MAX_CHANNEL_ENTRIES: Final = 5_000_000
"""IDs and references of one channel, which one task holds in memory: some 300 MB for a million."""

BUCKET_ENTRIES: Final = 250_000
"""The approximate number of IDs and references, of one or more channels, in a bucket."""

CLAIMS_READ: Final = (*CLAIMS, "sender", "hash")
SUMMED: Final = ("ts", *HASH_WORDS, "channel", "parents")
"""The columns that `sums_by_channel` needs."""

_CONTENT: Final = ("ts", "h0", "hash", "payload")
_SALT_BITS: Final = 62
_PARENTS: Final = "array<struct<id:string,hint:binary>>"

AuditTables = dict[str, DataFrame]
"""The results of an audit by name, see `store.pipeline.audit.examine.RESULTS`."""


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


def sizes_of(sums_: DataFrame) -> tuple[list[Row], int]:
    """Return channels that are too large to be audited, and the number of entries of the others."""
    named = sums_.where(F.col("channel").isNotNull())
    by_channel = named.groupBy("channel").agg(F.sum("entries").alias("entries"))
    is_large = F.col("entries") > MAX_CHANNEL_ENTRIES
    large = by_channel.where(is_large).orderBy("channel").collect()
    ((entries,),) = by_channel.where(~is_large).agg(F.sum("entries")).collect()
    return large, entries or 0


def audit_tables(
    messages: MessageSet, claims: DataFrame, entries: int, outside: DataFrame | None = None
) -> AuditTables:
    """Compute the tables of ``claims``, which have `CLAIMS_READ` and about ``entries`` rows.

    ``outside`` are IDs (channel, message_id, lamport) that are held and not audited.
    """
    rows = _rows(claims)
    if outside is not None:
        zero, parents = F.lit(0).cast("long"), F.array().cast(_PARENTS)
        others = outside.withColumns({"ts": zero, "h0": zero, "parents": parents})
        rows = rows.unionByName(_rows(others, own=False))
    buckets = max(4 * shuffle_partitions(messages.session), -(-entries // BUCKET_ENTRIES))
    # Nobody can choose channels that come together in one bucket.
    salt = F.lit(secrets.randbits(_SALT_BITS))
    bucket = F.pmod(F.xxhash64(salt, "channel"), F.lit(buckets)).alias("bucket")
    found = rows.groupBy(bucket).applyInArrow(examine_group, from_arrow_schema(FINDINGS))
    findings = checkpointed(found)
    missing = findings.where(F.col("kind") == MISSING)
    references = messages.session.createDataFrame([], from_arrow_schema(REFERENCES))
    if not missing.isEmpty():  # otherwise the claims need not be read again
        references = checkpointed(references_to(missing, claims))
    claimed = findings.where(F.col("kind") == CLAIMED)
    return {
        "channels": checkpointed(channels_of(findings)),
        "references": references,
        "faults": findings.where(F.col("kind").isin(VIOLATION, CYCLE)),
        "conflicts": checkpointed(conflicts_of(messages, claimed)),
    }


def examine_group(rows: pa.Table) -> pa.Table:
    """Return the findings in the rows of some channels."""
    (batch,) = rows.select(ROWS.names).cast(ROWS).combine_chunks().to_batches()
    return pa.Table.from_batches(examine(batch), FINDINGS)


def _rows(claims: DataFrame, *, own: bool = True) -> DataFrame:
    """Return claims as `ROWS`."""
    return claims.select(
        "channel",
        "message_id",
        F.lit(own).alias("own"),
        "lamport",
        "ts",
        "h0",
        F.transform(
            F.coalesce("parents", F.array().cast(_PARENTS)),
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


def parents_outside(claims: DataFrame, others: DataFrame) -> DataFrame:
    """Return (channel, message_id, lamport) of parents that only messages of ``others`` claim."""
    parents = claims.select("channel", F.explode("parents.id").alias("message_id")).distinct()
    wanted = parents.join(claims, ["channel", "message_id"], "anti")
    stored = others.select("channel", "message_id", "lamport")
    return stored.join(wanted, ["channel", "message_id"], "semi")


def references_to(missing: DataFrame, claims: DataFrame) -> DataFrame:
    """Return the messages that name missing parents, as `REFERENCES`.

    ``missing`` are findings of that kind. A hint that is no message hash is null. A parent that
    several claimants of one ID name is there for each of them.
    """
    edges = missing.select("channel", "message_id", F.col("other").alias("parent"))
    named = claims.select(
        *("channel", "message_id", "sender", "lamport", "ts", "hash"),
        F.explode("parents").alias("named"),
    ).withColumn("parent", F.col("named.id"))
    hint = F.when(F.octet_length("named.hint") == HASH_BYTES, F.col("named.hint"))
    edge = ["channel", "message_id", "parent"]
    return (
        edges.join(named.withColumn("hint", hint).drop("named"), edge, "left")
        .dropDuplicates([*edge, "hash", "hint"])
        .select(*REFERENCES.names)
    )


def conflicts_of(messages: MessageSet, claimed: DataFrame) -> DataFrame:
    """Return the IDs that messages with different contents claim, as `CONFLICTS`.

    ``claimed`` are findings of that kind: contents are read of their time only. A message that was
    sent again with the same payload is no conflict. ``ts`` is the earliest; ``hashes`` are two
    messages with different contents.
    """
    ((first_ns, last_ns),) = claimed.agg(F.min("ts"), F.max("ts")).collect()
    bounds = (0, 0) if first_ns is None else (first_ns, last_ns + 1)
    read = messages.messages(_CONTENT, bounds).withColumn("content", F.sha2("payload", 256))
    contents = claimed.select("channel", "message_id", "ts", "h0").join(
        read.drop("payload"), ["ts", "h0"]
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
