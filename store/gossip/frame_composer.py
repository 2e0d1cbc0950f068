"""The next frame to each peer, and the reads that it needs."""

from __future__ import annotations

from store.gossip.core import Core, Request
from store.gossip.events import (
    BodiesLoaded,
    FrameOut,
    GetEvents,
    GossipCounter,
    Inventory,
    Listen,
    LoadBodies,
    LookUp,
    OutgoingBodies,
    WriteFrame,
)
from store.gossip.limits import LOOK_UP_IDS, MAX_UNSTORED_FRAMES
from store.gossip.peer import GossipPeer
from store.gossip.scores import NOT_STORED_POINTS


class FrameComposer:
    """The part of the machine that composes frames, one at a time for each peer."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def go_on(self) -> None:
        """Send, read and look up whatever can be now."""
        self._look_up()
        for peer in self._core.peers.values():
            if not peer.writing:
                self._write(peer)
            self._load(peer)
            self._listen(peer)

    def loaded(self, peer: GossipPeer, given: BodiesLoaded) -> None:
        """Add bodies that were read for a peer, but for those that it got elsewhere meanwhile."""
        core, batch = self._core, peer.batch
        batch.token = missing = 0
        for message in given.messages:
            digest, pushed = batch.ids.popleft()
            place = core.recent.place(digest)
            has_it = place >= 0 and bool(core.recent.holders[place] & peer.store.bit)
            missing += message is None and not pushed
            if message is not None and not (pushed and has_it):
                batch.ready.append((digest, message, pushed))
                continue
            batch.under_way.discard(digest)
            if pushed and has_it:
                peer.answer(digest, core.config.queued_ids)
        if missing:
            core.fault_lightly(peer.key, NOT_STORED_POINTS * missing)

    def _look_up(self) -> None:
        core = self._core
        if core.looking:
            return
        ids = core.fetches.check_next(LOOK_UP_IDS)
        if ids:
            core.looking = True
            core.request(Request(LookUp(core.token(), ids)))

    def _write(self, peer: GossipPeer) -> None:
        frame = self._frame(peer)
        if frame is not None:
            peer.writing = True
            peer.announced_last = isinstance(frame, Inventory)
            self._core.effects.append(WriteFrame(peer.key, frame))

    def _frame(self, peer: GossipPeer) -> FrameOut | None:
        core = self._core
        source = core.fetches.sources[peer.key]
        if source.open or source.guesses:
            ask = core.fetches.ask(core.now_ns, peer.key, slowed=core.slowed(peer.key))
            core.count(GossipCounter.IDS_ASKED, len(ask))
            if ask:
                return GetEvents(ask)
        if peer.leaves_due is not None:
            leaves, peer.leaves_due = peer.leaves_due, None
            return leaves
        if peer.announces(core.now_ns) and not (peer.announced_last and peer.batch.ready):
            inventory = self._inventory(peer)
            if inventory.ids:
                return inventory
        if peer.batch.ready:
            return self._events(peer)
        return None

    def _inventory(self, peer: GossipPeer) -> Inventory:
        """Take the next announcements; what is forgotten since has no digest, and is left out."""
        core, recent = self._core, self._core.recent
        taken = peer.take_announcements(core.now_ns, core.config.frame_ids)
        contents = {digest: core.content_of(digest) for digest in taken}
        ids = [digest for digest in taken if contents[digest] is not None]
        for digest in ids:
            place = recent.place(digest)
            if place >= 0 and recent.notified[place] & peer.bit:
                recent.expecting[place] |= peer.bit
            elif place >= 0:
                recent.notified[place] |= peer.bit
        core.count(GossipCounter.IDS_SENT, len(ids))
        digests = [contents[digest] or b"" for digest in ids]
        return Inventory(ids, digests if any(digests) else ())

    def _events(self, peer: GossipPeer) -> OutgoingBodies:
        core, recent = self._core, self._core.recent
        ready, peer.batch.ready = peer.batch.ready, []
        for digest, _, _ in ready:
            peer.batch.under_way.discard(digest)
            place = recent.place(digest)
            if place >= 0:
                recent.notified[place] |= peer.bit
                recent.sent_to[place] |= peer.bit
        pushed = sum(was_pushed for _, _, was_pushed in ready)
        core.count(GossipCounter.BODIES_PUSHED, pushed)
        core.count(GossipCounter.BODIES_ANSWERED, len(ready) - pushed)
        return OutgoingBodies([message for _, message, _ in ready])

    def _load(self, peer: GossipPeer) -> None:
        core = self._core
        ids = peer.gather(core.config.round_ids)
        if ids:
            peer.batch.token = core.token()
            core.request(Request(LoadBodies(peer.batch.token, ids, core.config.frame_bytes), peer))

    def _listen(self, peer: GossipPeer) -> None:
        core = self._core
        reading = (
            peer.unstored_bytes < core.config.unstored_bytes
            and peer.unstored_frames < MAX_UNSTORED_FRAMES
            and core.now_ns >= peer.rest_ns
        )
        if reading != peer.reading:
            peer.reading = reading
            core.effects.append(Listen(peer.key, reading))
