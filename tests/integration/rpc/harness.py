"""A node's gRPC side in this process, on a real Postgres, with a clock and rules to turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import grpc
import pytest

from store.db.coverage import DatabaseOnlineTimes, DatabaseStatements
from store.db.feed import DatabaseFeed, follow_cursors
from store.db.messages import DatabaseReader
from store.db.partitions import PartitionMap
from store.db.pool import Database
from store.db.reconciliation import DatabaseIds
from store.db.sds import DatabaseSdsReader, count_missing_parents
from store.db.writer import DatabaseWriter
from store.domain.access import Access
from store.domain.coverage import Coverage
from store.domain.hub import OwnCommits
from store.domain.unread import Confirmation
from store.http.app import build_app
from store.http.listener import bind as bind_http
from store.http.sites import Sites
from store.observe.metrics import Metrics
from store.rpc.call import ListenerKind, RpcContext
from store.rpc.identity import PeerRules
from store.rpc.listeners import Listener, bind
from store.rpc.server import build_handlers
from store.runtime.node import system_environment
from store.serving.addresses import ListenerAddress
from store.serving.context import Health, NodeIdentity
from store.sync.coverage import StatementBuffer
from store.sync.index.hot import HotIndex
from storenode.message.rules import Policy
from storenode.wire.storenode.v1.admin_pb2 import NodeStatus
from storenode.wire.storenode.v1.store_pb2 import PublishRequest, PublishResponse
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

STORE = "/storenode.v1.Store/"
ADMIN = "/storenode.v1.Admin/"
PUBSUB = "/waku/2/rs/1/4"
CONTENT = "/app/1/chat/proto"
TIMEOUT_S = 90.0
ANY_PORT = ListenerAddress("--listen", "127.0.0.1", 0)
IDENTITY = NodeIdentity("node-a", "store-a", "1.2.3")
_T = TypeVar("_T")
Metadata = Sequence[tuple[str, str]]


@dataclass
class Rules:
    """The settings that tests change while a node serves, and the node's clocks."""

    access: Access = field(default_factory=Access)
    policy: Policy = field(default_factory=lambda: Policy(max_drift_ns=None))
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    lead_ns: int = 0
    health: Health = field(default_factory=Health)

    def halt(self, reason: str | None) -> None:
        """Make the node serve no calls for a reason; None: it serves them again."""
        self.health.change(reason, reason)


@dataclass
class Node:
    """A node that serves on 127.0.0.1."""

    address: str
    context: RpcContext
    rules: Rules
    channel: Any
    server: Listener
    http: str = ""

    @property
    def store(self) -> Any:  # noqa: ANN401 - the stubs know little of grpc.aio
        """The generated stub of the Store service."""
        return StoreStub(self.channel)

    async def unary(self, method: str, request: bytes, metadata: Metadata = ()) -> bytes:
        """Make a unary call with an encoded request, and return the encoded response."""
        call = self.channel.unary_unary(method)
        response: bytes = await call(request, timeout=TIMEOUT_S, metadata=tuple(metadata))
        return response

    async def stream(self, method: str, request: bytes, metadata: Metadata = ()) -> list[bytes]:
        """Make a streaming call, and return all of its encoded responses."""
        call = self.channel.unary_stream(method)(
            request, timeout=TIMEOUT_S, metadata=tuple(metadata)
        )
        return [response async for response in call]

    async def publish(
        self, *messages: WakuMessageAndTopic, min_confirms: int = 0
    ) -> PublishResponse:
        """Publish one batch."""
        request = PublishRequest(messages=messages, min_confirms=min_confirms)
        response: PublishResponse = await self.store.Publish(request, timeout=TIMEOUT_S)
        return response

    def count(self, name: str, **labels: str) -> float:
        """Return the current value of a metric."""
        return self.context.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def serve(
    database_url: str,
    *,
    listener: ListenerKind = "client",
    rules: Rules | None = None,
    peers: PeerRules | None = None,
    open_admin: bool = False,
    read_only: bool = False,
    http: bool = False,
) -> AsyncIterator[Node]:
    """Open a database and serve it until the block ends; with ``http`` also over HTTP."""
    rules = rules or Rules()
    async with AsyncExitStack() as stack:
        metrics = Metrics(IDENTITY.version)
        database, services = await opened(stack, database_url, metrics)
        context = replace(
            context_of(IDENTITY, database, services, rules, metrics),
            open_admin=open_admin,
            read_only=read_only,
            peers=peers,
        )
        over_grpc = bind(ANY_PORT, partial(build_handlers, listener, context), connections=1_000)
        await over_grpc.start()
        stack.push_async_callback(over_grpc.stop, 0)
        channel = grpc.aio.insecure_channel(
            over_grpc.address, options=[("grpc.max_send_message_length", 64 * 1024 * 1024)]
        )
        stack.push_async_callback(channel.close, None)
        node = Node(over_grpc.address, context, rules, channel, over_grpc)
        if http:
            app = build_app(context, Sites())
            over_http = bind_http(ANY_PORT, app, None, 1_000, metrics)
            await over_http.start()
            stack.push_async_callback(over_http.stop, 0)
            node.http = over_http.address
        yield node


