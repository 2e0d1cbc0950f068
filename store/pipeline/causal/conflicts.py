"""IDs that several messages claim: the same message once more, or different ones?"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by


def conflicting(claimants: DataFrame, messages: DataFrame) -> DataFrame:
    """(channel, message_id, claimants, contents, ts, hashes) of IDs with more than one content.

    ``claimants`` are findings of that kind; ``messages`` have ``ts``, ``h0``, ``hash`` and
    ``payload``. A message that was sent again with the same payload is no conflict. ``ts`` is the
    earliest; ``hashes`` are at most two messages with different contents.
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
