"""Composition of what exchanges messages with peers: sessions, their schedule, and gossip.

Made after the database serves and before the listeners do; closed before the database is.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from store.config.node import NodeConfig
from store.db.commits.gossip_reads import GossipReads
from store.db.reading.reader import TransferReader
from store.db.writing.unread import MAX_NEEDED, ConfirmationTracker, UnreadRows
from store.domain.admission import Admission
from store.domain.ports import PeerAddress, Source, StoreBusy, StoreUnavailable, Writer
from store.domain.unread import (
    Confirmations,
    GossipState,
    NoConfirmations,
    UnreadSummary,
)
from store.gossip.driver.confirmations import ConfirmationWaits
from store.gossip.driver.node import GossipNode
from store.gossip.driver.ports import DriverDatabase
from store.gossip.driver.streams import PeerStreams
from store.gossip.events import GossipCount, GossipCounter
from store.gossip.limits import GossipConfig
from store.messages.conflicts import StoreResult
from store.messages.record import RecordBatch
from store.observe.metrics import Metrics
from store.rpc.connector import PeerConnector
from store.rpc.gossip import GossipTransport
from store.rpc.peer_reads import PeerReader
from store.runtime.listeners import tls_files
from store.runtime.peer_states import PeerStates
from store.runtime.services import NodeBase, Wiring, system_environment
from store.runtime.tasks import BackgroundTasks
from store.serving.context import NodeIdentity
from store.sync.limits import TransferLimits
from store.sync.lookup import Fetcher
from store.sync.resume import SHORTEST_GAP_NS, ResumeConfig, Resumer
from store.sync.schedule import ScheduleConfig, Synchronizer
from store.sync.session.exchange import Exchange, ExchangeWork
from store.sync.transfer.transfer import TransferWork
from storenode.cli.options.types import Peer
from storenode.message.limits import NS_PER_S

WIDE_INTERVALS: Final = 12
"""The whole history is reconciled once in so many sync intervals."""

UNREAD_INTERVAL_S: Final = 600.0
"""How often a node without gossip deletes unread events that nobody waits for."""


@dataclass(frozen=True, slots=True)
class Peering:
    """``sessions`` for those that peers begin, the others for those that this node begins."""

    sessions: Exchange
    synchronizer: Synchronizer
    resumer: Resumer
    connector: PeerConnector
    peers: tuple[PeerAddress, ...]


def open_peering(base: NodeBase, wiring: Wiring, identity: NodeIdentity) -> Peering:
    """Make the parts."""
    config, metrics, stack, policy = base.config, base.metrics, base.stack, base.policy
    peers = tuple(dict.fromkeys(_address(peer) for peer in config.peer))
    tls = tls_files(config, config.tls_ca)
    connector = PeerConnector(identity, tls, insecure="peer" in config.insecure, clocks=base.clocks)
    book = PeerStates(
        peers,
        metrics,
        time.time_ns,
        connections=connector,
        is_scheduled=config.sync_interval > 0,
    )
    work = ExchangeWork(
        node_id=identity.node_id,
        store_id=identity.store_id,
        cluster=config.cluster,
        shards=tuple(sorted(config.shard)),
        reconcilable=wiring.reconcilable,
        transfer=TransferWork(
            reads=TransferReader(wiring.database),
            writer=wiring.services.writer,
            policy=policy.current,
            observer=book,
            environment=system_environment("store.sync.session", metrics),
        ),
        transfer_limits=TransferLimits(silence_ns=config.peer_silence),
        statements=wiring.statements,
    )
    caller = PeerReader(connector, exchange := Exchange(work))
    stack.push_async_callback(caller.close)
    fetcher = Fetcher(
        caller,
        wiring.services.sds,
        wiring.services.writer,
        policy.current,
        system_environment("store.sync.lookup", metrics),
    )
    synchronizer = Synchronizer(
        _schedule(config, peers),
        caller,
        book,
        fetcher,
        system_environment("store.sync.schedule", metrics),
    )
    stack.push_async_callback(synchronizer.stop)
    resumer = Resumer(
        _resume(config, peers),
        caller=caller,
        online=wiring.online,
        writer=wiring.services.writer,
        policy=policy.current,
        environment=system_environment("store.sync.resume", metrics),
        proceed=synchronizer.start,
        failed=book.failed,
    )
    stack.push_async_callback(resumer.stop)
    synchronizer.show_resume(resumer.state)
    return Peering(exchange, synchronizer, resumer, connector, peers)


def _schedule(config: NodeConfig, peers: tuple[PeerAddress, ...]) -> ScheduleConfig:
    return ScheduleConfig(
        peers=peers,
        interval_ns=config.sync_interval,
        range_ns=config.sync_range,
        offset_ns=config.sync_offset,
        wide_interval_ns=WIDE_INTERVALS * config.sync_interval,
    )


def _resume(config: NodeConfig, peers: tuple[PeerAddress, ...]) -> ResumeConfig:
    # Without a schedule nothing else fetches what a short stop has missed.
    shortest_ns = SHORTEST_GAP_NS if config.sync_interval else 0
    return ResumeConfig(peers=peers, slack_ns=config.sync_offset, shortest_ns=shortest_ns)


def _address(peer: Peer) -> PeerAddress:
    return PeerAddress(peer.address.host, peer.address.port, peer.node_id or "")


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
        for peer, since_ns in () if self.node is None else self.node.absences():
            metrics.peer_absent_since.labels(str(peer)).set(since_ns / NS_PER_S)

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

    def count(self, counted: GossipCount) -> None:
        if counted.what is GossipCounter.REFUSED:
            labels = Source.GOSSIP.value, counted.reason
            self._metrics.messages_rejected.labels(*labels).inc(counted.count)
        elif counted.what is GossipCounter.CONFLICTS:
            self._metrics.conflicts.labels(Source.GOSSIP.value).inc(counted.count)
        else:
            self._metrics.gossip_events.labels(counted.what.value).inc(counted.count)

    def body_bytes(self, direction: str, count: int) -> None:
        self._metrics.gossip_bytes.labels(direction).inc(count)


async def open_gossip(
    base: NodeBase, wiring: Wiring, identity: NodeIdentity, peering: Peering
) -> Gossiping:
    """Make the parts and begin to connect."""
    config, metrics, stack = base.config, base.metrics, base.stack
    if wiring.tracking is None:
        return Gossiping(NoConfirmations())
    tasks = BackgroundTasks()
    if not config.gossip:
        stack.push_async_callback(tasks.stop)
        tasks.start_every(UNREAD_INTERVAL_S, "unread events", partial(_sweep, wiring.unread))
        return Gossiping(SharedConfirmations(wiring.unread, wiring.tracking))

    def admission() -> Admission:
        return Admission(base.policy.current(), time.time_ns(), Source.GOSSIP)

    transport = GossipTransport(peering.connector, admission)
    node = GossipNode(
        GossipConfig(store_id=identity.store_id, max_confirms=config.max_confirms),
        identity.node_id,
        peering.peers,
        database=_database(wiring, wiring.tracking),
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


def _database(wiring: Wiring, tracking: ConfirmationTracker) -> DriverDatabase:
    writer: Writer = wiring.services.writer

    async def persist(batch: RecordBatch, _peer: str) -> StoreResult:
        return await writer.store(batch, Source.GOSSIP)

    return DriverDatabase(GossipReads(wiring.database), tracking, wiring.unread, persist)
