"""The plans of the statements that read, under the settings of a node's sessions."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, TypeVarTuple, cast

import pytest
from psycopg import sql

from store.db import feed as feed_module
from store.db.connection import Connection
from store.db.insert import insert_topics
from store.db.messages import MAX_MERGED_TOPICS, DatabaseReader, PageShape, resolve
from store.db.pool import Database, Pool
from store.domain.hub import START
from store.domain.ports import PageRequest, TopicFilter, TopicRights
from store.messages.cursor import FollowCursor
from storenode.message.topics import topic_key
from tests.integration.storage.followers import WideOutlet
from tests.integration.storage.node import SETTINGS, Node, running
from tests.integration.storage.world import (
    DAY,
    NOW,
    PUBSUBS,
    TOPICS,
    KnownMessage,
    messages_of,
    random_batch,
)
from tests.support.postgres import PostgresServer

SEED = 20261120
FOREVER = 2**63 - 1
EVERYTHING = PageShape(feed_module.MAX_PAGE_MESSAGES, 10**9, include_data=True)
_PLACEHOLDER = re.compile(r"%(?:\((\w+)\))?[bs](::\w+(?:\[\])?)?")

_KIND = re.compile(
    r"^([a-z]+)_.*?(pkey|key_idx|topic_ts_substr_idx|batch_idx|pubsub_topic_idx|content_topic_idx)$"
)

Plan = Mapping[str, object]
_Result = TypeVar("_Result")
_Given = TypeVarTuple("_Given")


class Explained:
    """A connection that first asks for the generic plan of each statement, carried out."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.nodes: list[Plan] = []

    async def execute(
        self,
        statement: str,
        parameters: object = None,
        *,
        prepare: bool | None = None,
        binary: bool = False,
    ) -> object:
        assert prepare is None
        parameters = parameters or ()
        if not statement.lstrip().lower().startswith(("select", "with")):
            return await self._connection.execute(statement.encode(), binary=binary)
        self.nodes += list(_nodes(await self._plan(statement, parameters)))
        return await self._connection.execute(
            statement.encode(), cast("Sequence[object]", parameters), binary=binary
        )

    async def _plan(self, statement: str, parameters: object) -> Plan:
        values: list[tuple[object, str]] = []
        places: dict[str, int] = {}

        def place(match: re.Match[str]) -> str:
            name, kind = match[1], match[2] or ""
            if name is None or name not in places:
                value = (
                    cast("Sequence[object]", parameters)[len(values)]
                    if name is None
                    else cast("Mapping[str, object]", parameters)[name]
                )
                values.append((value, kind))
                places[name or str(len(values))] = len(values)
            return f"${places[name or str(len(values))]}{kind}"

        text = _PLACEHOLDER.sub(place, statement)
        await self._run(f"prepare explained as {text}")
        given = sql.SQL(", ").join([sql.Literal(await self._text(*value)) for value in values])
        execute = sql.SQL("execute explained ({})" if values else "execute explained")
        cursor = await self._connection.execute(
            sql.SQL("explain (analyze, timing off, costs off, format json) {}").format(
                execute.format(given)
            ),
            prepare=False,
        )
        [[plans]] = await cursor.fetchall()
        await self._run("deallocate explained")
        return cast("Plan", cast("Sequence[Plan]", plans)[0]["Plan"])

    async def _run(self, statement: str) -> None:
        await self._connection.execute(statement.encode(), prepare=False)

    async def _text(self, value: object, kind: str) -> object:
        """Return a value as Postgres writes it, to be read again as the type of the placeholder."""
        if value is None or isinstance(value, int | str):
            return None if value is None else str(value)
        cursor = await self._connection.execute(f"select (%b{kind})::text".encode(), (value,))
        [[text]] = await cursor.fetchall()
        return text

    def carried_out(self) -> list[Plan]:
        """Return the parts of all plans that were not left out."""
        return [node for node in self.nodes if node.get("Actual Loops", 0) != 0]

    def indexes(self) -> Counter[str]:
        """Count the scans of indexes, by the end of their names."""
        names = [str(node["Index Name"]) for node in self.carried_out() if "Index Name" in node]
        return Counter(_KIND.sub(r"\1:\2", name) for name in names)

    def partitions(self, table: str) -> Counter[str]:
        """Count the parts of plans that read each partition of a table."""
        names = [str(node.get("Relation Name", "")) for node in self.carried_out()]
        return Counter(name for name in names if name.startswith(f"{table}_"))

    def rows_from(self, table: str) -> int:
        """Return the rows that were read from a table's partitions, in all loops.

        Where a part of a plan was carried out several times, Postgres before 18 gives only its rows
        per loop, rounded: then the fewest that this can mean.
        """
        total = 0
        for node in self.carried_out():
            if str(node.get("Relation Name", "")).startswith(f"{table}_"):
                rows, loops = cast("float", node["Actual Rows"]), cast("int", node["Actual Loops"])
                rounded = isinstance(rows, int) and loops > 1
                total += math.ceil(max(0.0, rows - 0.5) * loops) if rounded else round(rows * loops)
        return total

    def full_reads(self) -> set[str]:
        """Return the tables that were read from end to end."""
        return {
            str(node["Relation Name"]) for node in self.nodes if node["Node Type"] == "Seq Scan"
        }


