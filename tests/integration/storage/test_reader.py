"""Pages, scans and lookups by hash against sorted lists, over messages of every size.

Most tests read one database: many messages share a time, and payloads have the sizes around which
the length of a frame takes one more byte.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconcile.ids import SyncId, SyncIds
from store.db import messages as messages_module
from store.db import writer as writer_module
from store.db.check import check
from store.db.connection import Connection
from store.db.gossip import GossipReads
from store.db.insert import insert_topics
from store.db.messages import MAX_LOADED_IDS, DatabaseReader, locate, resolve
from store.domain.ports import PageRequest, QueryPage, TopicFilter, TopicRights
from store.messages.record import RecordBatch
from store.messages.transfer import transferred
from storenode.message.limits import MAX_RESPONSE_BYTES
from storenode.message.topics import topic_key
from tests.integration.storage.followers import (
    TERMINATE_OTHERS,
    WideOutlet,
    WideRoom,
    following,
    from_beginning,
)
from tests.integration.storage.node import Node, running
from tests.integration.storage.world import (
    CONTENTS,
    DAY,
    NOW,
    PUBSUBS,
    TOPICS,
    KnownMessage,
    Topic,
    World,
    as_query,
    batch_of,
    hashes_in,
    in_order,
    matching,
    messages_of,
    random_batch,
)
from tests.support.postgres import PostgresServer

FOREVER = 2**63 - 1
EVERYTHING = TopicFilter()
MIDNIGHT = NOW // DAY * DAY
# Ties, both sides of a day's, a month's, a year's and a coarse partition's bounds, and the ends.
TIMES = (
    *(1, MIDNIGHT - 800 * DAY, MIDNIGHT - 100 * DAY, MIDNIGHT - 31 * DAY, MIDNIGHT - 8 * DAY - 1),
    *(MIDNIGHT - 8 * DAY, MIDNIGHT - DAY, MIDNIGHT - 1, MIDNIGHT, NOW, NOW + DAY),
)
# Around the sizes at which a length of a frame takes one more byte, whatever the topics.
SIZES = (*range(70), *range(110, 130), 200, *range(16_250, 16_390), 150_000)
LARGEST_PAGE = MAX_RESPONSE_BYTES - 32_000
SEED = 20261120
COUNT = 2 * len(SIZES)

ask = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
spans = st.tuples(bounds, bounds)


async def filled(url: str) -> World:
    """Store messages by COPY, by one statement, and after a look at what is stored."""
    rng, stored = random.Random(SEED), list[KnownMessage]()
    known = RecordBatch()
    async with running(url) as node:
        for fewest_copied, sizes in ((1, SIZES), (10**6, SIZES[::2]), (10**6, SIZES[1::2])):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(writer_module, "FEWEST_COPIED", fewest_copied)
                new = batch_of(
                    (rng.choice(TIMES), rng.choice(TOPICS), rng.randbytes(size)) for size in sizes
                )
                stored += messages_of(new)
                both = new.select(range(len(new)))
                both.extend(known)
                assert await node.store(both) == [True] * len(new) + [False] * len(known)
            known = new if len(stored) > len(SIZES) else known
        await node.rows("analyze")
    return World(in_order(stored))


@pytest.fixture(scope="module")
def history(postgres: PostgresServer, template_database: str) -> Iterator[tuple[str, World]]:
    """Return the URL of a database that tests only read, and what it holds."""
    with postgres.filled(template_database, filled) as (name, stored):
        yield postgres.url(name), stored


@pytest.fixture
def world(history: tuple[str, World]) -> World:
    return history[1]


@pytest.fixture
async def shared(history: tuple[str, World]) -> AsyncIterator[Node]:
    """Open a node on that database."""
    async with running(history[0]) as opened:
        yield opened


_END_SESSIONS = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = %s"


@pytest.fixture
def copy(postgres: PostgresServer, history: tuple[str, World]) -> Iterator[str]:
    """Return the URL of a copy of that database, after the end of what is connected to it."""
    template = history[0].rsplit("/", 1)[1]
    with psycopg.connect(postgres.admin_url, autocommit=True) as connection:
        connection.execute(_END_SESSIONS, (template,))
    name = postgres.create_database(template)
    yield postgres.url(name)
    postgres.drop_database(name)


def expected_page(stored: Sequence[KnownMessage], request: PageRequest) -> QueryPage:
    """Return the page that a sorted list gives."""
    found = [
        each
        for each in matching(stored, request.filter)
        if request.time_start_ns <= each.at[0] < request.time_end_ns
        and (request.hashes is None or each.hash in request.hashes)
    ]
    if request.after is not None:
        after, forward = request.after, request.forward
        found = [each for each in found if (each.at > after if forward else each.at < after)]
    shown = found[: request.limit] if request.forward else found[-request.limit :]
    frames = [each.frame if request.include_data else each.presence for each in shown]
    last = shown[-1 if request.forward else 0] if len(shown) < len(found) else None
    next_ns = last.at[0] if last is not None and request.hashes is None else None
    return QueryPage(as_query(frames), len(shown), None if last is None else last.hash, next_ns)


def same(found: QueryPage, right: QueryPage) -> bool:
    """Compare pages, which are too large to be printed."""
    return found == right


async def walk(node: Node, stored: Sequence[KnownMessage], request: PageRequest) -> list[bytes]:
    """Return the entries of all pages, each of which is compared; the last says when to stop."""
    found, asked = [], request
    while True:
        page = await node.reader.query(asked)
        assert same(page, expected_page(stored, asked))
        found.append(page.entries)
        if page.next_cursor is None:
            return found
        after = await node.reader.position(page.next_cursor, TopicRights())
        assert after is not None
        asked = replace(asked, after=after)


def page_request(
    wanted: TopicFilter = EVERYTHING,
    *,
    hashes: Iterable[bytes] | None = None,
    span: tuple[int, int] = (0, FOREVER),
    after: SyncId | None = None,
    forward: bool = True,
    limit: int = 1_000,
    include_data: bool = True,
) -> PageRequest:
    asked = None if hashes is None else tuple(hashes)
    return PageRequest(wanted, asked, *span, after, forward, limit, include_data)


def scan_request(
    wanted: TopicFilter = EVERYTHING,
    *,
    span: tuple[int, int] = (0, FOREVER),
    after: SyncId | None = None,
    include_data: bool = False,
    page_size: int = 0,
) -> PageRequest:
    return PageRequest(wanted, None, *span, after, True, page_size, include_data)


@ask
@given(
    wanted=filters, span=spans, limit=st.integers(1, 450), forward=st.booleans(),
    start=st.none() | st.integers(0, COUNT - 1), include_data=st.booleans(),
)  # fmt: skip
async def test_pages_by_filter_are_those_of_a_sorted_list(
    *,
    shared: Node,
    world: World,
    wanted: TopicFilter,
    span: tuple[int, int],
    limit: int,
    forward: bool,
    start: int | None,
    include_data: bool,
) -> None:
    """Begin at any message, whether or not it matches."""
    after = None if start is None else world[start].at
    asked = page_request(
        wanted,
        span=span,
        after=after,
        forward=forward,
        limit=max(limit, len(world) // 8),
        include_data=include_data,
    )
    await walk(shared, world, asked)
    few = page_request(wanted, span=span, after=after, forward=forward, limit=1 + limit % 30)
    assert same(await shared.reader.query(few), expected_page(world, few))


async def test_lookups_that_come_together_get_their_own_answers(shared: Node, world: World) -> None:
    """Ask for hashes, strangers, and hashes that begin as stored ones do."""
    rng = random.Random(SEED)
    allowed = TopicRights(("/waku/",), rng.choice(((), ("/app-1/",), (CONTENTS[0], CONTENTS[3]))))
    requests = []
    for count in (*range(8), 8, 9, 100, 127, 128, 129, 400):
        chosen = [each.hash for each in rng.sample(world, count)]
        alike = [digest[:-1] + bytes((digest[-1] ^ 1,)) for digest in chosen[::3]]
        asked = [*chosen, *alike, *(rng.randbytes(32) for _ in range(rng.randrange(3)))]
        rng.shuffle(asked)
        for include_data, forward in product((True, False), repeat=2):
            requests.append(
                page_request(
                    TopicFilter(rights=allowed) if rng.random() < 0.3 else EVERYTHING,
                    hashes=asked,
                    after=rng.choice((None, None, rng.choice(world).at)),
                    forward=forward,
                    limit=rng.choice((1, 2, 5, 100)),
                    include_data=include_data and count < 128,
                )
            )
    pages = await asyncio.gather(*map(shared.reader.query, requests))
    for page, request in zip(pages, requests, strict=True):
        assert same(page, expected_page(world, request))


async def scanned(
    node: Node, request: PageRequest, largest: int
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
    assert all(before < after for before, after in pairwise(cursors))
    return found, cursors


@ask
@given(wanted=filters, span=spans, size=st.integers(1, 60))
async def test_a_scan_gives_everything_once_and_resumes_from_every_page(
    shared: Node, world: World, wanted: TopicFilter, span: tuple[int, int], size: int
) -> None:
    inside = [each for each in matching(world, wanted) if span[0] <= each.at[0] < span[1]]
    size = max(size, len(inside) // 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages_module, "MAX_MERGED_TOPICS", 1)
        asked = scan_request(wanted, span=span, page_size=size)
        found, cursors = await scanned(shared, asked, size)
    assert found == [each.hash for each in inside]
    for cursor in cursors:
        rest, _ = await scanned(shared, scan_request(wanted, span=span, after=cursor), 2_000)
        assert rest == [each.hash for each in inside if each.at > cursor]


@ask
@given(index=st.integers(0, COUNT - 1), allowed=rights)
async def test_positions_are_hidden_outside_the_callers_topics(
    shared: Node, world: World, index: int, allowed: TopicRights
) -> None:
    message = world[index]
    found = await shared.reader.position(message.hash, allowed)
    assert found == (message.at if allowed.allows(*message.topic) else None)
    alike = message.hash[:-1] + bytes((message.hash[-1] ^ 1,))
    for digest in (b"", message.hash[:31], message.hash + b"\0", bytes(32), alike):
        assert await shared.reader.position(digest, TopicRights()) is None


async def test_every_way_to_read_gives_the_bytes_that_were_admitted(
    shared: Node, world: World
) -> None:
    frames = [each.frame for each in world]
    for page_size in (0, 300):
        scan = scan_request(include_data=True, page_size=page_size)
        async with aclosing(shared.reader.scan(scan, WideOutlet())) as pages:
            found = b"".join([page.frames async for page in pages])
        assert found == b"".join(frames), len(found)
    async with following(shared.feed, from_beginning(include_data=True)) as (follower,):
        await follower.until_live()
        assert sum(len(page.frames) for page in follower.pages) == sum(map(len, frames))
    assert sorted(follower.hashes) == sorted(each.hash for each in world)
    report = await asyncio.to_thread(check, shared.database.url)
    summary = await shared.reader.summary()
    assert summary.messages == len(world)
    assert summary.store_id == shared.database.store_id
    bounds = summary.oldest_timestamp_ns, summary.newest_timestamp_ns
    assert bounds == (world[0].at[0], world[-1].at[0])
    # No node makes partitions ahead here.
    assert [each for each in report.findings if "partition" not in each.kind] == []
    assert report.checked["messages"] == report.checked["hashes"] == len(world)


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


async def test_a_page_is_released_while_the_next_one_waits(shared: Node) -> None:
    """Show that a page is not kept: thousands of scans would each have one in memory."""
    outlet = OnePageOutlet()
    request = scan_request(include_data=True, page_size=1)
    async with aclosing(shared.reader.scan(request, outlet)) as pages:
        page = await anext(pages)
        frames = page.frames
        del page
        following_page = asyncio.create_task(anext(pages))
        await outlet.waiting.wait()
        assert sys.getrefcount(frames) == 2, "of this variable and the argument"
        following_page.cancel()
        await asyncio.wait([following_page])


async def test_an_abandoned_scan_gives_its_connection_back(shared: Node, world: World) -> None:
    for _ in range(shared.database.settings.bulk_connections + 2):
        async with aclosing(
            shared.reader.scan(scan_request(page_size=10), WideOutlet())
        ) as abandoned:
            page = await anext(abandoned)
            assert hashes_in(page.frames) == [each.hash for each in world[:10]]
    assert len(await shared.rows("select 1")) == 1


async def test_a_position_is_known_after_its_message_was_pruned(copy: str, world: World) -> None:
    gone = [each for each in world if MIDNIGHT <= each.at[0] < MIDNIGHT + DAY]
    left = [each for each in world if each not in gone]
    async with running(copy) as node:
        await node.rows("drop table storenode.messages_20261120")
        await node.rows("update storenode.store set horizon_ns = %s", MIDNIGHT + DAY)
        for each, forward in product(gone[:3], (True, False)):
            assert await node.reader.position(each.hash, TopicRights()) == each.at
            asked = page_request(after=each.at, forward=forward, limit=50, include_data=False)
            assert same(await node.reader.query(asked), expected_page(left, asked))
        asked = page_request(
            hashes=[each.hash for each in (*gone[:2], *left[:2])], after=gone[0].at, forward=False
        )
        assert same(await node.reader.query(asked), expected_page(left, asked))


@pytest.mark.parametrize("most", [100, 1_000])
async def test_many_topics_are_merged_in_order_or_filtered(
    node: Node, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(messages_module, "MAX_MERGED_TOPICS", most)
    rng = random.Random(SEED)
    topics = [(PUBSUBS[0], f"/many/1/{number}/proto") for number in range(250)]
    every = [*topics[:1] * 5_000, *topics[:110] * 3, *topics, *TOPICS]
    batch = random_batch(rng, 2_400, TIMES[-5:], every)
    assert all(await node.store(batch))
    stored = in_order(messages_of(batch))
    contents = [content for _, content in topics]
    for wanted in (
        *(TopicFilter(PUBSUBS[0], tuple(contents[:count])) for count in (1, 2, 99, 100)),
        TopicFilter(PUBSUBS[0], rights=TopicRights((), ("/many/",))),
    ):
        for forward in (True, False):
            await walk(node, stored, page_request(wanted, limit=150, forward=forward))
        found, cursors = await scanned(node, scan_request(wanted, page_size=90), 90)
        assert found == [each.hash for each in matching(stored, wanted)]
        assert len(cursors) <= 1 + len(found) // (90 // 4)


async def test_thousands_of_messages_in_one_nanosecond(node: Node) -> None:
    count = MAX_LOADED_IDS + 100
    batch = random_batch(random.Random(SEED), count, [NOW], TOPICS[:3], size=8)
    # The index by topic has the beginning of each hash only.
    for place, start in enumerate((b"\0" * 7, b"\x7f" * 7, b"\xff" * 7) * 30):
        batch.hashes[place] = start + batch.hashes[place][7:]
    assert all(await node.store(batch))
    stored = in_order(messages_of(batch))
    pair = TopicFilter(TOPICS[0][0], (TOPICS[0][1], TOPICS[2][1]))
    for wanted, forward in product((EVERYTHING, pair), (True, False)):
        await walk(node, stored, page_request(wanted, limit=700, forward=forward))
    for wanted in (pair, TopicFilter(TOPICS[1][0], (TOPICS[1][1],))):
        few = in_order(matching(stored, wanted))[:40]
        for after in few:
            asked = page_request(wanted, after=after.at, limit=2)
            assert same(await node.reader.query(asked), expected_page(stored, asked))
    found, _ = await scanned(node, scan_request(pair, span=(NOW, NOW + 1), page_size=300), 300)
    assert found == [each.hash for each in matching(stored, pair)]
    ids, reads = SyncIds.of(each.at for each in stored), DatabaseReader(node.database)
    assert len(await reads.load(ids, 2**40)) == MAX_LOADED_IDS
    assert await reads.are_stored(ids) == [True] * count


async def test_the_size_of_scan_pages_is_bounded(
    shared: Node, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages_module, "MAX_SCAN_PAGE", 250)
    for page_size, largest in ((0, 250), (100, 100), (10**9, 250)):
        pages = shared.reader.scan(scan_request(page_size=page_size), WideOutlet())
        sizes = [len(page.timestamps) async for page in pages]
        assert (sum(sizes), set(sizes[:-1])) == (len(world), {largest})


async def test_pages_are_cut_by_bytes_as_well(node: Node) -> None:
    rng, count = random.Random(SEED), 129
    size = 9_000_000 // count
    batch = batch_of(
        (NOW - rng.randrange(3), rng.choice(TOPICS[:2]), rng.randbytes(each))
        for each in [size] * count + [10] * 40
    )
    assert all(await node.store(batch))
    stored = in_order(messages_of(batch))
    frames = b"".join(each.frame for each in stored)

    async def joined(hashes: list[bytes] | None, *, forward: bool) -> bytes:
        pages: list[bytes] = []
        after: SyncId | None = None
        while True:
            asked = page_request(hashes=hashes, after=after, forward=forward)
            page = await node.reader.query(asked)
            pages.append(page.entries)
            assert len(page.entries) <= LARGEST_PAGE
            if page.next_cursor is None:
                break
            # Each page is as full as it may be: the next message would not have fitted.
            assert len(page.entries) > LARGEST_PAGE - 32_000 - size - 10_000
            after = await node.reader.position(page.next_cursor, TopicRights())
        assert 2 <= len(pages) <= 4
        return b"".join(pages if forward else pages[::-1])

    large = [each.hash for each in stored if len(each.frame) > size]
    right = as_query(each.frame for each in stored)
    right_large = as_query(each.frame for each in stored if len(each.frame) > size)
    for forward in (True, False):
        found = await joined(None, forward=forward)
        assert found == right, len(found)
        found = await joined(rng.sample(large, count), forward=forward)
        assert found == right_large, len(found)
    scanned_frames = []
    async for page in node.reader.scan(scan_request(include_data=True), WideOutlet()):
        assert len(page.frames) <= LARGEST_PAGE
        scanned_frames.append(page.frames)
    assert b"".join(scanned_frames) == frames, len(frames)


async def test_two_messages_whose_hashes_begin_alike_are_both_found(node: Node) -> None:
    batch = batch_of([(NOW - 1, TOPICS[0], b"one"), (NOW, TOPICS[0], b"two")])
    batch.hashes = [bytes(8) + bytes([number]) * 24 for number in (1, 2)]
    assert all(await node.store(batch))
    absent = bytes(8) + b"\x03" * 24
    reads, asked = GossipReads(node.database), (*batch.hashes, absent)
    expected = [transferred(batch.frame(0)), transferred(batch.frame(1)), None]
    assert await reads.load(asked, 2**20) == expected
    assert [(await reads.load([each], 2**20))[0] for each in asked] == expected
    # What is not looked for, since the newest messages fill the answer, is not taken for absent.
    newest = random_batch(random.Random(SEED), 2, [NOW])
    in_memory = {digest: transferred(newest.frame(n)) for n, digest in enumerate(newest.hashes)}
    reads = GossipReads(node.database, in_memory.get)
    assert await reads.load([newest.hashes[0], *asked], 1) == [transferred(newest.frame(0))]
    assert await reads.load([asked[0], *newest.hashes], 1) == expected[:1]
    async with await node.database.connect() as connection:
        for position in zip(batch.timestamps, batch.hashes, strict=True):
            assert await locate(connection, [position[1]]) == [position]


# What sorts around a prefix: wildcards, the ends of the code space and of its surrogates.
STEMS = ("a", "a%", "a_", "b", "\ud7ff", "\ue000", "\U0010ffff", "\U0010ffffa", "a\U0010ffff")
NAMES = (*STEMS, "a0", "A", "aa", "a\x01", "a\U0010ffff\U0010ffff", "\ud7ff\U0010ffff", "é", "e")
PAIRS: tuple[Topic, ...] = tuple(product(NAMES, NAMES))
RIGHTS = (
    TopicRights(),
    *(TopicRights((stem,)) for stem in STEMS),
    *(TopicRights((), (stem,)) for stem in STEMS),
    TopicRights(("a", "\ud7ff", "a"), ("a_", "\U0010ffff", "b")),
    TopicRights(("",), ("a",)),
    TopicRights(("zzz",)),
)
EXACT = ((None, ()), ("a", ()), (None, ("a", "a%", "nobody")), ("é", ("e", "a")))


async def test_a_filter_selects_the_topics_that_it_matches(node: Node) -> None:
    async with await node.database.connect() as connection:
        await node.partitions.ensure(connection, [NOW])
        low, named = node.partitions.coarse_lower(NOW), {topic_key(*pair) for pair in PAIRS}
        await insert_topics(connection, [(topic_key(*pair), low, *pair) for pair in PAIRS])
        for topics, allowed in product(EXACT, RIGHTS):
            wanted = TopicFilter(*topics, allowed)
            keys = await resolve(connection, wanted)
            if keys is None:
                assert wanted == EVERYTHING
                continue
            assert isinstance(keys, tuple)
            assert len(keys) == len(set(keys))
            right = {topic_key(*pair) for pair in PAIRS if wanted.matches(*pair)}
            assert set(keys) & named == right, wanted


def pruning(connection: Connection, prune: Callable[[], Awaitable[object]]) -> object:
    """Return a connection before the third statement of which something happens."""
    is_due = iter((False, False, True))

    async def execute(
        statement: str, values: Mapping[str, object], *, binary: bool, **_: object
    ) -> object:
        if next(is_due, False):
            await prune()
        return await connection.execute(statement.encode(), values, binary=binary)

    return SimpleNamespace(execute=execute)


async def test_messages_that_are_pruned_during_a_lookup_end_no_page(node: Node) -> None:
    """Let a page begin with more of them than fit, each too large to be read with its row."""
    old_ns = MIDNIGHT - 8 * DAY
    batch = batch_of(
        (time_ns, TOPICS[0], bytes([number]) * size)
        for time_ns, size in ((old_ns, 100_000), (NOW, 1))
        for number in range(50)
    )
    assert all(await node.store(batch))
    left = [each for each in in_order(messages_of(batch)) if each.at[0] == NOW]
    ((table,),) = await node.rows("select min(tableoid)::regclass::text from storenode.messages")
    read = node.database.read

    def read_meanwhile(work: Callable[..., Awaitable[Any]], *given: object) -> Awaitable[Any]:
        return read(lambda it: work(pruning(it, lambda: node.rows(f"drop table {table}")), *given))

    node.database.read = read_meanwhile  # type: ignore[assignment, method-assign]
    asked = page_request(hashes=batch.hashes)
    assert same(await node.reader.query(asked), expected_page(left, asked))


async def test_a_read_after_a_restart_is_tried_again_once(node: Node) -> None:
    database, attempts = node.database, 0
    together = asyncio.Barrier(database.settings.read_connections)

    async def meet(_: object) -> None:
        await together.wait()

    async def ask(connection: Connection) -> None:
        nonlocal attempts
        attempts += 1
        await connection.execute("select 1")

    await asyncio.gather(*(database.read(meet) for _ in range(together.parties)))
    assert len(database.read_pool.idle) == together.parties > 2
    await node.rows(TERMINATE_OTHERS)
    await database.read(ask)
    assert attempts == 2
