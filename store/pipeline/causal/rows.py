"""The tables of an audit: claims as they come in, findings as they come out.

A *claim* is a stored SDS message: its channel, the message ID that it claims, and the IDs that it
names as its parents. Several messages may claim one ID; what is audited is the ID, with the parents
that any of its claimants names, the earliest time and the lowest Lamport timestamp.

An ID belongs to a *block*: all of its channel, or where that is large, those of a range of
(Lamport timestamp, ID). A block holds besides its own IDs those of other blocks that have to do
with them, as they are known (``own`` false): parents of its own, perhaps ``tainted``, which says
that their past is incomplete; and children of its own, with only these as parents.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

CLAIMS: Final = ("channel", "message_id", "lamport", "ts", "h0", "parents")
"""What is read of a history; ``parents`` as (``id``, ``hint``)."""

ROWS: Final = StructType(
    [
        StructField("channel", StringType()),
        StructField("block", IntegerType()),
        StructField("message_id", StringType()),
        StructField("own", BooleanType()),
        StructField("tainted", BooleanType()),
        StructField("lamport", LongType()),
        StructField("ts", LongType()),
        StructField("h0", LongType()),
        StructField("parents", ArrayType(StringType())),
    ]
)
"""What is examined, all rows of a block together. ``lamport`` is unsigned in a signed column, null
counts as 0. ``ts`` in nanoseconds, ``h0`` the first word of the message hash."""

COUNTS: Final = (
    "messages",
    "copies",
    "incomplete",
    "heads",
    "roots",
    "forks",
    "merges",
    "violations",
    "orphans",
)
"""What is counted of each block; see docs/pipeline.md, "Auditing"."""

BLOCK: Final = "block"
"""A block's counts; ``message_id``, ``lamport``, ``ts`` are those of its last complete point, null
where it has none. ``other`` is its first incomplete ID, whose clock follows its `COUNTS`."""

MISSING: Final = "missing"
"""``other`` is the parent that is not held."""

INCOMPLETE: Final = "incomplete"
HEAD: Final = "head"
VIOLATION: Final = "violation"
"""``other`` is the parent whose Lamport timestamp is not before the child's."""

ORPHAN: Final = "orphan"
CLAIMED: Final = "claimed"
"""One of several claimants of an ID."""

CYCLE: Final = "cycle"
"""An ID on a cycle; ``other`` is the one that the cycle is named by, its least."""

UNSEARCHED: Final = "unsearched"
"""A channel in which cycles could be so large that they were not looked for."""

NODES: Final = "nodes"
"""All IDs of some blocks as ``data``: `KEPT` as Arrow's bytes, which later audits look up."""

Kinds = frozenset[str]

FINDINGS: Final = StructType(
    [
        StructField("kind", StringType()),
        StructField("channel", StringType()),
        StructField("block", IntegerType()),
        StructField("message_id", StringType()),
        StructField("other", StringType()),
        StructField("lamport", LongType()),
        StructField("ts", LongType()),
        StructField("h0", LongType()),
        StructField("counts", ArrayType(LongType())),
        StructField("data", BinaryType()),
    ]
)
"""What was found. ``lamport`` and ``ts`` are those of ``message_id``, which for a missing parent is
who named it."""

ARROW_FINDINGS: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("channel", pa.string()),
        ("block", pa.int32()),
        ("message_id", pa.string()),
        ("other", pa.string()),
        ("lamport", pa.int64()),
        ("ts", pa.int64()),
        ("h0", pa.int64()),
        ("counts", pa.list_(pa.int64())),
        ("data", pa.binary()),
    ]
)

DIGEST_BYTES: Final = 16
KEPT: Final = pa.schema(
    [
        ("channel", pa.string()),
        ("digest", pa.binary()),
        ("lamport", pa.int64()),
        ("incomplete", pa.bool_()),
        ("children", pa.int8()),
    ]
)
"""IDs that are held, each by a digest of it. ``children`` are 2 where there are more."""
