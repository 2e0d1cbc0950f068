"""The attempts of a call: the nodes they go to, and the errors that end them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final

import grpc
import pytest
import trustme

from chaos.ports import ReservedPort
from storenode.client import (
    AccessDeniedError,
    AsyncClient,
    CallTimeoutError,
    ClientClosedError,
    ConnectionLostError,
    CursorRefusedError,
    InvalidRequestError,
    LimitExceededError,
    Message,
    NodeError,
    NotAuthenticatedError,
    NotServedError,
    Retry,
    TlsIdentity,
)
from storenode.client.node import connect
from storenode.common.backoff import Backoff
from storenode.connection.errors import RETRY_PUSHBACK, TlsHandshakeError, WrongProtocolError
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryResponse
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.support.stand_in import Behaviour, Service, serving

ENDLESS: Final = Retry(attempts=None, first_delay_s=0.01, max_delay_s=0.01, at_start=True)
HASTY: Final = Retry(attempts=3, first_delay_s=0.01, max_delay_s=0.01)
GUARD_S: Final = 60.0
"""Longer than any of these tests takes, shorter than what they would wait for in vain."""

MESSAGE: Final = Message(b"x", "/test/1/attempts/proto", timestamp=1)


async def _publish_by_publisher(client: AsyncClient) -> None:
    async with client.publisher() as publisher:
        await publisher.send(MESSAGE)


async def _read(items: Any) -> None:  # noqa: ANN401 - a stream or a generator
    await anext(items, None)


CALLS: Final[dict[str, Callable[[AsyncClient], Awaitable[object]]]] = {
    "publish": lambda client: client.publish(MESSAGE),
    "publish confirmed": lambda client: client.publish(MESSAGE, min_confirms=1),
    "publish_many": lambda client: client.publish_many([MESSAGE]),
    "publisher": _publish_by_publisher,
    "get": lambda client: client.get([bytes(32)]),
    "query": lambda client: client.query(cursor=bytes(32)),
    "scan": lambda client: _read(client.scan().pages()),
    "scan_hashes": lambda client: _read(client.scan_hashes()),
    "coverage": lambda client: _read(client.coverage()),
    "follow": lambda client: _read(client.follow(cursor=bytes(32)).pages()),
    "get_sds": lambda client: client.get_sds("lobby", ["a"]),
    "causal_history": lambda client: client.causal_history("lobby", ["a"]),
}
ANSWERS: Final[dict[str, Any]] = {
    "Query": StoreQueryResponse(status_code=200),
    "Scan": store_pb2.ScanPage(cursor=b"1"),
    "Follow": store_pb2.FollowPage(cursor=b"1", live=True),
    "GetCoverage": store_pb2.CoveragePage(),
    "GetSdsMessages": store_pb2.SdsMessagesPage(),
    "GetCausalHistory": store_pb2.CausalHistoryPage(),
}
PUBLISHED: Final = store_pb2.PublishResponse(
    results=[store_pb2.PublishResult(outcome=store_pb2.PublishResult.STORED)]
)


async def live(method: str, requests: AsyncIterator[bytes], _context: object) -> Any:  # noqa: ANN401
    """Respond to a call like a node without messages."""
    if method.startswith("Publish"):
        async for _ in requests:
            yield PUBLISHED.SerializeToString()
    else:
        yield ANSWERS[method].SerializeToString()


async def hung(_method: str, _requests: object, _context: object) -> Any:  # noqa: ANN401
    """Take calls and never answer."""
    await asyncio.Event().wait()
    yield b""


def refusing(code: grpc.StatusCode) -> Behaviour:
    """End every call with a status."""

    async def refuse(_method: str, _requests: object, context: Any) -> Any:  # noqa: ANN401
        await context.abort(code, "no")
        yield b""

    return refuse


async def without_cursor(method: str, _requests: object, context: Any) -> Any:  # noqa: ANN401
    """Refuse cursors in the way of each call."""
    if method == "Query":
        yield StoreQueryResponse(status_code=404).SerializeToString()
    else:
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "unknown cursor")


class Nodes(AsyncExitStack):
    """Nodes of this process, which end with the block."""

    async def serve(self, behaviour: Behaviour | Service, tls: Any = None) -> str:  # noqa: ANN401
        """Start a node and return its address."""
        return await self.enter_async_context(serving(behaviour, tls))

    def silent(self) -> str:
        """Return the address of a listener that accepts connections and never writes."""
        listener = self.enter_context(socket.create_server(("127.0.0.1", 0)))
        return f"127.0.0.1:{listener.getsockname()[1]}"

    async def foreign(self) -> str:
        """Start a listener that speaks another protocol and return its address."""

        async def greet(_: object, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        self.push_async_callback(server.wait_closed)
        self.callback(server.close)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def failures(
    nodes: list[str],
    calls: list[str] | None = None,
    retry: Retry = ENDLESS,
    timeout_s: float = 2 * GUARD_S,
    **options: Any,  # noqa: ANN401 - the client's
) -> dict[str, type[BaseException] | None]:
    """Make calls, each by a client of its own, and return what each of them failed with."""

    async def failure(call: str) -> type[BaseException] | None:
        async with AsyncClient(nodes, retry=retry, timeout_s=timeout_s, **options) as client:
            try:
                await CALLS[call](client)
            except NodeError as error:
                return type(error)
        return None

    async with asyncio.timeout(GUARD_S):
        names = calls or list(CALLS)
        return dict(zip(names, await asyncio.gather(*map(failure, names)), strict=True))


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with Nodes() as stack:
        yield stack


@pytest.fixture
async def others(nodes: Nodes) -> list[str]:
    """Return a node that is down, one that accepts no connection, and one that never responds."""
    return [ReservedPort().address, nodes.silent(), await nodes.serve(hung)]


FINAL: Final[list[tuple[Behaviour, type[NodeError], list[str]]]] = [
    (without_cursor, CursorRefusedError, ["query", "scan", "follow", "scan_hashes"]),
    (refusing(grpc.StatusCode.INVALID_ARGUMENT), InvalidRequestError, list(CALLS)),
    (refusing(grpc.StatusCode.UNAUTHENTICATED), NotAuthenticatedError, list(CALLS)),
    (refusing(grpc.StatusCode.PERMISSION_DENIED), AccessDeniedError, list(CALLS)),
    (refusing(grpc.StatusCode.UNIMPLEMENTED), NotServedError, list(CALLS)),
]


@pytest.mark.parametrize(
    ("behaviour", "error", "calls"), FINAL, ids=[each[1].__name__ for each in FINAL]
)
async def test_a_final_error_is_raised_whatever_other_nodes_do(
    nodes: Nodes,
    others: list[str],
    behaviour: Behaviour,
    error: type[NodeError],
    calls: list[str],
) -> None:
    address = await nodes.serve(behaviour)
    for other in others:
        for order in ([address, other], [other, address]):
            assert await failures(order, calls) == dict.fromkeys(calls, error)


async def test_connections_that_no_attempt_can_make_are_final(
    nodes: Nodes, others: list[str]
) -> None:
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    pair = (leaf.private_key_pem.bytes(), leaf.cert_chain_pems[0].bytes())
    trusting = TlsIdentity(authority.cert_pem.bytes())
    stranger = TlsIdentity(trustme.CA().cert_pem.bytes())
    tls = await nodes.serve(live, grpc.ssl_server_credentials([pair]))
    cases: list[tuple[str, TlsIdentity | None, type[NodeError]]] = [
        (tls, None, TlsHandshakeError),
        (tls, stranger, TlsHandshakeError),
        (await nodes.serve(live), trusting, TlsHandshakeError),
        (await nodes.foreign(), None, WrongProtocolError),
    ]
    for address, identity, error in cases:
        for other in others[:2]:
            for order in ([address, other], [other, address]):
                assert await failures(order, tls=identity) == dict.fromkeys(CALLS, error)


async def test_another_node_answers_when_the_first_is_silent(
    nodes: Nodes, others: list[str]
) -> None:
    address = await nodes.serve(live)
    for silent in others:
        found = await failures([silent, address], timeout_s=2 * GUARD_S)
        assert found == dict.fromkeys(CALLS)


async def test_the_time_limit_bounds_every_call(others: list[str]) -> None:
    patient = Retry(attempts=100, at_start=True)
    for silent in others[1:]:
        found = await failures([silent], retry=patient, timeout_s=0.5)
        assert found == dict.fromkeys(CALLS, CallTimeoutError)
        found = await failures([silent, *others], retry=patient, timeout_s=0.5)
        assert all(found.values())


async def test_the_time_limit_bounds_later_pages_of_a_scan(nodes: Nodes) -> None:
    async def stalling(_method: str, _requests: object, _context: object) -> Any:  # noqa: ANN401
        yield store_pb2.ScanPage(cursor=b"1").SerializeToString()
        await asyncio.Event().wait()

    address = await nodes.serve(stalling)
    async with AsyncClient(address, timeout_s=0.2) as client, asyncio.timeout(GUARD_S):
        with pytest.raises(CallTimeoutError, match="did not answer within"):
            [page async for page in client.scan().pages()]


async def test_another_node_may_accept_a_refused_cursor(nodes: Nodes) -> None:
    addresses = [await nodes.serve(without_cursor), await nodes.serve(live)]
    assert await failures(addresses, ["query", "scan", "follow"]) == dict.fromkeys(
        ["query", "scan", "follow"]
    )


DROPPED: Final = grpc.StatusCode.CANCELLED
LIMITED: Final = grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("code", "metadata", "refused", "calls", "error"),
    [
        (DROPPED, (), 2, 3, None),
        (DROPPED, (), 1_000, 4, ConnectionLostError),
        # A limit that is reached for the moment is waited for, another one is not.
        (LIMITED, ((RETRY_PUSHBACK, "10"),), 2, 3, None),
        (LIMITED, (), 2, 1, LimitExceededError),
    ],
)
async def test_a_call_that_may_succeed_later_is_made_again_a_few_times(
    nodes: Nodes,
    *,
    code: grpc.StatusCode,
    metadata: tuple[tuple[str, str], ...],
    refused: int,
    calls: int,
    error: type[NodeError] | None,
) -> None:
    async def refusing_first(method: str, requests: AsyncIterator[bytes], context: Any) -> Any:  # noqa: ANN401
        if service.calls <= refused:
            await context.abort(code, code.name, metadata)
        async for answer in live(method, requests, context):
            yield answer

    service = Service(refusing_first)
    address = await nodes.serve(service)
    assert await failures([address], ["publish"], HASTY) == {"publish": error}
    assert service.calls == calls


async def test_a_closed_client_says_so(nodes: Nodes) -> None:
    async with connect(await nodes.serve(hung), retry=ENDLESS) as client:
        status = asyncio.create_task(client.status())
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ClientClosedError):
            await status


async def test_an_error_of_the_source_comes_after_the_answers_to_what_it_gave(
    nodes: Nodes,
) -> None:
    async def source() -> AsyncIterator[store_pb2.PublishRequest]:
        for _ in range(3):
            yield store_pb2.PublishRequest(messages=[WakuMessageAndTopic()])
        raise LookupError("the source is broken")

    async with connect(await nodes.serve(live)) as client:
        answers = client.publish_stream(source())
        for _ in range(3):
            await anext(answers)
        with pytest.raises(LookupError, match="the source is broken"):
            await anext(answers)


async def test_a_refusal_is_reported_although_requests_are_on_their_way(nodes: Nodes) -> None:
    async with connect(await nodes.serve(refusing(LIMITED))) as client:
        for _ in range(20):
            with pytest.raises(LimitExceededError, match="no"):
                await anext(client.publish_stream([store_pb2.PublishRequest()] * 30))


def test_pauses_double_up_to_a_bound_and_begin_again_after_a_success() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.take() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.take() == 0.5
