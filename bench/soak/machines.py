"""Database servers and nodes, and what can happen to their machines."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict

from bench.soak import clocked
from store.db.schema.migrate import upgrade
from store.embedded import running_url
from tests.support.cluster import ClusterServer
from tests.support.command import Command
from tests.support.node import NodeProcess
from tests.support.small_disk import SmallDisk

PATIENCE_S: Final = 300.0
"""How long anything may take that is waited for; a busy machine is slow."""

POLL_S: Final = 0.2
_STANDBY: Final = "second"
"""Name of the standby's connection, as `ClusterServer.copy` gives it."""

ROOT: Final = Path(__file__).parents[2]


class StuckError(Exception):
    """Something that was waited for did not come; the text says what."""


def wait_until(what: str, look: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Look until it is so.

    Raises:
        StuckError: it took longer than ``patience_s``.
    """
    deadline = time.monotonic() + patience_s
    while not look():
        if time.monotonic() > deadline:
            raise StuckError(f"{what}: not within {patience_s:.0f} s")
        time.sleep(POLL_S)


class Replicated:
    """A primary and its synchronous standby."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made = 0
        self.primary = self._new()
        self.primary.create()
        self.primary.start()
        upgrade(self.primary.url)
        self.standby = self._new()
        self.standby.copy(self.primary)
        self.standby.start()
        self._synchronous()

    @property
    def url(self) -> str:
        """Both hosts; a node uses the one that takes writes."""
        base, _, database = self.primary.url.rpartition("/")
        return f"{base},127.0.0.1:{self.standby.port}/{database}"

    def fail_over(self) -> None:
        """The primary's machine dies, and the standby takes its place."""
        self.primary.kill()
        ((promoted,),) = self.standby.ask("select pg_promote(true, 120)")
        if not promoted:
            raise StuckError("the standby was not promoted within 120 s")

    def rebuild(self) -> None:
        """Make a new standby on the ports of the old primary; every commit waits for it again."""
        dead, self.primary = self.primary, self.standby
        shutil.rmtree(dead.data.path, ignore_errors=True)
        self.standby = self._new()
        # Nodes know the two by their ports.
        self.standby.held_port = dead.held_port
        self.standby.copy(self.primary)
        self.standby.start()
        self._synchronous()

    def kill(self) -> None:
        """Kill the primary."""
        self.primary.kill()

    def start(self) -> None:
        """Start it again; the standby finds it."""
        self.primary.start()
        wait_until("the standby to replicate", self._replicates)

    def stop(self) -> None:
        """Shut both down."""
        self.standby.stop()
        self.primary.stop()

    def _new(self) -> ClusterServer:
        self._made += 1
        return ClusterServer(self._directory / f"server-{self._made}")

    def _synchronous(self) -> None:
        self.primary.set(synchronous_standby_names=_STANDBY)
        self.primary.ask("select pg_reload_conf()")
        wait_until("the standby to replicate", self._replicates)

    def _replicates(self) -> bool:
        try:
            states = self.primary.ask("select sync_state from pg_stat_replication")
        except psycopg.OperationalError:
            return False
        return ("sync",) in states


def single(directory: Path) -> ClusterServer:
    """Start one server."""
    server = ClusterServer(directory / "server-1")
    server.create()
    server.start()
    upgrade(server.url)
    return server


Database = Replicated | ClusterServer


@dataclass
class SoakNode(NodeProcess):
    """A node whose clock can be set, and whose data directory may lie on a small disk."""

    disk: SmallDisk | None = None
    clock: Path = Path()
    """The file that says by how much its clock is wrong."""

    def command(self) -> list[str]:
        """The same command behind a clock of ours."""
        line = [sys.executable, "-P", clocked.__file__, str(self.clock), *super().command()[1:]]
        return line if self.disk is None else self.disk.enter(line)

    @property
    def reachable_data_dir(self) -> Path:
        """The data directory, as other programs get at it."""
        return self.data_dir if self.disk is None else self.disk.path / self.data_dir.name

    def postmaster(self) -> psutil.Process:
        """The embedded server."""
        children = psutil.Process(self.process.pid).children()
        (found,) = [child for child in children if child.name().startswith("postgres")]
        return found


class Machine:
    """A node with its database: what can happen to it, and to how many stores it was.

    ``make_database`` gives a server of the node's own in a directory; None: an embedded one.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        make_database: Callable[[Path], Database] | None,
        disk: SmallDisk | None = None,
    ) -> None:
        self.name = name
        self.lives = 0
        self.directory = directory
        self.disk = disk
        self._make_database = make_database
        self.database: Database | None = None
        self.node = self._install()

    @property
    def store(self) -> str:
        """The life of the database that the node has now."""
        return f"{self.name}#{self.lives}"

    def start(self, *options: str) -> None:
        """Start the node with these options, or with those of the last time."""
        if options:
            self.node.args = options
        self.node.start(PATIENCE_S)

    def replace(self) -> None:
        """Throw node and database away and put empty ones in their place, at the same address."""
        old, options = self.node, self.node.args
        if self.database is not None:
            self.database.stop()
        shutil.rmtree(self._place(), ignore_errors=True)
        self.node = self._install()
        self.node.ports = old.ports
        self.start(*options)

    def kill_postgres(self) -> None:
        """All processes of an external server at once, or the embedded one's postmaster alone."""
        if self.database is not None:
            self.database.kill()
        else:
            self.node.postmaster().kill()

    def start_postgres(self) -> None:
        """Start what was killed; an embedded one is started by its node."""
        if self.database is not None:
            self.database.start()

    def set_clock(self, offset_ns: int) -> None:
        """How wrong the node's clock is from now on."""
        clocked.set_offset(self.node.clock, offset_ns)

    def storenode(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Run a command on the node's database: its exit code, and what it printed as JSON."""
        if self.database is not None:
            where = ("--database-url", self.database.url)
        else:
            where = ("--data-dir", str(self.node.reachable_data_dir))
        ended = Command()(*arguments, "--json", *where)
        return ended.code, json.loads(ended.out) if ended.out else {"error": ended.err}

    def ports(self) -> set[int]:
        """Ports of the node's database."""
        if isinstance(self.database, Replicated):
            return {self.database.primary.port, self.database.standby.port}
        if self.database is not None:
            return {self.database.port}
        url = running_url(self.node.reachable_data_dir)
        return set() if url is None else {int(conninfo_to_dict(url)["port"] or 0)}

    def close(self) -> None:
        """Stop everything."""
        self.node.close()
        if self.database is not None:
            self.database.stop()

    def _place(self) -> Path:
        return self.directory / f"life-{self.lives}"

    def _install(self) -> SoakNode:
        self.lives += 1
        place = self._place()
        place.mkdir(parents=True)
        if self._make_database is not None:
            self.database = self._make_database(place)
        url = None if self.database is None else self.database.url
        data_dir = self.directory / "disk" / "data" if self.disk else place / "data"
        clock = place / "clock"
        clock.write_bytes(bytes(clocked.BYTES))
        return SoakNode(data_dir, database_url=url, disk=self.disk, clock=clock)
