"""The simulated world of a group: faults first, then peace; at the end all logs must be equal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from sim.database import Database
from sim.faults import Fault, FaultInjector
from sim.groups.forger import Forger
from sim.groups.judge import GroupJudge
from sim.groups.member import LEAVE_NS, Member
from sim.groups.scenario import GroupScenario
from sim.groups.store import StoreNode, encoded
from sim.intake import Publish
from sim.limits import CHECK_EVERY_GROUP_EVENTS, MAX_GROUP_EVENTS, NS_PER_MS, NS_PER_S, START_NS
from sim.node import Node
from sim.node_world import NodeWorld
from sim.rng import Rng, happens
from sim.scenario import Faults
from storenode.sds.aio.transport import Fetched, Outbound

_PATIENCE_ROUNDS: Final = 40
_MOST_CUT_OFF: Final = 20
"""Participants of a large group that a partition cuts off."""


class GroupWorld(NodeWorld):
    """Participants of one channel, and store nodes.

    Attributes:
        group: the scenario.
        sent: what was published of the channel, by message hash.
    """

    max_events = MAX_GROUP_EVENTS
    check_every = CHECK_EVERY_GROUP_EVENTS

    def __init__(
        self, scenario: GroupScenario, rng: Rng, sink: Callable[[str], None] | None = None
    ) -> None:
        self.group = scenario
        super().__init__(scenario.nodes, rng, sink)
        self.group_judge = GroupJudge(scenario.config.filter, lambda: self.timeline.now_ns)
        self.sent: dict[bytes, Fetched] = {}
        self.forger = Forger(self)
        self.members = [Member(self, number) for number in range(scenario.size)]
        self.connect([self.forger, *self.members])
        self._turn = 0
        self._number = 0
        self._closing = False
        self.over = False

    def make_node(self, number: int, database: Database) -> Node:
        """Create a store node."""
        return StoreNode(self, number, database)

    def play(self) -> int:
        """Let faults happen, then wait until all logs are equal; at last all leave."""
        faults = GroupFaultInjector(self)
        try:
            self._begin()
            faults.start()
            self.pass_for(self.scenario.faults_ns)
            self._end_faults(faults)
            calm_ns = self.timeline.now_ns
            self._wait_for_logs()
            settled_ns = self.timeline.now_ns
            self._part()
            if any(self.scenario.peers):
                self._wait_until_equal(self._patience_ns())
                self._close()
            self._count_group()
            return settled_ns - calm_ns
        finally:
            self.over = self._closing = True
            faults.stop()

    # For those who act in it

    @property
    def faults_now(self) -> Faults:
        """The faults of this moment."""
        return self.scenario.faults if self.faulty else Faults()

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Fail the run with what the judge raises in a block inside a participant."""
        try:
            yield
        except Exception as error:
            self.loop.fail(error)
            raise

    def relay(self, sender: str, message: Fetched) -> None:
        """Send a broadcast to all other participants, unless they follow stores."""
        self.forger.saw(message)
        self._post(sender, message)

    def spread(self, sender: str, payload: bytes, time_ns: int) -> None:
        """Send a broadcast of an outsider to all participants and stores."""
        message = self.taken(Outbound(payload, time_ns))
        self._post(sender, message)
        letter = Publish(0, (encoded(message).encoded,))
        for node in self.nodes:
            node.receive(sender, letter)

    def taken(self, message: Outbound) -> Fetched:
        """Return a message as its receivers have it, and note that it was made."""
        made = encoded(message)
        if message.ephemeral:
            return Fetched(message.payload, b"", message.timestamp_ns)
        self.judge.make(made)
        taken = Fetched(message.payload, made.digest, message.timestamp_ns)
        return self.sent.setdefault(made.digest, taken)

    def _post(self, sender: str, message: Fetched) -> None:
        if not self.group.follow:
            for member in self.members:
                if member.name != sender:
                    self.network.post(sender, member.name, message)

    def next_number(self) -> int:
        """Return a new number."""
        self._number += 1
        return self._number

    def restart_later(self, node: Node) -> None:
        """Start a crashed store node again after a while."""
        self.timeline.after(int(self.rng.uniform(0.1, 5) * NS_PER_S), lambda: self._start(node))

    def return_later(self, member: Member) -> None:
        """Start a crashed participant again after a while."""
        delay_ns = int(self.rng.random() * self.rng.choice((1, 5, 15)) * NS_PER_S)
        self.timeline.after(delay_ns, lambda: None if self._closing else member.boot())

    # The phases

    def _begin(self) -> None:
        scenario, rng = self.group, self.rng
        for node in self.nodes:
            node.boot()
        for member, join_ns in zip(self.members, scenario.joins_ns, strict=True):
            self.timeline.at(START_NS + join_ns, member.boot)
        said = 0
        while said < scenario.messages:
            at_ns = START_NS + int(rng.uniform(0, scenario.talk_ns))
            for _ in range(min(rng.randint(1, scenario.burst), scenario.messages - said)):
                said += 1
                self._say_at(at_ns + int(rng.uniform(0, 1) * NS_PER_S), said)

    def _say_at(self, time_ns: int, number: int) -> None:
        def act() -> None:
            up = [member for member in self.members if member.stays]
            if up:
                self.rng.choice(up).say(b"message %d" % number)

        self.timeline.at(time_ns, act)

    def _end_faults(self, faults: GroupFaultInjector) -> None:
        """End the faults: clocks are right, all participants run and publish no more."""
        self.trace.note("world", "is calm from now on")
        self.faulty = False
        faults.stop()
        for node in self.nodes:
            self._start(node)
        for member in self.members:
            member.boot()

    def _wait_for_logs(self) -> None:
        self.wait_until_settled(
            self._unequal_logs, "the logs do not become equal", self._longest_ns()
        )
        self.trace.note("world", "is equal")
        for member in self.members:
            self._check(member)

    def _longest_ns(self) -> int:
        config = self.group.config
        longest_ms = config.sync_at_least_ms + config.resend_possible_ms + config.missing_every_ms
        if config.repair is not None:
            longest_ms += config.repair.request_max_ms
        # A clock that was ahead is followed by messages; what is newer than the time must wait.
        ahead_ns = min(self.scenario.faults.skew_ns, config.max_clock_ahead_ms * NS_PER_MS)
        return _PATIENCE_ROUNDS * longest_ms * NS_PER_MS + ahead_ns

    def _unequal_logs(self) -> str:
        for member in self.members:
            participant = member.participant
            if participant is None:
                return f"{member.name} is not there"
            core, view = participant.core, member.view
            for count, what in (
                (len(core.incoming.waiting) or len(core.incoming.wants), "messages that wait"),
                (len(core.outgoing), "unacknowledged messages"),
                (len(participant.ledger.outbox), "unpublished messages"),
                (view.keys != view.shown_keys, "messages that it has not shown"),
            ):
                if count:
                    return f"{member.name} has {count} {what}"
        return self.group_judge.unequal([member.view for member in self.members])

    def _part(self) -> None:
        """Stop all participants: nothing may be left of them."""
        self._closing = True
        for member in self.members:
            if member.stays:
                member.leave()
        self.pass_until(self.timeline.now_ns + LEAVE_NS + NS_PER_S)
        for member in self.members:
            assert member.life.ended, f"{member.name} has not left"
            saved = [row["message_id"].decode() for row in member.disk.in_order()]
            shown = [message_id for _, message_id in member.view.shown_keys]
            assert saved == shown, f"{member.name} has not saved what it has shown"

    def look_around(self) -> None:
        """Verify the nodes, and one participant after the other."""
        self.judge.check()
        for node in self.nodes:
            node.check()
        self._turn = (self._turn + 1) % len(self.members)
        self._check(self.members[self._turn])

    def _check(self, member: Member) -> None:
        if member.participant is not None:
            self.group_judge.check(member.view, member.participant)

    def _count_group(self) -> None:
        everything = set().union(*(member.view.ids for member in self.members))
        lost = [everything - member.view.ids for member in self.members]
        self.counts.update(
            members=len(self.members),
            stores=len(self.nodes),
            messages=len(everything),
            lost=sum(map(len, lost)),
            deceived=sum(len(member.view.deceived) for member in self.members),
            wrong=self.group_judge.wrong.found,
            crashes=sum(member.crashes for member in self.members),
        )
        self.counts["wrong, expected in thousandths"] += round(
            1_000 * self.group_judge.wrong.expected
        )


