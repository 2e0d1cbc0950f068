"""Known conflicts: IDs that this store and a peer hold with different contents.

Nothing resolves such a conflict by itself, so that every session would find it again. The conflicts
of earlier sessions explain a difference of the sums: with the contents of the peer in place of its
own, a side comes to the sum of the peer, which cannot be forged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from reconcile.ids import SyncIds
from reconcile.lattice import LatticeSum
from store.domain.ports import ContentConflict
from store.domain.view import Span
from store.sync.limits import MAX_CONFLICT_PEERS, MAX_KNOWN_CONFLICTS, REMEMBERED_NS
from storenode.common.bounded import BoundedDict
from storenode.message.limits import CONTENT_DIGEST_BYTES


@dataclass(frozen=True, slots=True)
class KnownConflicts:
    """Conflicts with one peer, ascending: the IDs with the digests of each side."""

    conflicts: tuple[ContentConflict, ...] = ()
    _own: SyncIds = field(default_factory=SyncIds.empty)
    _peer: SyncIds = field(default_factory=SyncIds.empty)

    @classmethod
    def of(cls, conflicts: Iterable[ContentConflict]) -> KnownConflicts:
        """Return conflicts in the order of their IDs."""
        ascending = sorted(conflicts, key=lambda each: (each.timestamp, each.message_hash))
        ids = SyncIds.of([(each.timestamp, each.message_hash) for each in ascending])
        own = b"".join(each.own_digest for each in ascending)
        peer = b"".join(each.peer_digest for each in ascending)
        return cls(tuple(ascending), _with_digests(ids, own), _with_digests(ids, peer))

    def within(self, span: Span) -> tuple[ContentConflict, ...]:
        """Return the conflicts in a span of time."""
        first, end = np.searchsorted(self._own.timestamps, span)
        return self.conflicts[first:end]

    def applied(self, span: Span, own_sum: LatticeSum) -> LatticeSum:
        """Return the own sum of a span with the contents of the peer."""
        first, end = np.searchsorted(self._own.timestamps, span)
        if first == end:
            return own_sum
        own, peer = self._own[first:end], self._peer[first:end]
        return own_sum - LatticeSum.of(own.elements) + LatticeSum.of(peer.elements)


NO_CONFLICTS: Final = KnownConflicts()


class ConflictMemory:
    """The known conflicts with all peers of a node; each is forgotten after `REMEMBERED_NS`."""

    def __init__(self) -> None:
        self._peers = BoundedDict[str, dict[bytes, tuple[int, ContentConflict]]](MAX_CONFLICT_PEERS)

    def known(self, peer: str, now_ns: int) -> KnownConflicts:
        """Return what is known of one peer at a time of a monotonic clock."""
        entries = self._peers.get(peer, {})
        conflicts = [each for until_ns, each in entries.values() if now_ns < until_ns]
        return KnownConflicts.of(conflicts) if conflicts else NO_CONFLICTS

    def update(
        self, peer: str, now_ns: int, conflicts: Sequence[ContentConflict], spans: Sequence[Span]
    ) -> None:
        """Replace what is known about spans of time by the conflicts found in them."""
        before = self._peers.get(peer, {})
        entries = {
            digest: entry
            for digest, entry in before.items()
            if now_ns < entry[0]
            and not any(low <= entry[1].timestamp < high for low, high in spans)
        }
        for each in conflicts:
            # A repeated conflict keeps its time: at its end it is searched for again.
            until_ns, _ = before.get(each.message_hash, (now_ns + REMEMBERED_NS, each))
            entries[each.message_hash] = until_ns, each
        for digest in list(entries)[: max(0, len(entries) - MAX_KNOWN_CONFLICTS)]:
            del entries[digest]
        if entries:
            self._peers[peer] = entries
        else:
            self._peers.pop(peer, None)


def _with_digests(ids: SyncIds, digests: bytes) -> SyncIds:
    rows = np.frombuffer(digests, np.uint8).reshape(-1, CONTENT_DIGEST_BYTES)
    return SyncIds(ids.timestamps, ids.hashes, rows)
