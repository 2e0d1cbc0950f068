"""A node with its database server, and the faults of both."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import psutil
from psycopg.conninfo import conninfo_to_dict

from chaos.node import NodeProcess
from chaos.soak import clock
from store.embedded import running_url
from tests.support.cluster import ClusterServer, Pair, start_server
from tests.support.command import Command
from tests.support.polling import eventually
from tests.support.small_disk import SmallDisk


class Kind(Enum):
    """The database of a node."""

    PAIR = "a primary and its synchronous standby"
    SERVER = "a server"
    EMBEDDED = "a server that the node starts"


class Machine:
    """A node with its database.

    Attributes:
        name: the node's name.
        pair: its servers, if it has two.
        server: the server that takes its writes; None: an embedded one.
        node: its process.
        disk: the small disk of its data directory, if it has one.
        options: options of the node, from the next start on.
    """

    def __init__(
        self, name: str, directory: Path, kind: Kind, disk: SmallDisk | None = None
    ) -> None:
        self.name = name
        self.disk = disk
        self.pair: Pair | None = None
        self.options: Sequence[str] = ()
        self._directory = directory
        self._kind = kind
        self._server: ClusterServer | None = None
        self._place = directory / "life-0"
        self._clock = directory / "clock"
        self._clock.write_bytes(bytes(clock.BYTES))

    @property
    def server(self) -> ClusterServer | None:
        """The server that takes the node's writes; None if it is embedded."""
        return self._server if self.pair is None else self.pair.first

    async def install(self, life: int) -> None:
        """Put a new node with an empty database in the place of the last one."""
        self._place = self._directory / f"life-{life}"
        self._place.mkdir(parents=True)
        if self._kind is Kind.PAIR:
            pair = Pair(self._place, self._place)
            await asyncio.to_thread(pair.__enter__)
            self.pair = pair
            await asyncio.to_thread(self._replicate)
        elif self._kind is Kind.SERVER:
            self._server = await asyncio.to_thread(start_server, self._place / "server")
        self.node = NodeProcess(
            self.name,
            self._place if self.disk is None else self._directory / "disk",
            program=(sys.executable, "-P", clock.__file__, str(self._clock)),
            enter=list if self.disk is None else self.disk.enter,
        )
        self.node.log_path = self._directory / f"{self.name}.log"
        self.set_options(self.options)

    def set_options(self, options: Sequence[str]) -> None:
        """Set the options of the node, from the next start on."""
        self.options = options
        if self.pair is not None:
            options = ("--database-url", self.pair.url, *options)
        elif self._server is not None:
            options = ("--database-url", self._server.url, *options)
        self.node.options = options

    async def destroy(self) -> None:
        """Kill the node, and remove its database."""
        await self.node.kill()
        await self._stop_database()
        shutil.rmtree(self._place, ignore_errors=True)

    async def kill_postgres(self) -> None:
        """Kill all processes of an external server, or the embedded one's postmaster alone."""
        if self.server is not None:
            await asyncio.to_thread(self.server.kill)
            return
        children = psutil.Process(self.node.pid).children()
        (postmaster,) = [each for each in children if each.name().startswith("postgres")]
        postmaster.kill()

    async def start_postgres(self) -> None:
        """Start an external server again; an embedded one is started by its node."""
        if self.server is not None:
            await asyncio.to_thread(self.server.start)
        if self.pair is not None:
            await asyncio.to_thread(self._replicate)

    def fail_over(self) -> None:
        """Kill the primary and promote the standby; blocks."""
        assert self.pair is not None
        self.pair.first.kill()
        self.pair.promote()

    def rebuild(self) -> None:
        """Make the old primary the standby, for which commits wait again; blocks."""
        assert self.pair is not None
        self.pair.rebuild()
        self._replicate()

    def set_clock(self, offset_ns: int) -> None:
        """Set the error of the node's clock."""
        clock.set_offset(self._clock, offset_ns)

    async def run_command(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Run ``storenode`` on the node's database; return the exit code and its JSON output."""
        if self.server is not None:
            where = ("--database-url", self.server.url)
        else:
            where = ("--data-dir", str(self._reachable_data_dir))
        ended = await asyncio.to_thread(Command(), *arguments, "--json", *where)
        return ended.code, json.loads(ended.out) if ended.out else {"error": ended.err}

    def ports(self) -> set[int]:
        """Return the ports of the node's database."""
        if self.pair is not None:
            return {self.pair.first.port, self.pair.second.port}
        if self._server is not None:
            return {self._server.port}
        url = running_url(self._reachable_data_dir)
        return set() if url is None else {int(conninfo_to_dict(url)["port"] or 0)}

    async def close(self) -> None:
        """Stop everything."""
        await self.node.stop()
        await self._stop_database()

    async def _stop_database(self) -> None:
        if self.pair is not None:
            await asyncio.to_thread(self.pair.close)
        elif self._server is not None:
            await asyncio.to_thread(self._server.stop)

    def _replicate(self) -> None:
        assert self.pair is not None
        pair = self.pair
        pair.synchronous()
        eventually(lambda: pair.replicating() == "sync")

    @property
    def _reachable_data_dir(self) -> Path:
        """The data directory, as other programs reach it."""
        data_dir = self.node.data_dir
        return data_dir if self.disk is None else self.disk.path / data_dir.name
