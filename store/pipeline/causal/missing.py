"""Parents that a first look did not find: who named them, by which hint, and where they may be.

What is searched here is few, so the history is read once more for it rather than carry hints and
hashes through everything.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from storenode.message.limits import HASH_BYTES

_EDGE: Final = ("channel", "message_id", "parent")
_ID: Final = ("channel", "parent")


def references_to(missing: DataFrame, claims: DataFrame) -> DataFrame:
    """Who named some parents that are not held.

    ``missing`` are findings of that kind, ``claims`` the history with ``sender`` and ``hash``. The
    result: channel, parent, hint (null: none that is a message hash), message_id, sender, lamport,
    ts, hash of the child. A parent that several claimants of one ID name is there for each.
    """
    edges = missing.select("channel", "message_id", F.col("other").alias("parent"))
    named = claims.select(
        "channel",
        "message_id",
        "sender",
        "lamport",
        "ts",
        "hash",
        F.explode("parents").alias("named"),
    ).withColumn("parent", F.col("named.id"))
    hint = F.when(F.octet_length("named.hint") == HASH_BYTES, F.col("named.hint"))
    return (
        edges.join(named.withColumn("hint", hint).drop("named"), list(_EDGE), "left")
        .dropDuplicates([*_EDGE, "hash", "hint"])
        .select(*_ID, "hint", "message_id", "sender", "lamport", "ts", "hash")
    )


def held_outside(references: DataFrame, claims: DataFrame) -> DataFrame:
    """(channel, message_id, lamport) of the parents that are claimed by messages outside."""
    wanted = references.select(*_ID).distinct()
    return (
        claims.where(F.col("channel").isNotNull())
        .withColumnRenamed("message_id", "parent")
        .join(wanted, list(_ID), "semi")
        .select("channel", F.col("parent").alias("message_id"), "lamport")
    )


def held_unread(references: DataFrame, messages: DataFrame) -> DataFrame:
    """(channel, message_id, lamport) of parents whose hint names a held message that is not read.

    ``messages`` have ``hash`` and ``channel``: one whose payload is none of SDS, an encrypted one
    for instance, is found by its hint only. A hint to one that is read, under another ID or channel
    than was named, finds nothing.
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
    """(parent, elsewhere) of those IDs that are claimed in another channel, the least one."""
    wanted = references.select("channel", "parent").distinct()
    held = claims.select(F.col("channel").alias("elsewhere"), F.col("message_id").alias("parent"))
    return (
        wanted.join(held, "parent")
        .where(F.col("elsewhere") != F.col("channel"))
        .groupBy("channel", "parent")
        .agg(F.min("elsewhere").alias("elsewhere"))
    )
