"""The story: what happens to the nodes and the participants, in which order."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store.demo.auditor import Auditor
from store.demo.cluster import NODES, Cluster, short_name
from store.demo.device import Device
from store.demo.ledger import Ledger
from store.demo.limits import (
    BURST_CUT_OFF,
    BURST_OUTAGE,
    CALL_TIMEOUT_S,
    GAP_S,
    LINE_S,
    OUTAGE_S,
    PARTITION_S,
    STATUS_EVERY_S,
    TALK_S,
)
from store.demo.network import Network
from store.demo.people import CAST, LEAVER, LISTENER, NEIGHBOUR, READER, ROAMER, People, Person
from store.demo.report import ConsoleReport, Incident
from store.demo.sources import stored_by_source
from store.demo.tap import Way
from store.demo.tasks import Tasks
from store.demo.verdict import Verdict
from store.demo.waiter import Waiter
from storenode.client.node import connect
from storenode.connection.errors import NodeError
from storenode.sds.aio.events import ChannelEvent, Message
from storenode.sds.aio.node import StoreNode
from storenode.sds.events import Missing

CUT_OFF: Final = "n3"
KILLED: Final = "n2"
DEVICE: Final = "n1"

SCRIPT: Final = (
    ("ada", "Is the ferry running tonight?"),
    ("cora", "Yes, until ten."),
    ("ada", "Then bring the crate."),
    ("cora", "I will. Which dock?"),
    ("ada", "Dock four."),
)
LOST: Final = 2
"""The line of the script that the link of `READER` loses."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of a run.

    ``pace`` above 1 makes the phases shorter. A wait is given up when nothing has changed for
    ``patience_s``, and all are ``limit_s`` after the beginning. ``without`` names what is switched
    off: gossip, reconciliation, repair.
    """

    directory: Path
    pace: float
    patience_s: float
    limit_s: float
    without: Collection[str]


class Story:
    """One run, with a method for each chapter."""

    def __init__(self, plan: Plan, report: ConsoleReport) -> None:
        self._plan = plan
        self.report = report
        self.tasks = Tasks()
        self.ledger = Ledger()
        self.people = People(self.tasks)
        self.waiter = Waiter(plan.patience_s, plan.limit_s)
        self._network = Network()
        self.cluster = Cluster(plan.directory, self._network, plan.without)
        self._incidents: list[Incident] = []

    async def tell(self) -> None:
        """Run all chapters, until everything should be everywhere.

        Raises:
            NodeFailed: A node did not start.
            NodeError: A node refused the device's messages.
        """
        self.report.legend()
        await self._begin()
        await self._converse()
        await self._talk()
        await self._cut_off()
        await self._heal()
        await self._kill()
        await self._bring_back()
        await self._settle()

    async def close(self) -> None:
        """End everything, the last first; a failure of one part keeps no other one running."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._network.close)
            stack.push_async_callback(self.cluster.stop)
            stack.push_async_callback(self.tasks.stop)
            stack.push_async_callback(self.people.leave)

    def conclude(self, verdict: Verdict) -> None:
        """Print what was lost, how it came back, and whether everything is everywhere."""
        self.report.incidents(self._incidents)
        missed = [person.passage.lost | person.missed for person in self.people]
        ways = Counter(
            str(person.passage.came[each])
            for person, ids in zip(self.people, missed, strict=True)
            for each in ids
            if each in person.passage.came
        )
        own = sum(len(ids & set(each.said)) for ids, each in zip(missed, self.people, strict=True))
        self.report.recoveries(ways, sum(map(len, missed)) - ways.total() - own)
        if verdict.differences or self.waiter.given_up:
            self.report.failure(verdict.differences, self.waiter.given_up)
            return
        held = len(verdict.held[NODES[0]])
        lines = sum(len(said) for said in self.ledger.said.values())
        channels = len(self.ledger.said)
        self.report.success(
            f"The {len(NODES)} stores are equal: {held:,} messages, by hashes computed anew.",
            f"The {len(CAST)} logs are equal: all {lines:,} lines of {channels} channels.",
        )

    async def _begin(self) -> None:
        self.report.chapter("Three nodes start, each with a Postgres, and speak TLS")
        await self.cluster.start()
        for node in self.cluster.nodes.values():
            self.tasks.start(node.watch())
        tls = self.cluster.tls
        addresses = {name: (await self._network.wire(name)).address for name in NODES}
        self._auditor = Auditor(addresses, tls, self.tasks)
        self._device = Device(self.cluster.addresses[DEVICE], tls, self.ledger)
        for who in CAST:
            first = NODES.index(who.home)
            # The own node first, then the others in turn.
            wires = [
                await self._network.person_wire(who.name, node)
                for node in NODES[first:] + NODES[:first]
            ]
            nodes = [StoreNode(wire.address, tls=tls) for wire in wires]
            state = self._plan.directory / f"{who.name}.db"
            repairs = "repair" not in self._plan.without
            self.people.add(Person(who, nodes, state, self.ledger, repairs=repairs))
        self.tasks.start(self._show_state())

    async def _show_state(self) -> None:
        while True:
            await asyncio.sleep(STATUS_EVERY_S)
            here = [person for person in self.people if person.here]
            if here:
                held = ", ".join(f"{name} {len(of):,}" for name, of in self._auditor.held.items())
                synced = sum(person.look().synced for person in here)
                missing = sum(person.status.missing for person in here)
                state = f"{synced} of {len(here)} participants in sync, {missing:,} lines missing"
                self.report.line(f"messages held: {held}; {state}", "dim")

    async def _converse(self) -> None:
        """Let a reader watch one gap, from the lost line until it is back."""
        self.report.chapter(f"One conversation, as {READER} reads it: her link loses a line")
        await self.people.join()
        reader = self.people[READER]
        reader.on_event = self._show_event
        await self._until("all participants follow a node", self._count_offline)
        # SDS-Repair has its turn later: here a store node brings the line.
        reader.passage.loses_again = tuple(Way)
        for number, (name, text) in enumerate(SCRIPT):
            reader.loses_next = number == LOST
            said = await self.people[name].say(text)
            members = self.people.members(reader.who.channel_id)
            others = [each for each in members if each.who.name not in (name, READER)]
            await self._until("a line arrives", lambda: _count_unmet(others, said))  # noqa: B023
            await self._for(LINE_S)
            if number == LOST + 1:
                await self._until(f"{READER} misses the line", lambda: int(not reader.missed))
                await self._for(GAP_S)
                # A round of calls may be under way, by hint first and then by ID: where it has
                # asked by hint already, the line would come by its ID.
                reader.passage.loses_again = [way for way in Way if way is not Way.HINT]
                self.report.line(f"{READER}'s link loses no more answers of store nodes")
        await self._until(f"{READER} has all lines", lambda: len(SCRIPT) - reader.length)
        reader.passage.loses_again = ()
        reader.on_event = None

    def _show_event(self, event: ChannelEvent) -> None:
        reader = self.people[READER]
        if isinstance(event, Missing):
            for _ in event.messages:
                self.report.line("?     missing: the next line names it as its parent, and waits")
        elif isinstance(event, Message):
            line = f"{event.sender_id:<6}{event.content.decode()}"
            if event.message_id in reader.missed:
                way = reader.passage.came.get(event.message_id)
                whom = "another participant" if way is Way.SDS_REPAIR else "a store node"
                line += f"  (back from {whom}, by {way})"
            self.report.line(line)

    async def _talk(self) -> None:
        self.report.chapter("Twelve participants talk; bad links lose a fifth")
        self.people.bad_links(lose=True)
        self.people.talk()
        self._readings = self.tasks.start(self._device.run())
        await self._for(TALK_S)

    async def _cut_off(self) -> None:
        self.report.chapter(f"{CUT_OFF} is cut off with its participants; both sides go on")
        self._fault_s = time.monotonic()
        self._network.split(CUT_OFF, [who.name for who in CAST if who.home == CUT_OFF])
        self.report.line(f"a device has {BURST_CUT_OFF:,} readings for {DEVICE}")
        burst = self.tasks.start(self._device.burst(BURST_CUT_OFF))
        await self._for(PARTITION_S / 2)
        await self._roam()
        await self._for(PARTITION_S / 2)
        await burst
        await self._seen()

    async def _roam(self) -> None:
        """Move somebody to the other side, where no node has the messages that they know."""
        roamer, listener = self.people[ROAMER], self.people[LISTENER]
        told = [await self.people[NEIGHBOUR].say() for _ in range(3)]
        await self._until(f"{ROAMER} reads {NEIGHBOUR}", lambda: _count_unmet([roamer], *told))
        self._network.place(ROAMER, CUT_OFF, inside=False)

        def away() -> int:
            return int(self._network.node_at(roamer.look().node) in ("", CUT_OFF))

        await self._until(f"{ROAMER} reaches another node", away)
        place = self._network.node_at(roamer.status.node)
        self.report.line(f"{ROAMER} goes to {place}, where no node has {NEIGHBOUR}'s lines")
        await roamer.say()
        await self._until(f"{LISTENER} reads them too", lambda: _count_unmet([listener], *told))
        repaired = sum(listener.passage.came.get(each) is Way.SDS_REPAIR for each in told)
        self.report.line(f"{LISTENER} asks for them; SDS-Repair brings {repaired:,}")

    async def _heal(self) -> None:
        away_s = time.monotonic() - self._fault_s
        self.report.chapter(f"{CUT_OFF} is reached again")
        lacked = {name: self._auditor.lacking(name) for name in NODES}
        self.report.line(", ".join(f"{name} lacks {len(of):,}" for name, of in lacked.items()))
        recoveries = []
        for name, of in lacked.items():
            what = f"cut off for {away_s:.0f} s" if name == CUT_OFF else f"{CUT_OFF} not reached"
            recovery = self._recover(name, what, of, await self._sources(name))
            recoveries.append(self.tasks.start(recovery))
        self._network.heal()
        if "reconciliation" not in self._plan.without:
            await self._synchronize(CUT_OFF, DEVICE)
        self._incidents += await asyncio.gather(*recoveries)

    async def _synchronize(self, caller: str, callee: str) -> None:
        """Have two nodes reconcile everything now, if the caller answers."""
        address = self.cluster.admin_addresses[caller]
        with suppress(NodeError):
            async with connect(address, tls=self.cluster.tls, timeout_s=CALL_TIMEOUT_S) as client:
                peers = (await client.status()).peers
                peer = next(each for each in peers if short_name(each.node_id) == callee)
                report = await client.synchronize(peer.address, time_start=0)
            found = f"{report.missing_here:,} and {report.missing_there:,} missing"
            moved = report.messages_received + report.messages_sent
            self.report.line(f"sync {caller}-{callee}: {found}, {moved:,} moved")

    async def _kill(self) -> None:
        self.report.chapter(f"{KILLED} is killed; its participants go elsewhere")
        await self.people[LEAVER].leave()
        self.report.line(f"{LEAVER} closes the program")
        self._fault_s = time.monotonic()
        await self.cluster.nodes[KILLED].kill()
        self.report.line(f"a device has {BURST_OUTAGE:,} readings for {CUT_OFF}")
        await self._device.burst(BURST_OUTAGE, self.cluster.addresses[CUT_OFF])
        await self._for(OUTAGE_S)
        await self._seen()

    async def _bring_back(self) -> None:
        down_s = time.monotonic() - self._fault_s
        self.report.chapter(f"{KILLED} is started again, with what is on its disk")
        lacked = self._auditor.lacking(KILLED)
        self.report.line(f"{KILLED} lacks {len(lacked):,}")
        await self.cluster.serve(KILLED)
        self.tasks.start(self.cluster.nodes[KILLED].watch())
        await self.people[LEAVER].join(self.tasks)
        self.report.line(f"{LEAVER} opens the program again")
        what = f"killed, down for {down_s:.0f} s"
        self._incidents.append(await self._recover(KILLED, what, lacked, Counter()))

    async def _settle(self) -> None:
        """Say nothing new, lose nothing, and give everybody the time to catch up."""
        self.report.chapter("Nobody says more; whoever lacks something gets it")
        self._readings.cancel()
        await self.people.be_silent()
        self.people.bad_links(lose=False)
        await self._until("every participant has every line", self._count_lines_due)
        await self._until("every store has every message", lambda: self._auditor.unequal)
        await self.people.remember()
        await self.people.leave()
        await self._until("every store has every message", lambda: self._auditor.unequal)

    def _count_lines_due(self) -> int:
        """Return the number of lines that participants lack, have not published, or wait for."""
        due = 0
        for person in self.people:
            status = person.look()
            lines = len(self.ledger.said.get(person.who.channel_id, ()))
            due += max(lines - person.length, 0) + status.unpublished + int(not status.synced)
        return due

    def _count_offline(self) -> int:
        return sum(person.look().node is None for person in self.people)

    async def _recover(
        self, node: str, what: str, lacked: set[bytes], before: Counter[str]
    ) -> Incident:
        """Wait until a node has what it lacked when a fault ended."""
        began_s, held = time.monotonic(), self._auditor.held[node]
        is_whole = await self._until(f"{node} gets what it lacks", lambda: len(lacked - held))
        seconds = time.monotonic() - began_s
        ways = await self._sources(node) - before
        return Incident(node, what, len(lacked), ways, seconds, is_whole)

    async def _sources(self, node: str) -> Counter[str]:
        return await stored_by_source(self.cluster.nodes[node].ready["metrics"])

    async def _seen(self) -> None:
        """Wait until everything that was acknowledged by now was seen in some node's feed."""
        acknowledged = frozenset(self.ledger.acknowledged)
        await self._until(
            "nodes show what they acknowledged", lambda: len(acknowledged - self._auditor.all)
        )

    async def _until(self, what: str, count: Callable[[], int]) -> bool:
        return await self.waiter.until_none(what, count)

    async def _for(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds / self._plan.pace, self.waiter.left_s))


def _count_unmet(people: Collection[Person], *message_ids: str) -> int:
    """Return how many copies of some messages have not come to their readers."""
    return sum(not person.has_met([each]) for person in people for each in message_ids)
