"""The machines and clients of a soak.

Node a has two servers, a primary and its synchronous standby. Node b has a server of its own. Node
c has an embedded one, on a small disk where that can be mounted. Each calls both others, through
wires of their own; clients and participants have one wire to each node.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from chaos.checker.clients import Endpoint, Publisher, ask, new_messages, query
from chaos.checker.history import Synced
from chaos.soak.machine import Kind, Machine
from chaos.waiter import Waiter
from chaos.world import World
from storenode.sds.bloom import FilterShape
from storenode.sds.config import ChannelConfig, RepairConfig
from tests.support.small_disk import CannotMountError, SmallDisk

KINDS: Final = {"a": Kind.PAIR, "b": Kind.SERVER, "c": Kind.EMBEDDED}
NAMES: Final = tuple(KINDS)
CHANNELS: Final = ("kitchen", "garden")
PARTICIPANTS: Final = {
    f"{channel}-{number}": channel for channel in CHANNELS for number in range(3)
}
"""The channel of each SDS participant."""

PATIENCE_S: Final = 300.0
"""Time for which a wait goes on without a change; a busy machine is slow."""

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
        self._seen: dict[str, set[bytes]] = {}
        self._publishing: list[asyncio.Task[None]] = []
        self._stop_publishers = asyncio.Event()

    async def start(self, minutes: float, interval_s: float) -> None:
        """Start all nodes with messages of the last days, then clients and participants."""
        await self._start_machines(minutes)
        self._stack.push_async_callback(self.close)
        await self._publish_old_messages()
        for name in NAMES:
            endpoint = Endpoint((await self.network.open_client_wire(_CLIENTS, name)).address)
            self.follow(name, endpoint)
            for confirms in range(MAX_CONFIRMS + 1):
                self.publishers.append(
                    self._new_publisher(name, endpoint, interval_s, min_confirms=confirms)
                )
        for number, (participant, channel) in enumerate(PARTICIPANTS.items()):
            home = NAMES[number % len(NAMES)]
            await self.add_participant(_configure(channel, participant), home)
        await self.join()
        self.start_talk()
        self._publishing = [
            self.tasks.start(each.run(self._stop_publishers)) for each in self.publishers
        ]

    async def install(self, name: str) -> None:
        """Put a new node with an empty database in the place of the last one."""
        self.lives[name] += 1
        await self.machines[name].install(self.lives[name])
        self.nodes[name] = self.machines[name].node

    def endpoint(self, name: str) -> Endpoint:
        """Return the address of a node past all wires."""
        return Endpoint(self.nodes[name].ready["listen"])

    async def stop_publishers(self) -> None:
        """End the publishers once each call is answered; followers go on."""
        self._stop_publishers.set()
        await asyncio.gather(*self._publishing)

    def outcomes(self) -> Counter[str]:
        """Return how often publishers were given each outcome."""
        return sum((each.answers.outcomes for each in self.publishers), Counter())

    def failures(self) -> list[str]:
        """Return answers that no client should ever get."""
        found = [failure for each in self.publishers for failure in each.answers.failures]
        for name, follower in self.followers.items():
            found += follower.failures
            # A failover may lose commits that were not acknowledged.
            if follower.refusals >= self.lives[name] and self.machines[name].pair is None:
                found.append(f"follower of {name}: {follower.refusals} cursors were refused")
        return found

    async def wait_until_synced(self) -> None:
        """Wait until every node holds all that was acknowledged until now.

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
        self.history.synced.append(Synced(begun_s, time.monotonic()))

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

    async def _start_machines(self, minutes: float) -> None:
        disk = self._open_disk(minutes)
        for name, kind in KINDS.items():
            place = self.directory / name
            place.mkdir(exist_ok=True)
            machine = Machine(name, place, kind, disk if kind is Kind.EMBEDDED else None)
            self.machines[name] = machine
            await self.install(name)
            self._stack.push_async_callback(machine.close)
        for name, machine in self.machines.items():
            peers = await self.network.open_peer_wires(name, NAMES)
            small_log = _SMALL_LOG if KINDS[name] is Kind.EMBEDDED else ()
            named = [part for each in peers.values() for part in ("--peer", each)]
            machine.set_options((*_OPTIONS, *small_log, *named))

    async def _publish_old_messages(self) -> None:
        """Publish messages for retention to drop, then run nodes that refuse such times."""
        options = {name: machine.options for name, machine in self.machines.items()}
        for name, machine in self.machines.items():
            machine.set_options((*options[name], *_ANY_CLOCK))
            await self.start_node(name)
        step = (_OLDEST_DAYS - _NEWEST_DAYS) / _OLD_MESSAGES
        now_ns = time.time_ns()
        times_ns = [
            now_ns - int((_NEWEST_DAYS + number * step) * DAY_NS) for number in range(_OLD_MESSAGES)
        ]
        publisher = self._new_publisher("a", self.endpoint("a"), 1.0)
        await publisher.publish(new_messages(self.rng, _OLD_MESSAGES, times_ns))
        assert len(self.history.acks) == _OLD_MESSAGES, publisher.answers
        await self.wait_until_synced()
        for name, machine in self.machines.items():
            await machine.node.stop()
            machine.set_options(options[name])
            await self.start_node(name)

    def _new_publisher(
        self, name: str, endpoint: Endpoint, interval_s: float, min_confirms: int = 0
    ) -> Publisher:
        own = f"{name}/{min_confirms}"
        rng = Random(f"{self._seed}/{own}")
        return Publisher(
            own,
            endpoint,
            partial(self.store, name),
            self.history,
            rng,
            interval_s,
            min_confirms=min_confirms,
        )

    def _open_disk(self, minutes: float) -> SmallDisk | None:
        place = self.directory / "c" / "disk"
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
