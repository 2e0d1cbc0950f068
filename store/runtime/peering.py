"""Joins what a node needs to exchange messages with others: who calls whom, about what.

Made after the database serves and before the listeners do; taken apart before the database is.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from store.config.node import NodeConfig
from store.db.reading.transfer_reads import TransferReader
from store.domain.ports import PeerAddress
from store.observe.clocks import ClockComparison
from store.observe.metrics import Metrics
from store.rpc.caller import Caller
from store.rpc.dial import PeerDialer
from store.runtime.environment import system_environment
from store.runtime.peer_book import PeerBook
from store.runtime.policy import PolicySource
from store.runtime.services import Wiring
from store.serving.context import NodeIdentity
from store.serving.tls import TlsFiles
from store.sync.limits import TransferLimits
from store.sync.lookup import Fetcher
from store.sync.resume import SHORTEST_GAP_NS, ResumeConfig, Resumer
from store.sync.schedule.core import ScheduleConfig
from store.sync.schedule.driver import Synchronizer
from store.sync.session.exchange import Exchange, ExchangeWork
from store.sync.transfer.driver import TransferWork
from storenode.cli.options.types import Peer


@dataclass(frozen=True, slots=True)
class Peering:
    """``sessions`` for those that peers begin, the others for those that this node begins."""

    sessions: Exchange
    synchronizer: Synchronizer
    resumer: Resumer
    dialer: PeerDialer
    peers: tuple[PeerAddress, ...]


def open_peering(
    stack: AsyncExitStack,
    config: NodeConfig,
    wiring: Wiring,
    identity: NodeIdentity,
    *,
    policy: PolicySource,
    metrics: Metrics,
    clocks: ClockComparison,
) -> Peering:
    """Make the parts; `stack` takes them apart."""
    peers = tuple(dict.fromkeys(_address(peer) for peer in config.peer))
    book = PeerBook(peers, metrics, time.time_ns)
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
    dialer = PeerDialer(
        identity,
        _tls(config),
        insecure="peer" in config.insecure,
        clocks=clocks,
    )
    caller = Caller(dialer, exchange := Exchange(work))
    stack.push_async_callback(caller.close)
    book.connections = caller
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
    return Peering(exchange, synchronizer, resumer, dialer, peers)


def _schedule(config: NodeConfig, peers: tuple[PeerAddress, ...]) -> ScheduleConfig:
    return ScheduleConfig(
        peers=peers,
        interval_ns=config.sync_interval,
        range_ns=config.sync_range,
        offset_ns=config.sync_offset,
        wide_interval_ns=config.wide_sync_interval,
    )


def _resume(config: NodeConfig, peers: tuple[PeerAddress, ...]) -> ResumeConfig:
    # Without a schedule nothing else fetches what a short stop has missed.
    shortest_ns = SHORTEST_GAP_NS if config.sync_interval else 0
    return ResumeConfig(peers=peers, slack_ns=config.sync_offset, shortest_ns=shortest_ns)


def _address(peer: Peer) -> PeerAddress:
    return PeerAddress(peer.address.host, peer.address.port, peer.node_id or "")


def _tls(config: NodeConfig) -> TlsFiles | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    return TlsFiles(config.tls_cert, config.tls_key, config.tls_ca)
