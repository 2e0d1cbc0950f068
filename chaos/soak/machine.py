"""A node with its database server, and the faults of both."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict

from chaos.node import NodeProcess
from chaos.soak import clock
from chaos.waiter import StuckError
from store.db.schema.migrate import upgrade
from store.embedded import running_url
from tests.support.cluster import ClusterServer
from tests.support.command import Command
from tests.support.small_disk import SmallDisk

PATIENCE_S: Final = 300.0
"""Time for which a wait goes on without a change; a busy machine is slow."""

_POLL_S: Final = 0.2
_STANDBY: Final = "second"
"""Name of the standby's connection, as `ClusterServer.copy` sets it."""


class Replicated:
    """A primary and its synchronous standby; every method blocks."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made = 0
        self.primary = start_server(self._next_directory())
        self.standby = ClusterServer(self._next_directory())
        self._follow()

    @property
    def url(self) -> str:
        """The URL with both hosts; a node uses the one that takes writes."""
        base, _, database = self.primary.url.rpartition("/")
        return f"{base},127.0.0.1:{self.standby.port}/{database}"

    def fail_over(self) -> None:
        """Kill the primary and promote the standby."""
        self.primary.kill()
        ((promoted,),) = self.standby.ask("select pg_promote(true, 120)")
        if not promoted:
            raise StuckError("the standby was not promoted within 120 s")

    def rebuild(self) -> None:
        """Make a new standby on the port of the old primary; commits wait for it again."""
        dead, self.primary = self.primary, self.standby
        shutil.rmtree(dead.data.path, ignore_errors=True)
        self.standby = ClusterServer(self._next_directory())
        # Nodes know the two by their ports.
        self.standby.take_port(dead)
        self._follow()

    def kill(self) -> None:
        """Kill the primary."""
        self.primary.kill()

    def start(self) -> None:
        """Start the primary again; the standby reconnects."""
        self.primary.start()
        self._wait_for_standby()

    def stop(self) -> None:
        """Stop both servers."""
        self.standby.stop()
        self.primary.stop()

    def _next_directory(self) -> Path:
        self._made += 1
        return self._directory / f"server-{self._made}"

    def _follow(self) -> None:
        self.standby.copy(self.primary)
        self.standby.start()
        self.primary.set(synchronous_standby_names=_STANDBY)
        self.primary.ask("select pg_reload_conf()")
        self._wait_for_standby()

    def _wait_for_standby(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_replicating():
            if time.monotonic() > deadline:
                raise StuckError(f"the standby does not replicate within {PATIENCE_S:.0f} s")
            time.sleep(_POLL_S)

    def _is_replicating(self) -> bool:
        try:
            states = self.primary.ask("select sync_state from pg_stat_replication")
        except psycopg.OperationalError:
            return False
        return ("sync",) in states


def start_server(directory: Path) -> ClusterServer:
    """Start a server with the schema; blocks."""
    server = ClusterServer(directory)
    server.create()
    server.start()
    upgrade(server.url)
    return server


Database = Replicated | ClusterServer


class Machine:
    """A node with its database.

    Attributes:
        name: the node's name.
        lives: the number of databases that the node has had.
        database: its server or servers; None: an embedded one.
        node: its process.
        disk: the small disk of its data directory, if it has one.
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
        self.disk = disk
        self.database: Database | None = None
        self.options: Sequence[str] = ()
        self._directory = directory
        self._make_database = make_database
        self._clock = directory / "clock"
        self._clock.write_bytes(bytes(clock.BYTES))

    @property
    def store(self) -> str:
        """The name of the database's current life."""
        return f"{self.name}#{self.lives}"

    async def install(self) -> None:
        """Put a new node with an empty database in the place of the last one."""
        self.lives += 1
        place = self._directory / f"life-{self.lives}"
        place.mkdir(parents=True)
        if self._make_database is not None:
            self.database = await asyncio.to_thread(self._make_database, place)
        self.node = NodeProcess(
            self.name,
            place if self.disk is None else self._directory / "disk",
            program=(sys.executable, "-P", clock.__file__, str(self._clock)),
            enter=list if self.disk is None else self.disk.enter,
        )
        self.node.log_path = self._directory / f"{self.name}.log"

    async def start(self) -> None:
        """Start the node with its options."""
        where = () if self.database is None else ("--database-url", self.database.url)
        self.node.options = (*where, *self.options)
        await self.node.start()

    async def destroy(self) -> None:
        """Kill the node, and remove its database."""
        await self.node.kill()
        if self.database is not None:
            await asyncio.to_thread(self.database.stop)
        shutil.rmtree(self._directory / f"life-{self.lives}", ignore_errors=True)

    async def kill_postgres(self) -> None:
        """Kill all processes of an external server, or the embedded one's postmaster alone."""
        if self.database is not None:
            await asyncio.to_thread(self.database.kill)
            return
        children = psutil.Process(self.node.pid).children()
        (postmaster,) = [each for each in children if each.name().startswith("postgres")]
        postmaster.kill()

    async def start_postgres(self) -> None:
        """Start an external server again; an embedded one is started by its node."""
        if self.database is not None:
            await asyncio.to_thread(self.database.start)

    def set_clock(self, offset_ns: int) -> None:
        """Set the error of the node's clock."""
        clock.set_offset(self._clock, offset_ns)

    async def run_command(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Run ``storenode`` on the node's database; return the exit code and its JSON output."""
        if self.database is not None:
            where = ("--database-url", self.database.url)
        else:
            where = ("--data-dir", str(self._reachable_data_dir))
        ended = await asyncio.to_thread(Command(), *arguments, "--json", *where)
        return ended.code, json.loads(ended.out) if ended.out else {"error": ended.err}

    def ports(self) -> set[int]:
        """Return the ports of the node's database."""
        if isinstance(self.database, Replicated):
            return {self.database.primary.port, self.database.standby.port}
        if self.database is not None:
            return {self.database.port}
        url = running_url(self._reachable_data_dir)
        return set() if url is None else {int(conninfo_to_dict(url)["port"] or 0)}

    async def close(self) -> None:
        """Stop everything."""
        await self.node.stop()
        if self.database is not None:
            await asyncio.to_thread(self.database.stop)

    @property
    def _reachable_data_dir(self) -> Path:
        """The data directory, as other programs reach it."""
        data_dir = self.node.data_dir
        return data_dir if self.disk is None else self.disk.path / data_dir.name
