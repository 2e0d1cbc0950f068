"""Where each claim is examined: all of its channel in one block, or in several where it is large.

A large channel is cut along (Lamport timestamp, message ID), so that nearly all parents are in the
block of their child or the one before. What belongs to two blocks is then known in both of them,
see `pipeline.causal.rows`. What a block holds is bounded, whoever wrote the messages: an ID counts
with `MAX_CLAIMANTS` of its claimants, and with two of its children in other blocks, which is enough
to tell a head and a fork.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.causal.claims import COUNTED, Claims, counted, entries_by_channel
from store.pipeline.causal.limits import MAX_BLOCK_ENTRIES, MAX_CLAIMANTS
from store.pipeline.causal.packed import Buckets
from store.pipeline.causal.rows import ROWS

ID: Final = ("channel", "message_id")
_SIGN: Final = -(2**63)
_CHILDREN: Final = 2
_NAMES: Final = ROWS.fieldNames()
_WEIGHTS: Final = pa.schema([("weights", pa.binary())])
_WEIGHED: Final = 8_192
"""Buckets of channels that are counted: every task sends so many numbers."""

Keep = Callable[[DataFrame], DataFrame]


class Sizes(NamedTuple):
    """All IDs and references of a history, and how many channels are too large for one block."""

    entries: int
    large: int


def sizes(claims: Claims) -> Sizes:
    """Measure a history.

    In one pass, which counts buckets of channels: where none is large, no channel in it is.
    """
    rows = claims.mapped(partial(_weighed, Buckets(_WEIGHED)), _WEIGHTS, COUNTED).collect()
    weights = np.zeros(_WEIGHED, np.int64)
    for row in rows:
        weights += np.frombuffer(row["weights"], np.int64)
    large = weights.max() > MAX_BLOCK_ENTRIES and _large(claims).count()
    return Sizes(int(weights.sum()), int(large))


def _weighed(buckets: Buckets, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    weights = np.zeros(buckets.count, np.int64)
    for rows in counted(batches):
        np.add.at(weights, buckets.of_channels(rows["channel"]), rows["entries"].to_numpy())
    yield pa.record_batch([pa.array([weights.tobytes()])], schema=_WEIGHTS)


def large_channels(claims: Claims) -> DataFrame:
    """(channel) of those that are too large for one block."""
    return F.broadcast(_large(claims))


def rows_of(claims: DataFrame) -> DataFrame:
    """Claims as `ROWS`, each channel one block."""
    return claims.select(
        "channel",
        F.lit(0).alias("block"),
        "message_id",
        F.lit(True).alias("own"),
        F.lit(False).alias("tainted"),
        "lamport",
        "ts",
        "h0",
        F.col("parents.id").alias("parents"),
    )


def outside_rows(outside: DataFrame) -> DataFrame:
    """IDs (channel, message_id, lamport) that are held and not to be audited, as `ROWS`."""
    return _known(outside.withColumn("block", F.lit(0)))


@dataclass(frozen=True)
class Split:
    """Channels of several blocks: ``rows`` as `ROWS`, and ``edges`` to parents that are held.

    ``placed`` are the own rows, with their place in order as ``at``.
    ``edges``: channel, child, child_at, block, parent, parent_at, parent_block (null: held outside
    of what is audited); ``child_at`` and ``parent_at`` are clocks that are in order as signed
    numbers.
    """

    placed: DataFrame
    rows: DataFrame
    edges: DataFrame

    @classmethod
    def of(cls, claims: DataFrame, outside: DataFrame, keep: Keep) -> Split:
        """Cut channels into blocks; ``outside`` as for `outside_rows`.

        ``keep`` has Spark keep a table that is used several times.
        """
        placed = keep(_placed(_bounded(claims)))
        ids = placed.groupBy(*ID).agg(F.min("at").alias("at"), F.first("block").alias("block"))
        edges = keep(_edges(placed, ids, outside))
        across = edges.where(~F.col("parent_block").eqNullSafe(F.col("block")))
        own = placed.select(*_NAMES)
        rows = keep(own.unionByName(_parents(across)).unionByName(_children(across)))
        return cls(placed, rows, edges)


def clock(lamport: str = "lamport") -> Column:
    """A Lamport timestamp as a signed number that is in order; null counts as 0."""
    return F.coalesce(F.col(lamport), F.lit(0)).bitwiseXOR(F.lit(_SIGN))


def _large(claims: Claims) -> DataFrame:
    entries = F.sum("entries").alias("entries")
    summed = entries_by_channel(claims).groupBy("channel").agg(entries)
    return summed.where(F.col("entries") > MAX_BLOCK_ENTRIES).select("channel")


def _bounded(claims: DataFrame) -> DataFrame:
    """The first claimants of each ID, by time and hash."""
    order = Window.partitionBy(*ID).orderBy("ts", "h0")
    return claims.withColumn("rank", F.row_number().over(order)).where(
        F.col("rank") <= MAX_CLAIMANTS
    )


def _placed(claims: DataFrame) -> DataFrame:
    """Claims with the place of their ID in order, ``at``, and the number of its block."""
    weight = F.sum(1 + F.coalesce(F.size("parents.id"), F.lit(0)))
    ids = claims.groupBy(*ID).agg(F.min(clock()).alias("at"), weight.alias("weight"))
    before = (
        Window.partitionBy("channel")
        .orderBy("at", "message_id")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    start = F.sum("weight").over(before) - F.col("weight")
    block = F.floor(start / F.lit(MAX_BLOCK_ENTRIES)).cast("int").alias("block")
    rows = rows_of(claims).drop("block")
    return rows.join(ids.select(*ID, "at", block), list(ID)).select(*_NAMES, "at")


def _edges(placed: DataFrame, ids: DataFrame, outside: DataFrame) -> DataFrame:
    named = placed.select(
        "channel",
        F.col("message_id").alias("child"),
        F.col("at").alias("child_at"),
        "block",
        F.explode("parents").alias("parent"),
    ).distinct()
    held = ids.select(
        "channel",
        F.col("message_id").alias("parent"),
        F.col("at").alias("parent_at"),
        F.col("block").alias("parent_block"),
    ).unionByName(
        outside.select(
            "channel",
            F.col("message_id").alias("parent"),
            clock().alias("parent_at"),
            F.lit(None).cast("int").alias("parent_block"),
        )
    )
    return named.join(held, ["channel", "parent"])


def _parents(across: DataFrame) -> DataFrame:
    """Parents in other blocks, in the blocks of their children."""
    known = across.select(
        "channel",
        "block",
        F.col("parent").alias("message_id"),
        F.col("parent_at").bitwiseXOR(F.lit(_SIGN)).alias("lamport"),
    )
    return _known(known.distinct())


def _children(across: DataFrame) -> DataFrame:
    """Children in other blocks, in the blocks of their parents."""
    order = Window.partitionBy("channel", "parent").orderBy("child")
    first = (
        across.where(F.col("parent_block").isNotNull())
        .select("channel", "child", "child_at", "parent", "parent_block")
        .distinct()
        .withColumn("rank", F.row_number().over(order))
        .where(F.col("rank") <= _CHILDREN)
    )
    known = first.select(
        "channel",
        F.col("parent_block").alias("block"),
        F.col("child").alias("message_id"),
        F.col("child_at").bitwiseXOR(F.lit(_SIGN)).alias("lamport"),
        "parent",
    )
    return _known(known, F.array("parent"))


def _known(ids: DataFrame, parents: Column | None = None) -> DataFrame:
    """IDs (channel, block, message_id, lamport) that are not a block's own, as `ROWS`."""
    none = F.array().cast("array<string>") if parents is None else parents
    return ids.select(
        "channel",
        "block",
        "message_id",
        F.lit(False).alias("own"),
        F.lit(False).alias("tainted"),
        "lamport",
        F.lit(0).cast("long").alias("ts"),
        F.lit(0).cast("long").alias("h0"),
        none.alias("parents"),
    ).select(*_NAMES)
