"""Health, reflection, status, draining, failures and connections of the gRPC side."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import weakref
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from store.db.messages import DatabaseReader
from store.domain.access import Access
from store.domain.ports import StoreSummary
from store.domain.query import OK, TOO_MANY_REQUESTS
from store.domain.quota import CallKind, ClientLimits
from store.observe.logging import configure
from store.rpc import listeners
from store.rpc.listeners import bind
from store.serving.addresses import ListenerAddress
from store.serving.call import Call
from store.serving.failure import busy
from store.serving.methods import reads
from store.serving.sockets import hang_up
from store.serving.tls import TlsFiles
from storenode.wire.storenode.v1.admin_pb2 import NodeStatus, WatchStatusRequest
from storenode.wire.storenode.v1.store_pb2 import FollowRequest, PublishRequest, PublishResponse
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from tests.calls.transports import Connect, Grpc, RefusedError
from tests.integration.rpc.harness import ADMIN, STORE, Node, Rules, failure, item, serve, within
from tests.support.credentials import Pki
from tests.support.polling import PATIENCE_S

HEALTH = "/grpc.health.v1.Health/"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.fixture
def log() -> Iterator[StringIO]:
    """Collect the node's log as lines of JSON; requested before the node starts."""
    stream = StringIO()
    configure("json", "info", stream)
    yield stream
    logging.getLogger().handlers.clear()


def lines(log: StringIO, event: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in log.getvalue().splitlines()]
    return [entry for entry in entries if entry["event"] == event]


async def check(node: Node, service: str) -> int:
    request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
    raw = await node.unary(HEALTH + "Check", request)
    return int(health_pb2.HealthCheckResponse.FromString(raw).status)


async def test_health_is_that_of_the_node(node: Node) -> None:
    for service in ("", "storenode.v1.Store", "grpc.health.v1.Health"):
        assert await check(node, service) == SERVING
    code, _ = await failure(check(node, "storenode.v1.Admin"))
    assert code is grpc.StatusCode.NOT_FOUND
    node.rules.halt("starting")
    assert await check(node, "") == NOT_SERVING
    code, _ = await failure(node.unary(HEALTH + "Check", b"\xff"))
    assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_probes_leave_the_rate_of_their_host_as_it_is(database_url: str) -> None:
    rules = Rules(Access(None, ClientLimits(requests_per_second=1)), monotonic_ns=lambda: 0)
    async with serve(database_url, rules=rules) as node:
        assert (await node.store.Query(StoreQueryRequest())).status_code == OK
        assert await check(node, "") == SERVING
        assert (await node.store.Query(StoreQueryRequest())).status_code == TOO_MANY_REQUESTS
        node.context.quota.allowed = dict.fromkeys(CallKind, 0)
        assert await check(node, "") == SERVING, "also where all other calls are taken"
        node.context.probes.allowed = dict.fromkeys(CallKind, 0)
        code, _ = await failure(check(node, ""))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def watch(node: Node, service: str) -> Any:  # noqa: ANN401 - a call of grpc.aio
    request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
    return node.channel.unary_stream(HEALTH + "Watch")(request)


async def next_status(call: Any) -> int:  # noqa: ANN401 - a call of grpc.aio
    return int(health_pb2.HealthCheckResponse.FromString(await within(call.read())).status)


async def test_those_that_watch_hear_of_changes(node: Node) -> None:
    known, unknown = await watch(node, ""), await watch(node, "nothing")
    assert await next_status(known) == SERVING
    assert await next_status(unknown) == SERVICE_UNKNOWN
    node.rules.halt("starting")
    assert await next_status(known) == NOT_SERVING
    node.rules.halt(None)
    assert await next_status(known) == SERVING
    known.cancel()
    unknown.cancel()


async def reflect(
    node: Node, request: reflection_pb2.ServerReflectionRequest
) -> reflection_pb2.ServerReflectionResponse:
    call = node.channel.stream_stream(REFLECTION)(iter([request.SerializeToString()]))
    return reflection_pb2.ServerReflectionResponse.FromString(await within(call.read()))


