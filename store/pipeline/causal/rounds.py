"""Gaps followed from block to block, where a channel has several.

A block finds what is incomplete within it. What other blocks refer to of that makes more of theirs
incomplete; only blocks that learn something new are gone through again, until none does. Parents
that are later by the clocks and cycles need nothing of their own here: what is incomplete only ever
grows.
"""

from __future__ import annotations

from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.causal.blocks import ID
from store.pipeline.causal.limits import MAX_ROUNDS
from store.pipeline.causal.passes import examined
from store.pipeline.causal.rows import INCOMPLETE
from store.pipeline.errors import PipelineError
from store.pipeline.progress import Say

_PLACE: Final = ("channel", "block", "message_id")
_ONLY: Final = frozenset({INCOMPLETE})


def settled(rows: DataFrame) -> DataFrame:
    """The same rows, computed now, and kept by two workers as long as somebody has them.

    What is made of them is planned from here on: else plans would grow with each round.
    """
    return rows.localCheckpoint(eager=True, storageLevel=StorageLevel.MEMORY_AND_DISK_2)


def followed(rows: DataFrame, entries: int, say: Say) -> DataFrame:
    """The same rows, with those known from other blocks marked whose past is incomplete.

    Raises:
        PipelineError: that takes more than `MAX_ROUNDS`.
    """
    known = settled(_incomplete(rows, entries))
    fresh = known
    tainted = rows.select(*_PLACE).limit(0)
    for number in range(1, MAX_ROUNDS + 1):
        hit = settled(_referring(rows, fresh))
        touched = hit.select("channel", "block").distinct()
        blocks = touched.count()
        if not blocks:
            return _marked(rows, tainted)
        say(f"audit: round {number}: gaps reach into {blocks:,} more blocks of large channels")
        tainted = settled(tainted.union(hit))
        again = rows.join(touched, ["channel", "block"], "semi")
        found = _incomplete(_marked(again, tainted), entries)
        fresh = settled(found.join(known, list(ID), "anti"))
        known = settled(known.union(fresh))
    raise PipelineError(
        f"Gaps were followed {MAX_ROUNDS:,} times from one part of a large channel into others, and"
        " there is more: audit it in shorter ranges of time, with --from and --to."
    )


def _incomplete(rows: DataFrame, entries: int) -> DataFrame:
    return examined(rows.sparkSession, rows, _ONLY, entries).select(*ID)


def _referring(rows: DataFrame, fresh: DataFrame) -> DataFrame:
    """Where incomplete IDs are known as parents in other blocks."""
    known = rows.where(~F.col("own") & (F.size("parents") == 0))
    return known.join(fresh, list(ID), "semi").select(*_PLACE)


def _marked(rows: DataFrame, tainted: DataFrame) -> DataFrame:
    marks = tainted.withColumn("mark", F.lit(True))
    joined = rows.join(marks, list(_PLACE), "left")
    marked = ~F.col("own") & F.coalesce("mark", F.lit(False))
    return joined.withColumn("tainted", marked).select(*rows.columns)
