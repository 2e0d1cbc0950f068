"""What is found in some blocks: a table of rows in, a table of findings out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from store.pipeline.causal.graph import Flags, Graph, Numbers, graph_of
from store.pipeline.causal.points import first_incomplete, last_complete
from store.pipeline.causal.rows import (
    ARROW_FINDINGS,
    BLOCK,
    CLAIMED,
    COUNTS,
    CYCLE,
    DIGEST_BYTES,
    HEAD,
    INCOMPLETE,
    KEPT,
    MISSING,
    NODES,
    ORPHAN,
    VIOLATION,
    Kinds,
)


def examine(rows: pa.RecordBatch, kinds: Kinds) -> Iterator[pa.RecordBatch]:
    """The findings of some ``kinds`` in rows of whole blocks.

    Rows are as `ROWS`, findings as `FINDINGS`. Raises nothing: claims are never too strange.
    """
    look = _Look(rows, graph_of(rows))
    makers = {
        MISSING: look.missing,
        VIOLATION: look.violations,
        INCOMPLETE: lambda: look.listed(INCOMPLETE, look.graph.incomplete),
        HEAD: lambda: look.listed(HEAD, look.heads),
        ORPHAN: lambda: look.listed(ORPHAN, look.orphans),
        CLAIMED: look.claimed,
        CYCLE: look.cycles,
        BLOCK: look.blocks,
        NODES: look.nodes,
    }
    for kind, make in makers.items():
        if kind in kinds:
            found = make()
            if found.num_rows:
                yield found


@dataclass(frozen=True)
class _Look:
    rows: pa.RecordBatch
    graph: Graph

    @property
    def heads(self) -> Flags:
        """Which own nodes nothing that is held names."""
        unnamed: Flags = self.graph.own & (self.graph.children() == 0)
        return unnamed

    @property
    def orphans(self) -> Flags:
        """Which own nodes name parents, none of which is held."""
        graph = self.graph
        lone: Flags = (graph.parents(graph.held) == 0) & (graph.parents() > 0)
        return graph.own & lone

    def missing(self) -> pa.RecordBatch:
        """One finding for every edge of an own node to what is not held."""
        graph = self.graph
        edges = np.flatnonzero(~graph.held)
        return self._found(MISSING, graph.child[edges], self._named(edges))

    def violations(self) -> pa.RecordBatch:
        """One finding for every edge of an own node to a parent that is not before it."""
        edges = np.flatnonzero(self.graph.backward & self.graph.own[self.graph.child])
        return self._found(VIOLATION, self.graph.child[edges], self._named(edges))

    def listed(self, kind: str, which: Flags) -> pa.RecordBatch:
        """One finding for every own node that is marked."""
        return self._found(kind, np.flatnonzero(which & self.graph.own))

    def claimed(self) -> pa.RecordBatch:
        """One finding for every claimant of an own ID that has several."""
        graph = self.graph
        several = graph.own & (np.bincount(graph.row_node, minlength=graph.nodes) > 1)
        rows = np.flatnonzero(several[graph.row_node])
        return self._batch(
            CLAIMED, rows, graph.row_node[rows], ts=self.rows["ts"].take(pa.array(rows))
        )

    def cycles(self) -> pa.RecordBatch:
        """One finding for every node on a cycle, with the least of these as the cycle's name."""
        graph = self.graph
        nodes = np.flatnonzero(graph.cycle >= 0)
        texts = self.rows["message_id"].take(pa.array(graph.first[nodes])).to_pylist()
        names: dict[int, str] = {}
        for number, text in zip(graph.cycle[nodes].tolist(), texts, strict=True):
            names[number] = min(names.get(number, text), text)
        mine = graph.own[nodes]
        named = [names[number] for number in graph.cycle[nodes[mine]].tolist()]
        return self._found(CYCLE, nodes[mine], pa.array(named, pa.string()))

    def blocks(self) -> pa.RecordBatch:
        """One finding for every block that has nodes of its own: counts, last complete point."""
        counted = self._counts()
        kept = np.flatnonzero(counted["messages"] > 0)
        point = last_complete(self.graph, self._ids_of)[kept]
        broken = first_incomplete(self.graph, self._ids_of)[kept]
        clocks = np.where(broken < 0, 0, self.graph.lamport.view(np.int64)[broken])
        numbers = np.stack([*(counted[name][kept] for name in COUNTS), clocks], axis=1)
        offsets = np.arange(len(kept) + 1, dtype=np.int32) * numbers.shape[1]
        about = pa.array(broken, mask=broken < 0)
        return self._batch(
            BLOCK,
            self.graph.block_row[kept],
            point,
            other=self.rows["message_id"].take(pa.array(self.graph.first).take(about)),
            counts=pa.ListArray.from_arrays(pa.array(offsets), pa.array(numbers.reshape(-1))),
        )

    def nodes(self) -> pa.RecordBatch:
        """One finding that has all own nodes, as `KEPT`."""
        graph = self.graph
        nodes = np.flatnonzero(graph.own)
        places = pa.array(graph.first[nodes])
        columns = [
            self.rows["channel"].take(places),
            digests(self.rows["message_id"].take(places)),
            pa.array(graph.lamport.view(np.int64)[nodes]),
            pa.array(graph.incomplete[nodes]),
            pa.array(np.minimum(graph.children()[nodes], 2).astype(np.int8)),
        ]
        kept = pa.RecordBatch.from_arrays(columns, schema=KEPT)
        none = np.full(1, -1)
        data = pa.array([kept.serialize().to_pybytes()])
        return self._batch(NODES, np.zeros(1, np.int64), none, data=data)

    def _counts(self) -> dict[str, Numbers]:
        graph = self.graph
        children, parents = graph.children(), graph.parents()
        owned = graph.own[graph.row_node]
        late = graph.child[graph.backward & graph.own[graph.child]]
        messages = self._per_block(graph.own)
        return {
            "messages": messages,
            "copies": np.bincount(graph.block[graph.row_node[owned]], minlength=graph.blocks)
            - messages,
            "incomplete": self._per_block(graph.incomplete & graph.own),
            "heads": self._per_block(self.heads),
            "roots": self._per_block(graph.own & (parents == 0)),
            "forks": self._per_block(graph.own & (children > 1)),
            "merges": self._per_block(graph.own & (parents > 1)),
            "violations": np.bincount(graph.block[late], minlength=graph.blocks),
            "orphans": self._per_block(self.orphans),
        }

    def _per_block(self, which: Flags) -> Numbers:
        return np.bincount(self.graph.block[which], minlength=self.graph.blocks)

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
        """Findings: where they are, by rows, and what they are about; node -1 is nothing."""
        graph, places = self.graph, pa.array(rows)
        about = pa.array(nodes, mask=nodes < 0)
        columns = {
            "kind": pa.array([kind]).take(pa.array(np.zeros(len(rows), np.int64))),
            "channel": self.rows["channel"].take(places),
            "block": self.rows["block"].take(places),
            "message_id": self.rows["message_id"].take(pa.array(graph.first).take(about)),
            "other": _or_nulls(more.get("other"), len(rows), pa.string()),
            "lamport": pa.array(graph.lamport.view(np.int64)).take(about),
            "ts": pa.array(graph.ts).take(about) if more.get("ts") is None else more["ts"],
            "h0": self.rows["h0"].take(places),
            "counts": _or_nulls(more.get("counts"), len(rows), pa.list_(pa.int64())),
            "data": _or_nulls(more.get("data"), len(rows), pa.binary()),
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=ARROW_FINDINGS)


def digests(ids: pa.Array) -> pa.Array:
    """What stands for IDs in `KEPT`, of each."""
    known = (text.encode() for text in ids.to_pylist())
    joined = b"".join(blake2b(text, digest_size=DIGEST_BYTES).digest() for text in known)
    found = pa.py_buffer(joined)
    fixed = pa.Array.from_buffers(pa.binary(DIGEST_BYTES), len(ids), [None, found])
    return fixed.cast(pa.binary())  # Spark has no type of a fixed width


def _or_nulls(values: pa.Array | None, length: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(length, kind) if values is None else values
