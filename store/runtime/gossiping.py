"""Puts the gossip of a node together: its machine, its streams, and who waits for confirmations."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from store.config.node import NodeConfig
from store.db.commits.gossip_reads import GossipReads
from store.db.writing.tracking import MAX_NEEDED
from store.domain.unread import Confirmations, GossipState, NoConfirmations
from store.gossip.config import GossipConfig
from store.observe.metrics import Metrics
from store.rpc.context import NodeIdentity
from store.rpc.failure import RpcFailure
from store.rpc.gossiping import Links
from store.runtime.confirming import Confirming
from store.runtime.gossip import GossipNode
from store.runtime.gossip_dialling import Dialling
from store.runtime.gossip_work import GossipWork
from store.runtime.peering import Peering
from store.runtime.policy import PolicySource
from store.runtime.services import Wiring
from store.runtime.tasks import BackgroundTasks

if TYPE_CHECKING:
    from store.observe.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Gossiping:
    """The parts; all None where gossip is switched off."""

    wiring: Wiring
    links: Links | None = None
    node: GossipNode | None = None
    waiting: Confirming | None = None

    @property
    def confirmations(self) -> Confirmations:
        """Who waits for other stores."""
        return NoConfirmations() if self.waiting is None else self.waiting

    async def state(self) -> GossipState | None:
        """For the node's status; raises the errors of `store.domain.ports`."""
        if self.node is None:
            return None
        return GossipState(await self.wiring.unread.summary(), self.node.peers())

    def measure(self, metrics: Metrics) -> None:
        """Show the peers as they are now."""
        peers = [] if self.node is None else self.node.peers()
        states = {
            "connected": sum(peer.connected for peer in peers),
            "slowed": sum(peer.slowed for peer in peers),
            "cut_off": sum(peer.cut_off_until_ns > 0 for peer in peers),
        }
        for state, count in states.items():
            metrics.gossip_peers.labels(state).set(count)

    def drain(self) -> None:
        """Answer those who wait: the node is stopping."""
        if self.waiting is not None:
            self.waiting.stop()


async def open_gossip(
    stack: AsyncExitStack,
    config: NodeConfig,
    wiring: Wiring,
    identity: NodeIdentity,
    *,
    peering: Peering,
    policy: PolicySource,
    metrics: Metrics,
    tracing: Tracing | None,
) -> Gossiping:
    """Make the parts and begin to dial; `stack` takes them apart."""
    tracking = wiring.tracking
    if tracking is None:
        return Gossiping(wiring)
    work = GossipWork(
        GossipReads(wiring.database),
        tracking,
        wiring.unread,
        wiring.services.writer,
        metrics,
        tracing,
    )
    machine = GossipConfig(store_id=identity.store_id, max_confirms=config.max_confirms)
    node = GossipNode(machine, work, policy.current, len(peering.peers))
    waiting = Confirming(
        wiring.unread,
        reach=node.reach,
        is_tracked=tracking.is_tracked,
        want=node.want,
        most_tracked=MAX_NEEDED,
    )
    node.on_confirmed = waiting.confirm
    peering.sessions.on_found = node.found
    links = Links(identity.node_id, node, peering.dialer, tracing)
    tasks = BackgroundTasks()
    stack.callback(node.stop)
    stack.push_async_callback(tasks.stop)
    stack.callback(waiting.stop)
    stack.callback(links.close, RpcFailure(grpc.StatusCode.UNAVAILABLE, "the node is stopping"))
    wiring.commits.add(node)
    tasks.start("gossip", node.run)
    for peer in peering.peers:
        tasks.start(f"gossip with {peer}", Dialling(peer, links).run)
    return Gossiping(wiring, links, node, waiting)
