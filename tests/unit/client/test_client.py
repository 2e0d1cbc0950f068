"""The attempts of a call, positions that are kept between runs, and the names of the package."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import coroutine
from typing import Any, Final

import grpc
import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st

import storenode
from chaos.ports import ReservedPort
from storenode.client import (
    AccessDeniedError,
    ArgumentError,
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
    StorenodeError,
    TlsIdentity,
    asynchronous,
    streams,
)
from storenode.client.errors import PositionError
from storenode.client.message import Page
from storenode.client.node import connect
from storenode.client.positions import (
    MAX_POSITION_BYTES,
    FilePosition,
    Position,
    SqlitePosition,
    position_of,
)
from storenode.client.streams import AsyncMessageStream, followed_across, limited, up_to_live
from storenode.common.backoff import Backoff
from storenode.common.bounded_dict import BoundedDict
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
STORED: Final = store_pb2.PublishResult(outcome=store_pb2.PublishResult.STORED)


async def live(method: str, requests: AsyncIterator[bytes], _context: object) -> Any:  # noqa: ANN401
    """Respond to a call like a node without messages."""
    if method.startswith("Publish"):
        async for request in requests:
            sent = store_pb2.PublishRequest.FromString(request).messages
            yield store_pb2.PublishResponse(results=[STORED] * len(sent)).SerializeToString()
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
    nodes: Nodes, others: list[str], behaviour: Behaviour, error: type[NodeError], calls: list[str]
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
        assert await failures([silent, address]) == dict.fromkeys(CALLS)


async def test_the_time_limit_bounds_every_call(others: list[str]) -> None:
    patient = Retry(attempts=100, at_start=True)
    for silent in others[1:]:
        found = await failures([silent], retry=patient, timeout_s=0.5)
        assert found == dict.fromkeys(CALLS, CallTimeoutError)
        assert all((await failures([silent, *others], retry=patient, timeout_s=0.5)).values())


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
    calls = ["query", "scan", "follow"]
    assert await failures(addresses, calls) == dict.fromkeys(calls)


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


async def live_and_hung(method: str, requests: AsyncIterator[bytes], context: object) -> Any:  # noqa: ANN401
    yield await anext(live(method, requests, context))
    await asyncio.Event().wait()


async def test_a_closed_client_says_so(nodes: Nodes) -> None:
    async with AsyncClient(await nodes.serve(live_and_hung), retry=ENDLESS) as client:
        feed = client.follow()
        await feed.next_page()
        async with AsyncExitStack() as stack:
            publisher = await stack.enter_async_context(client.publisher())
            (await publisher.send(MESSAGE)).cancel()
            await publisher.flush()
            assert publisher.acknowledged == 1, "also that of a future which was cancelled"
            await publisher.send(MESSAGE)
            calls = (stack.aclose(), feed.next_page(), client._calls.status())
            waiting = [asyncio.create_task(each) for each in calls]
            await asyncio.sleep(0)
            await client.aclose()
            for each in waiting:
                with pytest.raises(ClientClosedError):
                    await each


async def test_senders_get_room_in_order(nodes: Nodes) -> None:
    sent, waits = list[str](), list[object]()

    @coroutine
    def send(name: str, count: int = 1) -> Any:  # noqa: ANN401
        for _ in range(count):
            for wait in publisher.send(MESSAGE).__await__():
                waits.append(wait)
                yield wait
            sent.append(name)

    client = AsyncClient(await nodes.serve(live))
    async with client, client.publisher(max_pending=10) as publisher:
        await asyncio.gather(send("many", 300), send("few", 5))
        assert sent[:30].count("few") == 5, "who sends few does not wait for who sends many"
        waits.clear()
        await asyncio.gather(*(send(f"{number:03}") for number in range(300)))
        assert sent[305:] == sorted(sent[305:])
        assert len(waits) <= 300, "each sender waits once"


async def test_senders_wait_for_room_in_bytes(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_bytes = 2 * MESSAGE.encode().ByteSize()
    monkeypatch.setattr("storenode.client.publisher.MAX_PENDING_BYTES", limit_bytes)
    large, pending, sent = replace(MESSAGE, payload=bytes(limit_bytes)), list[int](), list[int]()

    async def send(number: int) -> None:
        await some.send(large if number % 3 == 1 else MESSAGE)
        pending.append(len(some._pending))
        sent.append(number)

    client = AsyncClient(await nodes.serve(live))
    async with client, client.publisher() as some:
        await asyncio.gather(*(send(number) for number in range(20)))
    assert max(pending) == 2
    assert sent == sorted(sent)


async def test_an_answer_that_is_collected_is_bounded(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asynchronous, "MAX_COLLECTED_BYTES", -1)
    ways = ["get", "get_sds", "causal_history"]
    assert {*(await failures([await nodes.serve(live)], ways)).values()} == {LimitExceededError}


async def test_an_error_of_the_source_comes_after_the_answers_to_what_it_gave(nodes: Nodes) -> None:
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


ADDRESS = "127.0.0.1:1"


def test_importing_the_package_loads_nothing_else() -> None:
    check = "import sys, storenode; assert storenode.__version__; assert 'grpc' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)
    assert [getattr(storenode, name).__name__ for name in storenode.__all__ if name[0] != "_"] == [
        *("AsyncChannel", "AsyncClient", "Channel", "Client", "Message")
    ]


def test_representations_are_short() -> None:
    message = storenode.Message(b"x" * 100_000, "/a/1/b/proto", timestamp=1)
    assert repr(message).startswith("Message('/a/1/b/proto', 100,000 bytes, 1970-01-01T00:00:00")
    assert repr(storenode.Message(b"", "/a", timestamp=0)).endswith("hash none)")
    with storenode.Client([ADDRESS, "[::1]:2"]) as client:
        assert repr(client) == "Client(127.0.0.1:1, [::1]:2)"


def test_a_client_that_is_not_closed_gives_a_warning() -> None:
    with pytest.warns(ResourceWarning, match=r"AsyncClient\(127.0.0.1:1\) was not closed"):
        repr(storenode.AsyncClient(ADDRESS))


def test_a_client_made_outside_the_event_loop_works_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    client = storenode.AsyncClient(ADDRESS)

    async def use() -> None:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        client._calls.nodes.addresses[:] = [f"127.0.0.1:{port}"]
        with pytest.raises(StorenodeError, match="does not serve this call"):
            await client.query()
        with pytest.raises(ClientClosedError, match="make one in each loop"):
            await asyncio.to_thread(asyncio.run, client.query())
        monkeypatch.setattr(os, "getpid", lambda: 0)
        with pytest.raises(ClientClosedError, match="does not work after a fork"):
            await client.query()
        monkeypatch.undo()
        await client.aclose()
        await server.stop(0)

    asyncio.run(use())


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda client: client.get_sds("lobby", "id"), "The IDs are one value: pass a list"),
        (lambda client: client.causal_history("lobby", "id"), "The IDs are one value"),
        (lambda client: client.causal_history("lobby", [], known_ids="id"), "The IDs are one"),
        (lambda client: client.get(bytes(32)), "The hashes are one value: pass a list"),
        (lambda client: client.publish_many(storenode.Message(b"", "/a/1/b/c")), "one message"),
        (lambda client: client.publisher(max_pending=0), "allow at least one message"),
        (lambda client: client.publish_many(None), "The messages are one value"),
        (lambda client: client.query(5), "An argument of listed does not fit"),
        (lambda client: client.query("/a/1/\ud800/c"), "holds what UTF-8 cannot carry"),
        (lambda client: client.query(limit="5"), "limit is '5': give a number of messages"),
        (lambda client: client.query(start=2**70), "is no datetime and no number"),
        (lambda client: client.query(end="noon"), "is no datetime and no number"),
        (lambda client: client.query(timeout_s="5"), "timeout_s is '5': give a number"),
        (lambda client: next(client.scan(page_size=-1)), "scan does not fit: Value out of range"),
        (lambda client: client.get_sds("lobby", [("a", "00")]), "get_sds does not fit"),
        (lambda _: storenode.Client(None), "nodes is None: give HOST:PORT"),  # type: ignore[arg-type]
        (lambda _: storenode.Client(ADDRESS, token=5), "The token 5 is int, not str"),  # type: ignore[arg-type]
        (lambda _: storenode.Client(ADDRESS, retry=5), "retry is 5: give a Retry"),  # type: ignore[arg-type]
        (lambda _: storenode.Message(b"", "/a/1/b/c", None), "The pubsub topic None"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_argument_is_refused_where_it_is_passed(
    call: Callable[[storenode.Client], object], sentence: str
) -> None:
    with storenode.Client(ADDRESS) as client, pytest.raises(ArgumentError, match=sentence):
        call(client)


PAGE = 3


class MemoryPosition:
    """A position of an application."""

    def __init__(self) -> None:
        self.cursor: bytes | None = None
        self.saves = 0

    def load(self) -> bytes | None:
        return self.cursor

    def save(self, cursor: bytes) -> None:
        self.cursor = cursor
        self.saves += 1


def messages(count: int) -> list[Message]:
    return [Message(b"%d" % n, "/a/1/b/proto", timestamp=1 + n) for n in range(count)]


def follower(
    stored: list[Message], position: Position | None, *, acknowledges: bool = False
) -> AsyncMessageStream:
    """Return a follower whose cursor is a number, and that ends when it has caught up."""

    async def pages(cursor: bytes) -> AsyncGenerator[Page]:
        at = int(cursor or b"0")
        yield Page([], b"%d" % at, live=at >= len(stored))
        while at < len(stored):
            found = stored[at : at + PAGE]
            at += len(found)
            yield Page(found, b"%d" % at, live=at >= len(stored))

    return AsyncMessageStream(
        lambda cursor: up_to_live(pages(cursor)), b"", position=position, acknowledges=acknowledges
    )


async def take(stream: AsyncMessageStream, count: int, *, by_page: bool) -> list[bytes]:
    """Return the payloads of some messages, each processed when the next one is asked for."""
    taken: list[bytes] = []
    if by_page:
        async for page in stream.pages():
            taken += [each.payload for each in page.messages]
            if len(taken) >= count:
                break
        return taken
    async for message in stream:
        taken.append(message.payload)
        if len(taken) >= count:
            break
    return taken


@settings(max_examples=30)
@given(
    st.integers(0, 12),
    st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.booleans()), max_size=8),
)
def test_kills_at_any_message_lose_none_and_repeat_at_most_a_page(
    count: int, runs: list[tuple[int, bool, bool]]
) -> None:
    async def run() -> None:
        stored, position = messages(count), MemoryPosition()
        seen: list[bytes] = []
        for taken, by_page, is_clean in runs:
            begins = int(position.cursor or b"0")
            assert begins <= len(seen) <= begins + PAGE
            stream = follower(stored, position)
            got = await take(stream, taken, by_page=by_page)
            seen = seen[:begins] + got
            if is_clean:
                async with stream:
                    pass
            else:
                await stream.aclose()
            assert [int(each) for each in seen] == list(range(len(seen)))
        got = await take(follower(stored, position), count + 1, by_page=False)
        assert [int(each) for each in seen[: count - len(got)] + got] == list(range(count))
        assert position.cursor == b"%d" % count
        saves = position.saves
        assert await take(follower(stored, position), 1, by_page=False) == []
        assert position.saves == saves

    asyncio.run(run())


async def test_a_position_that_is_acknowledged_moves_by_ack_alone() -> None:
    position = MemoryPosition()
    async with follower(messages(5), position, acknowledges=True) as stream:
        assert (await anext(stream)).payload == b"0"
        await stream.ack()
        assert position.cursor == b"0"
        await take(stream, 2, by_page=False)
        await stream.ack()
        assert position.cursor == b"3"
        await take(stream, 2, by_page=False)
    assert position.cursor == b"3"
    with pytest.raises(ArgumentError, match="open it with resume="):
        await follower([], None).ack()


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_position_is_what_was_saved_last(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "position"

    def position(name: str = "one") -> FilePosition | SqlitePosition:
        return FilePosition(path) if kind == "file" else SqlitePosition(path, name)

    assert position().load() is None
    for cursor in (b"\x00\xff", b"x" * 300, b"last"):
        position().save(cursor)
        assert position().load() == cursor
    assert [each.name for each in tmp_path.iterdir()] == ["position"]
    if kind == "sqlite":
        assert position("two").load() is None
        position("two").save(b"2")
        assert (position().load(), position("two").load()) == (b"last", b"2")


def test_positions_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(MAX_POSITION_BYTES + 1))
    empty = tmp_path / "cut to nothing"
    empty.touch()
    files: list[Position] = [*map(FilePosition, (large, empty, tmp_path))]
    for position in (*files, SqlitePosition(large, "x"), SqlitePosition(tmp_path / "x", "\ud800")):
        with pytest.raises(PositionError, match=str(tmp_path)):
            position.load()
    nowhere = tmp_path / "nowhere" / "position"
    inside = FilePosition(large / "nowhere")
    for each in (FilePosition(nowhere), SqlitePosition(nowhere, "x"), inside):
        with pytest.raises(PositionError, match="nowhere"):
            each.save(b"1")


def test_an_argument_names_a_position_or_is_refused(tmp_path: Path) -> None:
    own = MemoryPosition()
    assert position_of(own) is own
    assert str(position_of(tmp_path)) == str(position_of(str(tmp_path))) == str(tmp_path)
    assert str(position_of((tmp_path, "x"))) == f"{tmp_path}, name 'x'"
    for wrong in (b"bytes", 1, (1, 2), object(), "", "a\0b", ("a\0b", "x")):
        with pytest.raises(ArgumentError, match="give a path"):
            position_of(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [CursorRefusedError, InvalidRequestError])
async def test_a_refused_position_is_named(tmp_path: Path, kind: type[NodeError]) -> None:
    async def refused(cursor: bytes) -> AsyncGenerator[Page]:
        if cursor:
            raise kind("CODE", "The cursor is another store's.")
        yield Page([], cursor)

    position = FilePosition(tmp_path / "kept")
    position.save(b"cut in the middle")
    with pytest.raises(kind, match=r"The position is kept in .*kept"):
        await anext(AsyncMessageStream(refused, b"", position=position))


async def test_a_stream_that_is_dropped_reports_nothing_about_its_page() -> None:
    """Cancel a call, let its page fail, and forget the stream."""
    fails, complaints = asyncio.Event(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, found: complaints.append(found))

    async def pages(_cursor: bytes) -> AsyncGenerator[Page]:
        await fails.wait()
        none: list[Page] = []
        yield none[0]

    stream = AsyncMessageStream(pages, b"")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await stream.next_page()
    fails.set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    del stream
    gc.collect()
    assert complaints == []


async def test_a_call_that_is_cancelled_leaves_its_page_to_the_next_one() -> None:
    """Cancel calls, as a time limit does: nothing is missed, and one save runs at a time."""
    may_go_on, saving = asyncio.Event(), threading.Semaphore(0)
    saves: list[bytes] = []

    class SlowPosition(MemoryPosition):
        def save(self, cursor: bytes) -> None:
            saves.append(b"begin")
            saving.acquire()
            saves.append(cursor)

    async def pages(_cursor: bytes) -> AsyncGenerator[Page]:
        yield Page(messages(1), b"1")
        await may_go_on.wait()
        yield Page(messages(2)[1:], b"2")

    async def cancelled(call: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(call)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    stream = AsyncMessageStream(pages, b"", position=SlowPosition())
    first = await anext(stream)
    for _ in range(3):
        await cancelled(stream.next_page())
    await cancelled(stream.ack())
    may_go_on.set()
    saving.release(10)
    assert [first, *[message async for message in stream]] == messages(2)
    assert saves == [b"begin", b"1", b"begin", b"2"]
    assert stream.cursor == b"2"
    may_go_on.clear()
    stream = AsyncMessageStream(pages, b"")
    await anext(stream)
    ending = asyncio.create_task(anext(stream, None))
    await asyncio.sleep(0)
    await stream.aclose()
    for after in (ending, anext(stream, None)):
        with pytest.raises(ClientClosedError, match="The stream was closed"):
            await after


async def test_tasks_that_share_a_stream_get_each_page_once() -> None:
    async def pages(_cursor: bytes) -> AsyncGenerator[Page]:
        for number in range(1, 4):
            yield Page(messages(number)[-1:], None)

    stream = AsyncMessageStream(pages, b"")
    found = await asyncio.gather(*(stream.next_page() for _ in range(5)))
    assert [page and page.messages[0] for page in found] == [*messages(3), None, None]


@settings(max_examples=40)
@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12))
def test_a_follower_that_changes_stores_reads_every_message_once(
    taken: int, extra: int, late: int
) -> None:
    # The first store ends after some messages; the second has these, more, and what is new.
    stored = messages(taken + extra + late)
    first, second = stored[:taken], stored[: taken + extra]
    scans: list[int] = []

    async def follow(cursor: bytes) -> AsyncGenerator[Page]:
        if not cursor and not scans and not opened:
            opened.append(cursor)
            for start in range(0, max(taken, 1), PAGE):
                yield Page(first[start : start + PAGE], b"first", live=True)
        if cursor == b"first" or opened == [b""]:
            opened.append(cursor)
            raise CursorRefusedError("OUT_OF_RANGE", "It is another store's.")
        yield Page([], b"second", live=True)
        for message in stored[taken + extra :]:
            yield Page([message], b"second", live=True)

    async def scan(since_ns: int) -> AsyncGenerator[Page]:
        scans.append(since_ns)
        for start in range(0, len(second), PAGE):
            yield Page(second[start : start + PAGE], b"of the scan")

    async def run() -> None:
        found: list[Message] = []
        cursors: list[bytes | None] = []
        before_ns = time.time_ns()
        async for page in followed_across(follow, scan, b"", 5.0):
            found += page.messages
            cursors.append(page.cursor)
        assert found == stored
        assert cursors[-1] == b"second"
        assert set(cursors) <= {b"first", None, b"second"}, "a scan moves no cursor"
        (since_ns,) = scans
        assert before_ns <= since_ns + 5 * 10**9 <= time.time_ns()

    opened: list[bytes] = []
    asyncio.run(run())


@pytest.mark.parametrize("cursor", [b"", b"kept"])
async def test_a_cursor_that_is_refused_from_the_start_is_not_replaced(cursor: bytes) -> None:
    async def refused(_: bytes) -> AsyncGenerator[Page]:
        for page in list[Page]():
            yield page
        raise CursorRefusedError("OUT_OF_RANGE", "It is another store's.")

    with pytest.raises(CursorRefusedError):
        [page async for page in followed_across(refused, refused, cursor, 1.0)]  # type: ignore[arg-type]


def test_a_message_without_a_hash_is_handed_out() -> None:
    unnamed = Message(b"", "/a/1/b/proto", timestamp=0)
    assert streams._fresh(BoundedDict(1), [unnamed, unnamed], None).messages == [unnamed] * 2


async def test_a_limit_cuts_the_last_page() -> None:
    async def pages() -> AsyncGenerator[Page]:
        for start in (0, 3, 6):
            yield Page(messages(9)[start : start + 3], b"%d" % start)

    for limit, sizes in ((1, [1]), (3, [3]), (4, [3, 1]), (9, [3, 3, 3]), (20, [3, 3, 3])):
        found = [page async for page in limited(pages(), limit)]
        assert [len(page.messages) for page in found] == sizes


@pytest.mark.parametrize("most", [1, 2, 7])
def test_a_bounded_dictionary_holds_what_was_set_last(most: int) -> None:
    rng, bounded, set_keys = random.Random(most), BoundedDict[int, int](most), list[int]()
    for step in range(2_000):
        key = rng.randrange(2 * most + 1)
        match rng.randrange(5):
            case 0:
                bounded[key] = step
            case 1:
                bounded.update({key: step})
            case 2 if key not in bounded:
                bounded.setdefault(key, step)
            case 3:
                bounded.pop(key, None)
                set_keys = [each for each in set_keys if each != key]
                continue
            case _:
                bounded.get(key)
                continue
        set_keys = [*(each for each in set_keys if each != key), key][-most:]
        assert bounded[key] == step
        assert list(bounded) == set_keys
    assert isinstance(bounded, OrderedDict)