async def test_reflection_describes_what_is_served(node: Node) -> None:
    listed = await reflect(node, reflection_pb2.ServerReflectionRequest(list_services=""))
    assert {service.name for service in listed.list_services_response.service} == {
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "storenode.v1.Store",
    }
    for symbol in ("Store", "Store.Follow", "ScanRequest", "ScanRequest.filter"):
        request = reflection_pb2.ServerReflectionRequest(
            file_containing_symbol=f"storenode.v1.{symbol}"
        )
        described = await reflect(node, request)
        (first, *_) = described.file_descriptor_response.file_descriptor_proto
        assert b"PublishStream" in first
    for symbol in ("storenode.v1.Store.Nothing", "storenode.v1.Store.Follow.x", "Store", ".", ""):
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
        refused = await reflect(node, request)
        assert refused.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    call = node.channel.stream_stream(REFLECTION)(iter([b"\xff"]))
    code, _ = await failure(call.read())
    assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_methods_that_are_not_there_are_unimplemented(node: Node) -> None:
    for path in (STORE + "Nothing", "/a.B/C", ADMIN + "GetStatus", "/storenode.v1.Peer/Gossip"):
        code, _ = await failure(node.unary(path, b""))
        assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_status_is_served_until_the_node_ends(database_url: str) -> None:
    async with serve(database_url) as writing:
        await writing.publish(item(timestamp=5), item(timestamp=9))
    serving = serve(database_url, listener="admin", open_admin=True, read_only=True)
    async with serving as node:
        code, sentence = await failure(node.unary(ADMIN + "Synchronize", b""))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "this node only reads (--read-only) and has no peers" in sentence
        status = NodeStatus.FromString(await node.unary(ADMIN + "GetStatus", b""))
        assert (status.version, status.node_id) == ("1.2.3", "node-a")
        assert (status.oldest_timestamp, status.newest_timestamp) == (5, 9)
        assert (status.messages, status.index_entries) == (2, 7)
        assert status.ready
        node.rules.halt("starting")
        status = NodeStatus.FromString(await node.unary(ADMIN + "GetStatus", b""))
        assert not status.ready
        code, sentence = await failure(node.unary(ADMIN + "Synchronize", b""))
        assert (code, sentence) == (grpc.StatusCode.UNAVAILABLE, "starting")
        request = WatchStatusRequest(since_revision=status.revision).SerializeToString()
        waiting = node.channel.unary_unary(ADMIN + "WatchStatus")(request)
        node.context.drain.begin()
        code, sentence = await failure(waiting)
        assert (code, "shutting down" in sentence) == (grpc.StatusCode.UNAVAILABLE, True)


async def test_draining_ends_followers_and_streams_after_their_answers(node: Node) -> None:
    following = node.store.Follow(FollowRequest())
    await within(following.read())
    publishing = node.channel.stream_stream(STORE + "PublishStream")()
    request = PublishRequest(messages=[item()]).SerializeToString()
    await publishing.write(request)
    assert PublishResponse.FromString(await within(publishing.read())).results
    # The message itself: it would be read instead of the end otherwise.
    await within(following.read())
    node.context.drain.begin()
    for call in (following, publishing):
        code, sentence = await failure(call.read())
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in sentence
    code, _ = await failure(node.store.Follow(FollowRequest()).read())
    assert code is grpc.StatusCode.UNAVAILABLE
    assert (await node.publish(item())).results


async def test_a_deadline_ends_the_work(node: Node) -> None:
    timeout_s, answered = 0.5, False
    while not answered:
        call = node.channel.unary_stream(STORE + "Follow")(b"", timeout=timeout_s)
        with suppress(grpc.aio.AioRpcError):  # too short for this machine: nothing was under way
            await within(call.read())
            answered = True
        timeout_s *= 2
    code, _ = await failure(call.read())
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    await node.server.stop(20)
    assert node.count("storenode_followers") == 0


