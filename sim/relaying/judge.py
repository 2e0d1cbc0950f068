"""The rules that a run of relay must keep.

1. A router accepts a message once, and forwards only what was published, on its topic, and is
   fresh; to the peer that it came from only if that asks for it, and to one that asks at most
   `MAX_SERVED` times.
2. A message that is published while all is well, but for liars, reaches every honest router.
3. No honest router is disconnected by another one; each liar whose trick can be punished is.
4. No GRAFT is sent within a minute after an earlier stream to the peer ended, as nwaku punishes
   it, nor before the end of a back-off.
5. A peer is asked for a bounded number of messages between two heartbeats. What a router keeps is
   bounded (`Router.check`), and nothing is left of it some minutes after the last message.
6. A leaf sends no message, no announcement and no GRAFT.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from sim.judge import Violation
from sim.limits import NS_PER_S
from store.gateway.gossipsub import BACKOFF_S, MAX_SERVED
from store.gateway.gossipsub_wire import GossipMessage, parse_rpc
from store.gateway.limits import MAX_IWANT_PER_HEARTBEAT

if TYPE_CHECKING:
    from sim.relaying.world import RelayRouter, RelayWorld

FRESH_NS: Final = 20 * NS_PER_S
_LARGE_RPC_BYTES: Final = 4_096


class RelayJudge:
    """Watches what routers do; ``made`` has each published message and when that was."""

    def __init__(self, world: RelayWorld) -> None:
        self._world = world
        self.made: dict[GossipMessage, int] = {}
        self.punished: set[str] = set()
        self._sent: Counter[tuple[object, str, GossipMessage]] = Counter()
        self._wanted: set[tuple[object, str, bytes]] = set()
        self._asked: Counter[tuple[str, str]] = Counter()
        self._stream_ended_ns: dict[tuple[str, str], int] = {}
        self._backoff_until_ns: dict[tuple[str, str, str], int] = {}

    def is_fresh(self, message: GossipMessage) -> bool:
        """Return True for a published message that may still be forwarded."""
        now_ns = self._world.timeline.now_ns
        return now_ns - self.made.get(message, -FRESH_NS - 1) <= FRESH_NS

    def accepts(self, router: RelayRouter, message: GossipMessage) -> None:
        """Note that a router accepts a message that a peer sent."""
        if message in router.accepted:
            raise Violation(f"{router.name} accepts a message twice")
        router.accepted.add(message)
        self._world.counts["accepted"] += 1

    def sends(self, router: RelayRouter, peer: str, data: bytes) -> None:
        """Check an RPC that a router sends."""
        rpc, now_ns = parse_rpc(data), self._world.timeline.now_ns
        if router.is_leaf and (rpc.messages or rpc.ihave or rpc.graft):
            raise Violation(f"the leaf {router.name} sends messages")
        for message in rpc.messages:
            if message not in self.made:
                raise Violation(f"{router.name} forwards what was never published")
            if router.sources.get(message) == peer and not self.is_wanted(router, peer, message):
                raise Violation(f"{router.name} sends a message back to {peer}")
            self._sent[router.life, peer, message] += 1
            if self._sent[router.life, peer, message] > 1 + MAX_SERVED:
                raise Violation(f"{router.name} sends a message to {peer} without end")
        self._asked[router.name, peer] += len(rpc.iwant)
        if self._asked[router.name, peer] > MAX_IWANT_PER_HEARTBEAT:
            raise Violation(f"{router.name} asks {peer} for too many messages")
        for topic in rpc.graft:
            ended_ns = self._stream_ended_ns.get((router.name, peer), -BACKOFF_S * NS_PER_S)
            if now_ns - ended_ns < BACKOFF_S * NS_PER_S:
                raise Violation(f"{router.name} grafts {peer}, which remembers an earlier stream")
            if now_ns < self._backoff_until_ns.get((router.name, peer, topic), 0):
                raise Violation(f"{router.name} grafts {peer} within the back-off")

    def is_wanted(self, router: RelayRouter, peer: str, message: GossipMessage) -> bool:
        """Return True if a peer has requested a message."""
        return (router.life, peer, message.message_id) in self._wanted

    def receives(self, router: RelayRouter, peer: str, data: bytes) -> None:
        """Note the requests and the back-offs in an RPC that a router receives."""
        if len(data) > _LARGE_RPC_BYTES:
            # A flood, in which is neither.
            return
        try:
            rpc = parse_rpc(data)
        except ValueError:
            return
        self._wanted.update((router.life, peer, each) for each in rpc.iwant)
        for prune in rpc.prune:
            until_ns = self._world.timeline.now_ns + min(prune.backoff_s, 3_600) * NS_PER_S
            self._backoff_until_ns[router.name, peer, prune.topic] = until_ns

    def beats(self, router: RelayRouter) -> None:
        """Note a heartbeat, and check what the router keeps."""
        for pair in [each for each in self._asked if each[0] == router.name]:
            del self._asked[pair]
        router.core.check()

    def disconnects(self, router: RelayRouter, peer: str, reason: str) -> None:
        """Note that a router disconnects a peer."""
        if peer in self._world.routers:
            raise Violation(f"{router.name} disconnects the honest {peer}: {reason}")
        self.punished.add(peer)
        self._world.counts["punished"] += 1

    def stream_ends(self, one: str, two: str) -> None:
        """Note the end of the streams between two."""
        for pair in ((one, two), (two, one)):
            self._stream_ended_ns[pair] = self._world.timeline.now_ns
            self._asked.pop(pair, None)

    def require_everywhere(self, message: GossipMessage) -> None:
        """Check that a message has reached every router."""
        missing = [
            each.name for each in self._world.routers.values() if message not in each.accepted
        ]
        if missing:
            raise Violation(f"a message does not reach {', '.join(missing)}")

    def require_rest(self, router: RelayRouter) -> None:
        """Check that nothing is left of the messages of a run."""
        core = router.core
        left = (core._seen, core._cache, core._promises, core._penalties)
        if any(left):
            raise Violation(f"{router.name} still keeps what is long over")
