"""Upgrading while nodes of the version before run: they go on, start anew, and are not cut off.

The newer version is this one with two revisions more, in a folder of their own.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from store.db.errors import SchemaError
from store.db.schema import migrate, upgrade_locks
from tests.support.command import Command
from tests.support.node import NodeProcess, running_node
from tests.support.polling import PAUSE_S, eventually
from tests.support.postgres import SUPERUSER, PostgresServer

NEWEST = migrate.head()
NO_NODES = """
SELECT count(*) = 0 FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'storenode %'
"""
BEFORE = '''
"""What an older node survives: more columns, tables and indexes.

Revision ID: 9001
"""
from alembic import op

revision = "9001"
down_revision = "{newest}"
locks = "commits messages sds unread"


def upgrade() -> None:
    op.execute("ALTER TABLE storenode.messages ADD COLUMN tenant int")
    op.execute("ALTER TABLE storenode.commits ADD COLUMN colour text NOT NULL DEFAULT ''")
    op.execute("ALTER TABLE storenode.unread ADD COLUMN urgent boolean NOT NULL DEFAULT false")
    op.execute("CREATE TABLE storenode.tenants (tenant int PRIMARY KEY, name text NOT NULL)")
    op.execute("CREATE INDEX sds_lamport_idx ON storenode.sds (lamport)")
'''
AFTER = '''
"""What it does not survive.

Revision ID: 9002
"""
from alembic import op

revision = "9002"
down_revision = "9001"
phase = "after"
serves_from = "9001"


def upgrade() -> None:
    op.execute("ALTER TABLE storenode.store RENAME COLUMN pruned_messages TO dropped_messages")
'''
NEXT = '''
"""Of the version after that.

Revision ID: 9003
"""
revision = "9003"
down_revision = "9002"


def upgrade() -> None:
    pass
'''


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes `store.db.schema.migrate`, in this process, that of a newer version; its revisions."""
    location = tmp_path / "migrations"
    shutil.copytree(migrate.LOCATION, location, ignore=shutil.ignore_patterns("__pycache__"))
    versions = location / "versions"
    (versions / "n9001.py").write_text(BEFORE.format(newest=NEWEST))
    (versions / "n9002.py").write_text(AFTER)
    monkeypatch.setattr(migrate, "LOCATION", str(location))
    return versions


def serves(node: NodeProcess, payload: str) -> None:
    """A node stores and gives back; so its writer, reader and follower work."""
    command = Command.of(node)
    topic = ("--content-topic", "/rolling/1/upgrade/proto")
    assert command.ok("publish", *topic, payload).out.startswith("STORED")
    assert payload in command.ok("scan", *topic).out
    assert payload in command.ok("follow", *topic, "--from-beginning", "--until-live").out


@pytest.mark.usefixtures("newer")
def test_an_older_node_works_on_what_comes_before_a_restart(
    database_url: str, tmp_path: Path
) -> None:
    with running_node(tmp_path / "running", database_url=database_url) as running:
        serves(running, "before")
        assert migrate.upgrade(database_url, before_restart=True) == "9001"
        assert migrate.upgrade(database_url, before_restart=True) == "9001"
        serves(running, "meanwhile")
        with running_node(tmp_path / "started", database_url=database_url) as started:
            serves(started, "started meanwhile")
        done = Command().ok("db", "partitions", "--database-url", database_url)
        assert "messages" in done.out


@pytest.mark.usefixtures("newer")
def test_what_connected_nodes_need_is_not_taken_away(database_url: str, tmp_path: Path) -> None:
    with running_node(tmp_path / "node", database_url=database_url) as node:
        with pytest.raises(SchemaError, match=rf"storenode {NEWEST} from .*--before-restart"):
            migrate.upgrade(database_url)
        assert migrate.current(database_url) == NEWEST
        serves(node, "undisturbed")
    with psycopg.connect(database_url, autocommit=True) as connection:
        # The server learns by and by that the node has gone.
        eventually(lambda: connection.execute(NO_NODES).fetchone() == (True,))
    assert migrate.upgrade(database_url) == "9002"
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT serves_from FROM storenode.store").fetchone()
    assert row == ("9001",)
    # A newer node works on it before and after; an older one no longer.
    migrate.require_served(database_url)
    refused = Command()("run", "--data-dir", str(tmp_path / "late"), "--database-url", database_url)
    assert refused.code == 1
    assert "upgrade storenode" in refused.err


