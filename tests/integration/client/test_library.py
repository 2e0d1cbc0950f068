"""`AsyncClient` and `Client` against nodes: the same answers, errors, failover, interruptions."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
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
    Publisher,
    Retry,
    StorenodeError,
)
from storenode.client.sds_messages import sds_payload
from tests.support.node import NodeProcess
from tests.support.participant import claiming, genuine, genuine_id


@pytest.fixture
def client(node: NodeProcess) -> Iterator[Client]:
    """Return a blocking client: each of its calls is one of an `AsyncClient` in another thread."""
    with Client(node.listen) as client:
        yield client


def made(topic: str, count: int, payload_bytes: int = 0) -> list[Message]:
    start_ns = time.time_ns()
    return [
        Message(b"%d" % n + bytes(payload_bytes), topic, timestamp=start_ns + n)
        for n in range(count)
    ]


def in_parentheses(function: Callable[..., Any]) -> list[tuple[str, object]]:
    parameters = inspect.signature(function).parameters
    return [(name, parameter.default) for name, parameter in parameters.items()]


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


def test_publish_and_catch_up_and_follow(client: Client, topic: str) -> None:
    messages = made(topic, 5)
    messages[0] = Message(
        b"\0\xff", topic, "/waku/2/rs/1/3", messages[0].timestamp, b"", 0, rate_limit_proof=b"proof"
    )
    for message in messages[:2]:
        result = client.publish(message)
        assert (result.outcome, result.hash) == (Outcome.STORED, message.hash)
    with client.scan(topic) as stream:
        found = list(stream)
    assert found == messages[:2], "every field comes back"
    assert abs(found[0].time - datetime.now(UTC)) < timedelta(minutes=5)
    results = client.publish_many(messages)
    assert [each.outcome for each in results] == [Outcome.DUPLICATE] * 2 + [Outcome.STORED] * 3
    assert all(each.stored for each in results)
    assert list(client.scan(topic, cursor=stream.cursor)) == messages[2:]
    with client.follow(topic, from_beginning=True) as feed:
        first, cursor = list(itertools.islice(feed, 5)), feed.cursor
    assert {each.hash for each in first} == {each.hash for each in messages}
    (last,) = made(topic, 1)
    client.publish(last)
    with client.follow(topic, cursor=cursor, from_beginning=True) as feed:
        again = [each.hash for each in itertools.islice(feed, 6)]
    assert again == [each.hash for each in [*first, last]], "an unfinished page comes again"


def test_queries_by_topic_time_and_hash(client: Client, topic: str) -> None:
    messages = made(topic, 7)
    with client.publisher(max_pending=2) as publisher:
        answers = [publisher.send(message) for message in messages]
        publisher.flush()
        assert [each.result(0).hash for each in answers] == [each.hash for each in messages]
    newest = client.query(topic, limit=3)
    assert newest.messages == messages[4:]
    older = client.query(topic, limit=3, cursor=newest.cursor)
    assert older.messages == messages[1:4]
    oldest = client.query(topic, limit=6, newest_first=False)
    last = client.query(topic, newest_first=False, cursor=oldest.cursor)
    assert (oldest.messages, last.messages, last.cursor) == (messages[:6], messages[6:], None)
    found = client.get([messages[2].hash, messages[5].hash, bytes(32), messages[2].hash])
    assert found == {messages[2].hash: messages[2], messages[5].hash: messages[5]}
    assert client.get([]) == {}
    start, end = messages[1].time, messages[0].time + timedelta(hours=1)
    assert list(client.scan([topic], start=start, end=end)) == messages, "cut to microseconds"
    exact = client.scan(topic, start=messages[1].timestamp, end=messages[3].timestamp)
    assert list(exact) == messages[1:3]
    assert list(client.scan(topic, limit=2, newest_first=True)) == messages[:-3:-1]


def test_sds_messages_and_their_past(client: Client, topic: str) -> None:
    channel, name = topic, genuine_id(topic, b"genuine")
    payloads = [
        sds_payload(channel, key, key.encode(), sender_id="me", parents=[(p, None) for p in after])
        for key, after in (("a", ()), ("b", ("a",)), ("c", ("b", "gone")))
    ]
    payloads += [claiming(channel, name, b"forged"), genuine(channel, b"genuine")]
    times = itertools.count(time.time_ns())
    client.publish_many([Message(each, topic, timestamp=next(times)) for each in payloads])
    result = client.get_sds(channel, ["b", "nobody"])
    ((found,), missing) = result.messages, result.missing
    assert (found.message_id, found.sender_id, found.content) == ("b", "me", b"b")
    assert (found.parents, missing) == ([("a", None)], [("nobody", None)])
    hinted = client.get_sds(channel, [("b", found.message.hash)])
    assert [each.message for each in hinted.messages] == [found.message]
    past = client.causal_history(channel, ["c"])
    assert [each.message_id for each in past.messages] == ["a", "b", "c"]
    assert (past.missing, past.truncated) == ([("gone", None)], False)
    short = client.causal_history(channel, ["c"], max_depth=1)
    assert ({each.message_id for each in short.messages}, short.truncated) == ({"b", "c"}, True)
    for proven, first in ((True, b"genuine"), (False, b"forged")):
        both = client.get_sds(channel, [name], prefer_proven=proven)
        assert (both.messages[0].content, len(both.messages)) == (first, 2)


async def test_a_publisher_batches_and_waits_for_room(node: NodeProcess, topic: str) -> None:
    messages = made(topic, 2_500)
    async with AsyncClient(node.listen) as client:
        async with client.publisher(max_pending=700) as publisher:
            answers = [await publisher.send(message) for message in messages]
            assert publisher.acknowledged >= len(messages) - 700
            await publisher.flush()
            assert publisher.acknowledged == len(messages)
        results = [answer.result() for answer in answers]
        with pytest.raises(ClientClosedError):
            await publisher.send(messages[0])
        assert [each.hash for each in results] == [message.hash for message in messages]
        assert {each.outcome for each in results} == {Outcome.STORED}
        assert [message async for message in client.scan(topic)] == messages


@pytest.mark.parametrize("strict", [True, False])
async def test_a_publisher_reports_rejected_messages(
    node: NodeProcess, topic: str, strict: bool
) -> None:
    good, bad = Message(b"good", topic), Message(b"bad", topic, timestamp=1)
    rejected: list[Message] = []
    async with AsyncClient(node.listen) as client:
        try:
            async with client.publisher(strict=strict) as publisher:
                answers = [await publisher.send(each) for each in (good, bad, good)]
        except MessageRejectedError as error:
            rejected.append(error.message)
        assert rejected == [bad] * strict
        outcomes = [answer.result().outcome for answer in answers]
        assert outcomes == [Outcome.STORED, Outcome.REJECTED, Outcome.DUPLICATE]


async def test_a_block_that_fails_does_not_wait_for_answers(node: NodeProcess, topic: str) -> None:
    async with AsyncClient(node.listen) as client:
        with suppress(ZeroDivisionError):
            async with client.publisher() as publisher:
                answer = await publisher.send(Message(b"x", topic))
                raise ZeroDivisionError
        assert answer.done()


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


def test_a_blocking_call_can_be_made_from_any_thread(client: Client, topic: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(client.publish, [Message(b"%d" % n, topic) for n in range(8)])
        assert [each.outcome for each in found] == [Outcome.STORED] * 8
    assert len(list(client.scan(topic))) == len(list(client.scan_hashes(topic))) == 8


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
        scanned = [await anext(scan) for _ in range(20)]
        followed = [await anext(feed) for _ in range(20)]
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
        assert {each.hash for each in followed} == {each.hash for each in messages}
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
    next(left := client.scan_hashes(sys.argv[2]))  # the end of the program drops it
"""


def test_an_interruption_is_one_at_any_moment(
    node: NodeProcess, client: Client, topic: str
) -> None:
    client.publish(Message(b"held", topic))
    command = [sys.executable, "-c", PROGRAM, node.listen, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "100 [b'held']\n"


def test_a_stream_that_is_dropped_runs_no_callback(client: Client, topic: str) -> None:
    # Python swallows an interruption that comes in one.
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    client.publish(Message(b"held", topic))
    with client.follow(topic, from_beginning=True) as stream:
        assert next(stream).payload == b"held"
    gc.disable()  # a collection may run callbacks of other objects
    sys.setprofile(note)
    del stream
    sys.setprofile(None)
    gc.enable()
    assert called == []
