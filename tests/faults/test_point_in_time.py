"""A lost database, restored to a point in time by the commands of docs/backup.md."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from chaos.soak.postgres import ClusterServer, choose_programs
from store.db.migrate import upgrade
from storenode.client.node import connect
from tests.faults.processes import is_refused, until
from tests.support.clients import scanned
from tests.support.command import Command
from tests.support.fleet import NS_PER_S, Fleet, hashes, made, publish, synchronize
from tests.support.node import COMMAND, NodeProcess
from tests.support.pages import ROOT, Step, blocks, run_in_one_shell
from tests.support.places import keep_logs
from tests.support.postgres import SUPERUSER

PAGE: Final = ROOT / "docs" / "backup.md"
EVERYTHING: Final = ("--from", "0", "--to", "2100-01-01T00:00:00Z")
ENDED: Final = "select pg_walfile_name(%s::pg_lsn), pg_switch_wal()"
ARCHIVED: Final = "select coalesce(last_archived_wal >= %s, false) from pg_stat_archiver"


@dataclass
class Backups:
    """A directory in the place of the page's ``/backup``, and what the page does with it."""

    directory: Path

    def lines(self, language: str, about: str) -> str:
        """Return the block of the page with some words, for this directory."""
        page = PAGE.read_text(encoding="utf-8").replace("\n   ", "\n")
        (found,) = [body for body in blocks(page, language) if about in body]
        return found.replace("/backup", str(self.directory))

    def run(self, about: str, **env: str) -> str:
        """Run the commands of a block, and return their output."""
        steps = [Step(line, "") for line in self.lines("sh", about).splitlines()]
        path = f"{choose_programs().bin_dir}:{Path(COMMAND).parent}:{os.environ['PATH']}"
        return "".join(run_in_one_shell(steps, {"PATH": path, **env}))

    def configure(self, server: ClusterServer, about: str) -> None:
        """Write the settings of a block for the server's next start."""
        with (server.data.cluster / "postgresql.auto.conf").open("a") as file:
            file.write(self.lines("ini", about))


@pytest.fixture
def backups(tmp_path: Path) -> Iterator[Backups]:
    """Make a directory where Postgres's account may write."""
    # Not below a directory of pytest's: Postgres's account must get there.
    with tempfile.TemporaryDirectory(prefix="storenode-backup-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "wal").mkdir()
        yield Backups(directory)
        keep_logs(directory, tmp_path)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with closing(Fleet(tmp_path)) as started:
        yield started


@pytest.fixture
def servers(backups: Backups) -> Iterator[tuple[ClusterServer, ClusterServer]]:
    """Start a server that archives its log; the other one is to replace it."""
    lost, restored = (ClusterServer(backups.directory / name) for name in ("lost", "restored"))
    try:
        lost.create()
        give_away(backups.directory / "wal", backups.directory)
        backups.configure(lost, "archive_mode")
        lost.start()
        upgrade(lost.url)
        yield lost, restored
    finally:
        for server in (restored, lost):
            server.stop()


def give_away(tree: Path, backups: Path) -> None:
    """Change the owner of a directory to the account that the lost server runs as.

    The restored server runs as the owner of its cluster, and so can read the same archive.
    """
    owner = (backups / "lost" / "postgres").stat()
    for path in (tree, *tree.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)


def put_in_place(backups: Backups, server: ClusterServer) -> None:
    """Run steps 2 and 3 of the page."""
    server.data.cluster.mkdir(mode=0o700)
    backups.run("recovery.signal", PGDATA=str(server.data.cluster))
    give_away(server.data.cluster, backups.directory)
    backups.configure(server, "recovery_target_name")


async def archive_up_to(server: ClusterServer, position: str) -> None:
    """Wait until the archive has the log up to a position that a command has shown."""
    ((segment, _),) = server.ask(ENDED, position)
    await until(lambda: server.ask(ARCHIVED, segment) == [(True,)])


async def cursor_at_head(node: NodeProcess) -> bytes:
    async with connect(node.listen) as client:
        async for page in client.follow(from_beginning=True, include_data=False):
            if page.live:
                return page.cursor
    raise AssertionError


async def test_back_to_a_point_in_time(
    backups: Backups, servers: tuple[ClusterServer, ClusterServer], database_url: str, fleet: Fleet
) -> None:
    lost, restored = servers
    everything = set[bytes]()
    peer = fleet.start(database_url=database_url)
    node = fleet.start(database_url=lost.url)

    async def publish_more() -> bytes:
        some = made(500, time.time_ns() - 90 * NS_PER_S, seed=len(everything))
        everything.update(hashes(some))
        for each in (node, peer):
            await publish(each, some)
        return await cursor_at_head(node)

    await publish_more()
    backups.run("pg_basebackup", SUPERUSER_URL=lost.url_of(SUPERUSER))
    before = await publish_more()
    kept = set(everything)
    point = backups.run("pg_create_restore_point", SUPERUSER_URL=lost.url_of(SUPERUSER))
    beyond = await publish_more()
    await archive_up_to(lost, point.split()[2])
    node.kill()
    lost.kill()

    put_in_place(backups, restored)
    restored.start()
    await until(
        lambda: backups.run("pg_is_in_recovery", SUPERUSER_URL=restored.url_of(SUPERUSER)) == "f\n"
    )
    backups.run("storenode db current", STORENODE_DATABASE_URL=restored.url)
    node = fleet.start(database_url=restored.url, peers=[peer])
    assert await scanned(node.listen) == kept
    assert not await is_refused(node, before)
    assert await is_refused(node, beyond)

    ended, report = synchronize(node, *EVERYTHING)
    assert (ended.code, report["messages_received"]) == (0, len(everything - kept)), ended
    assert await scanned(node.listen) == everything
    # The same messages are in other commits, unknown to this follower.
    assert await is_refused(node, beyond)
    assert not await is_refused(node, before)
    Command().ok("db", "check", "--database-url", restored.url)