@pytest.mark.usefixtures("newer")
def test_a_newer_node_needs_what_comes_before_and_not_what_comes_after(database_url: str) -> None:
    with pytest.raises(SchemaError, match="run `storenode db upgrade`"):
        migrate.require_served(database_url)
    migrate.upgrade(database_url, before_restart=True)
    migrate.require_served(database_url)
    with pytest.raises(SchemaError, match="end the upgrade"):
        migrate.require_current(database_url)
    assert migrate.upgrade(database_url) == "9002"
    migrate.require_current(database_url)


def test_an_upgrade_is_ended_before_the_next_begins(database_url: str, newer: Path) -> None:
    migrate.upgrade(database_url, before_restart=True)
    (newer / "n9003.py").write_text(NEXT)
    with pytest.raises(SchemaError, match="was not ended, at revision 9001"):
        migrate.upgrade(database_url, before_restart=True)
    assert migrate.upgrade(database_url) == "9003"


@pytest.mark.usefixtures("newer")
def test_an_upgrade_that_would_keep_others_waiting_gives_up(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "_LOCK_TIMEOUT_S", 1)
    with psycopg.connect(database_url) as reader:
        reader.execute("SELECT count(*) FROM storenode.messages")
        with pytest.raises(SchemaError, match="nothing has changed"):
            migrate.upgrade(database_url, before_restart=True)
    assert migrate.current(database_url) == NEWEST
    assert migrate.upgrade(database_url, before_restart=True) == "9001"


HELD = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'AccessExclusiveLock'"
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"


@pytest.mark.usefixtures("newer")
@pytest.mark.parametrize(
    "statement", ["SELECT FROM storenode.{}", "LOCK TABLE storenode.{} IN ROW EXCLUSIVE MODE"]
)
@pytest.mark.parametrize("order", [("commits", "messages", "sds"), ("sds", "messages", "commits")])
def test_an_upgrade_gives_way_to_who_locks_tables_in_any_order(
    postgres: PostgresServer, database_url: str, statement: str, order: tuple[str, ...]
) -> None:
    database = str(conninfo_to_dict(database_url)["dbname"])
    with (
        psycopg.connect(database_url) as node,
        psycopg.connect(postgres.url(database, SUPERUSER), autocommit=True) as watch,
        ThreadPoolExecutor() as threads,
    ):
        # Whom Postgres ends is who finds out first: here never the upgrade.
        watch.execute(f"ALTER DATABASE {database} SET deadlock_timeout = '1h'")
        node.execute(statement.format(order[0]))
        upgraded = threads.submit(migrate.upgrade, database_url, before_restart=True)
        while watch.execute(WAITING).fetchone() != (1,):
            assert not upgraded.done()
            time.sleep(PAUSE_S)
        for table in order[1:]:
            node.execute(statement.format(table))
        node.commit()
        assert upgraded.result() == "9001"


def test_an_upgrade_gives_up_though_each_table_is_free_at_times(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[float] = []

    def fail(_: object, names: Sequence[str], attempt_s: float) -> str:
        """As where nodes that take turns always have one of the tables."""
        attempts.append(attempt_s)
        return names[0]

    monkeypatch.setattr(upgrade_locks, "_try", fail)
    with psycopg.connect(database_url) as connection:
        with pytest.raises(errors.LockNotAvailable):
            upgrade_locks.lock_tables(connection, ["store", "commits"], 0.01)
        assert attempts
        assert connection.execute(HELD).fetchone() == (0,)
