"""The schemas of an audit: claims in, findings out.

A *claim* is a stored SDS message: its channel, the message ID that it claims, and the IDs of its
parents. Several messages may claim one ID. An ID is audited with the parents that any of its
claimants names, the earliest time and the lowest Lamport timestamp.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

CLAIMS: Final = ("channel", "message_id", "lamport", "ts", "h0", "parents")
"""The columns of a history that are read; ``parents`` as (``id``, ``hint``)."""

ROWS: Final = pa.schema(
    [
        ("channel", pa.string()),
        ("message_id", pa.string()),
        ("own", pa.bool_()),
        ("lamport", pa.int64()),
        ("ts", pa.int64()),
        ("h0", pa.int64()),
        ("parents", pa.list_(pa.string())),
    ]
)
"""The rows that are examined, those of a channel together.

``own`` is false for IDs that are held and not audited. ``lamport`` is an unsigned number in a
signed column, null counts as 0. ``ts`` is in nanoseconds, ``h0`` the first word of the hash.
"""

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
"""What is counted of each channel; see docs/pipeline.md, "Auditing"."""

CHANNEL: Final = "channel"
"""The counts of a channel; ``message_id``, ``lamport`` and ``ts`` are its last complete point."""

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
"""An ID on a cycle; ``other`` is the least ID of the cycle, which names it."""

Kinds = frozenset[str]

FINDINGS: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("channel", pa.string()),
        ("message_id", pa.string()),
        ("other", pa.string()),
        ("lamport", pa.int64()),
        ("ts", pa.int64()),
        ("h0", pa.int64()),
        ("counts", pa.list_(pa.int64())),
    ]
)
"""A finding. ``lamport`` and ``ts`` are those of ``message_id``, which for a missing parent is the
message that names it."""

REFERENCES: Final = pa.schema(
    [
        ("channel", pa.string()),
        ("parent", pa.string()),
        ("hint", pa.binary()),
        ("message_id", pa.string()),
        ("sender", pa.string()),
        ("lamport", pa.int64()),
        ("ts", pa.int64()),
        ("hash", pa.binary()),
        ("elsewhere", pa.string()),
    ]
)
"""The messages that name missing parents; ``elsewhere`` is another channel that holds the parent.
"""

CONFLICTS: Final = pa.schema(
    [
        ("channel", pa.string()),
        ("message_id", pa.string()),
        ("claimants", pa.int64()),
        ("contents", pa.int64()),
        ("ts", pa.int64()),
        ("hashes", pa.list_(pa.binary())),
    ]
)
"""IDs that messages with different contents claim."""

CHANNELS: Final = pa.schema(
    [
        ("channel", pa.string()),
        *((name, pa.int64()) for name in (*COUNTS, "missing", "cycles")),
        ("point_message_id", pa.string()),
        ("point_lamport", pa.int64()),
        ("point_ts", pa.int64()),
    ]
)
"""Each channel's counts, and its last complete point (null: there is none)."""
