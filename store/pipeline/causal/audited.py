"""All that is found in a history, as one table: `FINDINGS`."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.causal.blocks import Split, large_channels, outside_rows, rows_of, sizes
from store.pipeline.causal.claims import Claims
from store.pipeline.causal.cycles import with_cycles_across
from store.pipeline.causal.limits import MAX_BLOCK_ENTRIES
from store.pipeline.causal.passes import examined
from store.pipeline.causal.rounds import followed, settled
from store.pipeline.causal.rows import BLOCK, COUNTS, CYCLE, MISSING, Kinds
from store.pipeline.progress import Say, silent


def audited(
    claims: Claims,
    kinds: Kinds,
    outside: DataFrame | None = None,
    say: Say = silent,
) -> DataFrame:
    """The findings of some kinds in a history.

    ``outside`` are IDs (channel, message_id, lamport) that are held and not audited.

    Raises:
        PipelineError: gaps go through too many blocks.
    """
    session, measured = claims.rows.sparkSession, sizes(claims)
    known = None if outside is None else outside_rows(outside)
    if not measured.large:
        return examined(session, known, kinds, measured.entries, claims)
    say(f"audit: {measured.large:,} channels are large and are gone through in parts")
    rows, large = claims.rows, large_channels(claims)
    if outside is None:
        outside = rows.select("channel", "message_id", "lamport").limit(0)
    small = rows_of(rows.join(large, "channel", "anti")).unionByName(
        outside_rows(outside.join(large, "channel", "anti"))
    )
    split = Split.of(
        rows.join(large, "channel", "semi"),
        outside.join(large, "channel", "semi"),
        settled,
    )
    parts = settled(followed(split.rows, measured.entries, say))
    found = examined(session, parts, kinds, measured.entries)
    if CYCLE in kinds:
        found = with_cycles_across(found, split)
    return examined(session, small, kinds, measured.entries).unionByName(found)


def missing_parents(claims: Claims) -> DataFrame:
    """(channel, message_id, other) of every reference to a parent ``other`` that is not held."""
    session = claims.rows.sparkSession
    found = examined(session, None, frozenset({MISSING}), MAX_BLOCK_ENTRIES, claims)
    return found.select("channel", "message_id", "other")


def channels_of(findings: DataFrame) -> DataFrame:
    """Per channel its counts, and as ``point_…`` its last complete point (null: there is none).

    The counts are those of `COUNTS`, and ``missing`` parents and ``cycles``; ``broken_…`` is its
    first incomplete ID.
    """
    kind, counts = F.col("kind"), F.col("counts")
    block = F.struct(
        "block",
        (counts[COUNTS.index("incomplete")] > 0).alias("broken"),
        *("message_id", "lamport", "ts", "other"),
        counts[len(COUNTS)].alias("clock"),
    )
    channels = (
        findings.where(kind.isin(BLOCK, MISSING, CYCLE))
        .groupBy("channel")
        .agg(
            *(F.sum(counts[place]).alias(name) for place, name in enumerate(COUNTS)),
            F.count_distinct(F.when(kind == MISSING, F.col("other"))).alias("missing"),
            F.count_distinct(F.when(kind == CYCLE, F.col("other"))).alias("cycles"),
            F.collect_list(F.when(kind == BLOCK, block)).alias("blocks"),
        )
        .withColumn("first", F.array_min(F.filter("blocks", lambda each: each.broken)))
    )

    def sound(each: Column) -> Column:
        before = F.coalesce(each.block <= F.col("first.block"), F.lit(True))
        return before & each.message_id.isNotNull()

    return channels.withColumn("point", F.array_max(F.filter("blocks", sound))).select(
        "channel",
        *COUNTS,
        *("missing", "cycles"),
        *(
            F.col(f"point.{name}").alias(f"point_{name}")
            for name in ("message_id", "lamport", "ts")
        ),
        F.col("first.other").alias("broken_message_id"),
        F.col("first.clock").alias("broken_lamport"),
    )
