"""What happens when a message is known to be held: who is told, who has it, what it unblocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from store.domain.unread import UnreadEvent
from store.gossip.core import Core, Pending
from store.gossip.events import (
    Committed,
    GraphEvent,
    Publishing,
    Restored,
    Waiting,
    Wanted,
    What,
)
from store.gossip.graph import graph_events
from store.gossip.limits import MAX_HOLDERS, MAX_PARENT_DEPTH
from store.gossip.peer import Peer
from store.messages.conflicts import is_other_content
from store.messages.record import RecordBatch

_NOBODY: Final = Pending(0, 0)


def with_contents(
    ids: Sequence[bytes], content_digests: Sequence[bytes]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield each ID with its content digest, which is empty where none are given."""
    return zip(ids, content_digests or [b""] * len(ids), strict=True)


class Holding:
    """Takes in what is held, by whichever way that becomes known."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def publishing(self, given: Publishing) -> None:
        """Clients are about to store something."""
        for digest in given.ids:
            self._core.publishing[digest] = given.min_confirms

    def committed(self, given: Committed) -> None:
        """Something is durable."""
        depths = {}
        for digest, content in with_contents(given.ids, given.content_digests):
            depths[digest] = self.hold(digest, content, fresh=given.fresh)
        self.link(given.events, depths if given.fresh else None)

    def persisted(
        self, batch: RecordBatch, new: Sequence[bool], conflicts: Mapping[int, bytes]
    ) -> None:
        """Something that a peer has delivered is durable, but for conflicts: others are held."""
        depths = {}
        for place, (digest, is_new) in enumerate(zip(batch.hashes, new, strict=True)):
            content = conflicts.get(place, batch.content_digests[place])
            depths[digest] = self.hold(digest, content, fresh=is_new)
        refused = {batch.hashes[place] for place in conflicts}
        events = [event for event in graph_events(batch) if event.id not in refused]
        self.link(events, depths)

    def wanted(self, given: Wanted) -> None:
        """A publisher wants confirmations of something that is held."""
        core = self._core
        for digest, content in with_contents(given.ids, given.content_digests):
            self.hold(digest, content, fresh=False)
            core.repeat_confirms(digest)
            core.make_unread(digest, max(given.min_confirms, core.config.max_confirms))
            if digest in core.unread:
                self.announce_again(digest)

    def restored(self, given: Restored) -> None:
        """Unread events of the database."""
        core = self._core
        for event in given.unread:
            self.hold(event.message_hash, event.content_digest, fresh=False)
            core.make_unread(event.message_hash, event.needed, event.age_ns)
            for voice in event.stores:
                core.restore_confirm(event.message_hash, voice)
            if event.missing:
                self._restore_waiting(event)

    def hold(self, digest: bytes, content: bytes = b"", *, fresh: bool) -> int:
        """A message is held: how many generations of children led to it.

        ``fresh`` False: it has been for a while, so that only those are told who have it too.
        ``content``: its content digest, empty where it is not known.
        """
        core, seen = self._core, self._core.seen
        place = seen.place(digest)
        if place >= 0:
            seen.learn_content(place, content)
            if fresh and seen.quiet[place]:
                self._begin(digest, place)
            core.note_waiting(core.waiting.find(digest))
            return 0
        depth, holders = self._origin(digest, content)
        place = seen.add(digest, content, quiet=not fresh)
        seen.holders[place] = holders
        if fresh:
            self._begin(digest, place)
        else:
            self._announce(digest, place, first_hand=False)
        if digest in core.unread:
            for store in core.stores.of_mask(holders):
                core.confirm(digest, store)
        core.note_waiting(core.waiting.find(digest))
        return depth

    def link(self, events: Sequence[GraphEvent], depths: dict[bytes, int] | None) -> None:
        """Take events into the graph; unless ``depths`` is None, ask for parents that miss."""
        core = self._core
        for event in events:
            if event.id in core.graph:
                continue
            core.graph.add(event)
            unknown = [each for each in event.parents if each not in core.seen]
            if unknown and depths is not None:
                self._doubt(event.id, unknown, depths.get(event.id, 0) + 1)

    def guess(self, peer: str, most: int) -> None:
        """A peer has joined: may it have parents that are missing?"""
        core = self._core
        for parent in list(core.waiting.parents(most)):
            if parent not in core.pending:
                self._guess(parent, peer, 1)

    def announce_again(self, digest: bytes) -> None:
        """Announce an unread event to those who have not confirmed it."""
        core = self._core
        for peer in core.peers.values():
            if core.unread.lacks(digest, peer.store.voice) and digest not in peer.pushes:
                self._tell(peer, digest)

    def _origin(self, digest: bytes, content: bytes) -> tuple[int, int]:
        """The generations of children that led to a message, and the stores that hold it."""
        core = self._core
        depth = core.wanted.depth(digest)
        holders = core.holders_of(digest, content)
        pending = core.pending.pop(digest, _NOBODY)
        if not is_other_content(content, pending.content):
            holders |= pending.holders
        return max(depth, pending.depth), holders

    def _begin(self, digest: bytes, place: int) -> None:
        """An event is new: announce it; how many confirmations does it need?"""
        core = self._core
        core.seen.quiet[place] = False
        self._announce(digest, place, first_hand=digest in core.publishing)
        needed = max(core.config.max_confirms, core.publishing.pop(digest, 0))
        if needed:
            core.make_unread(digest, needed)

    def _announce(self, digest: bytes, place: int, *, first_hand: bool) -> None:
        """Tell those who have it, and those who do not, unless it is old; push what is our own.

        Of several peers with one store, one gets the body.
        """
        core = self._core
        holders, quiet = core.seen.holders[place], core.seen.quiet[place]
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

    def _tell(self, peer: Peer, digest: bytes) -> None:
        if not peer.tell(digest, self._core.config.queued_ids):
            self._core.count(What.IDS_UNANNOUNCED, 1)

    def _restore_waiting(self, event: UnreadEvent) -> None:
        """The database has an event waiting for parents; some may have come since."""
        core = self._core
        missing = [parent for parent in event.missing if parent not in core.seen]
        if missing:
            self._doubt(event.message_hash, missing, 1)
            for parent in missing:
                core.waiting.lack(parent)
        if len(missing) < len(event.missing):
            core.note_waiting([event.message_hash])

    def _doubt(self, event: bytes, parents: Sequence[bytes], depth: int) -> None:
        """Some parents of an event may be missing: look, and ask those who have the event."""
        core = self._core
        released = core.waiting.doubt(event, parents)
        core.effects += [Waiting(each, ()) for each in released]
        peers = self._likely(event) if depth <= MAX_PARENT_DEPTH else []
        for parent in parents:
            if parent in core.pending or not core.waiting.awaits(parent):
                continue
            core.wanted.doubt(parent, depth)
            for peer in peers:
                self._guess(parent, peer, depth)

    def _guess(self, parent: bytes, peer: str, depth: int) -> None:
        if not self._core.is_refused(peer, parent):
            self._core.wanted.announce(parent, peer, guess=True, depth=depth)

    def _likely(self, event: bytes) -> list[str]:
        """Peers that may have the parents of an event: those that have it, or else any."""
        core = self._core
        place = core.seen.place(event)
        holders = core.seen.holders[place] if place >= 0 else 0
        having = [key for key, peer in core.peers.items() if holders & peer.store.bit]
        return (having or list(core.peers))[:MAX_HOLDERS]