def _nodes(plan: Plan) -> Iterator[Plan]:
    yield plan
    for child in cast("Sequence[Plan]", plan.get("Plans", ())):
        yield from _nodes(child)


class ExplainedDatabase(Database):
    """A database with one connection for all reading."""

    explained: Explained

    async def read(
        self,
        work: Callable[[Connection, *_Given], Awaitable[_Result]],
        *given: *_Given,
        pool: Pool | None = None,
    ) -> _Result:
        assert pool in {None, self.bulk_pool}
        return await work(cast("Connection", self.explained), *given)


@dataclass
class World:
    """A database with many partitions, and a reader whose statements are explained."""

    explained: Explained
    reader: DatabaseReader
    stored: list[KnownMessage] = field(repr=False)


async def filled(url: str) -> list[KnownMessage]:
    """Fill a database, and return what it holds then."""
    rng = random.Random(SEED)
    days = [NOW - number * 11 * DAY for number in range(30)]
    stored = []
    async with running(url) as node:
        for _ in range(2):
            batch = random_batch(rng, 900, days)
            assert all(await node.store(batch))
            stored += messages_of(batch)
        await node.rows("analyze")
    return stored


@pytest.fixture(scope="module")
def history(
    postgres: PostgresServer, template_database: str
) -> Iterator[tuple[str, list[KnownMessage]]]:
    """Return the URL of a database that tests only read, and what it holds."""
    with postgres.filled(template_database, filled) as (name, stored):
        yield postgres.url(name), stored


@pytest.fixture
async def world(history: tuple[str, list[KnownMessage]]) -> AsyncIterator[World]:
    url, stored = history
    database = ExplainedDatabase(url, SETTINGS)
    async with await database.connect() as connection:
        database.explained = explained = Explained(connection)
        yield World(explained, DatabaseReader(database), stored)


def page(
    wanted: TopicFilter,
    *,
    span: tuple[int, int] = (0, FOREVER),
    forward: bool = True,
    limit: int = 20,
    hashes: tuple[bytes, ...] | None = None,
) -> PageRequest:
    return PageRequest(wanted, hashes, *span, None, forward, limit, include_data=True)


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("count", [1, 5])
async def test_pages_of_topics_come_from_the_topic_index(
    world: World, forward: bool, count: int
) -> None:
    pubsub, contents = PUBSUBS[0], tuple(content for _, content in TOPICS[:count])
    span = (NOW - 50 * DAY, NOW + 1)
    wanted = TopicFilter(pubsub, contents)
    found = await world.reader.query(page(wanted, span=span, forward=forward, limit=10))
    assert found.count == 10
    explained = world.explained
    assert explained.full_reads() == set()
    assert set(explained.indexes()) == {"messages:topic_ts_substr_idx"}
    assert len(explained.partitions("messages")) <= 5
    # At most one more than the page from each topic, another where hashes that begin alike end, and
    # the page itself where it was found.
    assert explained.rows_from("messages") <= count * 12 + 11


@pytest.mark.parametrize("forward", [True, False])
async def test_pages_of_everything_come_from_the_time_index(world: World, forward: bool) -> None:
    found = await world.reader.query(page(TopicFilter(), forward=forward))
    assert found.count == 20
    explained = world.explained
    assert explained.full_reads() == set()
    assert set(explained.indexes()) == {"messages:pkey"}
    assert explained.rows_from("messages") == 21
    assert len(explained.partitions("messages")) == 1


async def test_a_scan_reads_each_message_once(world: World) -> None:
    request = PageRequest(TopicFilter(), None, 0, FOREVER, None, True, 500, True)
    count = 0
    async for each in world.reader.scan(request, WideOutlet()):
        count += len(each.timestamps)
    explained = world.explained
    assert count == len(world.stored) == explained.rows_from("messages")
    assert explained.full_reads() == set()
    assert set(explained.indexes()) == {"messages:pkey"}


