"""The last complete point of a channel: up to it, by (Lamport timestamp, ID), all is complete.

Clocks are compared as arrays, and IDs only where clocks are equal.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from store.pipeline.audit.graph import CausalGraph, Flags, Numbers

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
