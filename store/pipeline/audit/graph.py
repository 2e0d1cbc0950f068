"""The causal graphs of some channels, as arrays: nodes are message IDs, edges lead to parents.

All channels of a table are processed at once, in time and memory linear in its rows and references
(except for sorting edges); the depth of a graph does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Clocks = NDArray[np.uint64]


@dataclass(frozen=True)
class CausalGraph:
    """The graphs of some channels.

    By row: ``row_node``. By node: ``first``, a row of it; ``channel``, the number of its channel;
    ``own``, whether it is audited; ``lamport`` and ``ts``, the least of its rows. By channel:
    ``channel_row``, a row of it. By edge, each once: the node of its ``child`` and of its
    ``parent``, -1 where the parent is not held; ``named`` identifies the parent in the table, and
    its ID is ``ids[named % len(ids)]``.
    """

    ids: pa.Array
    row_node: Numbers
    first: Numbers
    channel: Numbers
    channel_row: Numbers
    own: Flags
    lamport: Clocks
    ts: Numbers
    child: Numbers
    parent: Numbers
    named: Numbers

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.first)

    @property
    def channels(self) -> int:
        """The number of channels."""
        return len(self.channel_row)

    @cached_property
    def has_parent(self) -> Flags:
        """The flag, by edge, whether its parent is held."""
        return self.parent >= 0

    @cached_property
    def loops(self) -> Flags:
        """The flag, by edge, whether an ID names itself."""
        same: Flags = self.parent == self.child
        return same

    @cached_property
    def backward(self) -> Flags:
        """The flag, by edge, whether its parent is held and not before its child by clock."""
        parents = np.maximum(self.parent, 0)
        late: Flags = self.has_parent & (self.lamport[self.child] <= self.lamport[parents])
        return late

    @cached_property
    def incomplete(self) -> Flags:
        """The flag, by node, whether something that is not held is in its past."""
        found = np.zeros(self.nodes, np.bool_)
        found[self.child[~self.has_parent]] = True
        seeds = np.flatnonzero(found)
        if len(seeds):
            found[
                _reached(
                    self.nodes, seeds, self.parent[self.has_parent], self.child[self.has_parent]
                )
            ] = True
        return found

    @cached_property
    def cycle(self) -> Numbers:
        """The number, by node, of the cycle that it is on (a strong component), or -1.

        Without an edge that goes backward by the clocks there is none.
        """
        found = np.full(self.nodes, -1, np.int64)
        if not self.backward.any():
            return found
        matrix = _matrix(self.nodes, self.child[self.has_parent], self.parent[self.has_parent])
        _, component = connected_components(matrix, directed=True, connection="strong")
        several = np.bincount(component)[component] > 1
        several[self.child[self.loops]] = True
        found[several] = component[several]
        return found

    def children(self) -> Numbers:
        """Return by node how many others name it."""
        counted = self.has_parent & ~self.loops
        return np.bincount(self.parent[counted], minlength=self.nodes)

    def parents(self, which: Flags | None = None) -> Numbers:
        """Return by node how many others it names, counting only some edges if they are given."""
        counted = ~self.loops if which is None else ~self.loops & which
        return np.bincount(self.child[counted], minlength=self.nodes)


def graph_of(rows: pa.RecordBatch) -> CausalGraph:
    """Return the graph of rows of `store.pipeline.audit.examine.ROWS`."""
    lists = rows["parents"]
    ids, row_id, named_id = _coded(rows["message_id"], lists.flatten().fill_null(""))
    channel_of_row, channel_row = _channels(rows)
    row_node, names = _distinct(channel_of_row * len(ids) + row_id)
    first = _first_rows(row_node, len(names))
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    child, named = _edges(row_node, lengths.astype(np.int64), channel_of_row, named_id, len(ids))
    found = pc.index_in(pa.array(named), value_set=pa.array(names)).fill_null(-1)
    parent = found.to_numpy(zero_copy_only=False).astype(np.int64)
    lamport = rows["lamport"].fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64)
    ts = rows["ts"].to_numpy(zero_copy_only=False)
    own = rows["own"].to_numpy(zero_copy_only=False)
    return CausalGraph(
        ids=ids,
        row_node=row_node,
        first=first,
        channel=channel_of_row[first],
        channel_row=channel_row,
        own=_combined(np.logical_or, own, row_node, first),
        lamport=_combined(np.minimum, lamport, row_node, first),
        ts=_combined(np.minimum, ts, row_node, first),
        child=child,
        parent=parent,
        named=named,
    )


def _coded(rows: pa.Array, named: pa.Array) -> tuple[pa.Array, Numbers, Numbers]:
    """Return the distinct IDs, and the number of the ID of each row and of each reference."""
    coded = pa.concat_arrays([rows, named]).dictionary_encode()
    numbers = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return coded.dictionary, numbers[: len(rows)], numbers[len(rows) :]


def _channels(rows: pa.RecordBatch) -> tuple[Numbers, Numbers]:
    """Return the number of the channel of each row, and the first row of each channel."""
    coded = rows["channel"].dictionary_encode()
    number = coded.indices.to_numpy().astype(np.int64)
    return number, _first_rows(number, len(coded.dictionary))


def _first_rows(numbers: Numbers, distinct: int) -> Numbers:
    """Return the first row of each of the ``distinct`` numbers."""
    first = np.empty(distinct, np.int64)
    first[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1)
    return first


def _distinct(values: Numbers) -> tuple[Numbers, Numbers]:
    """Return the number of each value among the distinct ones, and these."""
    coded = pa.array(values).dictionary_encode()
    return (
        coded.indices.to_numpy(zero_copy_only=False).astype(np.int64),
        coded.dictionary.to_numpy(zero_copy_only=False),
    )


def _edges(
    row_node: Numbers, lengths: Numbers, channel_of_row: Numbers, named_id: Numbers, ids: int
) -> tuple[Numbers, Numbers]:
    """Return every edge once: the node of its child, and the parent that it names."""
    child = np.repeat(row_node, lengths)
    named = np.repeat(channel_of_row, lengths) * ids + named_id
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
    """Return every node that the edges lead to from the seeds, by a search from one root."""
    tails = np.concatenate([tails, np.full(len(seeds), nodes)])
    matrix = _matrix(nodes + 1, tails, np.concatenate([heads, seeds]))
    order = breadth_first_order(matrix, nodes, directed=True, return_predecessors=False)
    found: Numbers = order[order < nodes].astype(np.int64)
    return found


IdsOf = Callable[[Numbers], list[str]]


def last_complete(graph: CausalGraph, ids_of: IdsOf) -> Numbers:
    """Return by channel the last own node before the first incomplete one, or -1.

    ``ids_of`` gives the IDs of nodes.
    """
    prefix = _prefix(graph, ids_of)
    point = np.full(graph.channels, -1, np.int64)
    newest = np.zeros(graph.channels, np.uint64)
    np.maximum.at(newest, graph.channel[prefix], graph.lamport[prefix])
    last = prefix[graph.lamport[prefix] == newest[graph.channel[prefix]]]
    point[graph.channel[last]] = last
    equal = last[
        np.bincount(graph.channel[last], minlength=graph.channels)[graph.channel[last]] > 1
    ]
    best: dict[int, tuple[str, int]] = {}
    for channel, text, node in zip(
        graph.channel[equal].tolist(), ids_of(equal), equal.tolist(), strict=True
    ):
        best[channel] = max(best.get(channel, (text, node)), (text, node))
    for channel, (_, node) in best.items():
        point[channel] = node
    return point


def _prefix(graph: CausalGraph, ids_of: IdsOf) -> Numbers:
    """Return the own nodes before the first incomplete one of their channel."""
    incomplete = graph.incomplete & graph.own
    first = np.full(graph.channels, np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(first, graph.channel[incomplete], graph.lamport[incomplete])
    broken = np.zeros(graph.channels, np.bool_)
    broken[graph.channel[incomplete]] = True
    limit, bounded = first[graph.channel], broken[graph.channel]
    before: Flags = graph.own & (~bounded | (graph.lamport < limit))
    before[_before_by_id(graph, graph.own & bounded & (graph.lamport == limit), ids_of)] = True
    return np.flatnonzero(before)


def _before_by_id(graph: CausalGraph, equal: Flags, ids_of: IdsOf) -> Numbers:
    """Return the nodes with the clock of the first incomplete one, and with lesser IDs."""
    sound = equal & ~graph.incomplete
    sharing = np.zeros(graph.channels, np.bool_)
    sharing[graph.channel[sound]] = True
    broken = np.flatnonzero(equal & graph.incomplete & sharing[graph.channel])
    least: dict[int, str] = {}
    for channel, text in zip(graph.channel[broken].tolist(), ids_of(broken), strict=True):
        least[channel] = min(least.get(channel, text), text)
    nodes = np.flatnonzero(sound)
    kept = [
        text < least[channel]
        for channel, text in zip(graph.channel[nodes].tolist(), ids_of(nodes), strict=True)
    ]
    return nodes[np.array(kept, np.bool_)]
