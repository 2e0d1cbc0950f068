"""`AsyncClient` and `Client` against nodes: the same answers, errors, failover, interruptions."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from operator import methodcaller
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import storenode.client
from storenode.client import (
    Admin,
    AsyncAdmin,
    AsyncClient,
    AsyncPublisher,
    Client,
    ClientClosedError,
    Message,
    MessageRejectedError,
    Outcome,
    Published,
    Publisher,
    Retry,
    StorenodeError,
)
from storenode.client.sds_messages import sds_payload
from tests.support.node import NodeProcess
from tests.support.sds_claims import claiming, genuine, genuine_id

Call = Callable[[Any], Any]


class Either:
    """A client of either kind: what a test does with one, it does with the other."""

    def __init__(self, client: AsyncClient | Client) -> None:
        self.client = client

    async def do(self, call: Call) -> Any:  # noqa: ANN401 - what the call returns
        if isinstance(self.client, AsyncClient):
            made: Awaitable[Any] = call(self.client)
            return await made
        return await asyncio.to_thread(call, self.client)

    async def take(self, call: Call, count: int | None = None) -> tuple[list[Message], bytes]:
        """Return the first messages of a stream, and its cursor when no more are asked for."""
        if isinstance(self.client, AsyncClient):
            found = []
            async with call(self.client) as stream:
                async for message in stream:
                    found.append(message)
                    if len(found) == count:
                        break
                return found, stream.cursor
        return await asyncio.to_thread(self._take, call, count)

    def _take(self, call: Call, count: int | None) -> tuple[list[Message], bytes]:
        with call(self.client) as stream:
            return list(itertools.islice(stream, count)), stream.cursor


@pytest.fixture(params=["asyncio", "blocking"])
async def either(request: pytest.FixtureRequest, node: NodeProcess) -> AsyncIterator[Either]:
    if request.param == "asyncio":
        async with AsyncClient(node.listen) as client:
            yield Either(client)
    else:
        blocking = await asyncio.to_thread(Client, node.listen)
        yield Either(blocking)
        await asyncio.to_thread(blocking.close)


def made(topic: str, count: int, payload_bytes: int = 0) -> list[Message]:
    start_ns = time.time_ns()
    return [
        Message(b"%d" % n + bytes(payload_bytes), topic, timestamp=start_ns + n)
        for n in range(count)
    ]


def in_parentheses(function: Callable[..., Any]) -> list[tuple[str, object]]:
    return [
        (name, parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
    ]


@pytest.mark.parametrize(
    ("asynchronous", "blocking"),
    [(AsyncClient, Client), (AsyncAdmin, Admin), (AsyncPublisher, Publisher)],
)
def test_both_kinds_have_the_same_names(asynchronous: type, blocking: type) -> None:
    def public(kind: type) -> dict[str, Any]:
        members = inspect.getmembers(kind, inspect.isfunction)
        return {name: call for name, call in members if not name.startswith("_")}

    theirs, ours = public(asynchronous), public(blocking)
    renamed = {"aclose": "close"}
    assert {renamed.get(name, name) for name in theirs} == set(ours)
    for name, call in theirs.items():
        assert in_parentheses(call) == in_parentheses(ours[renamed.get(name, name)]), name
    if asynchronous is not AsyncPublisher:
        assert in_parentheses(asynchronous) == in_parentheses(blocking)


async def test_publish_and_catch_up_and_follow(either: Either, topic: str) -> None:
    messages = made(topic, 5)
    messages[0] = Message(
        b"\0\xff", topic, "/waku/2/rs/1/3", messages[0].timestamp, b"", 0, rate_limit_proof=b"proof"
    )
    for message in messages[:2]:
        result = await either.do(methodcaller("publish", message))
        assert (result.outcome, result.hash) == (Outcome.STORED, message.hash)
    found, cursor = await either.take(lambda client: client.scan(topic))
    assert found == messages[:2], "every field comes back"
    assert abs(found[0].time - datetime.now(UTC)) < timedelta(minutes=5)
    results = await either.do(lambda client: client.publish_many(messages))
    assert [each.outcome for each in results] == [Outcome.DUPLICATE] * 2 + [Outcome.STORED] * 3
    assert all(each.stored for each in results)
    later, _ = await either.take(lambda client: client.scan(topic, cursor=cursor))
    assert later == messages[2:]
    first, kept = await either.take(lambda client: client.follow(topic, from_beginning=True), 5)
    assert {each.hash for each in first} == {each.hash for each in messages}
    (last,) = made(topic, 1)
    await either.do(lambda client: client.publish(last))
    again, _ = await either.take(
        lambda client: client.follow(topic, cursor=kept, from_beginning=True), 6
    )
    assert [each.hash for each in again] == [each.hash for each in [*first, last]], (
        "a page that was not finished comes again"
    )


async def test_queries_by_topic_time_and_hash(either: Either, topic: str) -> None:
    messages = made(topic, 7)
    await either.do(lambda client: client.publish_many(messages))
    newest = await either.do(lambda client: client.query(topic, limit=3))
    assert newest.messages == messages[4:]
    older = await either.do(lambda client: client.query(topic, limit=3, cursor=newest.cursor))
    assert older.messages == messages[1:4]
    oldest = await either.do(lambda client: client.query(topic, limit=6, newest_first=False))
    last = await either.do(
        lambda client: client.query(topic, newest_first=False, cursor=oldest.cursor)
    )
    assert (oldest.messages, last.messages, last.cursor) == (messages[:6], messages[6:], None)
    wanted = [messages[2].hash, messages[5].hash, bytes(32), messages[2].hash]
    found = await either.do(lambda client: client.get(wanted))
    assert found == {messages[2].hash: messages[2], messages[5].hash: messages[5]}
    assert await either.do(lambda client: client.get([])) == {}
    start, end = messages[1].time, messages[0].time + timedelta(hours=1)
    ranged, _ = await either.take(lambda client: client.scan([topic], start=start, end=end))
    assert ranged == messages, "a datetime is cut to microseconds"
    exact = {"start": messages[1].timestamp, "end": messages[3].timestamp}
    assert (await either.take(lambda client: client.scan(topic, **exact)))[0] == messages[1:3]
    limited, _ = await either.take(lambda client: client.scan(topic, limit=2, newest_first=True))
    assert limited == messages[:-3:-1]


async def test_sds_messages_and_their_past(either: Either, topic: str) -> None:
    channel, name = topic, genuine_id(topic, b"genuine")
    payloads = [
        sds_payload(channel, key, key.encode(), sender_id="me", parents=[(p, None) for p in after])
        for key, after in (("a", ()), ("b", ("a",)), ("c", ("b", "gone")))
    ]
    payloads += [claiming(channel, name, b"forged"), genuine(channel, b"genuine")]
    messages = [
        Message(payload, topic, timestamp=time.time_ns() + number)
        for number, payload in enumerate(payloads)
    ]
    await either.do(lambda client: client.publish_many(messages))
    result = await either.do(lambda client: client.get_sds(channel, ["b", "nobody"]))
    ((found,), missing) = result.messages, result.missing
    assert (found.message_id, found.sender_id, found.content) == ("b", "me", b"b")
    assert (found.parents, missing) == ([("a", None)], [("nobody", None)])
    hinted = await either.do(lambda client: client.get_sds(channel, [("b", found.message.hash)]))
    assert [each.message for each in hinted.messages] == [found.message]
    past = await either.do(lambda client: client.causal_history(channel, ["c"]))
    assert [each.message_id for each in past.messages] == ["a", "b", "c"]
    assert (past.missing, past.truncated) == ([("gone", None)], False)
    short = await either.do(lambda client: client.causal_history(channel, ["c"], max_depth=1))
    assert ({each.message_id for each in short.messages}, short.truncated) == ({"b", "c"}, True)
    for proven, first in ((True, b"genuine"), (False, b"forged")):
        both = await either.do(methodcaller("get_sds", channel, [name], prefer_proven=proven))
        assert (both.messages[0].content, len(both.messages)) == (first, 2)


async def test_a_publisher_batches_and_waits_for_room(either: Either, topic: str) -> None:
    messages = made(topic, 2_500)
    if isinstance(either.client, AsyncClient):
        async with either.client.publisher(max_pending=700) as publisher:
            answers = [await publisher.send(message) for message in messages]
            assert publisher.acknowledged >= len(messages) - 700
            await publisher.flush()
            assert publisher.acknowledged == len(messages)
        results: list[Published] = [answer.result() for answer in answers]
        with pytest.raises(ClientClosedError):
            await publisher.send(messages[0])
    else:
        results = await asyncio.to_thread(_publish_blocking, either.client, messages)
    assert [each.hash for each in results] == [message.hash for message in messages]
    assert {each.outcome for each in results} == {Outcome.STORED}
    found, _ = await either.take(lambda client: client.scan(topic))
    assert found == messages


def _publish_blocking(client: Client, messages: list[Message]) -> list[Published]:
    with client.publisher(max_pending=700) as publisher:
        answers = [publisher.send(message) for message in messages]
        publisher.flush()
    return [answer.result(0) for answer in answers]


@pytest.mark.parametrize("strict", [True, False])
async def test_a_publisher_reports_rejected_messages(
    node: NodeProcess, topic: str, strict: bool
) -> None:
    good, bad = Message(b"good", topic), Message(b"bad", topic, timestamp=1)
    answers: list[asyncio.Future[Published]] = []

    async def publish(client: AsyncClient) -> None:
        async with client.publisher(strict=strict) as publisher:
            answers.extend([await publisher.send(each) for each in (good, bad, good)])

    async with AsyncClient(node.listen) as client:
        if strict:
            with pytest.raises(MessageRejectedError) as caught:
                await publish(client)
            assert caught.value.message is bad
        else:
            await publish(client)
        outcomes = [answer.result().outcome for answer in answers]
        assert outcomes == [Outcome.STORED, Outcome.REJECTED, Outcome.DUPLICATE]


async def test_a_block_that_fails_does_not_wait_for_answers(node: NodeProcess, topic: str) -> None:
    answers: list[asyncio.Future[Published]] = []

    async def fail(client: AsyncClient) -> None:
        async with client.publisher() as publisher:
            answers.append(await publisher.send(Message(b"x", topic)))
            raise ZeroDivisionError

    async with AsyncClient(node.listen) as client:
        with pytest.raises(ZeroDivisionError):
            await fail(client)
        assert answers[0].done()


async def test_a_cursor_moves_when_the_next_message_is_asked_for(
    node: NodeProcess, topic: str
) -> None:
    messages = made(topic, 6)
    async with AsyncClient(node.listen) as client:
        await client.publish_many(messages)
        async with client.scan(topic, page_size=2) as stream:
            seen = [(message.payload, stream.cursor) async for message in stream]
        assert seen[0][1] == seen[1][1] == b""
        assert seen[2][1] == seen[3][1] != seen[4][1]
        left = [each async for each in client.scan(topic, cursor=seen[3][1])]
        assert left == messages[2:], "what was not finished comes again"
        async with aclosing(client.scan(topic, page_size=4).pages()) as pages:
            sizes = [len(page.messages) async for page in pages]
        assert sizes[:2] == [4, 2]
        hashes = [each async for each in client.scan_hashes(topic)]
        assert hashes == [message.hash for message in messages]


async def test_status_comes_from_the_admin_listener(node: NodeProcess) -> None:
    async with AsyncAdmin(node.admin) as admin:
        assert (await admin.status()).ready
    with Admin(node.admin) as blocking:
        assert (await asyncio.to_thread(blocking.status)).node_id == node.ready["node_id"]


def test_a_blocking_call_can_be_made_from_any_thread(node: NodeProcess, topic: str) -> None:
    found: list[Outcome] = []
    with Client(node.listen) as client:
        threads = [
            threading.Thread(
                target=lambda n=n: found.append(client.publish(Message(b"%d" % n, topic)).outcome)
            )
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [Outcome.STORED] * 8
        assert len(list(client.scan(topic))) == 8
        assert len(list(client.scan_hashes(topic))) == 8


def test_every_error_is_a_storenode_error() -> None:
    exported = [getattr(storenode.client, name) for name in storenode.client.__all__]
    kinds = [each for each in exported if issubclass(each, Exception)]
    assert len(kinds) > 20
    assert all(issubclass(kind, StorenodeError) and kind.__doc__ for kind in kinds)


TOPIC = "/failover/1/all/proto"
PATIENT = Retry(attempts=400, first_delay_s=0.05, max_delay_s=0.25, at_start=True)
LATE = ("--max-clock-drift", "off", "--drain-timeout", "1s")


@pytest.fixture
def two(tmp_path: Path, database_url: str) -> Iterator[list[NodeProcess]]:
    """Return two nodes on one Postgres."""
    nodes = [NodeProcess(tmp_path / name, LATE, database_url) for name in ("a", "b")]
    try:
        yield [node.start() for node in nodes]
    finally:
        for node in nodes:
            node.close()


@pytest.mark.parametrize("how", [NodeProcess.kill, NodeProcess.terminate])
async def test_streams_and_calls_go_on_at_another_node_of_the_store(
    two: list[NodeProcess], how: Callable[[NodeProcess], object]
) -> None:
    messages = made(TOPIC, 400, payload_bytes=20_000)
    async with AsyncClient([node.listen for node in two], retry=PATIENT) as client:
        results = await client.publish_many(messages[:300])
        assert {result.outcome for result in results} == {Outcome.STORED}
        scan, feed = client.scan(TOPIC, page_size=5), client.follow(TOPIC, from_beginning=True)
        scanned, followed = (
            [await anext(scan) for _ in range(20)],
            [await anext(feed) for _ in range(20)],
        )
        async with client.publisher() as publisher:
            for message in messages[300:350]:
                await publisher.send(message)
            await asyncio.to_thread(how, two[0])
            for message in messages[350:]:
                await publisher.send(message)
        scanned += [message async for message in scan]
        followed += [await anext(feed) for _ in messages[20:]]
        assert scanned[:300] == messages[:300]
        present = {message.hash for message in scanned}
        assert scanned == [message for message in messages if message.hash in present]
        assert sorted(message.hash for message in followed) == sorted(
            message.hash for message in messages
        )
        assert (await client.query(TOPIC, limit=1)).messages == messages[-1:]
        assert len(await client.get([message.hash for message in messages])) == len(messages)


TIMEOUT_S = 120

PROGRAM = """
import random, signal, sys
from storenode.client import Client

def interrupt(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
rng, ended = random.Random(1), 0
with Client(sys.argv[1]) as client:
    for _ in range(100):
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0003, 0.01))
            with client.follow(sys.argv[2], from_beginning=True) as stream:
                for page in stream.pages():
                    pass
        except KeyboardInterrupt:
            ended += 1
    print(ended, [message.payload for message in client.scan(sys.argv[2])])
"""


def test_an_interruption_is_one_at_any_moment(node: NodeProcess, topic: str) -> None:
    with Client(node.listen) as client:
        client.publish(Message(b"held", topic))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, node.listen, topic],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "100 [b'held']\n"


def test_a_stream_that_is_dropped_runs_no_callback(node: NodeProcess, topic: str) -> None:
    # Python swallows an interruption that comes in one.
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    with Client(node.listen) as client:
        client.publish(Message(b"held", topic))
        with client.follow(topic, from_beginning=True) as stream:
            assert next(stream).payload == b"held"
        gc.disable()  # a collection may run callbacks of other objects
        sys.setprofile(note)
        del stream
        sys.setprofile(None)
        gc.enable()
    assert called == []
