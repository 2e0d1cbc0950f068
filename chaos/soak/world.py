"""The machines, wires and clients of a soak, and the history of what they did.

Node a has two servers, a primary and its synchronous standby. Node b has a server of its own. Node
c has an embedded one, on a small disk where that can be mounted. Each calls both others, through
wires of their own; clients and participants have one wire to each node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Final

from chaos.checker.clients import (
    AnswerCounts,
    Endpoint,
    Follower,
    Publisher,
    ask,
    new_messages,
    query,
)
from chaos.checker.history import Ack, History, Synced
from chaos.crowd import Crowd
from chaos.link import Traffic
from chaos.network import Network
from chaos.participant import Participant
from chaos.soak.machine import PATIENCE_S, Database, Machine, Replicated, start_server
from chaos.tasks import Tasks
from chaos.waiter import Waiter
from storenode.sds.aio.node import StoreNode
from storenode.sds.bloom import FilterShape
from storenode.sds.config import ChannelConfig, RepairConfig
from tests.support.small_disk import CannotMountError, SmallDisk

NAMES: Final = ("a", "b", "c")
CHANNELS: Final = ("kitchen", "garden")
PARTICIPANTS: Final = {
    f"{channel}-{number}": channel for channel in CHANNELS for number in range(3)
}
"""The channel of each SDS participant."""

MEAN_PAUSE_S: Final = 0.25
"""Mean pause between two lines of all participants together."""

MAX_CONFIRMS: Final = len(NAMES) - 1
DAY_NS: Final = 86_400 * 10**9
_CLIENTS: Final = "clients"
_OPTIONS: Final = (
    *("--log-format", "json", "--log-level", "info"),
    # So that a run has many sessions; other options are the defaults.
    *("--sync-interval", "10s"),
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


class World:
    """The processes and clients of one run; they end with ``stack``."""

    def __init__(self, stack: AsyncExitStack, directory: Path, seed: int) -> None:
        self.history = History()
        self.rng = Random(f"{seed}/world")
        self.network = Network()
        self.waiter = Waiter(PATIENCE_S)
        self.machines: dict[str, Machine] = {}
        self.tasks = Tasks()
        self.crowd = Crowd(self.tasks, self.rng, MEAN_PAUSE_S)
        self.followers: dict[str, Follower] = {}
        self.left_out: dict[str, str] = {}
        """Faults that this machine does not permit, and why."""
        self._stack = stack
        self._directory = directory
        self._seen: dict[str, set[bytes]] = {}
        self._publishing: list[asyncio.Task[None]] = []
        self._stop_publishers = asyncio.Event()
        self._publishers: list[Publisher] = []

    async def start(self, seed: int, minutes: float, interval_s: float) -> None:
        """Start all nodes with messages of the last days, then clients and participants."""
        self._stack.push_async_callback(self.network.close)
        self._stack.push_async_callback(self.tasks.stop)
        disk = self._open_disk(minutes)
        makers: tuple[Callable[[Path], Database] | None, ...] = (Replicated, _start_single, None)
        for name, make_database in zip(NAMES, makers, strict=True):
            place = self._directory / name
            place.mkdir(exist_ok=True)
            machine = Machine(name, place, make_database, None if make_database else disk)
            self.machines[name] = machine
            await machine.install()
            self._stack.push_async_callback(machine.close)
        peers: dict[str, list[str]] = {name: [] for name in NAMES}
        for caller, callee in permutations(NAMES, 2):
            wire = await self.network.open_peer_wire(caller, callee)
            peers[caller] += ["--peer", wire.address]
        for name, machine in self.machines.items():
            machine.options = (*_OPTIONS, *(_SMALL_LOG if name == "c" else ()), *peers[name])
        await self._publish_old_messages()
        clients = {name: await self.network.open_client_wire(_CLIENTS, name) for name in NAMES}
        endpoints = {name: Endpoint(wire.address) for name, wire in clients.items()}
        self.followers = {name: Follower(name, endpoints[name]) for name in NAMES}
        self._publishers = [
            Publisher(
                f"{name}/{confirms}",
                endpoints[name],
                partial(self.store, name),
                self.history,
                Random(f"{seed}/{name}/{confirms}"),
                interval_s,
                min_confirms=confirms,
            )
            for name in NAMES
            for confirms in range(MAX_CONFIRMS + 1)
        ]
        await self._start_participants([wire.address for wire in clients.values()])
        for follower in self.followers.values():
            self.tasks.start(follower.run())
        self._publishing = [
            self.tasks.start(each.run(self._stop_publishers)) for each in self._publishers
        ]

    async def start_node(self, name: str) -> None:
        """Start a node, and connect its wires."""
        await self.machines[name].start()
        self.network.move(name, self.machines[name].node.ready)

    def store(self, name: str) -> str:
        """Return the store behind a node now."""
        return self.machines[name].store

    def endpoint(self, name: str) -> Endpoint:
        """Return the address of a node past all wires."""
        return Endpoint(self.machines[name].node.ready["listen"])

    async def stop_publishers(self) -> None:
        """End the publishers once each call is answered; followers go on."""
        self._stop_publishers.set()
        await asyncio.gather(*self._publishing)

    def answers(self) -> dict[int, AnswerCounts]:
        """Return what publishers were answered, by the number of confirmations they wait for."""
        found = {confirms: AnswerCounts() for confirms in range(MAX_CONFIRMS + 1)}
        for publisher in self._publishers:
            found[publisher.min_confirms].add(publisher.answers)
        return found

    def failures(self) -> list[str]:
        """Return answers that no client should ever get."""
        found = [failure for each in self._publishers for failure in each.answers.failures]
        for name, follower in self.followers.items():
            found += follower.failures
            machine = self.machines[name]
            # A failover may lose commits that were not acknowledged.
            if follower.refusals >= machine.lives and not isinstance(machine.database, Replicated):
                found.append(f"follower of {name}: {follower.refusals} cursors were refused")
        return found

    async def wait_until_synced(self) -> float:
        """Wait until every node holds all that was acknowledged until now; return the seconds.

        Raises:
            StuckError: A node still lacks messages.
        """
        begun_s = time.monotonic()
        owed = list(self.history.acks)
        for name in NAMES:
            await self.waiter.until_none(
                f"acknowledged messages that node {name} lacks",
                partial(self._count_missing, name, owed),
            )
        now_s = time.monotonic()
        self.history.synced.append(Synced(begun_s, now_s))
        return now_s - begun_s

    async def _count_missing(self, name: str, owed: Sequence[bytes]) -> int:
        store = self.store(name)
        seen = self._seen.setdefault(store, set())
        may_go_ns = self.history.may_go_ns(store)
        rest = [
            digest
            for digest in owed
            if digest not in seen
            and self.history.published[digest].timestamp_ns >= may_go_ns
            and not self.history.may_be_lost(digest)
        ]
        found = await ask(self.endpoint(name), partial(query, digests=rest), PATIENCE_S)
        seen.update(each.claimed for each in found)
        return sum(digest not in seen for digest in rest)

    async def _publish_old_messages(self) -> None:
        """Publish messages for retention to drop, then run nodes that refuse such times."""
        options = {name: machine.options for name, machine in self.machines.items()}
        for name, machine in self.machines.items():
            machine.options = (*options[name], *_ANY_CLOCK)
            await self.start_node(name)
        step = (_OLDEST_DAYS - _NEWEST_DAYS) / _OLD_MESSAGES
        now_ns = time.time_ns()
        times_ns = [
            now_ns - int((_NEWEST_DAYS + number * step) * DAY_NS) for number in range(_OLD_MESSAGES)
        ]
        publisher = Publisher(
            "history", self.endpoint("a"), partial(self.store, "a"), self.history, self.rng, 1.0
        )
        await publisher.publish(new_messages(self.rng, _OLD_MESSAGES, times_ns))
        assert len(self.history.acks) == _OLD_MESSAGES, publisher.answers
        await self.wait_until_synced()
        for name, machine in self.machines.items():
            await machine.node.stop()
            machine.options = options[name]
            await self.start_node(name)

    async def _start_participants(self, addresses: Sequence[str]) -> None:
        directory = self._directory / "participants"
        directory.mkdir()
        traffic = Traffic(self.history.publish, self._acknowledge)
        for number, (name, channel) in enumerate(PARTICIPANTS.items()):
            first = number % len(addresses)
            nodes = [StoreNode(each) for each in (*addresses[first:], *addresses[:first])]
            state = directory / f"{name}.db"
            self.crowd.add(Participant(_configure(channel, name), nodes, state, traffic))
        self._stack.push_async_callback(self.crowd.leave)
        await self.crowd.join()
        self.crowd.start_talk()

    def _acknowledge(self, link: str, digests: Collection[bytes]) -> None:
        ack = Ack(self.store(self.network.find_node(link)), time.monotonic(), 0)
        self.history.acknowledge(digests, ack)

    def _open_disk(self, minutes: float) -> SmallDisk | None:
        place = self._directory / "c" / "disk"
        place.mkdir(parents=True)
        try:
            disk = SmallDisk(place, int(_DISK_MIB + minutes * _DISK_MIB_PER_MINUTE))
        except (CannotMountError, OSError) as error:
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


def _start_single(directory: Path) -> Database:
    return start_server(directory / "server-1")
