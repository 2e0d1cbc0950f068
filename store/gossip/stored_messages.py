"""The handling of stored messages: announcements, confirmations and waiting children."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from store.domain.unread import UnreadEvent
from store.gossip.core import Core, Pending
from store.gossip.events import (
    Committed,
    ConfirmationsWanted,
    GossipCounter,
    GraphEvent,
    Restored,
    Waiting,
)
from store.gossip.graph import graph_events
from store.gossip.limits import MAX_HOLDERS, MAX_PARENT_DEPTH
from store.gossip.peer import GossipPeer
from store.messages.conflicts import is_other_content
from store.messages.record import RecordBatch

_NOT_PENDING: Final = Pending(0, 0)


def with_contents(
    ids: Sequence[bytes], content_digests: Sequence[bytes]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield each ID with its content digest, which is empty where none are given."""
    return zip(ids, content_digests or [b""] * len(ids), strict=True)


class StoredMessages:
    """The part of the machine that handles messages which are stored here."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def committed(self, given: Committed) -> None:
        """Handle committed messages."""
        depths = {}
        for digest, content in with_contents(given.ids, given.content_digests):
            needed = given.published.get(digest)
            depths[digest] = self.hold(digest, content, fresh=given.fresh, needed=needed)
        self.link(given.events, depths if given.fresh else None)

    def persisted(
        self, batch: RecordBatch, new: Sequence[bool], conflicts: Mapping[int, bytes]
    ) -> None:
        """Handle delivered messages that are stored now, but for conflicts."""
        depths = {}
        for place, (digest, is_new) in enumerate(zip(batch.hashes, new, strict=True)):
            content = conflicts.get(place, batch.content_digests[place])
            depths[digest] = self.hold(digest, content, fresh=is_new)
        refused = {batch.hashes[place] for place in conflicts}
        events = [event for event in graph_events(batch) if event.id not in refused]
        self.link(events, depths)

    def wanted(self, given: ConfirmationsWanted) -> None:
        """Request confirmations of stored messages."""
        core = self._core
        for digest, content in with_contents(given.ids, given.content_digests):
            self.hold(digest, content, fresh=False)
            core.repeat_confirms(digest)
            core.make_unread(digest, max(given.min_confirms, core.config.max_confirms))
            if digest in core.unread:
                self.announce_again(digest)

    def restored(self, given: Restored) -> None:
        """Restore unread events of the database."""
        core = self._core
        for event in given.unread:
            self.hold(event.message_hash, event.content_digest, fresh=False)
            core.make_unread(event.message_hash, event.needed, event.age_ns)
            for voice in event.stores:
                core.restore_confirm(event.message_hash, voice)
            if event.missing:
                self._restore_waiting(event)

    def hold(
        self, digest: bytes, content: bytes = b"", *, fresh: bool, needed: int | None = None
    ) -> int:
        """Note that a message is stored; return how many generations of children led to it.

        ``fresh`` False: it has been for a while, and is announced only to peers that have it too.
        ``content``: its content digest, empty where it is not known. ``needed``: the confirmations
        that its publisher wants; None: no client of this node published it.
        """
        core, recent = self._core, self._core.recent
        place = recent.place(digest)
        if place >= 0:
            recent.learn_content(place, content)
            if fresh and recent.quiet[place]:
                self._begin(digest, place, needed)
            core.note_waiting(core.incomplete.find(digest))
            return 0
        depth, holders = self._origin(digest, content)
        place = recent.add(digest, content, quiet=not fresh)
        recent.holders[place] = holders
        if fresh:
            self._begin(digest, place, needed)
        else:
            self._announce(digest, place, first_hand=False)
        if digest in core.unread:
            for store in core.stores.of_mask(holders):
                core.confirm(digest, store)
        core.note_waiting(core.incomplete.find(digest))
        return depth

    def link(self, events: Sequence[GraphEvent], depths: dict[bytes, int] | None) -> None:
        """Add events to the graph; unless ``depths`` is None, request missing parents."""
        core = self._core
        for event in events:
            if event.id in core.graph:
                continue
            core.graph.add(event)
            unknown = [each for each in event.parents if each not in core.recent]
            if unknown and depths is not None:
                self._doubt(event.id, unknown, depths.get(event.id, 0) + 1)

    def guess(self, peer: str, most: int) -> None:
        """Request missing parents from a peer that has joined."""
        core = self._core
        for parent in list(core.incomplete.parents(most)):
            if parent not in core.pending:
                self._guess(parent, peer, 1)

    def announce_again(self, digest: bytes) -> None:
        """Announce an unread event to peers that have not confirmed it."""
        core = self._core
        for peer in core.peers.values():
            if core.unread.lacks(digest, peer.store.voice) and digest not in peer.pushes:
                self._tell(peer, digest)

    def _origin(self, digest: bytes, content: bytes) -> tuple[int, int]:
        """Return the generations of children that led to a message, and the stores that have it."""
        core = self._core
        depth = core.fetches.depth(digest)
        holders = core.holders_of(digest, content)
        pending = core.pending.pop(digest, _NOT_PENDING)
        if not is_other_content(content, pending.content):
            holders |= pending.holders
        return max(depth, pending.depth), holders

    def _begin(self, digest: bytes, place: int, wanted: int | None) -> None:
        """Announce a new event, and wait for the confirmations that it needs."""
        core = self._core
        core.recent.quiet[place] = False
        self._announce(digest, place, first_hand=wanted is not None)
        needed = max(core.config.max_confirms, wanted or 0)
        if needed:
            core.make_unread(digest, needed)

    def _announce(self, digest: bytes, place: int, *, first_hand: bool) -> None:
        """Announce a message, unless it is old, and push it if a client of this node published it.

        Of several peers with one store, one gets the body.
        """
        core = self._core
        holders, quiet = core.recent.holders[place], core.recent.quiet[place]
        for peer in core.peers.values():
            if holders & peer.store.bit:
                peer.answer(digest, core.config.queued_ids)
            elif quiet:
                continue
            elif first_hand and len(peer.pushes) < core.config.pushed_ids:
                holders |= peer.store.bit
                peer.pushes[digest] = None
            else:
                self._tell(peer, digest)

    def _tell(self, peer: GossipPeer, digest: bytes) -> None:
        if not peer.tell(digest, self._core.config.queued_ids):
            self._core.count(GossipCounter.IDS_UNANNOUNCED, 1)

    def _restore_waiting(self, event: UnreadEvent) -> None:
        """Restore an event that waits for parents; some may have come since."""
        core = self._core
        missing = [parent for parent in event.missing if parent not in core.recent]
        if missing:
            self._doubt(event.message_hash, missing, 1)
            for parent in missing:
                core.incomplete.lack(parent)
        if len(missing) < len(event.missing):
            core.note_waiting([event.message_hash])

    def _doubt(self, event: bytes, parents: Sequence[bytes], depth: int) -> None:
        """Look up parents of an event, and request them from peers that have the event."""
        core = self._core
        released = core.incomplete.doubt(event, parents)
        core.effects += [Waiting(each, ()) for each in released]
        peers = self._likely(event) if depth <= MAX_PARENT_DEPTH else []
        for parent in parents:
            if parent in core.pending or not core.incomplete.awaits(parent):
                continue
            core.fetches.doubt(parent, depth)
            for peer in peers:
                self._guess(parent, peer, depth)

    def _guess(self, parent: bytes, peer: str, depth: int) -> None:
        if not self._core.is_refused(peer, parent):
            self._core.fetches.announce(parent, peer, guess=True, depth=depth)

    def _likely(self, event: bytes) -> list[str]:
        """Return peers that may have the parents of an event: those that have it, or else any."""
        core = self._core
        place = core.recent.place(event)
        holders = core.recent.holders[place] if place >= 0 else 0
        having = [key for key, peer in core.peers.items() if holders & peer.store.bit]
        return (having or list(core.peers))[:MAX_HOLDERS]
