"""The machines and clients of a soak.

Node a has two servers, a primary and its synchronous standby. Node b has a server of its own. Node
c has an embedded one, on a small disk where that can be mounted. Each calls both others, through
wires of their own; clients and participants have one wire to each node.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from psycopg.conninfo import conninfo_to_dict

from chaos.checker.clients import Endpoint, Publisher, new_messages
from chaos.checker.history import Synced
from chaos.node import PROGRAM, NodeProcess, clean_environment
from chaos.soak import clock
from chaos.soak.postgres import ClusterServer, Pair, find_postmaster, start_server
from chaos.soak.small_disk import SmallDisk
from chaos.tasks import Waiter
from chaos.world import World
from store.embedded import running_url
from storenode.sds.bloom import FilterShape
from storenode.sds.config import ChannelConfig, RepairConfig

NAMES: Final = ("a", "b", "c")
FAILING_OVER: Final = "a"
"""The node that has two servers."""

CHANNELS: Final = ("kitchen", "garden")
PARTICIPANTS: Final = {
    f"{channel}-{number}": channel for channel in CHANNELS for number in range(3)
}
"""The channel of each SDS participant."""

PATIENCE_S: Final = 300.0
"""Time for which a wait continues without a change; a busy machine is slow."""

MEAN_PAUSE_S: Final = 0.25
"""Mean pause between two lines of all participants together."""

MAX_CONFIRMS: Final = len(NAMES) - 1
DAY_NS: Final = 86_400 * 10**9
_CLIENTS: Final = "clients"
# So that a run has many sessions; other options are the defaults.
_OPTIONS: Final = (
    *("--log-format", "json", "--log-level", "info", "--sync-interval", "10s"),
    *("--peer-listen", "127.0.0.1:0"),
)
_ANY_CLOCK: Final = ("--max-clock-drift", "off")
_DISK_MIB: Final = 384
_DISK_MIB_PER_MINUTE: Final = 24
_SMALL_LOG: Final = (
    *("--postgres-setting", "max_wal_size=64MB", "--postgres-setting", "min_wal_size=32MB"),
)
_OLDEST_DAYS: Final = 10.0
_NEWEST_DAYS: Final = 2.0
_OLD_MESSAGES: Final = 2_000


class Machine:
    """A node with its database: a pair of servers (node a), one (b), or an embedded one (c).

    Attributes:
        database: its servers; None if it has an embedded one.
        node: its process.
        disk: the small disk of its data directory, if it has one.
    """

    def __init__(self, name: str, directory: Path, disk: SmallDisk | None = None) -> None:
        self.disk = disk
        self.database: Pair | ClusterServer | None = None
        self._name = name
        self._directory = directory
        self._place = directory
        self._clock = directory / "clock"
        self._clock.write_bytes(bytes(clock.BYTES))

    @property
    def server(self) -> ClusterServer | None:
        """The server that takes the node's writes; None if it is embedded."""
        return self.database.first if isinstance(self.database, Pair) else self.database

    async def install(self, life: int, options: Sequence[str] = ()) -> None:
        """Put a new node with an empty database in the place of the last one."""
        self._place = self._directory / f"life-{life}"
        self._place.mkdir(parents=True)
        if self._name == FAILING_OVER:
            self.database = Pair(self._place)
            await asyncio.to_thread(self.database.__enter__)
            await asyncio.to_thread(self.database.synchronous)
        elif self._name == "b":
            self.database = await asyncio.to_thread(start_server, self._place / "server")
        self.node = NodeProcess(
            (self._directory if self.disk is None else self._directory / "disk") / f"node-{life}",
            options,
            None if self.database is None else self.database.url,
            program=(sys.executable, "-P", clock.__file__, str(self._clock)),
            enter=list if self.disk is None else self.disk.enter,
        )

    async def destroy(self) -> None:
        """Kill the node, and remove its database."""
        self.node.kill()
        await self.close()
        shutil.rmtree(self._place, ignore_errors=True)

    async def kill_postgres(self) -> None:
        """Kill all processes of an external server, or the embedded one's postmaster alone."""
        if self.server is not None:
            await asyncio.to_thread(self.server.kill)
        else:
            find_postmaster(self.node.pid).kill()

    async def start_postgres(self) -> None:
        """Start an external server again; an embedded one is started by its node."""
        if self.server is not None:
            await asyncio.to_thread(self.server.start)
        if isinstance(self.database, Pair):
            await asyncio.to_thread(self.database.synchronous)

    def set_clock(self, offset_ns: int) -> None:
        """Set the error of the node's clock."""
        clock.set_offset(self._clock, offset_ns)

    async def run_command(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Run ``storenode`` on the node's database; return the exit code and its JSON output."""
        if self.server is not None:
            where = ("--database-url", self.server.url)
        else:
            where = ("--data-dir", str(self._reachable_data_dir))
        process = await asyncio.create_subprocess_exec(
            *(*PROGRAM, *arguments, "--json", *where),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=clean_environment(),
        )
        out, errors = await process.communicate()
        assert process.returncode is not None
        return process.returncode, json.loads(out) if out else {"error": errors.decode()}

    def ports(self) -> set[int]:
        """Return the ports of the node's database."""
        if isinstance(self.database, Pair):
            return {self.database.first.port, self.database.second.port}
        if self.database is not None:
            return {self.database.port}
        url = running_url(self._reachable_data_dir)
        return set() if url is None else {int(conninfo_to_dict(url)["port"] or 0)}

    async def close(self) -> None:
        """Stop its database."""
        if self.database is not None:
            await asyncio.to_thread(self.database.stop)

    @property
    def _reachable_data_dir(self) -> Path:
        """The data directory, as other programs reach it."""
        data_dir = self.node.data_dir
        return data_dir if self.disk is None else self.disk.path / data_dir.name


class SoakWorld(World):
    """The world of a soak, whose processes end with ``stack``.

    Attributes:
        machines: the nodes with their databases.
        publishers: three at each node, which ask for 0, 1 and 2 confirmations.
        left_out: faults that this computer does not permit, and why.
    """

    def __init__(self, stack: AsyncExitStack, directory: Path, seed: int) -> None:
        super().__init__(directory, Random(f"{seed}/world"), Waiter(PATIENCE_S), MEAN_PAUSE_S)
        self.machines: dict[str, Machine] = {}
        self.publishers: list[Publisher] = []
        self.left_out: dict[str, str] = {}
        self._seed = seed
        self._stack = stack

    async def start(self, minutes: float, interval_s: float) -> None:
        """Start all nodes with messages of the last days, then clients and participants."""
        await self._start_machines(minutes)
        self._stack.push_async_callback(self.close)
        for name in NAMES:
            wire = await self.network.open_wire(name, _CLIENTS)
            self.follow(name, Endpoint(wire.address))
        await self._publish_old_messages()
        self.publishers = [
            self._new_publisher(name, interval_s, confirms)
            for name in NAMES
            for confirms in range(MAX_CONFIRMS + 1)
        ]
        for number, (participant, channel) in enumerate(PARTICIPANTS.items()):
            home = NAMES[number % len(NAMES)]
            await self.add_participant(_configure(channel, participant), home)
        await self.join()
        self.start_talk()
        for publisher in self.publishers:
            self.start_publisher(publisher)

    async def install(self, name: str) -> None:
        """Put a new node with an empty database in the place of the last one."""
        options = self.nodes[name].args if name in self.nodes else ()
        self.lives[name] += 1
        await self.machines[name].install(self.lives[name], options)
        self.nodes[name] = self.machines[name].node
        if name in self.followers:
            self.followers[name].start_over()

    def failures(self) -> list[str]:
        """Return answers that no client should ever get."""
        found = [failure for each in self.publishers for failure in each.failures]
        for name, follower in self.followers.items():
            found += follower.failures
            # A failover may lose commits that were not acknowledged.
            if follower.refusals >= self.lives[name] and name != FAILING_OVER:
                found.append(f"follower of {name}: {follower.refusals} cursors were refused")
        return found

    async def wait_until_synced(self) -> None:
        """Wait until every node holds all that was acknowledged until now, as followers see it.

        Raises:
            StuckError: A node still lacks messages.
        """
        begun_s = time.monotonic()
        owed = {digest for digest in self.history.acks if not self.history.may_be_lost(digest)}
        for name in NAMES:
            await self.waiter.until_none(
                f"acknowledged messages that node {name} lacks",
                partial(self.count_lacking, name, owed),
            )
        self.history.synced.append(Synced(begun_s, time.monotonic()))

    async def _start_machines(self, minutes: float) -> None:
        for name in NAMES:
            place = self.directory / name
            place.mkdir()
            disk = self._open_disk(place / "disk", minutes) if name == "c" else None
            self.machines[name] = machine = Machine(name, place, disk)
            await self.install(name)
            self._stack.push_async_callback(machine.close)
        for name, machine in self.machines.items():
            peers = await self.network.open_peer_wires(name, NAMES)
            small_log = _SMALL_LOG if machine.server is None else ()
            named = [part for each in peers.values() for part in ("--peer", each)]
            machine.node.args = (*_OPTIONS, *small_log, *named)

    async def _publish_old_messages(self) -> None:
        """Publish messages for retention to drop, then run nodes that refuse such times."""
        for name, node in self.nodes.items():
            node.args = (*node.args, *_ANY_CLOCK)
            await self.start_node(name)
        step = (_OLDEST_DAYS - _NEWEST_DAYS) / _OLD_MESSAGES
        now_ns = time.time_ns()
        times_ns = [
            now_ns - int((_NEWEST_DAYS + number * step) * DAY_NS) for number in range(_OLD_MESSAGES)
        ]
        publisher = self._new_publisher("a", 1.0, 0)
        await publisher.publish(new_messages(self.rng, _OLD_MESSAGES, times_ns))
        assert len(self.history.acks) == _OLD_MESSAGES, publisher.failures
        await self.wait_until_synced()
        for name, node in self.nodes.items():
            await self.stop_node(name)
            node.args = node.args[: -len(_ANY_CLOCK)]
            await self.start_node(name)

    def _new_publisher(self, name: str, interval_s: float, confirms: int) -> Publisher:
        own = f"{name}/{confirms}"
        return Publisher(
            own,
            self.followers[name].endpoint,
            partial(self.store, name),
            self.history,
            Random(f"{self._seed}/{own}"),
            interval_s,
            min_confirms=confirms,
        )

    def _open_disk(self, directory: Path, minutes: float) -> SmallDisk | None:
        directory.mkdir()
        try:
            disk = SmallDisk(directory, int(_DISK_MIB + minutes * _DISK_MIB_PER_MINUTE))
        except OSError as error:
            self.left_out["disk-full"] = f"no disk could be mounted: {error}"
            return None
        self._stack.callback(disk.close)
        return disk


def _configure(channel: str, name: str) -> ChannelConfig:
    """Return a configuration with small filters, and resends that outlast every fault."""
    return ChannelConfig(
        channel,
        name,
        filter=FilterShape(500, 0.01),
        resend_ms=5_000,
        resend_possible_ms=15_000,
        max_sends=1_000,
        sync_min_ms=5_000,
        sync_max_ms=10_000,
        repair=RepairConfig(2_000, 8_000),
    )
