"""The schema of a real database: upgrades, refusals, partitions made by many at once."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from psycopg import AsyncConnection

from store.db import migrate, partitions
from store.db.errors import SchemaError, is_missing_partition
from store.db.migrate import EXPECTED, differences
from store.db.partitions import PartitionMap, ensure_ahead, ensure_for, read_catalog
from store.db.statements import COARSE_TABLES, SQL
from store.domain.partitioning import COMMITS_PER_PARTITION, DAY_NS, Cover
from tests.integration.database.rows import MONTH_NS, NOW, Connection, insert, names, opened, values
from tests.support.postgres import SUPERUSER, PostgresServer


def execute(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def test_upgrades_at_once_make_the_newest_schema_of_one_store(empty_database_url: str) -> None:
    assert migrate.current(empty_database_url) is None
    with pytest.raises(SchemaError, match="create it with `storenode db upgrade`"):
        migrate.require_served(empty_database_url)
    with ThreadPoolExecutor(4) as pool:  # they wait for each other
        assert {*pool.map(migrate.upgrade, [empty_database_url] * 4)} == {migrate.head()}
    first = execute(empty_database_url, "SELECT store_id, horizon_ns FROM storenode.store")
    assert migrate.upgrade(empty_database_url) == migrate.head()
    assert migrate.current(empty_database_url) == migrate.head()
    migrate.require_served(empty_database_url)
    assert execute(empty_database_url, "SELECT store_id, horizon_ns FROM storenode.store") == first
    assert [row[1] for row in first] == [0]
    with pytest.raises(psycopg.errors.UniqueViolation):
        execute(empty_database_url, "INSERT INTO storenode.store DEFAULT VALUES")


def test_revisions_are_those_of_alembic_and_sort_by_age() -> None:
    config = Config()
    config.set_main_option("script_location", migrate.LOCATION)
    walked = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert migrate.revisions() == walked[::-1]


def test_a_revision_that_is_not_known_is_refused_with_the_ways_to_move(database_url: str) -> None:
    ways = "upgrade storenode.*pipeline archive.*pipeline restore.*storenode scan"
    for revision in ("0001", "0012", "9999_later"):
        execute(database_url, f"UPDATE storenode.alembic_version SET version_num = '{revision}'")
        for refused in (migrate.require_served, migrate.upgrade):
            with pytest.raises(SchemaError, match=f"revision {revision}, which.*not know.*{ways}"):
                refused(database_url)


def test_an_encoding_that_cannot_hold_topics_is_refused(postgres: PostgresServer) -> None:
    name = postgres.create_database(encoding="SQL_ASCII")
    try:
        with pytest.raises(SchemaError, match="UTF8"):
            migrate.upgrade(postgres.url(name))
        assert migrate.current(postgres.url(name)) is None
    finally:
        postgres.drop_database(name)


def test_a_role_that_may_not_create_is_refused_with_what_it_needs(
    postgres: PostgresServer, empty_database_url: str
) -> None:
    name = empty_database_url.rsplit("/", 1)[1]
    admin = postgres.url(name, SUPERUSER)
    execute(admin, "CREATE ROLE stranger LOGIN")
    try:
        with pytest.raises(SchemaError, match="grant the role CREATE"):
            migrate.upgrade(postgres.url(name, "stranger"))
        execute(admin, "CREATE SCHEMA storenode AUTHORIZATION stranger")
        assert migrate.upgrade(postgres.url(name, "stranger")) == migrate.head()
    finally:
        execute(admin, "DROP SCHEMA storenode CASCADE; DROP ROLE stranger")


def test_a_role_that_may_not_look_is_refused(postgres: PostgresServer, database_url: str) -> None:
    execute(postgres.admin_url, "CREATE ROLE passer_by LOGIN")
    try:
        url = postgres.url(database_url.rsplit("/", 1)[1], "passer_by")
        for refused in (migrate.current, migrate.require_served, migrate.upgrade):
            with pytest.raises(SchemaError, match="connect as the role that owns it"):
                refused(url)
    finally:
        execute(postgres.admin_url, "DROP ROLE passer_by")


def test_an_old_server_is_refused(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "OLDEST_POSTGRES", 990_000)
    for refused in (migrate.require_served, migrate.upgrade):
        with pytest.raises(SchemaError, match="needs 99 or newer: upgrade Postgres"):
            refused(empty_database_url)


def described(connection: psycopg.Connection[Any]) -> list[Any]:
    return connection.execute(SQL.partitions.describe).fetchall()


# The schema that migrations leave, against ``store/db/schema.txt``

CHANGES = {
    "ALTER TABLE storenode.messages ADD COLUMN colour text": "colour",
    "ALTER TABLE storenode.messages DROP COLUMN batch CASCADE": "batch",
    "ALTER TABLE storenode.hashes ALTER COLUMN key DROP NOT NULL": "hashes.key",
    "DROP INDEX storenode.messages_topic_idx": "messages_topic_idx",
    "ALTER TABLE storenode.topics DROP CONSTRAINT topics_pkey": "topics_pkey",
    (
        "DROP VIEW storenode.export_messages;"
        " ALTER TABLE storenode.topics ALTER pubsub_topic TYPE text"
    ): "topics.pubsub_topic",
    "DROP SEQUENCE storenode.batch_seq": "batch_seq",
    "ALTER TABLE storenode.messages ALTER payload SET STORAGE EXTENDED": "payload",
    "ALTER TABLE storenode.store ALTER horizon_ns DROP DEFAULT": "horizon_ns",
}
"""A name that the check must mention, by the change of the schema."""


def test_the_migrated_schema_is_the_described_one_and_changes_are_found(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        lines = sorted(line for _, _, line in described(connection))
        assert "\n".join(lines) + "\n" == EXPECTED.read_text()
        for change, named in CHANGES.items():
            with connection.transaction(force_rollback=True):
                connection.execute(change.encode())
                assert named in " ".join(differences(described(connection))), change
        # What an operator adds is left out.
        connection.execute("CREATE TABLE storenode.other (x int)")
        connection.execute("ALTER TABLE storenode.unread ADD CHECK (needed < 100)")
        assert differences(described(connection)) == []


async def test_every_legal_timestamp_can_be_written(connection: Connection) -> None:
    day, year = DAY_NS, 366 * DAY_NS
    timestamps = [1, year, NOW - 3 * year, NOW - 200 * day, NOW - 59 * day, NOW - 1, NOW, NOW + day]
    stored = PartitionMap(lambda: NOW, MONTH_NS)
    assert not any(stored.covers(each, each) for each in timestamps)
    await stored.ensure(connection, timestamps)
    assert all(stored.covers(each, each) for each in timestamps)
    await insert(connection, timestamps)
    assert await names(connection, "messages") == [
        "messages_1970",
        "messages_1971",
        "messages_2023",
        "messages_20260922",
        "messages_20261120",
        "messages_20261121",
        "messages_2026m05",
    ]
    assert await names(connection, "hashes") == ["hashes_20261120", "hashes_before_20261120"]


async def test_what_has_no_partition_is_recognised(connection: Connection) -> None:
    with pytest.raises(psycopg.errors.CheckViolation) as missing:
        await insert(connection, [NOW])
    assert is_missing_partition(missing.value)
    await ensure_for(connection, [NOW], NOW, MONTH_NS)
    with pytest.raises(psycopg.errors.CheckViolation) as other:
        await connection.execute(
            "insert into storenode.sds values (gen_random_uuid(), gen_random_uuid(), %s, '', '',"
            " '', '', 1, '{}', '{a}', '{}', false)",
            (NOW,),
        )
    assert not is_missing_partition(other.value)


UNLIKE = """
select c.relname || '.' || a.attname from pg_inherits i
join pg_class c on c.oid = i.inhrelid and c.relkind = 'r'
join pg_attribute p on p.attrelid = i.inhparent and p.attnum > 0
join pg_attribute a on a.attrelid = i.inhrelid and a.attname = p.attname
where row(a.atttypid, a.attnotnull, a.attstorage, a.attcollation)
      is distinct from row(p.atttypid, p.attnotnull, p.attstorage, p.attcollation)
