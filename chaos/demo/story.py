"""The story of the demo: what happens to nodes and participants, in order, and the verdict."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from chaos.checker.clients import Endpoint, Publisher, new_messages
from chaos.checker.history import Violation, list_violations
from chaos.demo.cluster import (
    CAST,
    LEAVER,
    LISTENER,
    LOSS,
    NEIGHBOUR,
    NODES,
    READER,
    ROAMER,
    SEND_EVERY_S,
    Certificates,
    count_stored,
    peer_options,
)
from chaos.demo.report import ConsoleReport, Incident
from chaos.link import Way
from chaos.node import NodeProcess
from chaos.tasks import OutOfTimeError, Waiter
from chaos.world import World
from storenode.sds.events import ChannelEvent, Message, Missing

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

TALK_S: Final = 10.0
PARTITION_S: Final = 14.0
OUTAGE_S: Final = 8.0
"""Lengths of the phases at pace 1."""

STATUS_EVERY_S: Final = 5.0
"""Time between two lines with the state of nodes and participants."""

READINGS_EVERY_S: Final = 0.3
READINGS: Final = 80
"""The largest number of readings in one batch of the device."""

BURST_CUT_OFF: Final = 12_000
"""Readings published while a node is cut off: more than the 8,192 that gossip announces to a peer
which joins, so that reconciliation has something to find."""

BURST_OUTAGE: Final = 10_000
"""Readings published while a node is down."""

BURST_PORTION: Final = 500
WHOLE: Final = 0
BROKEN: Final = 1
OUT_OF_TIME: Final = 4
"""Exit codes; the last one: something has not come back when the time limit was reached."""

ENDINGS: Final = {
    BROKEN: "Something was not brought back.",
    OUT_OF_TIME: "The demo ran out of time.",
}

_PENDING_RULES: Final = {"lost", "unequal", "unnamed loss"}
"""Rules that may be broken until everything has come back."""

_END_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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


async def run(plan: Plan, report: ConsoleReport) -> int:
    """Run the story, print the verdict, and return the exit code.

    Ctrl-C, SIGTERM and SIGHUP end it in order, with ``CancelledError``.

    Raises:
        NodeFailedError: A node did not start, or ended by itself.
        NoAnswerError: A node could not be read.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    story = Story(plan, report)
    for number in _END_SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    running = asyncio.create_task(story.run())
    try:
        failure = story.tasks.failure
        await asyncio.wait((running, failure), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            failure.result()
        return await running
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await running
        await story.close()


class Story(World):
    """A run of the demo, with a method for each chapter."""

    def __init__(self, plan: Plan, report: ConsoleReport) -> None:
        super().__init__(
            plan.directory, Random(), Waiter(plan.patience_s, plan.limit_s), SEND_EVERY_S
        )
        self.report = report
        self._plan = plan
        self._certificates = Certificates(plan.directory)
        self._incidents: list[Incident] = []

    async def run(self) -> int:
        """Run all chapters, print the verdict, and return the exit code."""
        await self.play()
        self.report.chapter("Every store is read, and every hash is computed again")
        return self.conclude(await self.judge())

    async def play(self) -> None:
        """Run all chapters, until everything should be everywhere."""
        self.report.legend()
        await self._begin()
        await self._converse()
        await self._talk_over_bad_links()
        await self._cut_off()
        await self._heal()
        await self._kill()
        await self._bring_back()
        await self._settle()

    async def judge(self) -> list[Violation]:
        """Compare stores with what was published, and logs with what was sent."""
        violations = await self.check(self._plan.limit_s)
        refused = [name for name, each in self.followers.items() if each.refusals]
        text = "nodes refused a cursor of their own"
        return violations + list_violations("follow", text, refused)

    def conclude(self, violations: Sequence[Violation]) -> int:
        """Print what was lost and how it came back, and return the exit code.

        It is judged by what stores and logs hold, not by how long that took.
        """
        self.report.incidents(self._incidents)
        ways: Counter[str] = Counter()
        gone = 0
        for each in self.participants.values():
            # A message that was sent under a fault may be named to its own sender as missing.
            missed = (each.link.lost | each.missed) - each.sent.keys()
            arrived = [each.link.arrivals[name] for name in missed & each.link.arrivals.keys()]
            ways.update(map(str, arrived))
            gone += len(missed) - len(arrived)
        self.report.recoveries(ways, gone)
        is_late = any(isinstance(each, OutOfTimeError) for each in self.given_up)
        if violations:
            self.report.failure(map(str, violations), map(str, self.given_up), is_late=is_late)
            is_unfinished = is_late and {each.rule for each in violations} <= _PENDING_RULES
            return OUT_OF_TIME if is_unfinished else BROKEN
        stored = len(self.holdings[0].scanned)
        lines = sum(len(log.sent) for log in self.logs)
        channels = len({log.channel for log in self.logs})
        self.report.success(
            f"The {len(NODES)} stores are equal: {stored:,} messages, by hashes computed anew.",
            f"The {len(CAST)} logs are equal: all {lines:,} lines of {channels} channels.",
        )
        return WHOLE

    async def _begin(self) -> None:
        self.report.chapter("Three nodes start, each with a Postgres, and speak TLS")
        without = self._plan.without
        for name in NODES:
            peers = await self.network.open_peer_wires(name, NODES)
            options = self._certificates.node_options(name) + peer_options(peers, without)
            self.nodes[name] = NodeProcess(self.directory / name, options)
        starting = [self.start_node(name) for name in NODES]
        for result in await asyncio.gather(*starting, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        for name, node in self.nodes.items():
            self.tasks.start(node.watch())
            self.follow(name, await self._open_endpoint(name))
        self._device = await self._new_device(DEVICE)
        for who in CAST:
            config = who.configure(repairs="repair" not in without)
            tls = self._certificates.issue(who.name)
            await self.add_participant(config, who.home, tls)
        self.tasks.start(self._show_state())

    async def _open_endpoint(self, name: str) -> Endpoint:
        wire = await self.network.open_wire(name)
        return Endpoint(wire.address, self._certificates.credentials())

    async def _new_device(self, node: str) -> Publisher:
        return Publisher(
            "device",
            await self._open_endpoint(node),
            partial(self.store, node),
            self.history,
            Random(),
            READINGS_EVERY_S,
            READINGS,
        )

    async def _show_state(self) -> None:
        while True:
            await asyncio.sleep(STATUS_EVERY_S)
            here = [each for each in self.participants.values() if each.has_joined]
            if here:
                stored = ", ".join(
                    f"{name} {len(of.stored):,}" for name, of in self.followers.items()
                )
                synced = sum(each.look().synced for each in here)
                missing = sum(each.status.missing for each in here)
                state = f"{synced} of {len(here)} participants in sync, {missing:,} lines missing"
                self.report.line(f"messages held: {stored}; {state}", "dim")

    async def _converse(self) -> None:
        """Let a reader watch one gap, from the lost line until it is back."""
        self.report.chapter(f"One conversation, as {READER} reads it: her link loses a line")
        await self.join()
        reader = self.participants[READER]
        reader.on_event = self._show_event
        await self.until("all participants follow a node", self._count_offline)
        for number, (name, text) in enumerate(SCRIPT):
            reader.link.loses = partial(next, iter([number == LOST]), False)
            sent = await self.say(name, text)
            unlucky = READER if number == LOST else name  # nothing is lost before a feed is live
            for each in self.members(reader.channel_id):
                if each.name not in (name, unlucky):
                    await self.until("a line arrives", partial(each.count_awaited, [sent]))
            await self._for(LINE_S)
        await self.until(f"{READER} has all lines", lambda: len(SCRIPT) - reader.length)
        reader.on_event = None

    def _show_event(self, event: ChannelEvent) -> None:
        reader = self.participants[READER]
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

    async def _talk_over_bad_links(self) -> None:
        self.report.chapter("Twelve participants talk; bad links lose a fifth")
        self._set_losses(LOSS)
        self.start_talk()
        self.start_publisher(self._device)
        await self._for(TALK_S)

    def _set_losses(self, share: float) -> None:
        for who in CAST:
            if who.has_bad_link:
                self.participants[who.name].link.loses = lambda: self.rng.random() < share

    async def _cut_off(self) -> None:
        self.report.chapter(f"{CUT_OFF} is cut off with its participants; both sides go on")
        self._fault_s = time.monotonic()
        self.network.split(CUT_OFF, [who.name for who in CAST if who.home == CUT_OFF])
        self.report.line(f"a device has {BURST_CUT_OFF:,} readings for {DEVICE}")
        burst = self.tasks.start(self._publish(self._device, BURST_CUT_OFF))
        await self._for(PARTITION_S / 2)
        await self._roam()
        await self._for(PARTITION_S / 2)
        await burst
        await self._wait_until_seen()

    async def _roam(self) -> None:
        """Move a participant to the other side, where no node has the messages it received."""
        roamer, listener = self.participants[ROAMER], self.participants[LISTENER]
        sent = [sent_id for _ in range(3) if (sent_id := await self.say(NEIGHBOUR))]
        await self.until(f"{ROAMER} reads {NEIGHBOUR}", partial(roamer.count_awaited, sent))
        self.network.place(ROAMER, CUT_OFF, inside=False)

        def away() -> int:
            return int(self.network.find_node(roamer.look().node) in ("", CUT_OFF))

        await self.until(f"{ROAMER} reaches another node", away)
        place = self.network.find_node(roamer.status.node)
        self.report.line(f"{ROAMER} goes to {place}, where no node has {NEIGHBOUR}'s lines")
        await self.say(ROAMER)
        await self.until(f"{LISTENER} reads them too", partial(listener.count_awaited, sent))
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
            recovery = self._recover(name, what, of, await self._count_stored(name))
            recoveries.append(self.tasks.start(recovery))
        self.network.heal()
        self._incidents += await asyncio.gather(*recoveries)

    async def _kill(self) -> None:
        self.report.chapter(f"{KILLED} is killed; its participants go elsewhere")
        await self.participants[LEAVER].leave()
        self.report.line(f"{LEAVER} closes the program")
        self._fault_s = time.monotonic()
        self.nodes[KILLED].kill()
        self.report.line(f"a device has {BURST_OUTAGE:,} readings for {CUT_OFF}")
        await self._publish(await self._new_device(CUT_OFF), BURST_OUTAGE)
        await self._for(OUTAGE_S)
        await self._wait_until_seen()

    async def _bring_back(self) -> None:
        down_s = time.monotonic() - self._fault_s
        self.report.chapter(f"{KILLED} is started again, with what is on its disk")
        lacked = self._find_lacking(KILLED)
        self.report.line(f"{KILLED} lacks {len(lacked):,}")
        await self.start_node(KILLED)
        self.tasks.start(self.nodes[KILLED].watch())
        await self.participants[LEAVER].join(self.tasks)
        self.report.line(f"{LEAVER} opens the program again")
        what = f"killed, down for {down_s:.0f} s"
        self._incidents.append(await self._recover(KILLED, what, lacked, Counter()))

    async def _settle(self) -> None:
        """Send nothing new, lose nothing, and wait until all have caught up."""
        self.report.chapter("Nobody says more; whoever lacks something gets it")
        self._set_losses(0.0)
        await self.settle()

    def _count_offline(self) -> int:
        return sum(each.look().node is None for each in self.participants.values())

    async def _recover(
        self, node: str, what: str, lacked: set[bytes], before: Counter[str]
    ) -> Incident:
        """Wait until a node has what it lacked when a fault ended."""
        began_s, follower = time.monotonic(), self.followers[node]
        is_whole = await self.until(
            f"{node} gets what it lacks", lambda: len(lacked - follower.stored)
        )
        seconds = time.monotonic() - began_s
        ways = await self._count_stored(node) - before
        return Incident(node, what, len(lacked), ways, seconds, is_whole)

    async def _count_stored(self, node: str) -> Counter[str]:
        return await asyncio.to_thread(count_stored, self.nodes[node].metrics)

    async def _publish(self, device: Publisher, count: int) -> None:
        """Publish readings in portions, so that none is too old when its turn comes."""
        for _ in range(count // BURST_PORTION):
            await device.publish(new_messages(device.rng, BURST_PORTION))

    def _find_lacking(self, name: str) -> set[bytes]:
        """Return the hashes that a node lacks and another one holds."""
        return self.find_all() - self.followers[name].stored

    async def _wait_until_seen(self) -> None:
        """Wait until everything that was acknowledged by now was seen in some node's feed."""
        acknowledged = frozenset(self.history.acks)
        await self.until(
            "nodes show what they acknowledged", lambda: len(acknowledged - self.find_all())
        )

    async def _for(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds / self._plan.pace, self.waiter.left_s))
