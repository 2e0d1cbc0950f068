"""Further tables of an audit: who names missing parents, where these are held, and conflicts.

They are about few messages, so the history is read once more for them.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from storenode.message.limits import HASH_BYTES

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