"""
UNATTACHED = """
select x.indexrelid::regclass::text from pg_index x join pg_class c on c.oid = x.indrelid
where c.relnamespace = 'storenode'::regnamespace and c.relispartition
  and not exists (select from pg_inherits where inhrelid = x.indexrelid)
"""
CHECKS = """
select distinct o.conname::text from pg_constraint o join pg_class c on c.oid = o.conrelid
where o.contype = 'c' and c.relispartition and c.relname not like 'commits%'
"""
COLUMNS = """
select attname::text from pg_attribute
where attnum > 0 and attrelid = 'storenode.messages_20261120'::regclass order by attnum
"""


async def test_a_partition_is_like_its_table(connection: Connection) -> None:
    await ensure_ahead(connection, NOW, MONTH_NS)
    assert await values(connection, UNLIKE) == await values(connection, UNATTACHED) == []
    assert await values(connection, CHECKS) == ["sds_parents_check"]
    # What has a fixed size is in front: no bytes are lost between columns.
    columns = "ts batch topic hash content_digest head payload tail"
    assert await values(connection, COLUMNS) == columns.split()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nodes wait for each other as long as a slow machine makes them."""
    monkeypatch.setattr(partitions, "CREATE_LOCK_TIMEOUT_MS", 60_000)


@pytest.mark.usefixtures("patient")
async def test_many_nodes_make_the_same_partitions_at_once(database_url: str) -> None:
    async def one(number: int) -> None:
        async with await opened(database_url) as own:
            for days in range(6):
                await ensure_for(own, [NOW - days * DAY_NS, NOW - number], NOW, MONTH_NS)

    await asyncio.gather(*(one(number) for number in range(5)))
    async with await opened(database_url) as own:
        assert len(await names(own, "messages")) == 6
        for table in COARSE_TABLES:
            Cover((await read_catalog(own)).bounds(table)).check()


