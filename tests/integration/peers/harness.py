"""Store nodes in this process: real Postgres, real gRPC, and what they tell of their sessions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import psycopg

from reconcile.ids import SyncId
from reconcile.limits import DEFAULT_SESSION_LIMITS, SessionLimits
from reconcile.session import Role
from store.db.coverage import DatabaseStatements
from store.db.messages import DatabaseReader
from store.db.reconciliation import DatabaseIds
from store.domain.admission import Admission
from store.domain.coverage import Coverage
from store.domain.hub import OwnCommits
from store.domain.ports import PeerAddress, Source
from store.observe.metrics import Metrics
from store.rpc.call import RpcContext
from store.rpc.identity import PeerRules
from store.rpc.listeners import Listener, bind
from store.rpc.peer_calls import PeerConnector
from store.rpc.server import build_handlers
from store.runtime.node import system_environment
from store.serving.addresses import ListenerAddress
from store.serving.context import NodeIdentity
from store.serving.tls import TlsFiles
from store.sync.coverage import StatementBuffer
from store.sync.index.hot import HotIndex
from store.sync.index.views import StoredView
from store.sync.limits import TransferLimits
from store.sync.session.exchange import Exchange, ExchangeWork
from store.sync.session.report import SessionReport, Window
from store.sync.transfer.transfer import DEFAULT_LIMITS
from storenode.message.rules import Policy
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.rpc.harness import CONTENT, PUBSUB, Rules, context_of, opened, within
from tests.support.admission import encoded

NOW_NS = time.time_ns()
EVERYTHING = Window()


@dataclass
class Observer:
    """An observer that keeps all reports; `ended` waits for the next session."""

    sessions: list[SessionReport] = field(default_factory=list)
    _queue: asyncio.Queue[SessionReport] = field(default_factory=asyncio.Queue)

    def session_began(self, peer: PeerAddress) -> None:
        """Note nothing of a session that begins."""

    def session_progressed(self, report: SessionReport) -> None:
        """Note nothing of a transfer."""

    def session_ended(self, report: SessionReport) -> None:
        self.sessions.append(report)
        self._queue.put_nowait(report)

    def clear(self) -> None:
        """Pass over the sessions that have ended."""
        while not self._queue.empty():
            self._queue.get_nowait()

    async def ended(self) -> SessionReport:
        """Return the report of the next session that ended."""
        return await within(self._queue.get())


class CountedViews(HotIndex):
    """An index that is not started: views from summaries alone; ``open_views`` shows leaks."""

    open_views = 0

    @asynccontextmanager
    async def open_view(self, *bounds: SyncId, recent: bool = False) -> AsyncIterator[StoredView]:
        self.open_views += 1
        try:
            async with super().open_view(*bounds, recent=recent) as view:
                yield view
        finally:
            self.open_views -= 1


@dataclass
class PeerNode:
    """A node that serves its peers on 127.0.0.1 and calls them."""

    name: str
    url: str
    listener: Listener
    reads: DatabaseReader
    context: RpcContext
    exchange: Exchange
    caller: PeerConnector
    observer: Observer
    rules: Rules
    index: CountedViews

    @property
    def address(self) -> PeerAddress:
        """The address at which its peers call it."""
        host, _, port = self.listener.address.rpartition(":")
        return PeerAddress(host, int(port))

    async def hold(self, messages: Sequence[WakuMessageAndTopic]) -> None:
        """Store messages, however old."""
        admission = Admission(Policy(max_drift_ns=None), time.time_ns(), Source.RESTORE)
        admission.admit(encoded(messages))
        assert not admission.admitted.refusals, admission.admitted.refusals
        await self.context.writer.store(admission.admitted.batch, Source.RESTORE)

    async def hashes(self) -> set[bytes]:
        """Return what the database holds."""
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            cursor = await connection.execute("select hash from storenode.messages")
            return {bytes(row[0]) for row in await cursor.fetchall()}

    async def synchronize(self, other: PeerNode, window: Window = EVERYTHING) -> SessionReport:
        """Run one session that this node begins."""
        return await self.call(other.address, window)

    async def call(self, peer: PeerAddress, window: Window = EVERYTHING) -> SessionReport:
        """Run one session with what serves at an address."""
        report = SessionReport(Role.INITIATOR, time.monotonic_ns(), peer=peer, window=window)
        await within(self.exchange.initiate(self.caller, report))
        return report

    def count(self, name: str, **labels: str) -> float:
        """Return the present value of a metric."""
        return self.context.metrics.registry.get_sample_value(name, labels) or 0.0

    def idle(self) -> bool:
        """Return True when no session holds anything."""
        return not len(self.exchange.sessions) and not self.index.open_views


@asynccontextmanager
async def peer_node(
    name: str,
    database_url: str,
    *,
    store_id: str = "",
    port: int = 0,
    shards: tuple[int, ...] = (),
    peers: PeerRules | None = None,
    tls: TlsFiles | None = None,
    limits: SessionLimits = DEFAULT_SESSION_LIMITS,
    transfer_limits: TransferLimits = DEFAULT_LIMITS,
    ahead_ns: int = 0,
) -> AsyncIterator[PeerNode]:
    """Open a database and serve it to peers until the block ends; its clock is ``ahead_ns``."""
    async with AsyncExitStack() as stack:
        metrics = Metrics("1.0")
        database, services = await opened(stack, database_url, metrics)
        reads, statements = DatabaseReader(database), StatementBuffer(DatabaseStatements(database))
        identity = NodeIdentity(name, store_id or f"store of {name}".replace(" ", "-"), "1.0")
        rules, observer = Rules(), Observer()
        context = context_of(identity, database, services, rules, metrics)
        ids, environment = DatabaseIds(database), system_environment("test", metrics)
        index = CountedViews(ids, OwnCommits(), environment)
        exchange = Exchange(
            ExchangeWork(
                node_id=identity.node_id,
                store_id=identity.store_id,
                cluster=1,
                shards=shards,
                index=index,
                reads=reads,
                writer=context.writer,
                policy=lambda: rules.policy,
                observer=observer,
                environment=environment,
                limits=limits,
                transfer_limits=transfer_limits,
                statements=statements,
            )
        )
        coverage = Coverage(index.open_view, statements, ids)
        context = replace(context, sessions=exchange, peers=peers or PeerRules(), coverage=coverage)
        context = replace(context, now_ns=lambda: time.time_ns() + ahead_ns)
        kind: Literal["client", "peer"] = "client" if tls is None else "peer"
        listener = bind(
            ListenerAddress("--peer-listen", "127.0.0.1", port),
            partial(build_handlers, kind, context),
            tls,
            connections=100,
            peers=True,
        )
        await listener.start()
        stack.push_async_callback(listener.stop, 0)
        caller = PeerConnector(identity, tls, clocks=context.clocks)
        stack.push_async_callback(caller.close)
        stack.callback(exchange.close)
        yield PeerNode(
            name, database_url, listener, reads, context, exchange, caller, observer, rules, index
        )


def item(
    number: int, *, timestamp: int | None = None, size: int = 8, pubsub: str = PUBSUB
) -> WakuMessageAndTopic:
    """Return message ``number``, a minute and some before now."""
    message = WakuMessage(
        payload=number.to_bytes(8, "big") + bytes(max(0, size - 8)),
        content_topic=CONTENT,
        timestamp=NOW_NS - 60_000_000_000 - number * 1_000_003 if timestamp is None else timestamp,
    )
    return WakuMessageAndTopic(message=message, pubsub_topic=pubsub)


def items(*ranges: range) -> list[WakuMessageAndTopic]:
    """Return messages of these numbers."""
    return [item(number) for numbers in ranges for number in numbers]
