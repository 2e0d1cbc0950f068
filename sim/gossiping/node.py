"""A node that gossips: the shipped driver as a service of its process."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sim.calls import End
from sim.dice import happens
from sim.environment import SimLog, environment_of
from sim.gossiping.database import MAX_NEEDED, GossipDatabase, Session, UnreadSession
from sim.gossiping.streams import GOSSIP, Connector, serve
from sim.limits import NS_PER_MS
from sim.node import Node
from sim.process import Process
from store.domain.hub import CommitRow
from store.domain.ports import Source
from store.gossip.driver import node as shipped
from store.gossip.driver.ports import DriverDatabase
from store.gossip.events import GossipCount
from store.gossip.limits import GossipConfig
from store.gossip.machine import Gossip
from store.messages.record import RecordBatch

if TYPE_CHECKING:
    from sim.gossiping.world import GossipWorld

SPREAD_S: Final = 30.0
"""In peace, what is published is everywhere, and confirmed, within so long."""

_TIMEOUTS_S: Final = (0.5, 5.0, 60.0)
_CHECK_EVERY_STEPS: Final = 17
_REPORT_NS: Final = 20 * NS_PER_MS
_CALL: Final = "call"
_CALLS: Final = (_CALL, "publish")


class GossipNode(Node):
    """One node; ``gossip`` is of its last life."""

    world: GossipWorld
    database: GossipDatabase
    gossip: Gossiping

    def begin(self, process: Process) -> None:
        """Begin everything that a life does."""
        self.gossip = Gossiping(self, process)
        self.gossip.start()
        if self.world.gossip.beside:
            super().begin(process)
            assert self.peering is not None

    async def store(self, process: Process, batch: RecordBatch) -> None:
        """Make durable what a client publishes; who wants confirmations waits for them."""
        await self.gossip.store(process, batch)

    def check(self) -> None:
        """Verify everything that the node has in memory."""
        super().check()
        if self.process is not None:
            self.gossip.check()

    def serve(self, method: str, end: End) -> bool:
        """Take a call."""
        if method != GOSSIP:
            return super().serve(method, end)
        if self.process is not None:
            self.process.begin_task("served stream", serve(self, self.gossip.node.streams, end))
        return self.process is not None

    async def stop(self) -> None:
        """Shut down as a node does; nothing may be left of it."""
        process, self.process = self.process, None
        if process is not None:
            process.note("stops")
            await self.gossip.stop()
            self.world.judge.stopped(self.name, process.life)
            process.end()


class Gossiping:
    """The gossip of one process, whose publishers wait for confirmations; `Meter` of the driver."""

    def __init__(self, owner: GossipNode, process: Process) -> None:
        self._process = process
        world = self._world = owner.world
        self._owner = owner
        self._works: list[asyncio.Task[None]] = []
        self._steps = 0
        self._reported_ns = 0
        session = Session(world, process, owner.database)
        unread = UnreadSession(session, partial(world.judge.confirms, owner, process.life))
        self.node = shipped.GossipNode(
            replace(world.gossip.config, store_id=owner.database.store_id),
            owner.who.node_id,
            owner.peers,
            database=DriverDatabase(session, session, unread, session.persist),
            connector=Connector(owner),
            environment=replace(environment_of(process), log=_Log(owner, process)),
            meter=self,
            max_needed=MAX_NEEDED,
            make=self._make,
        )

    def start(self) -> None:
        """Begin all work."""
        database = self._owner.database
        self._place = database.place
        database.followers[self] = self._hear
        self._process.at_end.append(self._unfollow)
        for name, work in self.node.work():
            self._works.append(self._process.begin_task(name, _do(work)))

    def check(self) -> None:
        """Verify the bounds of what it keeps."""
        self._world.judge.check_bounds(self._owner.name, self.node)

    async def stop(self) -> None:
        """End all work, in the order in which a node does."""
        self._unfollow()
        self.node.close()
        calls = [task for task in self._process.life.tasks if task.get_name() in _CALLS]
        ended = (*self._works, *calls)
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
        self.node.driver.stop()
        # The streams that peers began end by themselves.
        await asyncio.sleep(0.001)

    async def store(self, process: Process, batch: RecordBatch) -> None:
        """Make what was accepted durable; who wants confirmations waits for them."""
        world, hashes = self._world, batch.hashes
        asked, timeout_s = (
            world.dice.choice(world.gossip.min_confirms),
            world.dice.choice(_TIMEOUTS_S),
        )
        if hashes and hashes[0] in world.judge.in_peace:
            asked, timeout_s = len(world.reached(self._owner)), SPREAD_S
        write = self._owner.database.write_of(process, batch, Source.CLIENT, asked)
        stored = await write
        if asked and hashes and process.alive:
            process.begin_task(_CALL, self._confirm(batch, stored, asked, timeout_s))

    async def _confirm(
        self, batch: RecordBatch, stored: Sequence[bool], asked: int, timeout_s: float
    ) -> None:
        hashes = batch.hashes
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        found = await self.node.waits.confirmed(
            hashes, batch.content_digests, stored, asked, timeout_s
        )
        late_s = loop.time() - began_s - timeout_s
        self._world.judge.confirmed(self._owner, hashes, found, asked, late_s)

    # The commit feed

    def _hear(self) -> None:
        """Commits are reported a little later, in order, some again, and sometimes all are lost."""
        timeline, dice, database = self._process.timeline, self._process.dice, self._owner.database
        rows = database.commits_after(self._place)
        if rows:
            self._place = rows[-1].place
            delay_ns = int(dice.uniform(0, _REPORT_NS))
            self._reported_ns = max(self._reported_ns, timeline.now_ns + delay_ns)
            is_lost = happens(dice, self._world.gossip.retold)
            rows = database.commits[-4:] if is_lost else rows
            timeline.at(self._reported_ns, partial(self._report, rows, is_lost))

    def _report(self, rows: Sequence[CommitRow], is_lost: bool) -> None:
        if self._process.alive:
            with self._process.life.inside():
                if is_lost:
                    self.node.driver.lost()
                self.node.driver.commits(rows)

    def _unfollow(self) -> None:
        self._owner.database.followers.pop(self, None)

    # What the machine counts

    def count(self, counted: GossipCount) -> None:
        """Sum up what all machines count."""
        self._world.counts[counted.what] += counted.count

    def body_bytes(self, direction: str, count: int) -> None:
        """Nobody asks."""

    def _make(self, config: GossipConfig) -> Gossip:
        machine = Gossip(config)
        step = machine.step

        def checked(*args: Any) -> Any:  # noqa: ANN401 - those of a step
            effects = step(*args)
            self._steps += 1
            if not self._steps % _CHECK_EVERY_STEPS:
                machine.check()
            return effects

        machine.step = checked  # type: ignore[assignment,method-assign]
        return machine


class _Log(SimLog):
    """Fails the run when the driver is at fault, or cuts an honest peer off."""

    def __init__(self, owner: GossipNode, process: Process) -> None:
        super().__init__(process)
        self._owner = owner

    def warning(self, event: str, **fields: object) -> None:
        """No honest peer may be cut off."""
        self.info(event, **fields)
        if event == "gossip_peer_cut_off":
            judge = self._owner.world.judge
            judge.cuts_off(self._owner, str(fields["peer"]), str(fields["reason"]))

    def error(self, event: str, **fields: object) -> None:
        """The driver, or the machine, is at fault."""
        del fields
        if self._process.alive:
            raised = traceback.format_exc(limit=-4)
            error = raised.rstrip().rpartition("\n")[2]
            self._owner.world.judge.fail(f"{self._owner.name}: {event}: {error}\n{raised}")


async def _do(work: Callable[[], Awaitable[None]]) -> None:
    await work()
