"""The gossip of a node: the shipped driver as a service of its process."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sim.database import MAX_NEEDED
from sim.gossiping.sessions import Session, UnreadSession
from sim.gossiping.streams import Connector
from sim.limits import NS_PER_MS
from sim.process import Process, SimLog, environment_of
from sim.rng import happens
from store.domain.hub import CommitRow
from store.domain.ports import Source
from store.gossip.driver import node as shipped
from store.gossip.driver.ports import DriverDatabase
from store.gossip.events import GossipCount
from store.gossip.machine import Gossip
from store.messages.record import RecordBatch

if TYPE_CHECKING:
    from sim.node import Node

SPREAD_S: Final = 30.0
"""In peace, what is published is everywhere, and confirmed, within so long."""

_TIMEOUTS_S: Final = (0.5, 5.0, 60.0)
_CHECK_EVERY_STEPS: Final = 17
_REPORT_NS: Final = 20 * NS_PER_MS
_CALL: Final = "call"
_CALLS: Final = (_CALL, "publish")


class Gossiping:
    """The gossip of one process, whose publishers wait for confirmations; `Meter` of the driver."""

    def __init__(self, owner: Node, process: Process) -> None:
        self._process = process
        world = self._world = owner.world
        self._owner = owner
        self._works: list[asyncio.Task[None]] = []
        self._steps = 0
        self._reported_ns = 0
        session = Session(world, process, owner.database)
        unread = UnreadSession(session, partial(world.gossip_checker.confirms, owner, process.life))
        self.node = shipped.GossipNode(
            self._make,
            owner.who.node_id,
            owner.peers,
            database=DriverDatabase(session, session, unread, session.persist),
            connector=Connector(owner),
            environment=replace(environment_of(process), log=_Log(owner, process)),
            meter=self,
            max_needed=MAX_NEEDED,
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
        self._world.gossip_checker.check_bounds(self._owner.name, self.node)

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
            world.rng.choice(world.gossip.min_confirms),
            world.rng.choice(_TIMEOUTS_S),
        )
        if hashes and hashes[0] in world.gossip_checker.in_peace:
            asked, timeout_s = len(world.reached(self._owner)), SPREAD_S
        write = self._owner.database.write(process, batch, Source.CLIENT, asked)
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
        self._world.gossip_checker.confirmed(self._owner, hashes, found, asked, late_s)

    # The commit feed

    def _hear(self) -> None:
        """Report commits a little later, in order; some again, or as lost."""
        timeline, rng, database = self._process.timeline, self._process.rng, self._owner.database
        rows = database.commits_after(self._place)
        if rows:
            self._place = rows[-1].place
            delay_ns = int(rng.uniform(0, _REPORT_NS))
            self._reported_ns = max(self._reported_ns, timeline.now_ns + delay_ns)
            is_lost = happens(rng, self._world.gossip.retold)
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
        self._world.counts[str(counted.what)] += counted.count

    def body_bytes(self, direction: str, count: int) -> None:
        """Count nothing."""

    def _make(self) -> Gossip:
        gossip = self._world.gossip
        machine = Gossip(self._owner.database.store_id, gossip.max_confirms, gossip.limits)
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

    def __init__(self, owner: Node, process: Process) -> None:
        super().__init__(process)
        self._owner = owner

    def warning(self, event: str, **fields: object) -> None:
        """Fail the run if an honest peer is cut off."""
        self.info(event, **fields)
        if event == "gossip_peer_cut_off":
            checker = self._owner.world.gossip_checker
            checker.cuts_off(self._owner, str(fields["peer"]), str(fields["reason"]))

    def error(self, event: str, **fields: object) -> None:
        """Fail the run: the driver, or the machine, is at fault."""
        del fields
        if self._process.alive:
            raised = traceback.format_exc(limit=-4)
            error = raised.rstrip().rpartition("\n")[2]
            self._owner.world.judge.fail(f"{self._owner.name}: {event}: {error}\n{raised}")


async def _do(work: Callable[[], Awaitable[None]]) -> None:
    await work()
