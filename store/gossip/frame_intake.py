"""The handling of frames of peers."""

from __future__ import annotations

from collections.abc import Sequence

from store.gossip import scores
from store.gossip.core import Core, Pending, Request
from store.gossip.events import (
    Bodies,
    FrameIn,
    GetEvents,
    GossipCounter,
    Inventory,
    PersistBatch,
    SyncLeaves,
)
from store.gossip.limits import DESCENDANT_IDS, REFUSED_NS, TOO_NEW_NS
from store.gossip.peer import GossipPeer
from store.gossip.stored_messages import with_contents
from store.messages.record import RecordBatch
from storenode.message.limits import HASH_BYTES

_TOO_NEW = "too_new"
"""The label of admission for a message whose time has not come (`rules.Reason`)."""

_LEAVES_SHARE = 4
"""Leaves may come so many times as often as they are due."""


class FrameIntake:
    """The part of the machine that handles received frames."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def take(self, peer: GossipPeer, frame: FrameIn) -> None:
        """Handle a frame; a fault adds points to the peer."""
        core = self._core
        core.fetches.note_frame(core.now_ns, peer.key)
        if core.slowed(peer.key):
            peer.rest_ns = core.now_ns + core.config.slow_ns
        if isinstance(frame, Bodies):
            self._bodies(peer, frame)
        elif self._is_sound(peer, frame.ids):
            core.count(GossipCounter.IDS_RECEIVED, len(frame.ids))
            match frame:
                case Inventory():
                    self._inventory(peer, frame)
                case GetEvents():
                    self._get_events(peer, frame.ids)
                case SyncLeaves():
                    self._leaves(peer, frame)

    def _is_sound(self, peer: GossipPeer, ids: Sequence[bytes]) -> bool:
        most = self._core.config.max_frame_ids
        if len(ids) > most:
            problem = f"a frame has {len(ids):,} IDs: send at most {most:,} at once"
        elif any(len(digest) != HASH_BYTES for digest in ids):
            problem = f"an ID is not {HASH_BYTES} bytes: send message hashes"
        else:
            return True
        self._core.fault(peer.key, scores.PROTOCOL_POINTS, problem)
        return False

    # Inventories

    def _inventory(self, peer: GossipPeer, inventory: Inventory) -> None:
        """Note which messages a peer has; a repeated announcement is answered again.

        An announcement that is made again expects an answer, which is not answered in turn.
        """
        core, recent = self._core, self._core.recent
        repeated = dropped = 0
        for digest, content in with_contents(inventory.ids, inventory.content_digests):
            place = recent.place(digest)
            if place < 0:
                dropped += not self._announced(peer, digest, content)
                continue
            if core.differs_here(peer.key, digest, place, content):
                if not recent.notified[place] & peer.bit:
                    peer.answer(digest, core.config.queued_ids)
                continue
            known = not core.mark_holder(digest, place, peer.store)
            if not recent.notified[place] & peer.bit:
                peer.answer(digest, core.config.queued_ids)
            elif recent.expecting[place] & peer.bit:
                recent.expecting[place] &= ~peer.bit
            elif known:
                repeated += 1
                peer.answer(digest, core.config.queued_ids)
        if repeated:
            reason = "what is announced was announced before: announce unread events, at intervals"
            core.fault(peer.key, scores.REPEATED_ID_POINTS * repeated, reason)
        self._note_dropped(peer, dropped)

    def _announced(self, peer: GossipPeer, digest: bytes, content: bytes) -> bool:
        """Note an announced message that may be missing; return False if too many wait already."""
        core = self._core
        pending = core.pending.get(digest)
        if pending is not None:
            if not core.differs(peer.key, digest, pending.content, content):
                pending.holders |= peer.store.bit
            return True
        if core.is_refused(peer.key, digest):
            return True
        return core.fetches.announce(digest, peer.key, content)

    def _note_dropped(self, peer: GossipPeer, dropped: int) -> None:
        core = self._core
        if not dropped:
            return
        core.count(GossipCounter.IDS_DROPPED, dropped)
        is_ours = core.failing or core.looking or peer.unstored_frames
        if not is_ours:
            most = core.config.announced_ids
            reason = f"more than {most:,} announced messages have not come: deliver them first"
            core.fault(peer.key, scores.OVERFLOW_POINTS, reason)

    # Requests

    def _get_events(self, peer: GossipPeer, ids: Sequence[bytes]) -> None:
        core, recent = self._core, self._core.recent
        again = dropped = 0
        for digest in ids:
            place = recent.place(digest)
            if place >= 0:
                again += bool(recent.sent_to[place] & peer.bit)
            if digest in peer.asked or digest in peer.batch.under_way:
                continue
            if len(peer.asked) >= core.config.asked_ids:
                dropped += 1
                continue
            peer.pushes.pop(digest, None)
            peer.asked[digest] = None
        if again:
            reason = "bodies are asked for again that were sent: keep them"
            core.fault(peer.key, scores.ASKED_AGAIN_POINTS * again, reason)
        if dropped:
            core.count(GossipCounter.IDS_DROPPED, dropped)
            reason = f"more than {core.config.asked_ids:,} bodies are asked for: wait for them"
            core.fault(peer.key, scores.OVERFLOW_POINTS, reason)

    # Bodies

    def _bodies(self, peer: GossipPeer, frame: Bodies) -> None:
        core = self._core
        core.count(GossipCounter.BODIES_RECEIVED, len(frame.batch) + len(frame.refused))
        fresh = self._sort(peer, frame.batch)
        for digest, label in frame.refused:
            core.count(GossipCounter.REFUSED, 1, label)
            if digest:
                self._refuse(peer, digest, label)
        if frame.refused:
            core.fault_lightly(peer.key, scores.REFUSED_POINTS * len(frame.refused))
        if fresh:
            batch = frame.batch if len(fresh) == len(frame.batch) else frame.batch.select(fresh)
            peer.unstored_bytes += frame.size_bytes
            peer.unstored_frames += 1
            persist = PersistBatch(core.token(), peer.key, batch)
            core.request(Request(persist, peer, frame.size_bytes))

    def _sort(self, peer: GossipPeer, batch: RecordBatch) -> list[int]:
        """Return the places of messages that are to be stored."""
        core = self._core
        fresh, repeated, asked = [], 0, False
        for index, digest in enumerate(batch.hashes):
            content = batch.content_digests[index]
            solicited = core.fetches.is_asked(digest, peer.key)
            asked |= solicited
            place = core.recent.place(digest)
            pending = core.pending.get(digest)
            if place >= 0:
                repeated += self._receive_stored(peer, digest, place, content)
            elif pending is not None:
                repeated += peer.key in pending.peers
                pending.peers[peer.key] = None
                if not core.differs(peer.key, digest, pending.content, content):
                    pending.holders |= peer.store.bit
            else:
                fresh.append(index)
                self._await(peer, digest, content)
        if asked:
            core.fetches.delivered(core.now_ns, peer.key)
        if repeated:
            core.count(GossipCounter.BODIES_REPEATED, repeated)
            reason = "bodies come again that nobody has asked for: send each once"
            core.fault(peer.key, scores.REPEATED_BODY_POINTS * repeated, reason)
        return fresh

    def _receive_stored(self, peer: GossipPeer, digest: bytes, place: int, content: bytes) -> bool:
        core, recent = self._core, self._core.recent
        if not core.differs_here(peer.key, digest, place, content):
            core.mark_holder(digest, place, peer.store)
        if not recent.notified[place] & peer.bit:
            peer.answer(digest, core.config.queued_ids)
        if recent.received_from[place] & peer.bit:
            return True
        recent.received_from[place] |= peer.bit
        return False

    def _await(self, peer: GossipPeer, digest: bytes, content: bytes) -> None:
        """Note that a body is being stored."""
        core = self._core
        depth = core.fetches.depth(digest)
        holders = core.holders_of(digest, content) | peer.store.bit
        core.pending[digest] = Pending(depth, holders, content, {peer.key: None})

    def _refuse(self, peer: GossipPeer, digest: bytes, label: str) -> None:
        core = self._core
        length_ns = TOO_NEW_NS if label == _TOO_NEW else REFUSED_NS
        core.refuse(peer.key, digest, core.now_ns + length_ns)
        core.fetches.refuse(digest, peer.key)

    # Leaves

    def _leaves(self, peer: GossipPeer, leaves: SyncLeaves) -> None:
        """Request the leaves that are missing here, and announce descendants of the others.

        A peer that lists all its leaves, or all down to some time, lacks those of this node that
        it does not list.
        """
        core = self._core
        self._note_pace(peer)
        dropped = 0
        for digest, content in with_contents(leaves.ids, leaves.content_digests):
            place = core.recent.place(digest)
            if place >= 0:
                if not core.differs_here(peer.key, digest, place, content):
                    core.mark_holder(digest, place, peer.store)
            elif digest not in core.graph:
                dropped += not self._announced(peer, digest, content)
        self._note_dropped(peer, dropped)
        known = [each for each in leaves.ids if each in core.recent or each in core.graph]
        behind = core.graph.descendants(known, DESCENDANT_IDS)
        floor = known if leaves.rest_count else ()
        behind += core.graph.newer_leaves(floor, core.config.leaf_ids)
        listed = frozenset(leaves.ids)
        for digest in behind:
            if digest not in listed:
                self._offer(peer, digest)

    def _note_pace(self, peer: GossipPeer) -> None:
        core, before_ns = self._core, peer.leaves_received_ns
        peer.leaves_received_ns = core.now_ns
        interval_ns = core.config.leaves_interval_ns // _LEAVES_SHARE
        if before_ns is not None and core.now_ns < before_ns + interval_ns:
            reason = "leaves come too often: send them when they are due, if they have changed"
            core.fault(peer.key, scores.LEAVES_POINTS, reason)

    def _offer(self, peer: GossipPeer, digest: bytes) -> None:
        core = self._core
        place = core.recent.place(digest)
        if place < 0 or digest in peer.pushes:
            return
        if core.recent.holders[place] & peer.store.bit or core.recent.expecting[place] & peer.bit:
            return
        if not peer.tell(digest, core.config.queued_ids):
            core.count(GossipCounter.IDS_UNANNOUNCED, 1)