async def test_readers_and_writers_in_transactions_do_not_wait(
    database_url: str, connection: Connection
) -> None:
    await ensure_for(connection, [NOW], NOW, MONTH_NS)
    async with (
        await AsyncConnection.connect(database_url) as writer,
        await AsyncConnection.connect(database_url) as reader,
    ):
        await insert(writer, [NOW])
        await reader.execute("select count(*) from storenode.messages")
        await ensure_for(connection, [NOW - DAY_NS], NOW, MONTH_NS)
        await insert(writer, [NOW + 1, NOW - DAY_NS])
        cursor = await reader.execute("select count(*) from storenode.messages")
        assert await cursor.fetchone() == (0,)
        await writer.commit()
    assert await values(connection, "select count(*) from storenode.messages") == [3]


async def test_commits_have_their_partition_and_the_next(connection: Connection) -> None:
    reach = "select setval('storenode.position_seq', %s)"
    await connection.execute(reach, (COMMITS_PER_PARTITION + 5,))
    stored = PartitionMap(lambda: NOW)
    await stored.ensure(connection, [])
    assert await names(connection, "commits") == ["commits_0", "commits_1", "commits_2"]
    await connection.execute(reach, (9 * COMMITS_PER_PARTITION,))
    await ensure_for(connection, [], NOW, MONTH_NS)
    assert {"commits_9", "commits_10"} <= set(await names(connection, "commits"))


async def test_the_map_places_topics_and_knows_when_partitions_changed(
    connection: Connection,
) -> None:
    stored = PartitionMap(lambda: NOW, MONTH_NS)
    with pytest.raises(LookupError):
        stored.coarse_lower(NOW)
    await stored.ensure(connection, [1, NOW])
    today = NOW // DAY_NS * DAY_NS
    assert [stored.coarse_lower(ts) for ts in (1, today - 1, today, NOW)] == [0, 0, today, today]
    generation = stored.generation
    await stored.refresh(connection)
    assert stored.generation == generation
    await connection.execute("drop table storenode.messages_20261120")
    await ensure_for(connection, [NOW], NOW, MONTH_NS)
    assert stored.covers(NOW, NOW)
    await stored.refresh(connection)
    assert stored.generation == generation + 1
