"""What must hold of gossip, whatever happens: looked at from outside, with everything in sight.

1. Nothing is invented: what any store commits is what a publisher made, byte for byte.
2. Nothing acknowledged is lost: what a node calls stored, to a publisher or in an announcement, its
   store holds, now and at the end.
3. A confirmation that is noted, or told to a publisher, is of a store that holds the message;
   nobody confirms its own messages, and a liar counts once in the life of a node, in however many
   names it comes. A publisher is answered in time.
4. No honest node cuts another one off, and no driver or machine fails.
5. What a node keeps in memory is bounded, and nothing is tried again without a pause.
6. Nothing is left of a driver that was stopped.
7. In the end all stores hold the same, nothing is unread that enough neighbours hold, nothing waits
   for what is held, and what is published then comes everywhere, and is confirmed, within seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from sim.gossiping.loop import Life
from sim.judge import Violation
from sim.messages import Message
from store.domain.unread import Confirmation, Confirmed
from store.gossip.events import FrameOut, Inventory, SyncLeaves
from store.messages.record import RecordBatch
from store.messages.transfer import transferred

if TYPE_CHECKING:
    from sim.gossiping.node import NodeLife, SimNode
    from sim.gossiping.store import Store, StoreSession
    from sim.gossiping.world import GossipWorld

LIAR: Final = "liar-"
"""The names of liars, and of their stores, begin so; the liar's number follows."""

MAX_QUEUED_FRAMES: Final = 2
MAX_QUEUED_WRITES: Final = 2_000
MAX_REQUESTS: Final = 500
MAX_LINKS_PER_NODE: Final = 32
"""What a node may keep at one moment, in a run of a few hundred messages."""

MAX_LATE_S: Final = 0.1
"""A publisher is answered no later than so long after the time that it gives."""

_MAX_CONNECTS: Final = 20, 10.0
_MAX_FAILURES: Final = 4, 1.0
"""Attempts, and in how many seconds: to connect to one peer, to do what the store has refused."""

_REPEATED_CALLS: Final = frozenset({"newest", "unread.newest", "arrived", "confirm", "wait_for"})
"""Calls that one task makes again after a pause; others are made as often as there is work."""


