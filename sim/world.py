"""A whole run: faults first, then peace, and in the end every store must hold the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from reconcile.ids import SyncId, SyncIds
from reconcile.session import Result
from sim.asking import ask_nodes
from sim.covering import ask_coverage, read_coverage
from sim.database import Database
from sim.dice import Dice, happens
from sim.faults import FaultInjector
from sim.intake import PUBSUB, Client
from sim.judge import Judge, Violation
from sim.limits import (
    CHECK_EVERY_EVENTS,
    CLOSING_ROUNDS,
    MAX_EVENTS,
    MAX_WAITING_EVENTS,
    NS_PER_S,
    START_NS,
)
from sim.lookups import Channel, Spoken, seek
from sim.messages import CANDIDATES, Message, forged_halves, message_of
from sim.node import MAX_DRIFT_NS, Node
from sim.peers import described
from sim.scenario import Scenario
from sim.stage import Stage
from store.domain.admission import Admission
from store.domain.ports import PeerAddress, Source, SyncEnding, SyncOutcome
from storenode.message.rules import Policy

_T = TypeVar("_T")

_UNDER_WAY_NS: Final = 25 * NS_PER_S
"""From the end of all faults: what a client had sent may still be stored, and a call that ended
unnoticed waits so long for its first frame (`FIRST_FRAME_S`)."""

_LONGEST_REST_NS: Final = 400 * NS_PER_S
_TOPICS: Final = ("/sim/1/a/proto", "/sim/1/b/proto", "/sim/1/c/proto")
_ALLOWANCE_BYTES: Final = 80
_SDS_BYTES: Final = 240


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run came to.

    ``settling_ns``: from the end of the faults until all were equal. ``endings`` are of sessions,
    as those saw it who began them; ``compared`` of them were compared with the truth. ``marks``:
    how often something rare happened (`sim.marks`).
    """

    digest: str
    events: int
    virtual_ns: int
    settling_ns: int
    nodes: int
    messages: int
    acknowledged: int
    sessions: int
    endings: dict[str, int]
    compared: int
    crashes: int
    marks: Mapping[str, int]