class GroupFaultInjector(FaultInjector):
    """Breaks participants, their store nodes and their network."""

    _world: GroupWorld

    def kinds(self) -> Sequence[tuple[int, Fault]]:
        """Return what is done from time to time, with its mean distance in ns; 0: never."""
        faults = self._faults
        return (
            (faults.crash_every_ns, self._crash),
            (faults.leave_every_ns, self._leave),
            (faults.disk_every_ns, self._lose_disk),
            (faults.outage_every_ns if self._world.nodes else 0, self._outage),
            (faults.partition_every_ns, self._partition),
            (faults.jump_every_ns if faults.skew_ns else 0, self._jump),
        )

    def skew_all(self) -> None:
        """Set the clocks of all participants."""
        for member in self._world.members:
            member.jump(self.offset_ns())

    def stop(self) -> None:
        """Let everything go right from now on."""
        super().stop()
        for member in self._world.members:
            member.disk.away = False
            if member.clock.offset_ns:
                member.jump(0)

    async def choose_moment(self) -> None:
        """Take any moment: something is always under way."""

    async def _crash(self) -> None:
        up = [member for member in self._world.members if not member.life.ended]
        if up:
            self._rng.choice(up).crash("by force")

    async def _leave(self) -> None:
        up = [member for member in self._world.members if member.stays]
        if up:
            self._rng.choice(up).leave()

    async def _lose_disk(self) -> None:
        disk = self._rng.choice(self._world.members).disk
        disk.away = True
        await asyncio.sleep(self._rng.uniform(0.1, 5))
        disk.away = False

    async def _outage(self) -> None:
        world, rng = self._world, self._rng
        for node in world.nodes if happens(rng, 0.5) else [rng.choice(world.nodes)]:
            if node.process is not None:
                node.crash("by force")

    async def _partition(self) -> None:
        world = self._world
        names = [member.name for member in world.members] + [each.name for each in world.nodes]
        world.cut_off(names, min(len(names) - 1, _MOST_CUT_OFF))
        await asyncio.sleep(self._rng.uniform(0, 1) * 10)
        world.make_whole()

    async def _jump(self) -> None:
        self._rng.choice(self._world.members).jump(self.offset_ns())