async def opened(
    stack: AsyncExitStack, url: str, metrics: Metrics
) -> tuple[Database, dict[str, Any]]:
    """Open a database, and what a context has to read and write it; the stack closes them."""
    database = await Database.open(url)
    stack.push_async_callback(database.close)
    feed = DatabaseFeed(database)
    writer = DatabaseWriter(
        database,
        PartitionMap(time.time_ns),
        feed=feed,
        on_stored=lambda _, source, new: metrics.messages_stored.labels(source).inc(new),
    )
    await writer.start()
    stack.push_async_callback(writer.stop)
    await feed.start()
    stack.push_async_callback(feed.stop)
    reader = DatabaseReader(database)
    sds, cursors = DatabaseSdsReader(database), follow_cursors(database)
    reads = {"reader": reader, "feed": feed, "sds": sds, "cursors": cursors}
    return database, {"writer": writer, **reads}


async def confirm_nothing(hashes: Sequence[bytes], *asked: Any) -> list[Confirmation]:  # noqa: ANN401
    """Return that no store confirmed: the node has no peers."""
    return [Confirmation(0, f"0 of {asked[2]} stores confirmed")] * len(hashes)


def context_of(
    identity: NodeIdentity,
    database: Database,
    services: Mapping[str, Any],
    rules: Rules,
    metrics: Metrics,
) -> RpcContext:
    """Build the context of a node's RPC methods."""
    ids = DatabaseIds(database)
    index = HotIndex(ids, OwnCommits(), system_environment("test", metrics))
    statements = StatementBuffer(DatabaseStatements(database))

    async def state() -> NodeStatus:
        summary = await services["reader"].summary()
        return NodeStatus(
            version=identity.version,
            ready=rules.health.ready,
            revision=rules.health.revision,
            node_id=identity.node_id,
            store_id=identity.store_id,
            messages=summary.messages,
            oldest_timestamp=summary.oldest_timestamp_ns,
            newest_timestamp=summary.newest_timestamp_ns,
            index_entries=7,
        )

    return RpcContext(
        identity=identity,
        **services,
        coverage=Coverage(index.open_view, statements, ids),
        intake=DatabaseOnlineTimes(database).overlapping,
        missing_parents=partial(count_missing_parents, database),
        policy=lambda: rules.policy,
        access=lambda: rules.access,
        now_ns=lambda: time.time_ns() + rules.lead_ns,
        monotonic_ns=rules.monotonic_ns,
        health=rules.health,
        state=state,
        metrics=metrics,
        confirmations=cast("Any", SimpleNamespace(confirmed=confirm_nothing)),
    )


def item(
    payload: bytes = b"payload",
    *,
    pubsub: str = PUBSUB,
    content: str = CONTENT,
    timestamp: int | None = None,
    ephemeral: bool | None = None,
) -> WakuMessageAndTopic:
    """Build a message to publish; the default timestamp is the current time."""
    message = WakuMessage(
        payload=payload,
        content_topic=content,
        timestamp=time.time_ns() if timestamp is None else timestamp,
        ephemeral=ephemeral,
    )
    return WakuMessageAndTopic(message=message, pubsub_topic=pubsub)


async def failure(work: Awaitable[object]) -> tuple[grpc.StatusCode, str]:
    """Return the status and the details of a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await within(work)
    return caught.value.code(), caught.value.details() or ""


async def within(work: Awaitable[_T]) -> _T:
    """Wait for something that must happen, and fail instead of hanging."""
    return await asyncio.wait_for(work, TIMEOUT_S)
