"""What a frame of a peer comes to."""

from __future__ import annotations

from collections.abc import Sequence

from store.gossip import scores
from store.gossip.core import Core, Pending, Request
from store.gossip.events import Bodies, FrameIn, GetEvents, Inventory, Persist, SyncLeaves, What
from store.gossip.holding import with_contents
from store.gossip.limits import DESCENDANT_IDS, REFUSED_NS, TOO_NEW_NS
from store.gossip.peer import Peer
from store.messages.record import RecordBatch
from storenode.message.limits import HASH_BYTES

_TOO_NEW = "too_new"
"""The label of admission for a message whose time has not come (`rules.Reason`)."""

_LEAVES_SHARE = 4
"""Leaves may come so many times as often as they are due."""


class Incoming:
    """Takes frames in."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def take(self, peer: Peer, frame: FrameIn) -> None:
        """Take one in; a fault of the peer is held against it."""
        core = self._core
        core.wanted.heard(core.now_ns, peer.key)
        if core.slowed(peer.key):
            peer.rest_ns = core.now_ns + core.config.slow_ns
        if isinstance(frame, Bodies):
            self._bodies(peer, frame)
        elif self._is_sound(peer, frame.ids):
            core.count(What.IDS_RECEIVED, len(frame.ids))
            match frame:
                case Inventory():
                    self._inventory(peer, frame)
                case GetEvents():
                    self._get_events(peer, frame.ids)
                case SyncLeaves():
                    self._leaves(peer, frame)

    def _is_sound(self, peer: Peer, ids: Sequence[bytes]) -> bool:
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

    def _inventory(self, peer: Peer, inventory: Inventory) -> None:
        """Take note of what a peer has; who announces something again wants to be told again.

        An announcement that is made again expects an answer, which is not answered in turn.
        """
        core, seen = self._core, self._core.seen
        repeated = dropped = 0
        for digest, content in with_contents(inventory.ids, inventory.content_digests):
            place = seen.place(digest)
            if place < 0:
                dropped += not self._announced(peer, digest, content)
                continue
            if core.differs_here(peer.key, digest, place, content):
                if not seen.told[place] & peer.bit:
                    peer.answer(digest, core.config.queued_ids)
                continue
            known = not core.mark_holder(digest, place, peer.store)
            if not seen.told[place] & peer.bit:
                peer.answer(digest, core.config.queued_ids)
            elif seen.expecting[place] & peer.bit:
                seen.expecting[place] &= ~peer.bit
            elif known:
                repeated += 1
                peer.answer(digest, core.config.queued_ids)
        if repeated:
            reason = "what is announced was announced before: announce unread events, at intervals"
            core.fault(peer.key, scores.REPEATED_ID_POINTS * repeated, reason)
        self._note_dropped(peer, dropped)

    def _announced(self, peer: Peer, digest: bytes, content: bytes) -> bool:
        """A peer has something that is not known to be held; False: too much waits already."""
        core = self._core
        pending = core.pending.get(digest)
        if pending is not None:
            if not core.differs(peer.key, digest, pending.content, content):
                pending.holders |= peer.store.bit
            return True
        if core.is_refused(peer.key, digest):
            return True
        return core.wanted.announce(digest, peer.key, content)

    def _note_dropped(self, peer: Peer, dropped: int) -> None:
        core = self._core
        if not dropped:
            return
        core.count(What.IDS_DROPPED, dropped)
        is_ours = core.failing or core.looking or peer.unstored_frames
        if not is_ours:
            most = core.config.announced_ids
            reason = f"more than {most:,} announced messages have not come: deliver them first"
            core.fault(peer.key, scores.OVERFLOW_POINTS, reason)

    # Requests

    def _get_events(self, peer: Peer, ids: Sequence[bytes]) -> None:
        core, seen = self._core, self._core.seen
        again = dropped = 0
        for digest in ids:
            place = seen.place(digest)
            if place >= 0:
                again += bool(seen.sent[place] & peer.bit)
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
            core.count(What.IDS_DROPPED, dropped)
            reason = f"more than {core.config.asked_ids:,} bodies are asked for: wait for them"
            core.fault(peer.key, scores.OVERFLOW_POINTS, reason)

    # Bodies

    def _bodies(self, peer: Peer, frame: Bodies) -> None:
        core = self._core
        core.count(What.BODIES_RECEIVED, len(frame.batch) + len(frame.refused))
        fresh = self._sort(peer, frame.batch)
        for digest, label in frame.refused:
            core.count(What.REFUSED, 1, label)
            if digest:
                self._refuse(peer, digest, label)
        if frame.refused:
            core.fault_lightly(peer.key, scores.REFUSED_POINTS * len(frame.refused))
        if fresh:
            batch = frame.batch if len(fresh) == len(frame.batch) else frame.batch.select(fresh)
            peer.unstored_bytes += frame.size_bytes
            peer.unstored_frames += 1
            persist = Persist(core.token(), peer.key, batch)
            core.request(Request(persist, peer, frame.size_bytes))

    def _sort(self, peer: Peer, batch: RecordBatch) -> list[int]:
        """Return the places of messages that are to be stored."""
        core = self._core
        fresh, repeated, asked = [], 0, False
        for index, digest in enumerate(batch.hashes):
            content = batch.content_digests[index]
            solicited = core.wanted.is_asked(digest, peer.key)
            asked |= solicited
            place = core.seen.place(digest)
            pending = core.pending.get(digest)
            if place >= 0:
                repeated += self._held_already(peer, digest, place, content)
            elif pending is not None:
                repeated += peer.key in pending.peers
                pending.peers[peer.key] = None
                if not core.differs(peer.key, digest, pending.content, content):
                    pending.holders |= peer.store.bit
            else:
                fresh.append(index)
                self._await(peer, digest, content)
        if asked:
            core.wanted.delivered(core.now_ns, peer.key)
        if repeated:
            core.count(What.BODIES_REPEATED, repeated)
            reason = "bodies come again that nobody has asked for: send each once"
            core.fault(peer.key, scores.REPEATED_BODY_POINTS * repeated, reason)
        return fresh

    def _held_already(self, peer: Peer, digest: bytes, place: int, content: bytes) -> bool:
        core, seen = self._core, self._core.seen
        if not core.differs_here(peer.key, digest, place, content):
            core.mark_holder(digest, place, peer.store)
        if not seen.told[place] & peer.bit:
            peer.answer(digest, core.config.queued_ids)
        if seen.came[place] & peer.bit:
            return True
        seen.came[place] |= peer.bit
        return False

    def _await(self, peer: Peer, digest: bytes, content: bytes) -> None:
        """A body is on its way to the database."""
        core = self._core
        depth = core.wanted.depth(digest)
        holders = core.holders_of(digest, content) | peer.store.bit
        core.pending[digest] = Pending(depth, holders, content, {peer.key: None})

    def _refuse(self, peer: Peer, digest: bytes, label: str) -> None:
        core = self._core
        length_ns = TOO_NEW_NS if label == _TOO_NEW else REFUSED_NS
        core.refuse(peer.key, digest, core.now_ns + length_ns)
        core.wanted.refuse(digest, peer.key)

    # Leaves

    def _leaves(self, peer: Peer, leaves: SyncLeaves) -> None:
        """What the peer has and this node not is asked for; what follows on what it has, announced.

        Where it lists all its leaves, or all down to some time, it lacks those of this node's that
        it does not list.
        """
        core = self._core
        self._note_pace(peer)
        dropped = 0
        for digest, content in with_contents(leaves.ids, leaves.content_digests):
            place = core.seen.place(digest)
            if place >= 0:
                if not core.differs_here(peer.key, digest, place, content):
                    core.mark_holder(digest, place, peer.store)
            elif digest not in core.graph:
                dropped += not self._announced(peer, digest, content)
        self._note_dropped(peer, dropped)
        held = [each for each in leaves.ids if each in core.seen or each in core.graph]
        behind = core.graph.descendants(held, DESCENDANT_IDS)
        floor = held if leaves.rest_count else ()
        behind += core.graph.newer_leaves(floor, core.config.leaf_ids)
        listed = frozenset(leaves.ids)
        for digest in behind:
            if digest not in listed:
                self._offer(peer, digest)

    def _note_pace(self, peer: Peer) -> None:
        core, before_ns = self._core, peer.leaves_heard_ns
        peer.leaves_heard_ns = core.now_ns
        interval_ns = core.config.leaves_interval_ns // _LEAVES_SHARE
        if before_ns is not None and core.now_ns < before_ns + interval_ns:
            reason = "leaves come too often: send them when they are due, if they have changed"
            core.fault(peer.key, scores.LEAVES_POINTS, reason)

    def _offer(self, peer: Peer, digest: bytes) -> None:
        core = self._core
        place = core.seen.place(digest)
        if place < 0 or digest in peer.pushes:
            return
        if core.seen.holders[place] & peer.store.bit or core.seen.expecting[place] & peer.bit:
            return
        if not peer.tell(digest, core.config.queued_ids):
            core.count(What.IDS_UNANNOUNCED, 1)
