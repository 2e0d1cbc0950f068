"""Resumes and scans of peers, and single bad messages, which keep no other out on any path."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc
import psycopg
import pytest

from store.db.coverage import DatabaseOnlineTimes
from store.db.pool import Database
from store.domain.ports import CursorOutOfRangeError, PeerAddress, PeerError
from store.messages.transfer import MalformedMessageError, decode_message
from store.rpc import peer_calls
from store.rpc.peer_calls import MAX_EMPTY_PAGES, MAX_PEER_CURSOR_BYTES
from store.runtime.node import system_environment
from store.serving.tasks import BackgroundTasks
from store.sync.fetch import FetchWork, OnlineRecorder, Resumer
from store.sync.peers import ScannedPage
from storenode.cli.options.types import parse_peer
from storenode.client.messages import hash_of
from storenode.message.varint import delimited
from storenode.wire.storenode.v1.store_pb2 import ScanPage
from storenode.wire.waku.store.v3.store_pb2 import WakuMessageKeyValue
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.peers.harness import NOW_NS, PeerNode, item, items
from tests.integration.peers.hostile import Script, Scripts, hostile_server
from tests.integration.rpc.harness import PUBSUB, within
from tests.support.admission import encode_entry
from tests.support.fleet import Fleet
from tests.support.polling import PAUSE_S

HOUR_NS = 3_600 * 10**9


async def execute(node: PeerNode, statement: str) -> None:
    async with await psycopg.AsyncConnection.connect(node.url, autocommit=True) as connection:
        await connection.execute(statement)


async def all_stored(node: PeerNode, hashes: set[bytes]) -> None:
    while await node.hashes() != hashes:  # noqa: ASYNC110 - tells nobody
        await asyncio.sleep(PAUSE_S)


def resuming(
    node: PeerNode, database: Database, peers: tuple[PeerAddress, ...], proceed: Callable[[], None]
) -> Resumer:
    """Return the resume of a node that was last online an hour ago."""
    return Resumer(
        peers,
        FetchWork(
            node.caller,
            node.context.writer,
            lambda: node.rules.policy,
            system_environment("test", node.context.metrics),
        ),
        OnlineRecorder(
            DatabaseOnlineTimes(database), system_environment("test", node.context.metrics)
        ),
        slack_ns=0,
        proceed=proceed,
        failed=lambda _peer, _error: None,
    )


async def test_a_database_that_takes_nothing_for_a_while(first: PeerNode, second: PeerNode) -> None:
    await second.hold(items(range(20)))
    database = await Database.open(first.url)
    await DatabaseOnlineTimes(database).note(NOW_NS - HOUR_NS, time.time_ns())
    proceeds = asyncio.Event()
    resumer = resuming(first, database, (second.address,), proceeds.set)
    tasks = BackgroundTasks()
    await execute(first, "alter table storenode.commits rename to mislaid")
    try:
        tasks.start("resume", resumer.run)
        await within(proceeds.wait())
        state = resumer.state()
        assert state is not None
        assert state.running
        assert "see its log" in state.error
        await execute(first, "alter table storenode.mislaid rename to commits")
        await within(all_stored(first, await second.hashes()))
    finally:
        await tasks.stop()
        await database.close()


async def test_time_without_the_database_or_the_clock_is_not_called_online(first: PeerNode) -> None:
    database, clock = await Database.open(first.url), [NOW_NS]
    times = DatabaseOnlineTimes(database)
    environment = replace(
        system_environment("test", first.context.metrics), now_ns=lambda: clock[0]
    )
    recorder = OnlineRecorder(times, environment)
    recorder.begin()

    async def note_after(seconds: int) -> None:
        clock[0] += seconds * 10**9
        await recorder.note()

    try:
        await note_after(5)
        await execute(first, "alter table storenode.online rename to mislaid")
        await note_after(10)
        await execute(first, "alter table storenode.mislaid rename to online")
        await note_after(10)
        await note_after(10)
        await note_after(3600)
        await note_after(10)
        found = await times.overlapping(NOW_NS, clock[0])
    finally:
        await database.close()
    assert sorted(
        ((each.start_ns - NOW_NS) // 10**9, (each.end_ns - NOW_NS) // 10**9) for each in found
    ) == [(0, 5), (25, 35), (3635, 3645)]


START_NS, END_NS = 1_000, NOW_NS

Pages = AsyncIterator[ScannedPage]


async def read(pages: Pages) -> list[WakuMessageAndTopic]:
    """Return all messages."""
    return [WakuMessageAndTopic.FromString(each) async for page in pages for each in page.messages]


async def test_a_scan_goes_on_where_it_was_left(
    first: PeerNode, second: PeerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_calls, "PEER_SCAN_PAGE_MESSAGES", 10)
    messages = sorted(items(range(50)), key=lambda each: each.message.timestamp)
    await second.hold(messages)
    got: list[WakuMessageAndTopic] = []
    cursor = b""
    for _ in range(5):
        async with aclosing(first.caller.scan(second.address, START_NS, END_NS, cursor)) as pages:
            page = await anext(pages)
        cursor = page.cursor
        got += [WakuMessageAndTopic.FromString(each) for each in page.messages]
        assert page.reached_ns == got[-1].message.timestamp
    assert got == messages


async def test_an_answer_without_messages_says_whose_it_is(first: PeerNode, fleet: Fleet) -> None:
    callee = parse_peer(fleet.start().peer).address
    address = PeerAddress(callee.host, callee.port)

    async def compute() -> None:
        while True:
            sum(range(500_000))
            await asyncio.sleep(0)

    # The node is busy for so long at a time that an answer has come whole when it looks.
    busy = asyncio.create_task(compute())
    for _ in range(3):
        assert await read(first.caller.scan(address, START_NS, END_NS, b"")) == []
    busy.cancel()


def page(*messages: WakuMessageAndTopic, cursor: bytes = b"mine") -> bytes:
    """Return a page of a scan, in this order."""
    return ScanPage(
        messages=[
            WakuMessageKeyValue(
                message_hash=hash_of(each), message=each.message, pubsub_topic=each.pubsub_topic
            )
            for each in messages
        ],
        cursor=cursor,
    ).SerializeToString()


def sends(*pages: bytes) -> Script:
    """Return a script that sends pages."""

    async def script(context: Any) -> None:  # noqa: ANN401 - grpc.aio's
        for each in pages:
            await context.write(each)

    return script


LATER, EARLIER = item(1), item(2)
UNHASHED = ScanPage(messages=[WakuMessageKeyValue(message=LATER.message)], cursor=b"x")


@pytest.mark.parametrize(
    ("pages", "words"),
    [
        ([b"\xff\xff"], "cannot be decoded"),
        ([page()] * (MAX_EMPTY_PAGES + 1), "without messages, over and over"),
        ([page(LATER, cursor=bytes(MAX_PEER_CURSOR_BYTES + 1))], "a cursor of 4,096 bytes"),
        ([page(LATER, EARLIER)], "out of order"),
        ([page(LATER), page(LATER)], "out of order"),
        ([page(item(3, timestamp=END_NS))], "out of order, or outside"),
        ([page(item(3, timestamp=START_NS - 1))], "out of order, or outside"),
        ([UNHASHED.SerializeToString()], "out of order"),
        ([b"\x0a\x00" * 3_000_000], "more than 2,000 messages"),
        ([page(LATER) + b"\x0a\x00" * 9_000_000], "page of 18,000,.* larger"),
        ([b"\x78\x00" * 1_000_000], "more than 2,000 messages, or many other fields"),
    ],
    ids=[
        "garbage",
        "empty pages",
        "a large cursor",
        "descending",
        "over and over",
        "too late",
        "too early",
        "no hash",
        "millions of messages",
        "a page of many MiB",
        "millions of fields",
    ],
)
async def test_pages_that_break_the_rules(first: PeerNode, pages: list[bytes], words: str) -> None:
    async with hostile_server(Scripts(scan=sends(*pages))) as peer:
        with pytest.raises(PeerError, match=words):
            await read(first.caller.scan(peer, START_NS, END_NS, b""))


async def test_cursors_are_the_peers_own(first: PeerNode) -> None:
    messages = sorted(items(range(3)), key=lambda each: each.message.timestamp)
    cursors = [b"1", b"", b"\xff" * 9]
    pages = [page(each, cursor=own) for each, own in zip(messages, cursors, strict=True)]
    pages.insert(1, page())
    async with hostile_server(Scripts(scan=sends(*pages))) as peer:
        found = [each async for each in first.caller.scan(peer, START_NS, END_NS, b"")]
    assert [each.cursor for each in found] == cursors
    assert [each.reached_ns for each in found] == [each.message.timestamp for each in messages]


@pytest.mark.parametrize("code", [grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.INVALID_ARGUMENT])
async def test_a_cursor_that_is_not_served(first: PeerNode, code: grpc.StatusCode) -> None:
    async def refuse(context: Any) -> None:  # noqa: ANN401 - grpc.aio's
        context.set_code(code)
        context.set_details("too old")

    async with hostile_server(Scripts(scan=refuse)) as peer:
        with pytest.raises(CursorOutOfRangeError, match="too old"):
            await read(first.caller.scan(peer, START_NS, END_NS, b"cursor"))


async def test_a_bad_message_in_a_page_of_a_resume_keeps_no_other_out(first: PeerNode) -> None:
    start_ns = NOW_NS - HOUR_NS // 2
    good = [item(number, timestamp=start_ns + number) for number in range(8)]
    body = good[0].message.SerializeToString()
    with pytest.raises(MalformedMessageError) as caught:
        decode_message(encode_entry(body.replace(b"/", b"\xff"), PUBSUB.encode()))
    not_utf8 = caught.value
    bad = [
        (bytes(32), b"\x0a\x7fshort", PUBSUB.encode()),
        # Its hash is that of its bytes, and it would be out of order: it has no place in it.
        (not_utf8.message_hash, body.replace(b"/", b"\xff"), PUBSUB.encode()),
    ]
    entries = [
        (hash_of(each), each.message.SerializeToString(), each.pubsub_topic.encode())
        for each in good
    ]
    page = b"".join(
        [
            delimited(
                b"\x0a",
                delimited(b"\x0a", digest)
                + delimited(b"\x12", message)
                + delimited(b"\x1a", topic),
            )
            for digest, message, topic in (*entries[:4], *bad, *entries[4:])
        ]
    )

    async def scan(context: Any) -> None:  # noqa: ANN401 - grpc.aio's
        await context.write(page + b"\x12\x04mine")

    database = await Database.open(first.url)
    await DatabaseOnlineTimes(database).note(NOW_NS - HOUR_NS, time.time_ns())
    proceeds, tasks = asyncio.Event(), BackgroundTasks()
    async with hostile_server(Scripts(scan=scan)) as peer:
        tasks.start("resume", resuming(first, database, (peer,), proceeds.set).run)
        try:
            await within(proceeds.wait())
            await within(all_stored(first, {hash_of(each) for each in good}))
        finally:
            await tasks.stop()
            await database.close()
