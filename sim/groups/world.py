"""A whole run of a group: faults first, then peace, and in the end all logs must be the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sim.dice import Dice
from sim.groups.faults import GroupFaultInjector
from sim.groups.judge import GroupJudge
from sim.groups.limits import CHECK_EVERY_EVENTS, MAX_GROUP_EVENTS
from sim.groups.member import Member
from sim.groups.scenario import NO_FAULTS, GroupScenario
from sim.groups.spoken import Spoken
from sim.groups.store import StoreNode
from sim.judge import Violation
from sim.limits import NS_PER_MS, NS_PER_S, START_NS
from sim.network import Host, Network
from sim.timeline import Timeline
from sim.trace import Trace

_LOOK_EVERY_NS: Final = 500 * NS_PER_MS
_PATIENCE_ROUNDS: Final = 40


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """What a run came to.

    ``settling_ns``: from the end of the faults until all logs were equal. ``broadcasts``: of all
    participants, resends, sync messages and answers included; ``heard``: how often one of them
    came to somebody, from others or from a store. ``lost``: messages that somebody was told are
    lost and lacks. ``wrong`` acknowledgements by filters, of ``expected``. ``marks``: how often
    something rare happened.
    """

    digest: str
    events: int
    virtual_ns: int
    settling_ns: int
    members: int
    stores: int
    messages: int
    broadcasts: Mapping[str, int]
    heard: int
    lost: int
    wrong: int
    expected: float
    crashes: int
    marks: Mapping[str, int]


class GroupWorld:
    """All of it. `run` goes from the beginning to the end, once."""

    def __init__(
        self, scenario: GroupScenario, dice: Dice, sink: Callable[[str], None] | None = None
    ) -> None:
        self.scenario = scenario
        self.dice = dice
        self.timeline = Timeline(START_NS)
        self.trace = Trace(self.timeline, sink)
        self.judge = GroupJudge()
        self.marks: Counter[str] = Counter()
        self.broadcasts: Counter[str] = Counter()
        self.network = Network(self.timeline, dice, self.trace, self.marks)
        self.network.weather.delay_ns = scenario.network_delay_ns
        self.faults_now = scenario.faults
        self.stores = [StoreNode(self, number) for number in range(scenario.stores)]
        self.members = [Member(self, number) for number in range(scenario.size)]
        hosts: list[Host] = [*self.stores, *self.members]
        for host in hosts:
            self.network.add(host)
        self.heard = 0
        self._turn = 0

    def run(self) -> GroupSummary:
        """From the beginning to the end.

        Raises:
            Violation: something that must hold does not.
            AssertionError: an invariant of a channel, or a bound, is broken.
        """
        self._begin()
        faults = GroupFaultInjector(self)
        faults.start()
        self._pass_until(START_NS + self.scenario.faults_ns)
        self._calm(faults)
        calm_ns = self.timeline.now_ns
        self._settle()
        return self._summary(self.timeline.now_ns - calm_ns)

    # For those who act in it

    def mark(self, what: str) -> None:
        """Something rare happened."""
        self.marks[what] += 1

    def relay(self, sender: str, spoken: Spoken) -> None:
        """Let everybody else hear a broadcast, if that is a way at all."""
        if self.scenario.relay:
            for member in self.members:
                if member.name != sender:
                    self.network.post(sender, member.name, spoken)

    def restart_later(self, member: Member) -> None:
        """A participant has crashed; somebody starts it again."""
        delay_ns = int(self.dice.random() * self.dice.choice((1, 5, 15)) * NS_PER_S)
        self.timeline.after(delay_ns, lambda: self._start(member))

    def fail_soon(self, store: StoreNode) -> None:
        """A store goes away at this moment, and comes back."""
        self.mark("a store crashed between a commit and its acknowledgement")
        self.timeline.soon(store.crash)
        self.timeline.after(int(self.dice.uniform(1, 5) * NS_PER_S), store.restart)

    # The phases

    def _begin(self) -> None:
        scenario, dice = self.scenario, self.dice
        for store in self.stores:
            store.start()
        for member, join_ns in zip(self.members, scenario.joins_ns, strict=True):
            self._start_at(member, START_NS + join_ns)
        said = 0
        while said < scenario.messages:
            at_ns = START_NS + int(dice.uniform(0, scenario.talk_ns))
            for _ in range(min(dice.randint(1, scenario.burst), scenario.messages - said)):
                said += 1
                self._say_at(at_ns + int(dice.uniform(0, 1) * NS_PER_S), said)

    def _start_at(self, member: Member, time_ns: int) -> None:
        self.timeline.at(time_ns, lambda: self._start(member))

    def _say_at(self, time_ns: int, number: int) -> None:
        def act() -> None:
            up = [member for member in self.members if member.channel is not None]
            if up:
                self.dice.choice(up).say(b"message %d" % number)

        self.timeline.at(time_ns, act)

    def _start(self, member: Member) -> None:
        if member.channel is None:
            member.boot()

    def _calm(self, faults: GroupFaultInjector) -> None:
        """End the faults: clocks are right, everybody is there, nobody says anything any more."""
        self.trace.note("world", "is calm from now on")
        self.faults_now = NO_FAULTS
        faults.stop()
        for store in self.stores:
            store.restart()
        for member in self.members:
            self._start(member)

    def _settle(self) -> None:
        """Wait until all logs are equal, and nobody waits for anything."""
        deadline_ns = self.timeline.now_ns + self._patience_ns()
        while unequal := self._unequal():
            if self.timeline.now_ns > deadline_ns:
                raise Violation(f"the logs do not become equal: {unequal}")
            self._pass_until(self.timeline.now_ns + _LOOK_EVERY_NS)
        self.trace.note("world", "is equal")
        for member in self.members:
            self._check(member)

    def _patience_ns(self) -> int:
        config = self.scenario.config
        longest_ms = config.sync_at_least_ms + config.resend_possible_ms + config.missing_every_ms
        if config.repair is not None:
            longest_ms += config.repair.request_max_ms
        return _PATIENCE_ROUNDS * longest_ms * NS_PER_MS

    def _unequal(self) -> str:
        for member in self.members:
            channel = member.channel
            assert channel is not None
            if channel.incoming.waiting or channel.incoming.wants:
                return f"{member.name} waits for {len(channel.incoming.wants)} messages"
            if len(channel.outgoing):
                return f"{member.name} has {len(channel.outgoing)} unacknowledged messages"
        return self.judge.unequal([member.view for member in self.members])

    def _pass_until(self, time_ns: int) -> None:
        timeline, reached = self.timeline, []
        timeline.at(time_ns, lambda: reached.append(True))
        while not reached:
            assert timeline.step(), "nothing is left to happen"
            if not timeline.events % CHECK_EVERY_EVENTS:
                self._look_around()

    def _look_around(self) -> None:
        events = self.timeline.events
        assert events < MAX_GROUP_EVENTS, f"after {events} events: something goes round in circles"
        self._turn = (self._turn + 1) % len(self.members)
        self._check(self.members[self._turn])

    def _check(self, member: Member) -> None:
        if member.channel is not None:
            self.judge.check(member.view, member.channel, self.timeline.now_ns)

    def _summary(self, settling_ns: int) -> GroupSummary:
        everything = set().union(*(member.view.ids for member in self.members))
        lost = [everything - member.view.ids for member in self.members]
        return GroupSummary(
            digest=self.trace.digest,
            events=self.timeline.events,
            virtual_ns=self.timeline.now_ns - START_NS,
            settling_ns=settling_ns,
            members=len(self.members),
            stores=len(self.stores),
            messages=len(everything),
            broadcasts=dict(sorted(self.broadcasts.items())),
            heard=self.heard,
            lost=sum(map(len, lost)),
            wrong=self.judge.wrong.found,
            expected=round(self.judge.wrong.expected, 3),
            crashes=sum(member.crashes for member in self.members),
            marks=dict(sorted(self.marks.items())),
        )
