"""The findings in some channels: a table of claims in, tables of findings out.

A *claim* is a stored SDS message: its channel, the message ID that it claims, and the IDs of its
parents. Several messages may claim one ID. An ID is audited with the parents that any of its
claimants names, the earliest time and the lowest Lamport timestamp.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from store.pipeline.audit.graph import CausalGraph, Flags, Numbers, graph_of, last_complete

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
"""The counters of each channel; see docs/pipeline.md, "Auditing"."""

CHANNEL: Final = "channel"
"""The counts of a channel; ``message_id``, ``lamport`` and ``ts`` are its last complete point."""

MISSING: Final = "missing"
"""A missing parent, which is ``other``."""

VIOLATION: Final = "violation"
"""A Lamport violation: the timestamp of the parent ``other`` is not before the child's."""

CLAIMED: Final = "claimed"
"""A message that claims an ID together with others."""

CYCLE: Final = "cycle"
"""An ID on a cycle; ``other`` is the least ID of the cycle, which names it."""

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
    ]
)
"""The messages that name missing parents."""

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
"""The counts of a channel, and its last complete point (null: there is none)."""

RESULTS: Final[Mapping[str, pa.Schema]] = {
    "channels": CHANNELS,
    "references": REFERENCES,
    "faults": FINDINGS,
    "conflicts": CONFLICTS,
}
"""The results of an audit; ``faults`` are the violations and cycles."""


def examine(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the findings in rows of whole channels.

    Rows are as `ROWS`, findings as `FINDINGS`. Nothing is raised, whatever is claimed.
    """
    look = _Examination(rows, graph_of(rows))
    yield from (look.missing(), look.violations(), look.claimed(), look.cycles(), look.channels())


@dataclass(frozen=True)
class _Examination:
    rows: pa.RecordBatch
    graph: CausalGraph

    @property
    def heads(self) -> Flags:
        """The own nodes that nothing that is held names."""
        unnamed: Flags = self.graph.own & (self.graph.children() == 0)
        return unnamed

    @property
    def orphans(self) -> Flags:
        """The own nodes that name parents, none of which is held."""
        graph = self.graph
        lone: Flags = (graph.parents(graph.has_parent) == 0) & (graph.parents() > 0)
        return graph.own & lone

    def missing(self) -> pa.RecordBatch:
        """Return a finding for every edge of an own node to a parent that is not held."""
        graph = self.graph
        edges = np.flatnonzero(~graph.has_parent)
        return self._found(MISSING, graph.child[edges], self._named(edges))

    def violations(self) -> pa.RecordBatch:
        """Return a finding for every edge of an own node to a parent that is not before it."""
        edges = np.flatnonzero(self.graph.backward & self.graph.own[self.graph.child])
        return self._found(VIOLATION, self.graph.child[edges], self._named(edges))

    def claimed(self) -> pa.RecordBatch:
        """Return a finding for every claimant of an own ID that has several."""
        graph = self.graph
        several = graph.own & (np.bincount(graph.row_node, minlength=graph.nodes) > 1)
        rows = np.flatnonzero(several[graph.row_node])
        return self._batch(
            CLAIMED, rows, graph.row_node[rows], ts=self.rows["ts"].take(pa.array(rows))
        )

    def cycles(self) -> pa.RecordBatch:
        """Return a finding for every node on a cycle, with the least of these as its name."""
        graph = self.graph
        nodes = np.flatnonzero(graph.cycle >= 0)
        texts = self.rows["message_id"].take(pa.array(graph.first[nodes])).to_pylist()
        names: dict[int, str] = {}
        for number, text in zip(graph.cycle[nodes].tolist(), texts, strict=True):
            names[number] = min(names.get(number, text), text)
        mine = graph.own[nodes]
        named = [names[number] for number in graph.cycle[nodes[mine]].tolist()]
        return self._found(CYCLE, nodes[mine], pa.array(named, pa.string()))

    def channels(self) -> pa.RecordBatch:
        """Return a finding for every channel with own nodes: counts, last complete point."""
        counted = self._counts()
        kept = np.flatnonzero(counted["messages"] > 0)
        numbers = np.stack([counted[name][kept] for name in COUNTS], axis=1)
        offsets = np.arange(len(kept) + 1, dtype=np.int32) * numbers.shape[1]
        return self._batch(
            CHANNEL,
            self.graph.channel_row[kept],
            last_complete(self.graph, self._ids_of)[kept],
            counts=pa.ListArray.from_arrays(pa.array(offsets), pa.array(numbers.reshape(-1))),
        )

    def _counts(self) -> dict[str, Numbers]:
        graph = self.graph
        children, parents = graph.children(), graph.parents()
        owned = graph.own[graph.row_node]
        late = graph.child[graph.backward & graph.own[graph.child]]
        messages = self._per_channel(graph.own)
        return {
            "messages": messages,
            "copies": np.bincount(graph.channel[graph.row_node[owned]], minlength=graph.channels)
            - messages,
            "incomplete": self._per_channel(graph.incomplete & graph.own),
            "heads": self._per_channel(self.heads),
            "roots": self._per_channel(graph.own & (parents == 0)),
            "forks": self._per_channel(graph.own & (children > 1)),
            "merges": self._per_channel(graph.own & (parents > 1)),
            "violations": np.bincount(graph.channel[late], minlength=graph.channels),
            "orphans": self._per_channel(self.orphans),
        }

    def _per_channel(self, which: Flags) -> Numbers:
        return np.bincount(self.graph.channel[which], minlength=self.graph.channels)

    def _named(self, edges: Numbers) -> pa.Array:
        graph = self.graph
        return graph.ids.take(pa.array(graph.named[edges] % max(1, len(graph.ids))))

    def _ids_of(self, nodes: Numbers) -> list[str]:
        found: list[str] = (
            self.rows["message_id"].take(pa.array(self.graph.first[nodes])).to_pylist()
        )
        return found

    def _found(self, kind: str, nodes: Numbers, other: pa.Array | None = None) -> pa.RecordBatch:
        return self._batch(kind, self.graph.first[nodes], nodes, other=other)

    def _batch(
        self, kind: str, rows: Numbers, nodes: Numbers, **more: pa.Array | None
    ) -> pa.RecordBatch:
        """Return findings at some rows, about some nodes; node -1 is none."""
        graph, places = self.graph, pa.array(rows)
        about = pa.array(nodes, mask=nodes < 0)
        columns = {
            "kind": pa.array([kind]).take(pa.array(np.zeros(len(rows), np.int64))),
            "channel": self.rows["channel"].take(places),
            "message_id": self.rows["message_id"].take(pa.array(graph.first).take(about)),
            "other": _or_nulls(more.get("other"), len(rows), pa.string()),
            "lamport": pa.array(graph.lamport.view(np.int64)).take(about),
            "ts": pa.array(graph.ts).take(about) if more.get("ts") is None else more["ts"],
            "h0": self.rows["h0"].take(places),
            "counts": _or_nulls(more.get("counts"), len(rows), pa.list_(pa.int64())),
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=FINDINGS)


def _or_nulls(values: pa.Array | None, length: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(length, kind) if values is None else values