class World(Stage):
    """All of it. `run` goes from the beginning to the end, once."""

    max_events = MAX_EVENTS
    check_every = CHECK_EVERY_EVENTS

    def __init__(
        self,
        scenario: Scenario,
        dice: Dice,
        sink: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(dice, scenario.network_delay_ns, sink)
        self.scenario = scenario
        self.judge = self.make_judge()
        self.faulty = True
        self.endings = dict.fromkeys(map(str, SyncEnding), 0)
        self.databases = [self.make_database(number) for number in range(max(scenario.stores) + 1)]
        self.nodes = [
            self.make_node(number, self.databases[store])
            for number, store in enumerate(scenario.stores)
        ]
        self.clients = [Client(self, f"c{number}") for number in range(scenario.clients)]
        self.connect([*self.nodes, *self.clients])
        self.channel = Channel(self)
        self._actors: list[asyncio.Task[None]] = []
        self._changed = True

    def run(self) -> Summary:
        """From the beginning to the end.

        Raises:
            Violation: something that must hold does not.
            AssertionError: a machine's invariant, or a bound, is broken.
        """
        with self.loop.running():
            return self._run()

    def _run(self) -> Summary:
        self._fill()
        for node in self.nodes:
            node.boot()
        faults = FaultInjector(self)
        faults.start()
        self._act(client.run() for client in self.clients)
        self._act([ask_nodes(self)] if self.scenario.ask_every_ns else ())
        self._act([seek(self)] if self.scenario.sds_share else ())
        self._act([read_coverage(self, self.own_dice())])
        self._let_pass(self.scenario.faults_ns)
        self._calm(faults)
        calm_ns = self.timeline.now_ns
        self._let_pass(_UNDER_WAY_NS)
        self._settle()
        settled_ns = self.timeline.now_ns
        self._close()
        return self._summary(settled_ns - calm_ns)

    # For those who act in it

    def make_judge(self) -> Judge:
        """The judge of the run."""
        return Judge(self.loop.fail)

    def make_node(self, number: int, database: Database) -> Node:
        """One of the nodes."""
        return Node(self, number, database)

    def drift_ppm(self) -> int:
        """How fast a node's steady clock goes."""
        most = self.scenario.faults.drift_ppm
        return self.dice.randint(-most, most) if most else 0

    def own_dice(self) -> Dice:
        """Chance for what only looks on: it takes none from the others."""
        return copy(self.dice)

    @property
    def message_limit_bytes(self) -> int:
        """Of nodes that take small messages only."""
        sds = _SDS_BYTES if self.scenario.sds_share else 0
        return self.scenario.message_bytes + _ALLOWANCE_BYTES + sds

    def message_limit(self, number: int) -> int:
        """The largest message that a node takes."""
        small = self.message_limit_bytes
        return small if number in self.scenario.small_nodes else 4 * small

    def compose(self, text: bytes, time_ns: int, *, ephemeral: bool = False) -> Message:
        """A message, perhaps of SDS; some are too large for some nodes."""
        dice, size = self.dice, self.scenario.message_bytes
        large = dice.random() < self.scenario.large_share
        payload = text + bytes(2 * self.message_limit_bytes if large else dice.randint(0, size))
        content = dice.choice(_TOPICS)
        if not happens(dice, self.scenario.sds_share):
            return message_of(PUBSUB, content, payload, time_ns, ephemeral=ephemeral)
        parents = self.channel.parents()
        payload = self.channel.payload(text, parents, payload)
        message = message_of(PUBSUB, content, payload, time_ns, ephemeral=ephemeral)
        self.channel.spoken[text] = Spoken(text, message.digest, parents)
        return message

    def database_at(self, host: str) -> Database:
        """What a node works on."""
        return next(node.database for node in self.nodes if node.name == host)

    def restart_later(self, node: Node) -> None:
        """A node has crashed; somebody starts it again."""
        delay_ns = int(self.dice.random() * self.dice.choice((1, 20, 45)) * NS_PER_S)
        self.timeline.after(delay_ns, lambda: self._start(node))

    def ended(self, outcome: SyncOutcome) -> None:
        """A session ended that a node had begun."""
        self.endings[str(outcome.ending)] += 1
        self._changed = True

    # The phases

    def make_database(self, number: int) -> Database:
        """One of the stores."""
        database = Database(
            f"store-{number}", self.timeline, self.dice, self.judge, list(self.scenario.lengths_ns)
        )
        database.weather.delay_ns = self.scenario.disk_delay_ns
        return database

    def _fill(self) -> None:
        """Give every store a part of a common history, as if it had been there all along."""
        scenario, dice = self.scenario, self.dice
        newest_ns = START_NS - scenario.offset_ns
        moments = [
            newest_ns - int(scenario.history_ns * dice.random()) for _ in range(scenario.moments)
        ]
        for number in range(scenario.history):
            message = self.compose(b"history %d" % number, dice.choice(moments))
            self.judge.make(message)
            for store, database in enumerate(self.databases):
                if dice.random() < scenario.share and self._fits(message, store):
                    _restore(database, [message])
        if scenario.forged:
            self._forge(newest_ns)

    def _forge(self, newest_ns: int) -> None:
        """Give stores in turn one and the other of two sets that have the same XOR."""
        candidates = [
            self.compose(b"forged", newest_ns - 1 - number) for number in range(CANDIDATES)
        ]
        halves = forged_halves([message.digest for message in candidates])
        for store, database in enumerate(self.databases):
            messages = [candidates[place] for place in halves[store % 2]]
            for message in messages:
                self.judge.make(message)
            _restore(database, messages)
            self.judge.forged |= {message.digest for message in messages}

    def _fits(self, message: Message, store: int) -> bool:
        """Would the nodes of a store have taken it?"""
        sizes = [
            self.message_limit(number)
            for number, other in enumerate(self.scenario.stores)
            if other == store
        ]
        return message.size_bytes <= min(sizes)

    def _act(self, work: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Begin what goes on until the faults end."""
        self._actors += [self.loop.begin(None, each) for each in work]

    def _let_pass(self, duration_ns: int) -> None:
        self.pass_until(self.timeline.now_ns + duration_ns)

    def look_around(self) -> None:
        """Verify every host, and what the judge knows."""
        assert self.timeline.waiting <= MAX_WAITING_EVENTS, "too much is under way"
        self.network.check()
        self.judge.check()
        for node in self.nodes:
            node.check()

    def _start(self, node: Node) -> None:
        if node.process is None:
            node.boot()

    def _calm(self, faults: FaultInjector) -> None:
        """End the faults: clocks are right, all nodes run, nobody publishes any more."""
        self.trace.note("world", "is calm from now on")
        self.faulty = False
        faults.stop()
        for actor in self._actors:
            actor.cancel()
        for node in self.nodes:
            self._start(node)

    def _settle(self) -> None:
        """Wait until all are equal."""
        deadline_ns = self.timeline.now_ns + self._patience_ns()
        while True:
            if self._changed:
                self._changed = False
                if not (unequal := self._unequal()):
                    break
            if self.timeline.now_ns > deadline_ns:
                raise Violation(f"the stores do not become equal: {unequal}")
            self.step()
        self.trace.note("world", "is equal")

    def _patience_ns(self) -> int:
        """How long that may take: peers rest after failures, and are chosen at random."""
        scenario = self.scenario
        differences = len(self.judge.made)
        sessions = 30 + 3 * differences // scenario.limits.max_differences
        ahead_ns = scenario.faults.skew_ns + 60 * NS_PER_S + MAX_DRIFT_NS
        return _LONGEST_REST_NS + ahead_ns + sessions * scenario.nodes * scenario.wide_ns

    def _unequal(self) -> str:
        """Which neighbours do not hold the same, as far as both may; empty if all do."""
        newest = [database.ids[-1][0] for database in self.databases if database.ids]
        if max(newest, default=0) > self.timeline.now_ns - self.scenario.offset_ns - NS_PER_S:
            return "the newest message is still too new to be compared"
        for node in self.nodes:
            for number in self.scenario.peers[node.number]:
                for one, other in ((node, self.nodes[number]), (self.nodes[number], node)):
                    missing = self._missing(one, other)
                    if missing:
                        return f"{other.name} lacks {missing} messages of {one.name}"
        return ""

    def _missing(self, one: Node, other: Node) -> int:
        """How many messages of a node another should hold and does not."""
        horizon_ns = max(node.policy().horizon_ns or 0 for node in (one, other))
        limit = self.message_limit(other.number)
        return sum(
            timestamp >= horizon_ns
            and digest not in other.database.held
            and (self.scenario.all_summed or digest not in self.judge.forged)
            and self.judge.made[digest].size_bytes <= limit
            for timestamp, digest in one.database.ids
        )

    def _close(self) -> None:
        """Once more each with each: nothing may be found, and nothing be left over."""
        for node in self.nodes:
            for peer in node.peers:
                outcome = self._session(node, peer)
                if outcome.ending in (SyncEnding.ABORTED, SyncEnding.REFUSED):
                    continue
                assert node.peering is not None
                result = node.peering.exchange.last[outcome.peer_node_id].result
                what = f"{node.name} and {peer.host}: {described(outcome)}"
                assert result is not None, what
                refused = [
                    *self._too_large(result.to_send, peer.host),
                    *self._too_large(result.to_receive, node.name),
                ]
                found = {digest for _, digest in _found(result)}
                forged = len((found & self.judge.forged) - set(refused))
                assert outcome.differences == len(refused) + forged, what
                assert not (forged and self.scenario.all_summed), what
                assert refused or forged or result.rounds <= CLOSING_ROUNDS, what
        self.look_around()
        for database in self.databases:
            database.check()
        for node in self.nodes:
            if node.process is not None:
                work = ask_coverage(node, node.process, self.own_dice())
                self._await(node.process.begin_task("coverage", work))
        for node in self.nodes:
            if node.peering is not None and node.process is not None:
                self._await(node.process.begin_task("stop", node.peering.stop()))

    def _too_large(self, ids: SyncIds, host: str) -> list[bytes]:
        """Those that are too large for a node: it will always lack them."""
        (limit,) = (self.message_limit(each.number) for each in self.nodes if each.name == host)
        return [digest for _, digest in ids if self.judge.made[digest].size_bytes > limit]

    def _session(self, node: Node, peer: PeerAddress) -> SyncOutcome:
        assert node.peering is not None
        return self._await(node.peering.ask(peer, 0)).outcome

    def _await(self, task: asyncio.Task[_T]) -> _T:
        while not task.done():
            self.step()
        return task.result()

    def _summary(self, settling_ns: int) -> Summary:
        return Summary(
            digest=self.trace.digest,
            events=self.timeline.events,
            virtual_ns=self.timeline.now_ns - START_NS,
            settling_ns=settling_ns,
            nodes=len(self.nodes),
            messages=len(self.judge.made),
            acknowledged=len(self.judge.acknowledged),
            sessions=sum(self.endings.values()),
            endings=self.endings,
            compared=self.judge.compared,
            crashes=sum(node.crashes for node in self.nodes),
            marks=dict(sorted(self.marks.items())),
        )


def _found(result: Result) -> list[SyncId]:
    return [*result.to_send, *result.to_receive]


def _restore(database: Database, messages: list[Message]) -> None:
    """Store messages as if they had been there all along."""
    admission = Admission(Policy(max_drift_ns=None), START_NS, Source.RESTORE)
    admission.admit([message.encoded for message in messages])
    database.add(admission.admitted.batch, 0)
