"""Pages, scans and look-ups by hash against sorted lists, over messages with many ties in time."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.db.reading import reader
from store.db.reading.pages import MessagePage, read_page
from store.db.reading.reader import DEFAULT_SCAN_PAGE, MAX_SCAN_PAGE, DatabaseReader
from store.domain.ports import PageRequest, ScanRequest, SyncId, TopicFilter, TopicRights
from store.messages.frames import presence
from storenode.message.limits import MAX_RESPONSE_BYTES
from tests.integration.storage.node import Node, running
from tests.integration.storage.world import (
    CONTENTS,
    DAY,
    NOW,
    PUBSUBS,
    TOPICS,
    KnownMessage,
    World,
    as_query,
    batch_of,
    hashes_in,
    in_order,
    matching,
    messages_of,
    random_batch,
)
from tests.support.outlet import WideOutlet, WideRoom

FOREVER = 2**63 - 1
MIDNIGHT = NOW // DAY * DAY
# Ties, both sides of a day's, a month's, a year's and a coarse partition's bounds, and the ends.
TIMES = (
    1,
    MIDNIGHT - 800 * DAY,
    MIDNIGHT - 100 * DAY,
    MIDNIGHT - 31 * DAY,
    MIDNIGHT - 8 * DAY - 1,
    MIDNIGHT - 8 * DAY,
    MIDNIGHT - DAY,
    MIDNIGHT - 1,
    MIDNIGHT,
    NOW,
    NOW + DAY,
)
SEED = 20261120

ask = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])

rights = st.builds(
    TopicRights,
    st.sampled_from([(), (), ("/waku/",), ("named", "/waku/2/rs/1/7")]),
    st.sampled_from([(), (), ("/app-1/",), (CONTENTS[0], CONTENTS[3]), ("/none",)]),
)
filters = st.builds(
    TopicFilter,
    st.sampled_from([None, *PUBSUBS, "unknown"]),
    st.lists(st.sampled_from([*CONTENTS, "unknown"]), unique=True).map(tuple),
    rights,
)
# Bounds at, just beside and between the messages.
bounds = st.sampled_from([0, FOREVER]) | st.builds(
    lambda timestamp, off: timestamp + off, st.sampled_from(TIMES), st.integers(-1, 1)
)


def pages_of(
    stored: Sequence[KnownMessage], limit: int, *, forward: bool
) -> list[list[KnownMessage]]:
    """Return the pages that a walk gives, in reading order, each ascending."""
    if forward:
        return [list(stored[start : start + limit]) for start in range(0, len(stored), limit)] or [
            []
        ]
    ends = range(len(stored), 0, -limit)
    return [list(stored[max(0, end - limit) : end]) for end in ends] or [[]]


async def walk(node: Node, request: Callable[[SyncId | None], PageRequest]) -> list[bytes]:
    """Return the entries of all pages, by cursors, of which the last says when to stop."""
    found, after = [], None
    while True:
        page = await node.reader.query(request(after))
        found.append(page.entries)
        if page.next_cursor is None:
            return found
        assert page.count
        after = await node.reader.position(page.next_cursor, TopicRights())
        assert after is not None


async def assert_pages(
    node: Node,
    expected: Iterable[KnownMessage],
    wanted: TopicFilter,
    *,
    hashes: tuple[bytes, ...] | None = None,
    span: tuple[int, int] = (0, FOREVER),
    limit: int = 100,
    forward: bool = True,
    include_data: bool = True,
) -> None:
    """Check that a walk through the pages of a query gives these messages and stops."""

    def request(after: SyncId | None) -> PageRequest:
        return PageRequest(wanted, hashes, *span, after, forward, limit, include_data)

    pages = pages_of(in_order(expected), limit, forward=forward)
    frames = [
        as_query(each.frame if include_data else each.presence for each in page) for page in pages
    ]
    found = await walk(node, request)
    assert len(found) == len(frames)
    assert [page == frame for page, frame in zip(found, frames, strict=True)] == [True] * len(found)


@pytest.fixture
async def world(node: Node) -> World:
    """Store four hundred messages; return them in order."""
    rng = random.Random(SEED)
    stored = []
    for _ in range(4):
        batch = random_batch(rng, 100, TIMES)
        assert all(await node.store(batch))
        stored += messages_of(batch)
    return World(in_order(stored))


@ask
@given(
    wanted=filters, span=st.tuples(bounds, bounds), limit=st.integers(1, 450),
    forward=st.booleans(), include_data=st.booleans(),
)  # fmt: skip
async def test_pages_by_filter_are_those_of_a_sorted_list(
    *,
    node: Node,
    world: World,
    wanted: TopicFilter,
    span: tuple[int, int],
    limit: int,
    forward: bool,
    include_data: bool,
) -> None:
    inside = [each for each in matching(world, wanted) if span[0] <= each.at[0] < span[1]]
    limit = max(limit, len(inside) // 8)
    await assert_pages(
        node, inside, wanted, span=span, limit=limit, forward=forward, include_data=include_data
    )


@ask
@given(
    wanted=filters, span=st.tuples(bounds, bounds), start=st.integers(0, 399),
    limit=st.integers(1, 30), forward=st.booleans(),
)  # fmt: skip
async def test_a_cursor_is_a_position_whether_or_not_its_message_matches(
    *,
    node: Node,
    world: World,
    wanted: TopicFilter,
    span: tuple[int, int],
    start: int,
    limit: int,
    forward: bool,
) -> None:
    after = world[start].at
    beyond = [
        each
        for each in matching(world, wanted)
        if span[0] <= each.at[0] < span[1] and (each.at > after if forward else each.at < after)
    ]
    expected = beyond[:limit] if forward else beyond[-limit:]
    page = await node.reader.query(
        PageRequest(wanted, None, *span, after, forward, limit, include_data=True)
    )
    assert page.entries == as_query(each.frame for each in expected), len(expected)
    assert page.count == len(expected)
    last = expected[-1 if forward else 0].hash if expected else None
    assert page.next_cursor == (last if len(beyond) > len(expected) else None)


@ask
@given(
    limit=st.integers(1, 200), forward=st.booleans(), include_data=st.booleans(), allowed=rights,
    count=st.integers(1, 200), rng=st.randoms(use_true_random=False),
)  # fmt: skip
async def test_pages_by_hash_are_those_of_a_sorted_list(
    *,
    node: Node,
    world: World,
    limit: int,
    forward: bool,
    include_data: bool,
    allowed: TopicRights,
    count: int,
    rng: random.Random,
) -> None:
    chosen = rng.sample(world, count)
    strangers = [rng.randbytes(32) for _ in range(rng.randrange(4))]
    asked = [each.hash for each in chosen] + strangers
    rng.shuffle(asked)
    wanted = TopicFilter(rights=allowed)
    await assert_pages(
        node,
        matching(chosen, wanted),
        wanted,
        hashes=tuple(asked),
        limit=max(limit, count // 8),
        forward=forward,
        include_data=include_data,
    )


async def scanned(
    node: Node, request: ScanRequest, largest: int
) -> tuple[list[bytes], list[SyncId]]:
    """Return the hashes of a scan, and the cursor after each page."""
    found: list[bytes] = []
    cursors = []
    async for page in node.reader.scan(request, WideOutlet()):
        hashes = hashes_in(page.frames)
        assert 0 < len(hashes) == len(page.timestamps) <= largest
        assert page.last[1] == hashes[-1]
        found += hashes
        cursors.append(page.last)
    return found, cursors


@ask
@given(wanted=filters, span=st.tuples(bounds, bounds), size=st.integers(1, 60))
async def test_a_scan_gives_everything_once_and_resumes_from_every_page(
    node: Node, world: World, wanted: TopicFilter, span: tuple[int, int], size: int
) -> None:
    inside = [each for each in matching(world, wanted) if span[0] <= each.at[0] < span[1]]
    size = max(size, len(inside) // 8)
    found, cursors = await scanned(
        node, ScanRequest(wanted, *span, None, include_data=False, page_size=size), size
    )
    assert found == [each.hash for each in inside]
    assert all(before < after for before, after in pairwise(cursors))
    for cursor in cursors:
        rest, _ = await scanned(
            node, ScanRequest(wanted, *span, cursor, include_data=False, page_size=0), 2_000
        )
        assert rest == [each.hash for each in inside if each.at > cursor]


@pytest.mark.parametrize("count", [1, 2, 99, 100])
async def test_many_topics_are_merged_in_order(node: Node, count: int) -> None:
    rng = random.Random(count)
    topics = [(PUBSUBS[0], f"/many/1/{number}/proto") for number in range(110)]
    batch = random_batch(rng, 1_200, TIMES[-5:], topics)
    assert all(await node.store(batch))
    wanted = TopicFilter(PUBSUBS[0], tuple(content for _, content in topics[:count]))
    expected = matching(messages_of(batch), wanted)
    for forward in (True, False):
        await assert_pages(node, expected, wanted, limit=100, forward=forward)
    found, _ = await scanned(
        node, ScanRequest(wanted, 0, FOREVER, None, include_data=False, page_size=90), 90
    )
    assert found == [each.hash for each in in_order(expected)]


async def test_more_topics_than_are_merged_are_filtered(node: Node) -> None:
    rng = random.Random(SEED)
    topics = [(PUBSUBS[0], f"/many/1/{number}/proto") for number in range(250)]
    batch = random_batch(rng, 1_000, TIMES[-5:], [*topics, *TOPICS])
    assert all(await node.store(batch))
    wanted = TopicFilter(PUBSUBS[0], rights=TopicRights((), ("/many/",)))
    expected = matching(messages_of(batch), wanted)
    for forward in (True, False):
        await assert_pages(node, expected, wanted, limit=170, forward=forward)


async def test_thousands_of_messages_in_one_nanosecond(node: Node) -> None:
    batch = random_batch(random.Random(SEED), 4_000, [NOW], TOPICS[:3], size=8)
    assert all(await node.store(batch))
    stored = messages_of(batch)
    for forward in (True, False):
        await assert_pages(node, stored, TopicFilter(), limit=700, forward=forward)
    wanted = TopicFilter(*TOPICS[0][:1], (TOPICS[0][1], TOPICS[2][1]))
    found, _ = await scanned(
        node, ScanRequest(wanted, NOW, NOW + 1, None, include_data=False, page_size=300), 300
    )
    assert found == [each.hash for each in in_order(matching(stored, wanted))]


async def test_pages_are_cut_by_bytes_as_well(node: Node) -> None:
    rng = random.Random(SEED)
    sizes = [150_000] * 40 + [10] * 40
    batch = batch_of(
        (NOW - rng.randrange(3), rng.choice(TOPICS[:2]), rng.randbytes(size)) for size in sizes
    )
    assert all(await node.store(batch))
    stored = in_order(messages_of(batch))

    async def check_walk(forward: bool) -> None:
        def request(after: SyncId | None) -> PageRequest:
            return PageRequest(
                TopicFilter(), None, 0, FOREVER, after, forward, 1_000, include_data=True
            )

        pages = await walk(node, request)
        assert 2 <= len(pages) <= 4
        assert all(len(page) <= MAX_RESPONSE_BYTES - 32_000 for page in pages)
        # Each page is as full as it may be: the next message would not have fitted.
        assert all(len(page) > MAX_RESPONSE_BYTES - 64_000 - 160_000 for page in pages[:-1])
        joined = b"".join(pages if forward else reversed(pages))
        assert joined == as_query(each.frame for each in stored), len(joined)

    for forward in (True, False):
        await check_walk(forward)

    frames = []
    request = ScanRequest(TopicFilter(), 0, FOREVER, None, include_data=True, page_size=0)
    async for page in node.reader.scan(request, WideOutlet()):
        assert len(page.frames) <= MAX_RESPONSE_BYTES - 32_000
        frames.append(page.frames)
    assert b"".join(frames) == b"".join(each.frame for each in stored), len(frames)


async def test_the_size_of_scan_pages_is_bounded(node: Node) -> None:
    rng = random.Random(SEED)
    for _ in range(3):
        assert all(await node.store(random_batch(rng, 4_000, [NOW], TOPICS[:1], size=8)))

    async def sizes(page_size: int) -> list[int]:
        request = ScanRequest(TopicFilter(), 0, FOREVER, None, False, page_size)
        return [len(page.timestamps) async for page in node.reader.scan(request, WideOutlet())]

    assert await sizes(0) == [DEFAULT_SCAN_PAGE] * (12_000 // DEFAULT_SCAN_PAGE)
    assert await sizes(10**9) == [MAX_SCAN_PAGE, 12_000 - MAX_SCAN_PAGE]


@pytest.mark.parametrize("include_data", [True, False])
async def test_pages_of_one_message_are_cut_from_pages_of_many(
    node: Node, world: World, monkeypatch: pytest.MonkeyPatch, include_data: bool
) -> None:
    reads = 0

    async def counted(*given: Any) -> MessagePage:  # noqa: ANN401 - whatever `read_page` takes
        nonlocal reads
        reads += 1
        return await read_page(*given)

    monkeypatch.setattr(reader, "read_page", counted)
    request = ScanRequest(TopicFilter(), 0, FOREVER, None, include_data, 1)
    pages = [page async for page in node.reader.scan(request, WideOutlet())]
    assert [page.last for page in pages] == [each.at for each in world]
    assert all(len(page.timestamps) == 1 for page in pages)
    frames = [each.frame if include_data else presence(each.hash) for each in world]
    assert [page.frames for page in pages] == frames
    assert reads <= 3 + len(world) // 256


class OnePageOutlet(WideOutlet):
    """An outlet with room for the first page, which lets the second one wait."""

    def __init__(self) -> None:
        self.rooms = 0
        self.waiting = asyncio.Event()

    async def room(self, most_bytes: int) -> WideRoom:
        self.rooms += 1
        if self.rooms > 1:
            self.waiting.set()
            await asyncio.Event().wait()
        return WideRoom(most_bytes)

    def spare_room(self, most_bytes: int) -> None:  # type: ignore[override] # noqa: ARG002
        return None


async def test_a_page_is_released_while_the_next_one_waits(node: Node, world: World) -> None:
    """Show that a page is not kept: thousands of scans would each have one in memory."""
    assert len(world) > 2
    outlet = OnePageOutlet()
    request = ScanRequest(TopicFilter(), 0, FOREVER, None, include_data=True, page_size=1)
    async with aclosing(node.reader.scan(request, outlet)) as pages:
        page = await anext(pages)
        frames = page.frames
        del page
        following = asyncio.create_task(anext(pages))
        await outlet.waiting.wait()
        assert sys.getrefcount(frames) == 2, "of this variable and the argument"
        following.cancel()
        await asyncio.wait([following])


async def test_an_abandoned_scan_gives_its_connection_back(node: Node, world: World) -> None:
    request = ScanRequest(TopicFilter(), 0, FOREVER, None, include_data=False, page_size=10)
    for _ in range(node.database.settings.bulk_connections + 2):
        scan = node.reader.scan(request, WideOutlet())
        page = await anext(scan)
        assert hashes_in(page.frames) == [each.hash for each in world[:10]]
        await scan.aclose()
    assert len(await node.rows("select 1")) == 1


async def test_a_position_is_known_after_its_message_was_pruned(node: Node, world: World) -> None:
    gone = [each for each in world if MIDNIGHT <= each.at[0] < MIDNIGHT + DAY]
    left = [each for each in world if each not in gone]
    assert gone
    await node.rows("drop table storenode.messages_20261120")
    for each in gone[:5]:
        assert await node.reader.position(each.hash, TopicRights()) == each.at
        for forward in (True, False):
            page = await node.reader.query(
                PageRequest(TopicFilter(), None, 0, FOREVER, each.at, forward, 50, False)
            )
            expected = [other for other in left if (other.at > each.at) == forward]
            expected = expected[:50] if forward else expected[-50:]
            assert page.entries == as_query(other.presence for other in expected)
    wanted = tuple(each.hash for each in (*gone[:2], *left[:2]))
    page = await node.reader.query(
        PageRequest(TopicFilter(), wanted, 0, FOREVER, gone[0].at, False, 50, True)
    )
    assert page.entries == as_query(each.frame for each in left[:2])


@ask
@given(index=st.integers(0, 399), allowed=rights)
async def test_positions_are_hidden_outside_the_callers_topics(
    node: Node, world: World, index: int, allowed: TopicRights
) -> None:
    message = world[index]
    found = await node.reader.position(message.hash, allowed)
    assert found == (message.at if allowed.allows(*message.topic) else None)


async def test_what_is_no_hash_has_no_position(node: Node, world: World) -> None:
    for digest in (b"", world[0].hash[:31], world[0].hash + b"\0", bytes(32)):
        assert await node.reader.position(digest, TopicRights()) is None


async def test_the_summary_counts_what_was_acknowledged_before_the_feed_saw_it(node: Node) -> None:
    rng = random.Random(SEED)
    late = DatabaseReader(node.database, lambda: (0, 0))
    for total in range(1, 6):
        await node.store(random_batch(rng, 1, TIMES))
        for serving in (node.reader, late):
            assert (await serving.summary()).messages == total


async def test_the_summary_counts_and_bounds_what_is_stored(node: Node, database_url: str) -> None:
    summary = await node.reader.summary()
    assert (summary.messages, summary.oldest_timestamp_ns, summary.newest_timestamp_ns) == (0, 0, 0)
    rng = random.Random(SEED)
    batches = [random_batch(rng, 50, TIMES) for _ in range(3)]
    for batch in batches:
        await node.store(batch)
        await node.store(batch)
    times = [each.at[0] for batch in batches for each in messages_of(batch)]
    async with running(database_url) as fresh:
        summary = await fresh.reader.summary()
        assert summary.messages == len(times) == 150
        assert (summary.oldest_timestamp_ns, summary.newest_timestamp_ns) == (
            min(times),
            max(times),
        )
        assert summary.store_id == node.database.store_id
        assert summary.horizon_ns == 0
        await node.rows("update storenode.store set pruned_messages = 40, folded_messages = 5")
        summary = await fresh.reader.summary()
        assert summary.messages == 110
    async with running(database_url) as fresh:
        assert (await fresh.reader.summary()).messages == 115
