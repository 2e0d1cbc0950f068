"""A node: its state over its lives, how one begins and ends, and retention."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from sim.calls import End, Identity
from sim.database import Database, DatabaseUnavailableError
from sim.gossip import Gossiping
from sim.limits import NS_PER_MS, NS_PER_S
from sim.marks import Mark
from sim.network import Host
from sim.peering import Peering
from sim.process import Process
from sim.service import PUBLISH, Service
from sim.store import FEED, SimFeed, SimStore
from sim.streams import GOSSIP, served
from sim.timeline import Clock
from store.domain.partitioning import Bounds
from store.domain.ports import PeerAddress, Source
from store.domain.retention import (
    FINE_TABLE,
    Partition,
    RetentionClock,
    RetentionPolicy,
    plan_prune,
)
from store.messages.conflicts import StoreResult
from store.messages.record import RecordBatch
from store.sync.index.hot import HotIndex
from storenode.message.rules import Policy

if TYPE_CHECKING:
    from sim.world import World

_PORT: Final = 7420
RESTART_S: Final = 1, 20, 45
"""A node is off for so long at most, by the kind of its crash."""


class Node(Host):
    """A node.

    Attributes:
        process: its life; None while it is off.
        service: of that life.
        peering: of that life, if nodes reconcile.
        gossiping: of the last life, if nodes gossip.
    """

    service: Service
    gossiping: Gossiping
    _store: SimStore

    def __init__(self, world: World, number: int, database: Database) -> None:
        scenario = world.scenario
        self.world = world
        self.number = number
        self.name = f"n{number}"
        self.database = database
        self.retention_ns = scenario.retention_ns[scenario.stores[number]]
        most = scenario.faults.drift_ppm
        self.clock = Clock(world.timeline, world.rng.randint(-most, most) if most else 0)
        self.who = Identity(f"node-{number}", database.store_id)
        self.peers = tuple(_address(world, peer) for peer in scenario.peers[number])
        self.process: Process | None = None
        self.peering: Peering | None = None
        self.crashes = 0

    @property
    def identity(self) -> Identity | None:
        """The identity that answers; None while the node is off."""
        return None if self.process is None else self.who

    def policy(self) -> Policy:
        """Return the rules for messages of clients, now."""
        horizon_ns = self.database.horizon_ns
        if self.retention_ns is not None:
            horizon_ns = max(horizon_ns, self.clock.unix_ns() - self.retention_ns)
        return Policy(
            max_drift_ns=self.world.scenario.drift_ns,
            horizon_ns=horizon_ns or None,
            max_message_bytes=self.world.message_limit(self.number),
        )

    def boot(self) -> None:
        """Begin a life with everything that it does; nothing to do while one lasts."""
        if self.process is not None:
            return
        process = self.process = Process(self)
        process.note("starts")
        scenario, listeners = self.world.scenario, list[Gossiping | HotIndex]()
        self.service, self._store = Service(process), SimStore(process)
        if scenario.gossip is not None:
            self.gossiping = Gossiping(self, process, self._store)
            listeners.append(self.gossiping)
        if scenario.reconciles:
            if self.retention_ns is not None:
                process.begin_task("retention", keep(process, self.retention_ns))
            self.peering = Peering(process, self.peers, self._store)
            listeners.append(self.peering.index)
            self.peering.start()
        process.begin_task(FEED, SimFeed(process, listeners).run())

    async def store(self, process: Process, batch: RecordBatch) -> StoreResult:
        """Store what a client of a life publishes.

        Raises:
            DatabaseUnavailableError: it is stored or not.
        """
        if self.world.scenario.gossip is not None:
            return await self.gossiping.store(process, batch)
        return await self._store.store(batch, Source.CLIENT)

    async def stop_gossip(self) -> None:
        """Shut down as a node does; nothing may be left of it."""
        process, self.process = self.process, None
        if process is not None:
            process.note("stops")
            await self.gossiping.stop()
            self.world.gossip_checker.stopped(self.name, process.life)
            process.end()

    def crash(self, why: str) -> None:
        """End a life: its memory is lost."""
        process, self.process, self.peering = self.process, None, None
        assert process is not None
        process.note(f"crashes {why}")
        self.crashes += 1
        process.end()
        self.world.network.drop_calls(self.name)
        self.world.restart_later(self, RESTART_S)

    def jump(self, offset_ns: int) -> None:
        """Set the clock."""
        self.clock.offset_ns = offset_ns
        note = f"has its clock set to {offset_ns // NS_PER_MS} ms ahead"
        self.world.trace.note(self.name, note)

    def serve(self, method: str, end: End) -> bool:
        """Take a call."""
        process, peering = self.process, self.peering
        if method == GOSSIP and process is not None:
            serve = self.gossiping.serve
            process.begin_task("served stream", served(process, end, GOSSIP, serve))
            return True
        if process is None or (peering is not None and peering.stopped):
            return False
        calls = {**self.service.calls, **({} if peering is None else peering.calls())}
        work = calls.get(method)
        if work is None:
            return False
        serving = process.begin_task(method, served(process, end, method, work))
        end.on_lost = lambda _: serving.cancel()
        return True

    def take(self, sender: str, messages: Sequence[bytes]) -> None:
        """Store what reaches the node from an outsider, who is not answered; nothing while off."""
        if self.process is not None:
            self.process.begin_task(PUBLISH, self._take(sender, messages))

    async def _take(self, sender: str, messages: Sequence[bytes]) -> None:
        with suppress(DatabaseUnavailableError):
            await self.service.publish(sender, messages)

    def check(self) -> None:
        """Verify everything that the node has in memory."""
        if self.peering is not None:
            self.peering.check()
        if self.process is not None and self.world.scenario.gossip is not None:
            self.world.gossip_checker.check_bounds(self.name, self.gossiping.driver)


def _address(world: World, number: int) -> PeerAddress:
    """Return an address; some have no node ID, which is learned from the answer."""
    named = f"node-{number}" if world.rng.random() < 0.5 else ""
    return PeerAddress(f"n{number}", _PORT, named)


_EVERY_NS: Final = 2 * NS_PER_S
_INTERVALS: Final = 16
"""The least ratio of the pause of sessions to that of retention, if sessions are rare."""


async def keep(process: Process, age_ns: int) -> None:
    """Drop what is older, for as long as the process lasts."""
    database, clock, policy = process.database, process.clock, RetentionPolicy(age_ns)
    witness_ns = database.committed_at_ns or clock.unix_ns()
    every_ns = max(_EVERY_NS, process.scenario.interval_ns // _INTERVALS)
    retention_clock = RetentionClock(witness_ns, clock.steady_ns())
    while True:
        reading = retention_clock.read(clock.unix_ns(), clock.steady_ns())
        try:
            dropped = await database.look(partial(drop_old, process, policy, reading.time_ns))
        except DatabaseUnavailableError:
            dropped = 0
        if dropped:
            process.note(f"drops {dropped}")
            process.mark(Mark.DROPPED)
        await asyncio.sleep(clock.true_delay_ns(every_ns) / NS_PER_S)


def drop_old(process: Process, policy: RetentionPolicy, now_ns: int) -> int:
    """Drop the partitions that the rules of retention give up; return how many messages."""
    database, width_ns = process.database, process.scenario.partition_ns
    lows = sorted({time_ns - time_ns % width_ns for time_ns, _ in database.ids})
    fine = [Partition(FINE_TABLE, str(low), Bounds(low, low + width_ns)) for low in lows]
    plan = plan_prune(fine, [], policy=policy, now_ns=now_ns, horizon_ns=database.horizon_ns)
    return sum(database.prune(step.horizon_ns) for step in plan.steps)
