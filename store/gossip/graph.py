"""The newest part of the event graph: who names whom as parent, and which events are leaves.

An event is a message with SDS metadata; its parents are the hints in its causal history. All of
these are claims of its publisher: a parent may be unknown, or no event, or named in a
circle. A *leaf* is an event that no event known here names as parent ("Leaves"); with circles
there may be none. The newest `GossipLimits.graph_events` are remembered, in the order in which
they were committed, with `_EDGES_PER_EVENT` times as many edges at most.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from store.gossip.events import GraphEvent
from store.gossip.limits import MAX_PARENTS
from store.messages.record import RecordBatch
from storenode.message.limits import HASH_BYTES
from storenode.wire.storenode.v1.peer_pb2 import Inventory

_EDGES_PER_EVENT: Final = 4


def graph_events(batch: RecordBatch) -> list[GraphEvent]:
    """Return the events of a batch: messages with SDS metadata, and hints that are hashes."""
    found = []
    for index, metadata in zip(batch.sds_index, batch.sds, strict=True):
        digest = batch.hashes[index]
        hints = dict.fromkeys(
            hint for _, hint in metadata.parents if hint and len(hint) == HASH_BYTES
        )
        hints.pop(digest, None)
        parents = tuple(islice(hints, MAX_PARENTS))
        content = batch.content_digests[index]
        found.append(GraphEvent(digest, batch.timestamps[index], parents, content))
    return found


class Graph:
    """Events, their children and their leaves.

    ``version`` grows with every change of the leaves.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._edge_limit = _EDGES_PER_EVENT * limit
        self._edges = 0
        self._events: OrderedDict[bytes, GraphEvent] = OrderedDict()
        self._children: dict[bytes, list[bytes]] = {}
        self._named: set[bytes] = set()  # by events that are forgotten
        self._leaves: list[tuple[int, bytes]] = []  # ascending
        self._xor = 0
        self.version = 0

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self._events)

    def __contains__(self, digest: bytes) -> bool:
        """Return True for an event in the graph."""
        return digest in self._events

    def add(self, event: GraphEvent) -> None:
        """Add an event, unless it is there."""
        if event.id in self._events or len(event.parents) > self._edge_limit:
            return
        self._events[event.id] = event
        self._edges += len(event.parents)
        for parent in event.parents:
            siblings = self._children.setdefault(parent, [])
            siblings.append(event.id)
            if (known := self._events.get(parent)) is not None and self._is_leaf(known):
                self._toggle(known, leaf=False)
        if event.id not in self._children:
            self._toggle(event, leaf=True)
        while len(self._events) > self._limit or self._edges > self._edge_limit:
            self._forget_oldest()

    def leaves(self, most: int) -> Inventory:
        """Return the newest leaves, newest first, with count and XOR of the others."""
        listed = [digest for _, digest in islice(reversed(self._leaves), most)]
        rest = self._xor
        for digest in listed:
            rest ^= int.from_bytes(digest)
        digests = [self._events[digest].content_digest for digest in listed]
        count = len(self._leaves) - len(listed)
        leaves = Inventory(ids=listed, content_digests=digests if any(digests) else ())
        if count:
            leaves.rest_xor, leaves.rest_count = rest.to_bytes(HASH_BYTES), count
        return leaves

    def newer_leaves(self, than: Iterable[bytes], most: int) -> Iterator[bytes]:
        """Yield the newest leaves, down to the oldest of some events in the graph."""
        known = [self._events[each].timestamp_ns for each in than if each in self._events]
        floor_ns = min(known, default=0)
        for timestamp_ns, digest in islice(reversed(self._leaves), most):
            if timestamp_ns < floor_ns:
                return
            yield digest

    def descendants(self, digests: Iterable[bytes], most: int) -> list[bytes]:
        """Return children of messages, their children, and so on, by a bounded number of edges."""
        found, queue, edges = dict[bytes, None](), deque(digests), _EDGES_PER_EVENT * most
        while queue and edges and len(found) < most:
            for child in islice(self._children.get(queue.popleft(), ()), edges):
                edges -= 1
                if child not in found and len(found) < most:
                    found[child] = None
                    queue.append(child)
        return list(found)

    def check(self) -> None:
        """Raise AssertionError if an invariant or a bound is broken."""
        assert len(self._events) <= self._limit
        assert self._named <= self._events.keys()
        edges = sum(len(event.parents) for event in self._events.values())
        assert edges == self._edges == sum(map(len, self._children.values())) <= self._edge_limit
        leaves = {
            (event.timestamp_ns, event.id)
            for event in self._events.values()
            if event.id not in self._children and event.id not in self._named
        }
        assert sorted(leaves) == self._leaves
        xor = 0
        for _, digest in leaves:
            xor ^= int.from_bytes(digest)
        assert xor == self._xor

    def _is_leaf(self, event: GraphEvent) -> bool:
        key = event.timestamp_ns, event.id
        place = bisect_left(self._leaves, key)
        return self._leaves[place : place + 1] == [key]

    def _toggle(self, event: GraphEvent, *, leaf: bool) -> None:
        key = event.timestamp_ns, event.id
        if leaf:
            insort(self._leaves, key)
        else:
            del self._leaves[bisect_left(self._leaves, key)]
        self._xor ^= int.from_bytes(event.id)
        self.version += 1

    def _forget_oldest(self) -> None:
        digest, event = self._events.popitem(last=False)
        if self._is_leaf(event):
            self._toggle(event, leaf=False)
        self._named.discard(digest)
        self._edges -= len(event.parents)
        for parent in event.parents:
            siblings = self._children[parent]
            siblings.remove(digest)
            if not siblings:
                del self._children[parent]
                if parent in self._events:
                    self._named.add(parent)
