"""The client package: its names and arguments, and positions that are kept between runs."""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import storenode
from storenode.client import ArgumentError, ClientClosedError, Message, StorenodeError
from storenode.client.errors import PositionError
from storenode.client.message import Page
from storenode.client.positions import (
    MAX_POSITION_BYTES,
    FilePosition,
    Position,
    SqlitePosition,
    position_of,
)
from storenode.client.streams import AsyncMessageStream, followed_across, limited, up_to_live
from storenode.common.bounded_dict import BoundedDict
from storenode.connection.errors import CursorRefusedError, InvalidRequestError, NodeError

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


def test_a_client_made_outside_the_event_loop_works_inside() -> None:
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
    with (
        storenode.Client(ADDRESS) as client,
        pytest.raises(ArgumentError, match=sentence),
    ):
        call(client)


# Positions

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
    return [
        Message(b"%d" % number, "/a/1/b/proto", timestamp=1 + number) for number in range(count)
    ]


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
    for position in (
        FilePosition(large),
        FilePosition(empty),
        SqlitePosition(large, "x"),
        FilePosition(tmp_path),
    ):
        with pytest.raises(PositionError, match=str(tmp_path)):
            position.load()
    nowhere = tmp_path / "nowhere" / "position"
    for each in (FilePosition(nowhere), SqlitePosition(nowhere, "x")):
        with pytest.raises(PositionError, match="nowhere"):
            each.save(b"1")


def test_an_argument_names_a_position_or_is_refused(tmp_path: Path) -> None:
    own = MemoryPosition()
    assert position_of(own) is own
    assert str(position_of(tmp_path)) == str(position_of(str(tmp_path))) == str(tmp_path)
    assert str(position_of((tmp_path, "x"))) == f"{tmp_path}, name 'x'"
    for wrong in (b"bytes", 1, (1, 2), object()):
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
