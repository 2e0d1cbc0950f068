"""Wires the gossip of a node: its driver to the database, to gRPC and to the metrics."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from store.config.node import NodeConfig
from store.db.commits.gossip_reads import GossipReads
from store.db.writing.unread import MAX_NEEDED, ConfirmationTracker, UnreadRows
from store.domain.admission import Admission
from store.domain.ports import Source, StoreBusy, StoreUnavailable, Writer
from store.domain.unread import (
    Confirmations,
    GossipState,
    NoConfirmations,
    UnreadSummary,
)
from store.gossip.config import GossipConfig
from store.gossip.driver.confirmations import ConfirmationWaits
from store.gossip.driver.node import GossipNode
from store.gossip.driver.ports import DriverDatabase
from store.gossip.driver.streams import PeerStreams
from store.gossip.events import Counted, What
from store.messages.conflicts import StoreResult
from store.messages.record import RecordBatch
from store.observe.metrics import Metrics
from store.rpc.gossiping import GossipTransport
from store.runtime.environment import system_environment
from store.runtime.limits import UNREAD_INTERVAL_S
from store.runtime.peering import Peering
from store.runtime.policy import PolicySource
from store.runtime.services import Wiring
from store.runtime.tasks import BackgroundTasks
from store.serving.context import NodeIdentity

if TYPE_CHECKING:
    from store.observe.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Gossiping:
    """The gossip of a node; ``node`` and ``transport`` are None where it is switched off."""

    confirmations: Confirmations
    node: GossipNode | None = None
    transport: GossipTransport | None = None

    @property
    def served(self) -> tuple[PeerStreams, GossipTransport] | None:
        """The streams and the transport that the ``Gossip`` handler uses; None without gossip."""
        if self.node is None or self.transport is None:
            return None
        return self.node.streams, self.transport

    def state(self, unread: UnreadSummary) -> GossipState | None:
        """Return the state that the node's status includes; None without gossip."""
        return None if self.node is None else GossipState(unread, self.node.driver.peers())

    def measure(self, metrics: Metrics) -> None:
        """Show the peers as they are now."""
        peers = [] if self.node is None else self.node.driver.peers()
        states = {
            "connected": sum(peer.connected for peer in peers),
            "slowed": sum(peer.slowed for peer in peers),
            "cut_off": sum(peer.cut_off_until_ns > 0 for peer in peers),
        }
        for state, count in states.items():
            metrics.gossip_peers.labels(state).set(count)

    def drain(self) -> None:
        """End the waits for confirmations, since the node is stopping."""
        self.confirmations.stop()


class SharedConfirmations(ConfirmationWaits):
    """The confirmations of a node without gossip: other nodes on its database may have peers."""

    def __init__(self, unread: UnreadRows, tracking: ConfirmationTracker) -> None:
        self._unread = unread
        super().__init__(
            unread,
            reach=lambda: None,
            is_tracked=tracking.is_tracked,
            # The gossip of the others reads from the table what is asked for.
            want=lambda *_given: None,
            most_tracked=MAX_NEEDED,
        )

    async def _hopeless(
        self, lacking: set[bytes], stored: frozenset[bytes], min_confirms: int
    ) -> str:
        if not lacking or await self._is_shared():
            return await super()._hopeless(lacking, stored, min_confirms)
        with suppress(StoreUnavailable, StoreBusy):
            await self._unread.expire(sorted(lacking))
        return "this node exchanges no read confirmations"


class _Meter:
    """Implements `store.gossip.driver.ports.Meter`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def count(self, counted: Counted) -> None:
        if counted.what is What.REFUSED:
            labels = Source.GOSSIP.value, counted.reason
            self._metrics.messages_rejected.labels(*labels).inc(counted.count)
        elif counted.what is What.CONFLICTS:
            self._metrics.conflicts.labels(Source.GOSSIP.value).inc(counted.count)
        else:
            self._metrics.gossip_events.labels(counted.what.value).inc(counted.count)

    def body_bytes(self, direction: str, count: int) -> None:
        self._metrics.gossip_bytes.labels(direction).inc(count)


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
    """Make the parts and begin to connect; `stack` takes them apart."""
    if wiring.tracking is None:
        return Gossiping(NoConfirmations())
    tasks = BackgroundTasks()
    if not config.gossip:
        stack.push_async_callback(tasks.stop)
        tasks.start_every(UNREAD_INTERVAL_S, "unread events", partial(_sweep, wiring.unread))
        return Gossiping(SharedConfirmations(wiring.unread, wiring.tracking))

    def admission() -> Admission:
        return Admission(policy.current(), time.time_ns(), Source.GOSSIP)

    transport = GossipTransport(peering.dialer, admission, tracing)
    node = GossipNode(
        GossipConfig(store_id=identity.store_id, max_confirms=config.max_confirms),
        identity.node_id,
        peering.peers,
        database=_database(wiring, wiring.tracking, tracing),
        connector=transport,
        environment=system_environment("store.gossip", metrics),
        meter=_Meter(metrics),
        max_needed=MAX_NEEDED,
    )
    stack.callback(node.driver.stop)
    stack.push_async_callback(tasks.stop)
    stack.callback(node.close)
    wiring.listeners.append(node.driver)
    for name, work in node.work():
        tasks.start(name, work)
    return Gossiping(node.waits, node, transport)


async def _sweep(unread: UnreadRows) -> None:
    with suppress(StoreUnavailable, StoreBusy):
        await unread.sweep()


def _database(
    wiring: Wiring, tracking: ConfirmationTracker, tracing: Tracing | None
) -> DriverDatabase:
    writer: Writer = wiring.services.writer

    async def persist(batch: RecordBatch, peer: str) -> StoreResult:
        if tracing is None:
            return await writer.store(batch, Source.GOSSIP)
        with tracing.receiving(batch.hashes, peer):
            return await writer.store(batch, Source.GOSSIP)

    return DriverDatabase(GossipReads(wiring.database, tracing), tracking, wiring.unread, persist)
