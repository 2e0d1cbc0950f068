"""Upgrading a real database, the schema that it has then, and refusing what does not fit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from store.db import migrate
from store.db.errors import SchemaError
from store.db.migrate import EXPECTED, differences
from store.db.statements import SQL
from tests.support.postgres import SUPERUSER, PostgresServer


def execute(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def test_upgrade_makes_the_newest_schema_once(empty_database_url: str) -> None:
    assert migrate.current(empty_database_url) is None
    with pytest.raises(SchemaError, match="create it with `storenode db upgrade`"):
        migrate.require_served(empty_database_url)
    assert migrate.upgrade(empty_database_url) == migrate.head()
    first = execute(empty_database_url, "SELECT store_id, horizon_ns FROM storenode.store")
    assert migrate.upgrade(empty_database_url) == migrate.head()
    assert migrate.current(empty_database_url) == migrate.head()
    migrate.require_served(empty_database_url)
    assert execute(empty_database_url, "SELECT store_id, horizon_ns FROM storenode.store") == first
    assert first[0][1] == 0


def test_nodes_that_upgrade_at_once_wait_for_each_other(empty_database_url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(migrate.upgrade, [empty_database_url] * 4))
    assert found == [migrate.head()] * 4
    assert execute(empty_database_url, "SELECT count(*) FROM storenode.store") == [(1,)]


def test_revisions_are_those_of_alembic_and_sort_by_age() -> None:
    config = Config()
    config.set_main_option("script_location", migrate.LOCATION)
    walked = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert migrate.revisions() == walked[::-1]


@pytest.mark.parametrize("revision", ["0001", "0012", "9999_later"])
def test_a_revision_that_is_not_known_is_refused_with_the_ways_to_move(
    database_url: str, revision: str
) -> None:
    execute(database_url, f"UPDATE storenode.alembic_version SET version_num = '{revision}'")
    ways = "upgrade storenode.*pipeline archive.*pipeline restore.*storenode scan"
    for refused in (migrate.require_served, migrate.upgrade):
        with pytest.raises(SchemaError, match=rf"revision {revision}, which.* not know.*{ways}"):
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


def test_the_one_row_of_the_store_cannot_be_doubled(database_url: str) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation):
        execute(database_url, "INSERT INTO storenode.store DEFAULT VALUES")


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


def test_the_migrated_schema_is_the_described_one(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        lines = sorted(line for _, _, line in described(connection))
        assert "\n".join(lines) + "\n" == EXPECTED.read_text()
        assert differences(described(connection)) == []
        # What an operator adds is left out.
        connection.execute("CREATE TABLE storenode.other (x int)")
        connection.execute("ALTER TABLE storenode.unread ADD CHECK (needed < 100)")
        assert differences(described(connection)) == []


def test_a_change_of_the_schema_is_found(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        for change, named in CHANGES.items():
            with connection.transaction(force_rollback=True):
                connection.execute(change.encode())
                assert named in " ".join(differences(described(connection))), change
        assert differences(described(connection)) == []
