"""The last complete point of a block: up to where, by (Lamport timestamp, ID), all is complete.

Clocks are compared as arrays, and IDs only where clocks are equal.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from store.pipeline.causal.graph import Flags, Graph, Numbers

IdsOf = Callable[[Numbers], list[str]]


def last_complete(graph: Graph, ids_of: IdsOf) -> Numbers:
    """Of each block its own node that is the last before the first incomplete one, or -1.

    ``ids_of`` gives the IDs of nodes.
    """
    prefix = _prefix(graph, ids_of)
    point = np.full(graph.blocks, -1, np.int64)
    newest = np.zeros(graph.blocks, np.uint64)
    np.maximum.at(newest, graph.block[prefix], graph.lamport[prefix])
    last = prefix[graph.lamport[prefix] == newest[graph.block[prefix]]]
    point[graph.block[last]] = last
    equal = last[np.bincount(graph.block[last], minlength=graph.blocks)[graph.block[last]] > 1]
    best: dict[int, tuple[str, int]] = {}
    for block, text, node in zip(
        graph.block[equal].tolist(), ids_of(equal), equal.tolist(), strict=True
    ):
        best[block] = max(best.get(block, (text, node)), (text, node))
    for block, (_, node) in best.items():
        point[block] = node
    return point


def first_incomplete(graph: Graph, ids_of: IdsOf) -> Numbers:
    """Of each block its first incomplete own node, or -1; arguments as of `last_complete`."""
    nodes = np.flatnonzero(graph.incomplete & graph.own)
    first = np.full(graph.blocks, -1, np.int64)
    oldest = np.full(graph.blocks, np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(oldest, graph.block[nodes], graph.lamport[nodes])
    nodes = nodes[graph.lamport[nodes] == oldest[graph.block[nodes]]]
    first[graph.block[nodes]] = nodes
    equal = nodes[np.bincount(graph.block[nodes], minlength=graph.blocks)[graph.block[nodes]] > 1]
    best: dict[int, tuple[str, int]] = {}
    for block, text, node in zip(
        graph.block[equal].tolist(), ids_of(equal), equal.tolist(), strict=True
    ):
        best[block] = min(best.get(block, (text, node)), (text, node))
    for block, (_, node) in best.items():
        first[block] = node
    return first


def _prefix(graph: Graph, ids_of: IdsOf) -> Numbers:
    """The own nodes before the first incomplete one of their block."""
    incomplete = graph.incomplete & graph.own
    first = np.full(graph.blocks, np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(first, graph.block[incomplete], graph.lamport[incomplete])
    broken = np.zeros(graph.blocks, np.bool_)
    broken[graph.block[incomplete]] = True
    limit, bounded = first[graph.block], broken[graph.block]
    before: Flags = graph.own & (~bounded | (graph.lamport < limit))
    before[_before_by_id(graph, graph.own & bounded & (graph.lamport == limit), ids_of)] = True
    return np.flatnonzero(before)


def _before_by_id(graph: Graph, equal: Flags, ids_of: IdsOf) -> Numbers:
    """Of nodes whose clocks are that of the first incomplete one: those with lesser IDs."""
    sound = equal & ~graph.incomplete
    sharing = np.zeros(graph.blocks, np.bool_)
    sharing[graph.block[sound]] = True
    broken = np.flatnonzero(equal & graph.incomplete & sharing[graph.block])
    least: dict[int, str] = {}
    for block, text in zip(graph.block[broken].tolist(), ids_of(broken), strict=True):
        least[block] = min(least.get(block, text), text)
    nodes = np.flatnonzero(sound)
    kept = [
        text < least[block]
        for block, text in zip(graph.block[nodes].tolist(), ids_of(nodes), strict=True)
    ]
    return nodes[np.array(kept, np.bool_)]