async def test_a_failure_has_a_request_id_and_one_line_in_the_log(
    log: StringIO, database_url: str
) -> None:
    async with serve(database_url) as node:
        for given, kept in (("my-request.7", True), ("x" * 65, False), ("a b", False)):
            call = node.channel.unary_unary(STORE + "Publish")(
                b"\xff", metadata=(("x-request-id", given), ("authorization", "Bearer top-secret"))
            )
            code, sentence = await failure(call)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            request_id = dict(await call.trailing_metadata())["x-request-id"]
            assert (request_id == given) == kept
            (line,) = [one for one in lines(log, "call_failed") if one["request_id"] == request_id]
            assert line["method"] == "Publish"
            assert line["code"] == "INVALID_ARGUMENT"
            assert line["reason"] == sentence
            assert "top-secret" not in log.getvalue()
        assert node.count(
            "storenode_calls_total", method="Publish", code="INVALID_ARGUMENT"
        ) == pytest.approx(3)


async def test_an_unexpected_error_is_internal_with_the_request_id_only(
    log: StringIO, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_reader: DatabaseReader) -> StoreSummary:
        raise RuntimeError("a secret of the node")

    monkeypatch.setattr(DatabaseReader, "summary", broken)
    async with serve(database_url, listener="admin", open_admin=True) as node:
        call = node.channel.unary_unary(ADMIN + "GetStatus")(b"")
        code, sentence = await failure(call)
        request_id = dict(await call.trailing_metadata())["x-request-id"]
        assert code is grpc.StatusCode.INTERNAL
        assert "secret" not in sentence
        assert request_id in sentence
    (line,) = lines(log, "call_crashed")
    assert "a secret of the node" in line["exception"]


@pytest.fixture
def by_counting_references() -> Iterator[None]:
    """Run without the collector, which would come too late for requests of 16 MiB."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("by_counting_references")
async def test_a_request_that_was_refused_is_not_kept(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[weakref.ref[set[bytes]]] = []

    async def refused(_call: Call, _request: bytes) -> bytes:
        decoded = {b"decoded"}
        kept.append(weakref.ref(decoded))
        raise busy("no room")

    monkeypatch.setattr(reads, "query", refused)
    async with serve(database_url, http=True) as node:
        for kind in (Grpc, Connect):
            with pytest.raises(RefusedError, match="no room"):
                await kind(node.address, node.http).call("Query", StoreQueryRequest())
            assert kept.pop()() is None, kind


async def test_stalled_handshakes_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "HANDSHAKE_TIMEOUT_MS", 500)
    tls = TlsFiles(*Pki(tmp_path).issue("127.0.0.1"))
    listener = bind(ListenerAddress("--listen", "127.0.0.1", 0), lambda _: {}, tls, connections=9)
    await listener.start()
    host, _, port = listener.address.rpartition(":")
    async with asyncio.timeout(PATIENCE_S):
        for sent in (b"", bytes.fromhex("16030102000100")):  # the beginning of a ClientHello
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            with suppress(ConnectionError):
                await reader.read()
            writer.close()
    await listener.stop(0)


OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_the_connection_that_is_named_is_closed(host: str) -> None:
    callers: list[str] = []
    ended = asyncio.Event()

    async def endless(_request: bytes, context: Any) -> None:  # noqa: ANN401 - of grpc.aio
        callers.append(context.peer())
        await context.write(b"begun")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    handlers = {"test": {"Endless": grpc.unary_stream_rpc_method_handler(endless)}}
    server = bind(ListenerAddress("--listen", host, 0), lambda _: handlers, connections=9)
    await server.start()
    async with (
        grpc.aio.insecure_channel(server.address, OWN_CONNECTION) as first,
        grpc.aio.insecure_channel(server.address, OWN_CONNECTION) as second,
    ):
        calls = []
        for channel in (first, second):
            calls.append(channel.unary_stream("/test/Endless", None, None)(b""))
            assert await calls[-1].read() == b"begun"
        hang_up([callers[0], "ipv4:127.0.0.1:1", "unix:"])
        assert await calls[0].code() is grpc.StatusCode.UNAVAILABLE
        await ended.wait()
        assert not calls[1].done()
    await server.stop(0)
