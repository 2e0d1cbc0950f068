"""Cycles that go through several blocks of a channel.

A cycle goes up in (Lamport timestamp, ID) only by references to parents that are later than their
children, so it lies between the first such child of its channel and the last such parent. What is
there is examined as one block, if it is no more than a block may be.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.causal.blocks import Split
from store.pipeline.causal.limits import MAX_BLOCK_ENTRIES
from store.pipeline.causal.passes import examined
from store.pipeline.causal.rounds import settled
from store.pipeline.causal.rows import CYCLE, UNSEARCHED

_GIVEN: Final = frozenset({"channel", "message_id", "counts"})


def with_cycles_across(found: DataFrame, split: Split) -> DataFrame:
    """Findings together with the cycles across blocks, each ID named once.

    Channels in which these could not be looked for are findings too: `UNSEARCHED`.
    """
    spans = settled(_spans(split.edges))
    if spans.isEmpty():
        return found
    between = settled(_between(split, spans))
    sizes = between.groupBy("channel").agg(F.sum(1 + F.size("parents")).alias("entries"))
    fits = F.col("entries") <= MAX_BLOCK_ENTRIES
    searched = between.join(sizes.where(fits), "channel", "semi")
    session = found.sparkSession
    only = frozenset({CYCLE})
    cycles = examined(session, searched, only, MAX_BLOCK_ENTRIES).unionByName(
        found.where(F.col("kind") == CYCLE)
    )
    named = _each_once(cycles, found)
    unsearched = sizes.where(~fits).select(F.lit(UNSEARCHED).alias("kind"), "channel")
    return (
        found.where(F.col("kind") != CYCLE)
        .unionByName(named)
        .unionByName(unsearched, allowMissingColumns=True)
    )


def _spans(edges: DataFrame) -> DataFrame:
    """(channel, first, last) of channels in which a later parent is in another block."""
    child, parent = F.struct("child_at", "child"), F.struct("parent_at", "parent")
    late = edges.where(parent >= child).where(F.col("parent_block").isNotNull())
    return (
        late.groupBy("channel")
        .agg(
            F.min(child).alias("first"),
            F.max(parent).alias("last"),
            F.max(F.col("block") != F.col("parent_block")).alias("across"),
        )
        .where("across")
    )


def _between(split: Split, spans: DataFrame) -> DataFrame:
    """The rows of each channel's span, as one block."""
    at = F.struct(F.col("at"), F.col("message_id"))
    inside = split.placed.join(F.broadcast(spans), "channel").where(
        (at >= F.col("first")) & (at <= F.col("last"))
    )
    return inside.select(*split.rows.columns).withColumn("block", F.lit(0))


def _each_once(cycles: DataFrame, like: DataFrame) -> DataFrame:
    least = cycles.groupBy("channel", "message_id").agg(
        *(F.min(name).alias(name) for name in like.columns if name not in _GIVEN),
        F.first("counts").alias("counts"),
    )
    return least.select(*like.columns)
