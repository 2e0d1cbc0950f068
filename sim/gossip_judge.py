"""A checker of rules that a run with gossip must keep besides those of `sim.judge`.

1. A confirmation that is noted, or reported to a publisher, is of a store that holds the message,
   and not another one with its hash; no node confirms its own messages, and a liar counts once in
   the life of a node, in however many names it comes. A publisher is answered in time. A node that
   has found commits lost announces nothing of them.
2. No honest node cuts another one off, and no driver or machine fails.
3. What a node keeps in memory is bounded, and nothing is tried again without a pause.
4. Nothing is left of a driver that was stopped.
5. In the end nothing is unread that enough neighbours hold, and what is published then comes
   everywhere, and is confirmed, within seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from sim.bridge import Life
from store.domain.unread import Confirmation, Confirmed
from store.gossip.driver.driver import GossipDriver
from store.gossip.events import listed
from storenode.wire.storenode.internal.v1.gossip_raw_pb2 import RawGossipFrame

if TYPE_CHECKING:
    from sim.database import Database
    from sim.node import Node
    from sim.process import Process
    from sim.world import World

LIAR: Final = "liar-"
"""The names of liars, and of their stores, begin so; the liar's number follows."""

MAX_FRAMES, MAX_WRITES, MAX_REQUESTS = 2, 2_000, 500
"""The most that a node may keep in a run of a few hundred messages; frames by the stream."""

MAX_LATE_S: Final = 0.1
"""A publisher is answered no later than so long after the time that it gives."""

_MAX_CONNECTS: Final = 20, 10
_MAX_FAILURES: Final = 4, 1
"""Attempts, and in how many seconds: to connect to one peer, to do what the store has refused."""

_REPEATED_CALLS: Final = frozenset({"newest", "unread.newest", "arrived", "confirm"})
"""Calls that one task makes again after a pause; others are made as often as there is work."""