@pytest.mark.parametrize("count", [1, 128, 900])
@pytest.mark.parametrize("rights", [TopicRights(), TopicRights(("/waku",), ("/app-0",))])
async def test_hashes_are_looked_for_in_few_partitions(
    world: World, count: int, rights: TopicRights
) -> None:
    asked = random.Random(count).sample(world.stored, count)
    hashes = tuple(each.hash for each in asked)
    found = await world.reader.query(page(TopicFilter(rights=rights), hashes=hashes, limit=1_000))
    assert found.count == sum(rights.allows(*each.topic) for each in asked)
    explained = world.explained
    read = explained.partitions("hashes")
    assert len(read) == 2, "what is older than the first day, and the rest"
    assert set(read.values()) == {1}
    assert explained.full_reads() <= set(explained.partitions("topics"))
    assert explained.indexes()["hashes:key_idx"] == len(read)
    assert explained.rows_from("hashes") == count
    # Where topics decide, they are read first.
    assert explained.rows_from("messages") <= count + found.count
    assert not any(":topic_ts" in name or ":batch" in name for name in explained.indexes())


async def test_a_position_is_one_probe_of_each_partition_of_hashes(world: World) -> None:
    message = world.stored[0]
    assert await world.reader.position(message.hash, TopicRights()) == message.at
    explained = world.explained
    assert explained.full_reads() == set()
    assert set(explained.indexes()) == {"hashes:key_idx", "messages:pkey"}
    assert len(explained.partitions("hashes")) <= 2
    assert explained.rows_from("hashes") == 1
    assert len(explained.partitions("messages")) == 1
    assert explained.rows_from("messages") == 1


@pytest.mark.parametrize("wanted", [TopicFilter(), TopicFilter(PUBSUBS[0], (TOPICS[1][1],))])
async def test_a_backlog_looks_for_each_batch_where_it_lies(
    node: Node, wanted: TopicFilter
) -> None:
    rng = random.Random(SEED)
    batches = [random_batch(rng, 50, [NOW - day * DAY, NOW - day * DAY + 1]) for day in range(30)]
    for batch in batches:
        assert all(await node.store(batch))
    matching = [
        each for batch in batches for each in messages_of(batch) if wanted.matches(*each.topic)
    ]
    async with await node.database.connect() as opened:
        explained = Explained(opened)
        connection = cast("Connection", explained)
        found = await feed_module.read_feed_page(
            connection, wanted, FollowCursor(node.database.store_id, *START), EVERYTHING
        )
        assert found.count == len(matching)
        touched = {each.at[0] // DAY for each in matching}
        assert_each_partition_once(explained, len(touched))
        explained.nodes.clear()
        commits = await feed_module.commits_between(opened, 0, FOREVER, None)
        topics = await resolve(opened, wanted)
        rows = await feed_module.rows_of(connection, commits, topics)
        assert sum(map(len, rows.values())) == len(matching)
        assert_each_partition_once(explained, len(batches))


MANY = 5_000
MANY_OF_THEM = TopicFilter(rights=TopicRights(("/shard/",), ("/app/",)))


@pytest.mark.parametrize(
    "wanted",
    [
        TopicFilter("/shard/17"),
        TopicFilter(None, ("/app/17", "/app/18")),
        TopicFilter(rights=TopicRights(("/shard/17",))),
        TopicFilter(rights=TopicRights((), ("/app/17", "/app/18"))),
        TopicFilter(None, ("/app/17",), TopicRights(("/shard/17",))),
        TopicFilter(rights=TopicRights(("/shard/17",), ("/app/17",))),
        MANY_OF_THEM,
    ],
)
async def test_topics_are_found_without_reading_all(many: Node, wanted: TopicFilter) -> None:
    async with await many.database.connect() as connection:
        explained = Explained(connection)
        keys = await resolve(cast("Connection", explained), wanted)
    assert isinstance(keys, tuple) == (wanted is not MANY_OF_THEM)
    assert keys
    assert explained.full_reads() == set()
    assert explained.rows_from("topics") <= 4 * MAX_MERGED_TOPICS + 1 < MANY


async def fill_topics(url: str) -> None:
    pairs = [(f"/shard/{number}/x", f"/app/{number}") for number in range(MANY)]
    pairs.append(("/shard/17", "/app/17"))
    async with running(url) as node, await node.database.connect() as connection:
        await node.partitions.ensure(connection, [NOW])
        low = node.partitions.coarse_lower(NOW)
        await insert_topics(connection, [(topic_key(*pair), low, *pair) for pair in pairs])
        await connection.execute("analyze storenode.topics")


@pytest.fixture(scope="module")
def many_topics(postgres: PostgresServer, template_database: str) -> Iterator[str]:
    """Return the URL of a database with names of many topics."""
    with postgres.filled(template_database, fill_topics) as (name, _):
        yield postgres.url(name)


@pytest.fixture
async def many(many_topics: str) -> AsyncIterator[Node]:
    async with running(many_topics) as opened:
        yield opened


def assert_each_partition_once(explained: Explained, count: int) -> None:
    assert not any(name.startswith("messages") for name in explained.full_reads())
    read = [
        cast("int", node["Actual Loops"])
        for node in explained.carried_out()
        if str(node.get("Relation Name", "")).startswith("messages_")
    ]
    assert read == [1] * count
