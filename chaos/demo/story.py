"""The story of the demo: what happens to nodes and participants, in order."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from chaos.checker.clients import Follower, Publisher, new_messages, read_holding
from chaos.checker.history import Ack, History
from chaos.checker.logs import Log, check_logs
from chaos.checker.stores import Holding, check_stores
from chaos.checker.violation import Violation, list_violations
from chaos.crowd import Crowd
from chaos.demo.cluster import CALL_TIMEOUT_S, NODES, Cluster, short_name
from chaos.demo.participants import (
    CAST,
    LEAVER,
    LISTENER,
    NEIGHBOUR,
    READER,
    ROAMER,
    SEND_EVERY_S,
    Character,
    configure,
    set_losses,
)
from chaos.demo.report import ConsoleReport, Incident
from chaos.link import Traffic, Way
from chaos.network import Network
from chaos.participant import Participant
from chaos.tasks import Tasks
from chaos.waiter import StuckError, Waiter
from storenode.client.node import connect
from storenode.connection.errors import NodeError
from storenode.sds.aio.events import ChannelEvent, Message
from storenode.sds.aio.node import StoreNode
from storenode.sds.events import Missing

CUT_OFF: Final = "n3"
KILLED: Final = "n2"
DEVICE: Final = "n1"
"""The node to which a device publishes plain messages."""

SCRIPT: Final = (
    ("ada", "Is the ferry running tonight?"),
    ("cora", "Yes, until ten."),
    ("ada", "Then bring the crate."),
    ("cora", "I will. Which dock?"),
    ("ada", "Dock four."),
)
LOST: Final = 2
"""The line of the script that the link of `READER` loses."""

LINE_S: Final = 1.2
"""Pause between two lines of the script."""

GAP_S: Final = 2.0
"""Time for which every copy of the lost line is lost, so that the gap can be seen."""

TALK_S: Final = 10.0
PARTITION_S: Final = 14.0
OUTAGE_S: Final = 8.0
"""Lengths of the phases at pace 1."""

STATUS_EVERY_S: Final = 5.0
"""Time between two lines with the state of nodes and participants."""

READINGS_EVERY_S: Final = 0.3
READINGS: Final = 80
"""Most readings in one batch of the device."""

BURST_CUT_OFF: Final = 12_000
"""Readings published while a node is cut off: more than the 8,192 that gossip announces to a peer
which joins, so that reconciliation has something to find."""

BURST_OUTAGE: Final = 10_000
"""Readings published while a node is down."""

BURST_PORTION: Final = 500


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
    """A run of the demo, with a method for each chapter."""

    def __init__(self, plan: Plan, report: ConsoleReport) -> None:
        self._plan = plan
        self.report = report
        self.tasks = Tasks()
        self.history = History()
        self.given_up: list[str] = []
        """Waits that were given up, each with what was left."""
        self._rng = Random()
        self._crowd = Crowd(self.tasks, self._rng, SEND_EVERY_S)
        self._waiter = Waiter(plan.patience_s, plan.limit_s)
        self._network = Network()
        self.cluster = Cluster(plan.directory, self._network, plan.without)
        self._followers: dict[str, Follower] = {}
        self._incidents: list[Incident] = []

    async def run(self) -> bool:
        """Run all chapters and print the verdict; return True if everything is everywhere.

        Raises:
            NodeFailedError: A node did not start.
            NoAnswerError: A node could not be read.
        """
        await self.play()
        self.report.chapter("Every store is read, and every hash is computed again")
        return self.conclude(await self.judge())

    async def play(self) -> None:
        """Run all chapters, until everything should be everywhere."""
        self.report.legend()
        await self._begin()
        await self._converse()
        await self._talk()
        await self._cut_off()
        await self._heal()
        await self._kill()
        await self._bring_back()
        await self._settle()

    async def judge(self) -> list[Violation]:
        """Compare stores with what was published, and logs with what was sent."""
        reading = (
            read_holding(follower, follower.node, self.history, self._plan.limit_s)
            for follower in self._followers.values()
        )
        self._holdings: Sequence[Holding] = await asyncio.gather(*reading)
        refused = [each.node for each in self._followers.values() if each.refusals]
        return [
            *check_stores(self.history, self._holdings),
            *check_logs(self._logs),
            *list_violations("follow", "nodes refused a cursor of their own", refused),
        ]

    async def close(self) -> None:
        """End everything, the last first; a failure of one part keeps no other one running."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._network.close)
            stack.push_async_callback(self.cluster.stop)
            stack.push_async_callback(self.tasks.stop)
            stack.push_async_callback(self._crowd.leave)

    def conclude(self, violations: Sequence[Violation]) -> bool:
        """Print what was lost and how it came back; return True if everything is everywhere."""
        self.report.incidents(self._incidents)
        ways: Counter[str] = Counter()
        gone = 0
        for each in self._crowd:
            # A message that was sent under a fault may be named to its own sender as missing.
            missed = (each.link.lost | each.missed) - each.sent.keys()
            arrived = [each.link.arrivals[name] for name in missed & each.link.arrivals.keys()]
            ways.update(map(str, arrived))
            gone += len(missed) - len(arrived)
        self.report.recoveries(ways, gone)
        if violations or self.given_up:
            self.report.failure(map(str, violations), self.given_up)
            return False
        stored = len(self._holdings[0].scanned)
        lines = sum(len(log.sent) for log in self._logs)
        channels = len({log.channel for log in self._logs})
        self.report.success(
            f"The {len(NODES)} stores are equal: {stored:,} messages, by hashes computed anew.",
            f"The {len(CAST)} logs are equal: all {lines:,} lines of {channels} channels.",
        )
        return True

    async def _begin(self) -> None:
        self.report.chapter("Three nodes start, each with a Postgres, and speak TLS")
        await self.cluster.start()
        for node in self.cluster.nodes.values():
            self.tasks.start(node.watch())
        for name in NODES:
            follower = Follower(name, await self.cluster.open_endpoint(name))
            self._followers[name] = follower
            self.tasks.start(follower.run())
        self._device = await self._new_device(DEVICE)
        traffic = Traffic(self.history.publish, self._acknowledge)
        for who in CAST:
            self._crowd.add(await self._new_participant(who, traffic))
        self.tasks.start(self._show_state())

    async def _new_device(self, node: str) -> Publisher:
        return Publisher(
            "device",
            await self.cluster.open_endpoint(node),
            lambda: node,
            self.history,
            Random(),
            READINGS_EVERY_S,
            READINGS,
        )

    async def _new_participant(self, who: Character, traffic: Traffic) -> Participant:
        tls, first = self.cluster.tls, NODES.index(who.home)
        # Its own node first, then the others in turn.
        wires = [
            await self._network.open_client_wire(who.name, node)
            for node in NODES[first:] + NODES[:first]
        ]
        nodes = [StoreNode(wire.address, tls=tls) for wire in wires]
        config = configure(who, repairs="repair" not in self._plan.without)
        return Participant(config, nodes, self._plan.directory / f"{who.name}.db", traffic)

    def _acknowledge(self, link: str, digests: Collection[bytes]) -> None:
        ack = Ack(self._network.find_node(link), time.monotonic(), 0)
        self.history.acknowledge(digests, ack)

    async def _show_state(self) -> None:
        while True:
            await asyncio.sleep(STATUS_EVERY_S)
            here = [each for each in self._crowd if each.has_joined]
            if here:
                stored = ", ".join(
                    f"{name} {len(of.stored):,}" for name, of in self._followers.items()
                )
                synced = sum(each.look().synced for each in here)
                missing = sum(each.status.missing for each in here)
                state = f"{synced} of {len(here)} participants in sync, {missing:,} lines missing"
                self.report.line(f"messages held: {stored}; {state}", "dim")

    async def _converse(self) -> None:
        """Let a reader watch one gap, from the lost line until it is back."""
        self.report.chapter(f"One conversation, as {READER} reads it: her link loses a line")
        await self._crowd.join()
        reader = self._crowd[READER]
        reader.on_event = self._show_event
        await self._until("all participants follow a node", self._count_offline)
        # SDS-Repair has its turn later: here a store node brings the line.
        reader.link.loses_again = tuple(Way)
        for number, (name, text) in enumerate(SCRIPT):
            reader.link.loses = partial(next, iter([number == LOST]), False)
            sent = await self._crowd.say(name, text)
            unlucky = READER if number >= LOST else name  # nothing is lost before a feed is live
            members = self._crowd.members(reader.channel_id)
            others = [each for each in members if each.name not in (name, unlucky)]
            await self._until("a line arrives", partial(_count_awaited, others, [sent]))
            await self._for(LINE_S)
            if number == LOST + 1:
                await self._until(f"{READER} misses the line", lambda: int(not reader.missed))
                await self._for(GAP_S)
                # Reads by hint precede those by ID: if the hint is used up, the ID would bring it.
                reader.link.loses_again = [way for way in Way if way is not Way.HINT]
                self.report.line(f"{READER}'s link loses no more answers of store nodes")
        await self._until(f"{READER} has all lines", lambda: len(SCRIPT) - reader.length)
        reader.link.loses_again = ()
        reader.on_event = None

    def _show_event(self, event: ChannelEvent) -> None:
        reader = self._crowd[READER]
        if isinstance(event, Missing):
            for _ in event.messages:
                self.report.line("?     missing: the next line names it as its parent, and waits")
        elif isinstance(event, Message):
            line = f"{event.sender_id:<6}{event.content.decode()}"
            if event.message_id in reader.missed:
                way = reader.link.arrivals.get(event.message_id)
                whom = "another participant" if way is Way.SDS_REPAIR else "a store node"
                line += f"  (back from {whom}, by {way})"
            self.report.line(line)

    async def _talk(self) -> None:
        self.report.chapter("Twelve participants talk; bad links lose a fifth")
        set_losses(self._crowd, self._rng, on=True)
        self._crowd.start_talk()
        self._readings_end = asyncio.Event()
        self._readings = self.tasks.start(self._device.run(self._readings_end))
        await self._for(TALK_S)

    async def _cut_off(self) -> None:
        self.report.chapter(f"{CUT_OFF} is cut off with its participants; both sides go on")
        self._fault_s = time.monotonic()
        self._network.split(CUT_OFF, [who.name for who in CAST if who.home == CUT_OFF])
        self.report.line(f"a device has {BURST_CUT_OFF:,} readings for {DEVICE}")
        burst = self.tasks.start(self._publish(self._device, BURST_CUT_OFF))
        await self._for(PARTITION_S / 2)
        await self._roam()
        await self._for(PARTITION_S / 2)
        await burst
        await self._wait_until_seen()

    async def _roam(self) -> None:
        """Move a participant to the other side, where no node has the messages it received."""
        roamer, listener = self._crowd[ROAMER], self._crowd[LISTENER]
        sent = [sent_id for _ in range(3) if (sent_id := await self._crowd.say(NEIGHBOUR))]
        read_by = partial(_count_awaited, message_ids=sent)
        await self._until(f"{ROAMER} reads {NEIGHBOUR}", lambda: read_by([roamer]))
        self._network.place(ROAMER, CUT_OFF, inside=False)

        def away() -> int:
            return int(self._network.find_node(roamer.look().node) in ("", CUT_OFF))

        await self._until(f"{ROAMER} reaches another node", away)
        place = self._network.find_node(roamer.status.node)
        self.report.line(f"{ROAMER} goes to {place}, where no node has {NEIGHBOUR}'s lines")
        await self._crowd.say(ROAMER)
        await self._until(f"{LISTENER} reads them too", lambda: read_by([listener]))
        repaired = sum(listener.link.arrivals.get(each) is Way.SDS_REPAIR for each in sent)
        self.report.line(f"{LISTENER} asks for them; SDS-Repair brings {repaired:,}")

    async def _heal(self) -> None:
        away_s = time.monotonic() - self._fault_s
        self.report.chapter(f"{CUT_OFF} is reached again")
        lacked = {name: self._find_lacking(name) for name in NODES}
        self.report.line(", ".join(f"{name} lacks {len(of):,}" for name, of in lacked.items()))
        recoveries = []
        for name, of in lacked.items():
            what = f"cut off for {away_s:.0f} s" if name == CUT_OFF else f"{CUT_OFF} not reached"
            recovery = self._recover(name, what, of, await self.cluster.count_stored(name))
            recoveries.append(self.tasks.start(recovery))
        self._network.heal()
        if "reconciliation" not in self._plan.without:
            await self._synchronize(CUT_OFF, DEVICE)
        self._incidents += await asyncio.gather(*recoveries)

    async def _synchronize(self, caller: str, callee: str) -> None:
        """Start a reconciliation of two nodes over everything, if the caller answers."""
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
        await self._crowd[LEAVER].leave()
        self.report.line(f"{LEAVER} closes the program")
        self._fault_s = time.monotonic()
        await self.cluster.nodes[KILLED].kill()
        self.report.line(f"a device has {BURST_OUTAGE:,} readings for {CUT_OFF}")
        await self._publish(await self._new_device(CUT_OFF), BURST_OUTAGE)
        await self._for(OUTAGE_S)
        await self._wait_until_seen()

    async def _bring_back(self) -> None:
        down_s = time.monotonic() - self._fault_s
        self.report.chapter(f"{KILLED} is started again, with what is on its disk")
        lacked = self._find_lacking(KILLED)
        self.report.line(f"{KILLED} lacks {len(lacked):,}")
        await self.cluster.serve(KILLED)
        self.tasks.start(self.cluster.nodes[KILLED].watch())
        await self._crowd[LEAVER].join(self.tasks)
        self.report.line(f"{LEAVER} opens the program again")
        what = f"killed, down for {down_s:.0f} s"
        self._incidents.append(await self._recover(KILLED, what, lacked, Counter()))

    async def _settle(self) -> None:
        """Send nothing new, lose nothing, and wait until all have caught up."""
        self.report.chapter("Nobody says more; whoever lacks something gets it")
        self._readings_end.set()
        await self._readings
        await self._crowd.stop_talk()
        set_losses(self._crowd, self._rng, on=False)
        await self._until("every participant has every line", self._crowd.count_due)
        await self._until("every store has every message", self._count_unequal)
        self._logs: list[Log] = [await each.read_log() for each in self._crowd]
        await self._crowd.leave()
        await self._wait_until_seen()
        await self._until("every store has every message", self._count_unequal)

    def _count_offline(self) -> int:
        return sum(each.look().node is None for each in self._crowd)

    async def _recover(
        self, node: str, what: str, lacked: set[bytes], before: Counter[str]
    ) -> Incident:
        """Wait until a node has what it lacked when a fault ended."""
        began_s, follower = time.monotonic(), self._followers[node]
        is_whole = await self._until(
            f"{node} gets what it lacks", lambda: len(lacked - follower.stored)
        )
        seconds = time.monotonic() - began_s
        ways = await self.cluster.count_stored(node) - before
        return Incident(node, what, len(lacked), ways, seconds, is_whole)

    async def _publish(self, device: Publisher, count: int) -> None:
        """Publish readings in portions, so that none is too old when its turn comes."""
        for _ in range(count // BURST_PORTION):
            await device.publish(new_messages(device.rng, BURST_PORTION))

    def _find_all(self) -> set[bytes]:
        return set().union(*(each.stored for each in self._followers.values()))

    def _find_lacking(self, name: str) -> set[bytes]:
        """Return the hashes that a node lacks and another one holds."""
        return self._find_all() - self._followers[name].stored

    def _count_unequal(self) -> int:
        return sum(len(self._find_lacking(name)) for name in self._followers)

    async def _wait_until_seen(self) -> None:
        """Wait until everything that was acknowledged by now was seen in some node's feed."""
        acknowledged = frozenset(self.history.acks)
        await self._until(
            "nodes show what they acknowledged", lambda: len(acknowledged - self._find_all())
        )

    async def _until(self, what: str, count: Callable[[], int]) -> bool:
        try:
            await self._waiter.until_none(what, count)
        except StuckError as error:
            self.given_up.append(str(error))
            return False
        return True

    async def _for(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds / self._plan.pace, self._waiter.left_s))


def _count_awaited(readers: Collection[Participant], message_ids: Collection[str]) -> int:
    """Return how many copies of some messages have not reached their readers."""
    return sum(not each.has_received([name]) for each in readers for name in message_ids)