class GossipChecker:
    """A checker of what nodes do when they gossip.

    ``in_peace``: messages that were published in peace, each with whether its publisher, if it
    wanted confirmations, was answered.
    """

    def __init__(self, world: World) -> None:
        self._judge = world.judge
        self.fail, self.acknowledge = world.judge.fail, world.judge.acknowledge
        self.in_peace: dict[bytes, bool] = {}
        self.answers = 0
        self._world = world
        self._voices: dict[tuple[Life, bytes, str], str] = {}
        self._lies: dict[bytes, set[str]] = {}
        self._known_losses: dict[Node, int] = {}

    def sends(self, node: Node, frame: RawGossipFrame) -> None:
        """Check a frame that a node sends."""
        if frame.WhichOneof("kind") in ("inv", "sync_leaves"):
            inventory = listed(frame)
            self.acknowledge(node.database, inventory.ids, inventory.content_digests)
            lost, known = node.database.lost, self._known_losses.get(node, 0)
            if any(lost.get(each, known + 1) <= known for each in inventory.ids):
                self.fail(f"{node.name} announces what it knows its database to have lost")

    def found_losses(self, node: Node) -> None:
        """Note that a node has found that its database has lost commits (rule 1)."""
        self._known_losses[node] = node.database.losses

    # Confirmations (rule 1)

    def confirms(self, node: Node, life: Life, confirmed: Confirmed) -> None:
        """Check a confirmation that a life of a node notes."""
        store_id, digest = confirmed.store_id, confirmed.message_hash
        if store_id.startswith(LIAR):
            voice = life, digest, store_id.split("/", maxsplit=1)[0]
            before = self._voices.setdefault(voice, store_id)
            if before != store_id:
                self.fail(f"{before} has confirmed {digest.hex()[:12]} as {store_id} too")
            self._lies.setdefault(digest, set()).add(store_id)
            return
        if store_id == node.database.store_id:
            self.fail(f"{store_id} confirms its own message")
        stores = [each for each in self._world.databases if each.store_id == store_id]
        if not stores:
            self.fail(f"{node.name} counts a confirmation of {store_id}, which is no store")
        self.acknowledge(stores[0], [digest], [node.database.digests[digest]])

    def confirmed(
        self,
        node: Node,
        hashes: Sequence[bytes],
        found: Sequence[Confirmation],
        asked: int,
        late_s: float,
    ) -> None:
        """Check the confirmations that are reported to a publisher."""
        self.answers += 1
        if late_s > MAX_LATE_S:
            self.fail(f"{node.name} answers a publisher {late_s:.1f} s too late")
        for digest, report in zip(hashes, found, strict=True):
            self.acknowledge(node.database, [digest])
            if digest in self.in_peace:
                self.in_peace[digest] = True
            if digest in self.in_peace and late_s > -MAX_LATE_S:
                self.fail(f"{node.name} lacks confirmations in peace until the time is up")
            holding = self._holding(digest, node.database)
            lies = max(len(self._world.liars), len(self._lies.get(digest, ())))
            if report.confirms > holding + lies:
                self.fail(
                    f"{node.name} tells of {report.confirms} confirmations of {digest.hex()[:12]}, "
                    f"which {holding} other stores hold"
                )
            if report.reason and digest in self.in_peace:
                self.fail(f"{node.name} lacks confirmations in peace: {report.reason}")
            if not report.reason and report.confirms < asked:
                self.fail(f"{node.name} calls {report.confirms} confirmations {asked}")

    # Conduct (rules 2, 3 and 4)

    def cuts_off(self, node: Node, peer: str, reason: str) -> None:
        """Check that a node disconnects liars alone for a fault."""
        if not peer.startswith(LIAR):
            self.fail(f"{node.name} accuses an honest peer: {peer} is cut off: {reason}")

    def connects(self, caller: str, callee: str) -> None:
        """Check the rate at which a host connects."""
        now_ns = self._world.timeline.now_ns
        self._judge.tried(None, f"{caller} connects to {callee}", now_ns, _MAX_CONNECTS)

    def store_failed(self, process: Process, call: str) -> None:
        """Check the rate of calls that the store refuses."""
        if call in _REPEATED_CALLS:
            now_ns = self._world.timeline.now_ns
            self._judge.tried(process, f"{process.name} calls {call}", now_ns, _MAX_FAILURES)

    def stopped(self, name: str, life: Life) -> None:
        """Check that nothing is left of a driver that was stopped."""
        left = [task.get_name() for task in life.tasks if not task.done()]
        if left:
            self.fail(f"{name} was stopped, and these tasks are left of it: {left}")

    def check_bounds(self, name: str, driver: GossipDriver) -> None:
        """Verify the bounds of what a node keeps."""
        queues = [stream._to_send.qsize() for stream in driver._streams.values()]
        for kept, most, what in (
            (sum(queues), MAX_FRAMES * len(queues), "frames"),
            (len(driver._writes._queue), MAX_WRITES, "writes"),
            (len(driver._requests), MAX_REQUESTS, "requests"),
        ):
            if kept > most:
                self.fail(f"{name} keeps {kept} {what}, and {most} are allowed")

    # The end (rule 5)

    def unsettled(self) -> str:
        """Return what is left to do for unread events; empty if nothing is."""
        for store in self._world.databases:
            neighbours = self._neighbours(store)
            for digest, row in store.unread.items():
                content = store.digests[digest]
                holding = sum(other.holds(digest, content) for other in neighbours)
                if len(row.stores) < row.needed <= holding:
                    return f"{store.store_id} has {digest.hex()[:12]} unread"
        return ""

    def _holding(self, digest: bytes, beside: Database) -> int:
        content, stores = beside.digests[digest], self._world.databases
        others = (each for each in stores if each is not beside and each.had(digest))
        return sum(each.digests.get(digest) == content for each in others)

    def _neighbours(self, store: Database) -> dict[Database, None]:
        own = [node for node in self._world.nodes if node.database is store]
        return {each: None for node in own for each in self._world.reached(node)}
