"""The causal graphs of some blocks, as arrays: nodes are message IDs, edges lead to parents.

Everything here works on all blocks of a table at once, in time and memory linear in its rows and
references (but for sorting edges); the depth of a graph does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Clocks = NDArray[np.uint64]

_BLOCK_BITS: Final = 32


@dataclass(frozen=True)
class Graph:
    """Blocks as a graph.

    Of each row ``row_node``. Of each node ``first``, a row of it; ``block``, the number of its
    block, where ``block_row`` is a row of each; whether it is ``own`` to the block and ``tainted``;
    its ``lamport`` and ``ts``, the least of its rows. Of each edge, once, the node of its ``child``
    and the node of its ``parent``, or -1 where the parent is not held; ``named`` identifies what
    the edge names within the table, and ``ids`` are the texts: that of ``named`` is
    ``ids[named % len(ids)]``.
    """

    ids: pa.Array
    row_node: Numbers
    first: Numbers
    block: Numbers
    block_row: Numbers
    own: Flags
    tainted: Flags
    lamport: Clocks
    ts: Numbers
    child: Numbers
    parent: Numbers
    named: Numbers

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.first)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.block_row)

    @cached_property
    def held(self) -> Flags:
        """Of each edge, whether its parent is held."""
        return self.parent >= 0

    @cached_property
    def loops(self) -> Flags:
        """Of each edge, whether an ID names itself."""
        same: Flags = self.parent == self.child
        return same

    @cached_property
    def backward(self) -> Flags:
        """Of each edge, whether its parent is held and not before its child by their clocks."""
        parents = np.maximum(self.parent, 0)
        late: Flags = self.held & (self.lamport[self.child] <= self.lamport[parents])
        return late

    @cached_property
    def incomplete(self) -> Flags:
        """Of each node, whether something that is not held is in its past."""
        found = self.tainted.copy()
        found[self.child[~self.held]] = True
        seeds = np.flatnonzero(found)
        if len(seeds):
            found[_reached(self.nodes, seeds, self.parent[self.held], self.child[self.held])] = True
        return found

    @cached_property
    def cycle(self) -> Numbers:
        """Of each node, the number of the cycle that it is on (a strong component), or -1.

        Without an edge that goes backward by the clocks there is none.
        """
        found = np.full(self.nodes, -1, np.int64)
        if not self.backward.any():
            return found
        matrix = _matrix(self.nodes, self.child[self.held], self.parent[self.held])
        _, component = connected_components(matrix, directed=True, connection="strong")
        several = np.bincount(component)[component] > 1
        several[self.child[self.loops]] = True
        found[several] = component[several]
        return found

    def children(self) -> Numbers:
        """Of each node, how many others name it."""
        counted = self.held & ~self.loops
        return np.bincount(self.parent[counted], minlength=self.nodes)

    def parents(self, which: Flags | None = None) -> Numbers:
        """Of each node, how many others it names, counting only some edges if they are given."""
        counted = ~self.loops if which is None else ~self.loops & which
        return np.bincount(self.child[counted], minlength=self.nodes)


def graph_of(rows: pa.RecordBatch) -> Graph:
    """The graph of rows as `store.pipeline.causal.rows.ROWS`."""
    lists = rows["parents"]
    ids, row_id, named_id = _coded(rows["message_id"], lists.flatten().fill_null(""))
    block_of_row, block_row = _blocks(rows)
    row_node, names = _distinct(block_of_row * len(ids) + row_id)
    first = _first_rows(row_node, len(names))
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    child, named = _edges(row_node, lengths.astype(np.int64), block_of_row, named_id, len(ids))
    found = pc.index_in(pa.array(named), value_set=pa.array(names)).fill_null(-1)
    parent = found.to_numpy(zero_copy_only=False).astype(np.int64)
    lamport = rows["lamport"].fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64)
    ts = rows["ts"].to_numpy(zero_copy_only=False)
    own = rows["own"].to_numpy(zero_copy_only=False)
    tainted = rows["tainted"].to_numpy(zero_copy_only=False)
    return Graph(
        ids=ids,
        row_node=row_node,
        first=first,
        block=block_of_row[first],
        block_row=block_row,
        own=_combined(np.logical_or, own, row_node, first),
        tainted=_combined(np.logical_or, tainted, row_node, first),
        lamport=_combined(np.minimum, lamport, row_node, first),
        ts=_combined(np.minimum, ts, row_node, first),
        child=child,
        parent=parent,
        named=named,
    )


def _coded(rows: pa.Array, named: pa.Array) -> tuple[pa.Array, Numbers, Numbers]:
    """All different IDs, and the number of that of each row and of each reference."""
    coded = pa.concat_arrays([rows, named]).dictionary_encode()
    numbers = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return coded.dictionary, numbers[: len(rows)], numbers[len(rows) :]


def _blocks(rows: pa.RecordBatch) -> tuple[Numbers, Numbers]:
    """Of each row the number of its block, and of each block its first row."""
    channel = rows["channel"].dictionary_encode().indices.to_numpy().astype(np.int64)
    number, found = _distinct(channel << _BLOCK_BITS | rows["block"].to_numpy())
    return number, _first_rows(number, len(found))


def _first_rows(numbers: Numbers, distinct: int) -> Numbers:
    """The first row of each of so many different numbers."""
    first = np.empty(distinct, np.int64)
    first[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1)
    return first


def _distinct(values: Numbers) -> tuple[Numbers, Numbers]:
    """The number of each value among the different ones, and these."""
    coded = pa.array(values).dictionary_encode()
    return (
        coded.indices.to_numpy(zero_copy_only=False).astype(np.int64),
        coded.dictionary.to_numpy(zero_copy_only=False),
    )


def _edges(
    row_node: Numbers, lengths: Numbers, block_of_row: Numbers, named_id: Numbers, ids: int
) -> tuple[Numbers, Numbers]:
    """Every edge once: the node of its child, and what it names."""
    child = np.repeat(row_node, lengths)
    named = np.repeat(block_of_row, lengths) * ids + named_id
    order = np.lexsort((named, child)) if len(child) else np.zeros(0, np.int64)
    child, named = child[order], named[order]
    new = np.ones(len(child), np.bool_)
    new[1:] = (child[1:] != child[:-1]) | (named[1:] != named[:-1])
    return child[new], named[new]


def _combined(how: np.ufunc, values: NDArray, row_node: Numbers, first: Numbers) -> NDArray:  # type: ignore[type-arg]
    found = values[first]
    if len(values) > len(first):
        how.at(found, row_node, values)
    return found


def _matrix(nodes: int, tails: Numbers, heads: Numbers) -> csr_array:
    ones = np.ones(len(tails), np.float64)
    return coo_array((ones, (tails, heads)), shape=(nodes, nodes)).tocsr()


def _reached(nodes: int, seeds: Numbers, tails: Numbers, heads: Numbers) -> Numbers:
    """Every node that some edges lead to from the seeds, which they all follow from one root."""
    tails = np.concatenate([tails, np.full(len(seeds), nodes)])
    matrix = _matrix(nodes + 1, tails, np.concatenate([heads, seeds]))
    order = breadth_first_order(matrix, nodes, directed=True, return_predecessors=False)
    found: Numbers = order[order < nodes].astype(np.int64)
    return found