class GossipJudge:
    """Looks on, and raises `Violation`; ``failures`` keeps them, whoever swallows them."""

    def __init__(self, world: GossipWorld) -> None:
        self.made: dict[bytes, Message] = {}
        self.acknowledged: dict[bytes, dict[Store, None]] = {}
        self.in_peace: dict[bytes, None] = {}
        self.failures: list[Violation] = []
        self.answers = 0
        self._world = world
        self._voices: dict[tuple[Life, bytes, str], str] = {}
        self._tries: dict[tuple[object, str], deque[float]] = {}

    def fail(self, sentence: str) -> None:
        """Something that must hold does not."""
        violation = Violation(sentence)
        self.failures.append(violation)
        raise violation

    # Messages (rules 1 and 2)

    def commits(self, store: Store, batch: RecordBatch) -> None:
        """A batch is about to be durable."""
        batch.check()
        for index, digest in enumerate(batch.hashes):
            message = self.made.get(digest)
            if message is None or message.encoded != transferred(batch.frame(index)):
                self.fail(f"{store.store_id} stores {_name(digest)}, which nobody published so")

    def acknowledges(self, store: Store, digests: Iterable[bytes]) -> None:
        """A node says of messages that its store holds them."""
        for digest in digests:
            self._demand_held(store, digest)
            self.acknowledged.setdefault(digest, {})[store] = None

    def sends(self, node: SimNode, frame: FrameOut) -> None:
        """A node sends a frame."""
        if isinstance(frame, Inventory | SyncLeaves):
            self.acknowledges(node.store, frame.ids)

    def _demand_held(self, store: Store, digest: bytes) -> None:
        if digest not in store.held:
            self.fail(f"{store.store_id} acknowledged {_name(digest)} and does not hold it")

    # Confirmations (rule 3)

    def confirms(self, life: NodeLife, confirmed: Confirmed) -> None:
        """A node notes a confirmation."""
        store_id, digest = confirmed.store_id, confirmed.message_hash
        if store_id.startswith(LIAR):
            self._count_liar(life.life, store_id, digest)
            return
        if store_id == life.node.store.store_id:
            self.fail(f"{store_id} confirms its own message")
        store = self._world.store(store_id)
        if store is None:
            self.fail(f"{life.node.name} counts a confirmation of {store_id}, which is no store")
        else:
            self.acknowledges(store, [digest])

    def confirmed(
        self,
        node: SimNode,
        hashes: Sequence[bytes],
        found: Sequence[Confirmation],
        asked: int,
        late_s: float,
    ) -> None:
        """A publisher is told how many stores have confirmed."""
        self.answers += 1
        if late_s > MAX_LATE_S:
            self.fail(f"{node.name} answers a publisher {late_s:.1f} s too late")
        for digest, told in zip(hashes, found, strict=True):
            self._demand_held(node.store, digest)
            if digest in self.in_peace and late_s > -MAX_LATE_S:
                self.fail(f"{node.name} lacks confirmations in peace until the time is up")
            holding = self._world.holding(digest, node.store)
            if told.confirms > holding + len(self._world.liars):
                self.fail(
                    f"{node.name} tells of {told.confirms} confirmations of {_name(digest)}, "
                    f"which {holding} other stores hold"
                )
            if told.reason and digest in self.in_peace:
                self.fail(f"{node.name} lacks confirmations in peace: {told.reason}")
            if not told.reason and told.confirms < asked:
                self.fail(f"{node.name} calls {told.confirms} confirmations {asked}")

    def _count_liar(self, life: Life, store_id: str, digest: bytes) -> None:
        voice = life, digest, store_id.split("/", maxsplit=1)[0]
        before = self._voices.setdefault(voice, store_id)
        if before != store_id:
            self.fail(f"{before} has confirmed {_name(digest)} as {store_id} too")

    # Conduct (rules 4, 5 and 6)

    def cuts_off(self, node: SimNode, peer: str, reason: str) -> None:
        """A node cuts a peer off for a fault."""
        if not peer.startswith(LIAR):
            self.fail(f"{node.name} accuses an honest peer: {peer} is cut off: {reason}")

    def connects(self, caller: str, callee: str) -> None:
        """A host tries to connect."""
        if not caller.startswith("x"):
            self._tried((caller, callee), f"{caller} connects to {callee}", _MAX_CONNECTS)

    def store_failed(self, session: StoreSession, call: str) -> None:
        """The store has refused a call."""
        if call in _REPEATED_CALLS:
            what = f"a node of {session.store.store_id} calls {call}"
            self._tried((session, call), what, _MAX_FAILURES)

    def _tried(self, key: tuple[object, str], what: str, limit: tuple[int, float]) -> None:
        now_s = self._world.loop.time()
        most, window_s = limit
        times = self._tries.setdefault(key, deque())
        times.append(now_s)
        while times[0] < now_s - window_s:
            times.popleft()
        if len(times) > most:
            self.fail(f"{what} {len(times)} times in {window_s:.0f} s, without a pause")

    def stopped(self, name: str, life: Life) -> None:
        """A driver was stopped."""
        left = [task.get_name() for task in life.tasks if not task.done()]
        if left:
            self.fail(f"{name} was stopped, and these tasks are left of it: {left}")

    def check(self) -> None:
        """Verify what is acknowledged, and the bounds of what every node keeps."""
        for digest, stores in self.acknowledged.items():
            for store in stores:
                self._demand_held(store, digest)
        for node in self._world.nodes:
            if node.life is not None:
                self._check_bounds(node, node.life)

    def _check_bounds(self, node: SimNode, life: NodeLife) -> None:
        driver, streams = life.gossip.driver, life.gossip.streams
        links = sum(link.touches(node.name) for link in self._world.network.links)
        counts = {
            "frames to send": (streams.queued_frames, MAX_QUEUED_FRAMES * max(1, len(streams))),
            "writes": (driver.queued_writes, MAX_QUEUED_WRITES),
            "requests": (driver.open_requests, MAX_REQUESTS),
            "links": (links, MAX_LINKS_PER_NODE),
        }
        for what, (count, most) in counts.items():
            if count > most:
                self.fail(f"{node.name} keeps {count} {what}, and {most} are allowed")

    # The end (rule 7)

    def unequal(self) -> str:
        """Which store lacks what another holds; empty if all hold the same."""
        union = {digest for store in self._world.stores for digest in store.held}
        for store in self._world.stores:
            if len(store.held) < len(union):
                return f"{store.store_id} lacks {len(union) - len(store.held)} messages"
        return ""

    def unsettled(self) -> str:
        """What is left to be done for unread and waiting events; empty if nothing is."""
        for store in self._world.stores:
            neighbours = self._world.neighbours(store)
            for digest, row in store.rows.items():
                holding = sum(digest in other.held for other in neighbours)
                if len(row.stores) < row.needed <= holding:
                    return f"{store.store_id} has {_name(digest)} unread"
                if any(parent in store.held for parent in row.missing):
                    return f"{store.store_id} has {_name(digest)} waiting"
        return ""


def _name(digest: bytes) -> str:
    return digest.hex()[:12]
