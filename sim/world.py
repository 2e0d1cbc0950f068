"""The world of a run: faults first, then peace; at the end all stores and all logs must be equal.

A scenario says who acts in it: nodes on their databases, clients and operators, peers that lie,
participants of a channel, and one who forges their messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from typing import Final

from reconcile.ids import SyncIds
from sim.coverage import ask_coverage, read_coverage
from sim.database import Database
from sim.faults import FaultInjector
from sim.gossip import SPREAD_S
from sim.gossip_judge import GossipChecker
from sim.groups.judge import GroupJudge
from sim.groups.link import encoded
from sim.groups.member import LEAVE_NS, Member
from sim.intake import PUBSUB, Client, ask_node
from sim.judge import Judge, ViolationError
from sim.liars import Forger, Liar
from sim.limits import (
    CHECK_EVERY_EVENTS,
    CHECK_EVERY_LARGE_EVENTS,
    CLOSING_ROUNDS,
    MAX_EVENTS,
    MAX_LARGE_EVENTS,
    MAX_WAITING_EVENTS,
    NS_PER_MS,
    NS_PER_S,
    START_NS,
)
from sim.lookups import Channel, Spoken, seek
from sim.messages import CANDIDATES, Message, forged_halves, message_of
from sim.node import Node
from sim.peers import described
from sim.rng import Random, happens
from sim.scenario import HOUR_NS, Faults, GossipScenario, GroupScenario, Scenario
from sim.stage import Stage
from store.domain.admission import Admission
from store.domain.ports import PeerAddress, Source
from store.sync.session.report import SessionReport, SyncEnding
from storenode.message.rules import Policy
from storenode.sds.aio.transport import Fetched, Outbound

_UNDER_WAY_NS: Final = 25 * NS_PER_S
"""The time after the end of all faults in which messages of clients may still be stored, and a call
that ended unnoticed waits for its first frame (`FIRST_FRAME_S`)."""

_LONGEST_REST_NS: Final = 400 * NS_PER_S
_COVERAGE_EVERY_NS: Final = 6 * NS_PER_S
_TOPICS: Final = ("/sim/1/a/proto", "/sim/1/b/proto", "/sim/1/c/proto")
_NOT_EQUAL: Final = "the stores do not become equal"
_GOSSIP_PATIENCE_NS: Final = 600 * NS_PER_S
"""Cut-offs last for minutes, and a peer that refused is not asked again for half a minute."""

_GOSSIP_KEEPALIVE_NS: Final = 15 * NS_PER_S
_REST_NS: Final = 75 * NS_PER_S
"""A pause after which every dead stream has been replaced."""

_KNOWN: Final = 0.1
"""Share of the messages of clients that were published before, or have the hash of one that was."""

_NEWEST: Final = 3
_PATIENCE_ROUNDS: Final = 15
"""The number of rounds of participants' timers that may pass until their logs are equal."""

_LARGEST_MESSAGE_BYTES: Final = 100_000
_ALLOWANCE_BYTES: Final = 80
_SDS_BYTES: Final = 240


class World(Stage):
    """Nodes, their databases, clients, liars and participants.

    Attributes:
        faulty: True until the faults end; ``over``: the run has ended.
        clocked: hosts whose clocks are set: participants, or nodes where there are none.
        sent: what participants have published, by message hash.
    """

    scenario: Scenario
    max_events = MAX_EVENTS
    check_every = CHECK_EVERY_EVENTS

    def __init__(
        self,
        scenario: Scenario,
        rng: Random,
        sink: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(rng, scenario.network_delay_ns, sink)
        self.scenario = scenario
        if scenario.gossip is not None or scenario.group is not None:
            self.max_events, self.check_every = MAX_LARGE_EVENTS, CHECK_EVERY_LARGE_EVENTS
        if scenario.gossip is not None:
            self.network.keepalive_ns = _GOSSIP_KEEPALIVE_NS
        self.judge = Judge(self.loop.fail)
        self.gossip_checker = GossipChecker(self)
        self.faulty = True
        self.databases = [
            self.make_database(number) for number in range(max(scenario.stores, default=-1) + 1)
        ]
        self.nodes = [
            Node(self, number, self.databases[store])
            for number, store in enumerate(scenario.stores)
        ]
        self.clients = [Client(self, f"c{number}") for number in range(scenario.clients)]
        self.network.add(*self.nodes, *self.clients)
        self.channel = Channel(self)
        tricks = () if scenario.gossip is None else scenario.gossip.tricks
        self.liars = [Liar(self, number, trick) for number, trick in enumerate(tricks)]
        self.network.add(*self.liars)
        self.sent: dict[bytes, Fetched] = {}
        self.members: list[Member] = []
        if scenario.group is not None:
            shape = scenario.group.config.filter
            self.group_judge = GroupJudge(self.judge, shape, lambda: self.timeline.now_ns)
            self.members = [Member(self, number) for number in range(len(scenario.group.joins_ns))]
        self.forger = Forger(self)
        self.network.add(self.forger, *self.members)
        self.clocked: Sequence[Node | Member] = self.members or self.nodes
        self.over = False
        self._closing = False
        self._turn = 0
        self.numbers = count(1)
        self._actors: list[asyncio.Task[None]] = []
        self._lying: list[asyncio.Task[None]] = []

    def play(self) -> int:
        """Let faults happen, then wait until all is equal; at last all are stopped."""
        scenario = self.scenario
        self._fill()
        for node in self.nodes:
            node.boot()
        self._begin_talk()
        faults = FaultInjector(self)
        try:
            faults.start()
            self._begin_actors()
            self.pass_for(scenario.faults_ns)
            self._calm(faults)
            calm_ns = self.timeline.now_ns
            if self.members:
                self._wait_for_logs()
            else:
                self._wait_until_equal()
            settled_ns = self.timeline.now_ns
            if self.members:
                self._part()
                self._wait_until_equal()
            if scenario.gossip is not None:
                self._publish_in_peace()
                for node in self.nodes:
                    stop = node.gossiping.stop if self.gossip.beside else node.stop_gossip
                    self.wait_for(self.loop.begin(None, stop()))
            if scenario.reconciles:
                self._close()
            self.judge.check()
            self._count()
            return settled_ns - calm_ns
        finally:
            self.over = self._closing = True
            faults.stop()

    # For those who act in it

    @property
    def gossip(self) -> GossipScenario:
        """The gossip of the run, which has some."""
        assert self.scenario.gossip is not None
        return self.scenario.gossip

    def reached(self, node: Node) -> list[Database]:
        """Return the other stores with a node to which a node is connected."""
        peers = self.scenario.peers
        found = {
            other.database: None
            for other in self.nodes
            if other.number in peers[node.number] or node.number in peers[other.number]
        }
        return [each for each in found if each is not node.database]

    @property
    def group(self) -> GroupScenario:
        """The participants of the run, which has some."""
        assert self.scenario.group is not None
        return self.scenario.group

    @property
    def faults_now(self) -> Faults:
        """The faults of this moment."""
        return self.scenario.faults if self.faulty else Faults()

    @property
    def message_limit_bytes(self) -> int:
        """The largest message of nodes that accept small messages only."""
        sds = _SDS_BYTES if self.scenario.sds_share else 0
        return self.scenario.message_bytes + _ALLOWANCE_BYTES + sds

    def message_limit(self, number: int) -> int:
        """Return the size of the largest message that a node accepts."""
        is_small = number in self.scenario.small_nodes
        return self.message_limit_bytes if is_small else _LARGEST_MESSAGE_BYTES

    def compose(self, text: bytes, time_ns: int, *, ephemeral: bool = False) -> Message:
        """Build a message, perhaps of SDS; some are too large for some nodes."""
        scenario = self.scenario
        is_known = (scenario.twins or scenario.gossip is not None) and self.faulty
        if is_known and self.judge.made and happens(self.rng, _KNOWN):
            known = list(self.judge.made.values())
            if (scenario.reconciles and not scenario.twins) or happens(self.rng, 0.5):
                return self.rng.choice(known)
            # Both are new, so that some stores receive the one first, and some the other.
            return self.judge.twin(self.rng.choice(known[-_NEWEST:]))
        rng, size = self.rng, self.scenario.message_bytes
        large = rng.random() < self.scenario.large_share
        payload = text + bytes(2 * self.message_limit_bytes if large else rng.randint(0, size))
        content = rng.choice(_TOPICS)
        if not happens(rng, self.scenario.sds_share):
            return message_of(PUBSUB, content, payload, time_ns, ephemeral=ephemeral)
        parents = self.channel.parents()
        payload = self.channel.payload(text, parents, payload)
        message = message_of(PUBSUB, content, payload, time_ns, ephemeral=ephemeral)
        self.channel.spoken[text] = Spoken(text, message.digest, parents)
        return message

    def database_at(self, host: str) -> Database:
        """Return the database of a host."""
        return next(node.database for node in self.nodes if node.name == host)

    def restart_later(self, host: Node | Member, longest_s: Sequence[int]) -> None:
        """Start a node or a participant again after a while."""
        delay_ns = int(self.rng.random() * self.rng.choice(longest_s) * NS_PER_S)
        self.timeline.after(delay_ns, lambda: None if self._closing else host.boot())

    # Broadcasts of participants

    def relay(self, sender: str, message: Fetched) -> None:
        """Send a broadcast to all other participants, unless they follow stores."""
        self.forger.saw(message)
        self._post(sender, message)

    def spread(self, sender: str, payload: bytes, time_ns: int) -> None:
        """Send a broadcast of an outsider to all participants and stores."""
        message = self.taken(Outbound(payload, time_ns))
        self._post(sender, message)
        for node in self.nodes:
            node.take(sender, [encoded(message).encoded])

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

    # The phases

    def make_database(self, number: int) -> Database:
        """Create the database of a store."""
        database = Database(
            f"store-{number}", self.timeline, self.rng, self.judge, list(self.scenario.lengths_ns)
        )
        database.delay_ns = self.scenario.disk_delay_ns
        if self.scenario.gossip is not None:
            database.max_confirms = self.gossip.max_confirms
        return database

    def _fill(self) -> None:
        """Fill every store with a part of a common history."""
        scenario, rng = self.scenario, self.rng
        newest_ns = START_NS - scenario.offset_ns
        moments = [
            newest_ns - int(scenario.history_ns * rng.random()) for _ in range(scenario.moments)
        ]
        for number in range(scenario.history):
            message = self.compose(b"history %d" % number, rng.choice(moments))
            self.judge.make(message)
            for store, database in enumerate(self.databases):
                if rng.random() < scenario.share and self._fits(message, store):
                    _restore(database, [message])
        if scenario.forged:
            self._forge(newest_ns)

    def _forge(self, newest_ns: int) -> None:
        """Fill stores in turn with one and the other of two sets that have the same XOR."""
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
        sizes = [
            self.message_limit(number)
            for number, other in enumerate(self.scenario.stores)
            if other == store
        ]
        return message.size_bytes <= min(sizes)

    def _begin_talk(self) -> None:
        """Let participants join, and say something in bursts."""
        if not self.members:
            return
        group, rng, said = self.group, self.rng, 0
        for member, join_ns in zip(self.members, group.joins_ns, strict=True):
            self.timeline.at(START_NS + join_ns, member.boot)
        while said < group.messages:
            at_ns = START_NS + int(rng.uniform(0, group.talk_ns))
            for _ in range(min(rng.randint(1, group.burst), group.messages - said)):
                said += 1
                self._say_at(at_ns + int(rng.uniform(0, 1) * NS_PER_S), said)

    def _say_at(self, time_ns: int, number: int) -> None:
        def act() -> None:
            up = [member for member in self.members if member.stays]
            if up:
                self.rng.choice(up).say(b"message %d" % number)

        self.timeline.at(time_ns, act)

    def _begin_actors(self) -> None:
        """Begin what clients, operators and liars do."""
        scenario, names = self.scenario, [node.name for node in self.nodes]
        self.begin_clients()
        if scenario.gossip is None and scenario.group is None:
            for every_ns, act in (
                (scenario.ask_every_ns, ask_node),
                (scenario.seek_every_ns if scenario.sds_share else 0, seek),
                (_COVERAGE_EVERY_NS, read_coverage),
            ):
                if every_ns:
                    self._act(every_ns, partial(act, self))
        for liar in self.liars:
            for victim in self.rng.sample(names, self.gossip.victims):
                self._lying.append(self.loop.begin(None, liar.haunt(victim)))

    def begin_clients(self) -> None:
        """Let the clients publish."""
        for client in self.clients:
            self._act(self.scenario.publish_every_ns, client.act)

    def _act(self, every_ns: float, act: Callable[[], Awaitable[None]]) -> None:
        """Begin what continues until the faults end."""
        self._actors.append(self.loop.begin(None, self.repeat(every_ns, act)))

    def look_around(self) -> None:
        """Verify every node, and one participant after the other."""
        for node in self.nodes:
            node.check()
        if self.members:
            self._turn = (self._turn + 1) % len(self.members)
            self.members[self._turn].check()
        else:
            assert self.timeline.waiting <= MAX_WAITING_EVENTS, "too much is under way"
            self.network.check()

    def _calm(self, faults: FaultInjector) -> None:
        """End the faults: clocks are right, all run, clients and participants say no more."""
        self.trace.note("world", "is calm from now on")
        self.faulty = False
        faults.stop()
        for actor in self._actors:
            actor.cancel()
        for node in self.nodes:
            node.boot()
        for member in self.members:
            member.boot()
        if self.scenario.gossip is None and not self.members:
            self.pass_for(_UNDER_WAY_NS)

    def _wait_until_equal(self, patience_ns: int = 0) -> None:
        """Wait until stores are equal and gossip has nothing left to do."""
        self.wait_until_settled(
            lambda: self._unequal() or self.gossip_checker.unsettled(),
            _NOT_EQUAL,
            patience_ns or self._patience_ns(),
        )
        self.trace.note("world", "is equal")

    def _wait_for_logs(self) -> None:
        config = self.group.config
        longest_ms = config.sync_at_least_ms + config.resend_possible_ms + config.missing_every_ms
        if config.repair is not None:
            longest_ms += config.repair.request_max_ms
        # A clock that was ahead is followed by messages; what is newer than the time must wait.
        ahead_ns = min(self.scenario.faults.skew_ns, config.max_clock_ahead_ms * NS_PER_MS)
        patience_ns = _PATIENCE_ROUNDS * longest_ms * NS_PER_MS + ahead_ns
        self.wait_until_settled(self._unequal_logs, "the logs do not become equal", patience_ns)
        self.trace.note("world", "has equal logs")
        for member in self.members:
            member.check()

    def _unequal_logs(self) -> str:
        open_ends = (member.open_end() for member in self.members)
        views = [member.view for member in self.members]
        return next(filter(None, open_ends), "") or self.group_judge.unequal(views)

    def _part(self) -> None:
        """Stop all participants: nothing may be left of them."""
        self._closing = True
        for member in self.members:
            if member.stays:
                member.leave()
        self.pass_for(LEAVE_NS + NS_PER_S)
        for member in self.members:
            member.check_left()

    def _publish_in_peace(self) -> None:
        """Publish at each node without faults: messages are soon everywhere, and confirmed."""
        for task in self._lying:
            task.cancel()
        self.pass_for(_REST_NS)
        for node in self.nodes:
            message = self.compose(b"peace " + node.name.encode(), self.timeline.now_ns)
            self.judge.make(message)
            self.gossip_checker.in_peace[message.digest] = not self.reached(node)
            node.take(node.name, [message.encoded])
        self.pass_for(int(SPREAD_S * NS_PER_S) + self.look_every_ns)
        if not all(self.gossip_checker.in_peace.values()):
            raise ViolationError("publishers are not answered in peace")
        self._wait_until_equal(int(SPREAD_S * NS_PER_S))

    def _patience_ns(self) -> int:
        """Return the time until stores are equal: peers rest, and are chosen at random."""
        scenario = self.scenario
        if not scenario.reconciles:
            return _GOSSIP_PATIENCE_NS
        differences = len(self.judge.made)
        sessions = 30 + 3 * differences // scenario.limits.max_differences
        ahead_ns = scenario.faults.skew_ns + 60 * NS_PER_S + min(scenario.drift_ns, HOUR_NS)
        return _LONGEST_REST_NS + ahead_ns + sessions * scenario.nodes * scenario.wide_ns

    def _unequal(self) -> str:
        """Return a sentence about neighbours that are not equal; empty if all are."""
        if not any(self.scenario.peers):
            return ""
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
        """Count the messages of a node that another lacks and should store."""
        lacking = one.database.stored.keys() - other.database.stored.keys()
        if not self.scenario.all_summed:
            lacking -= self.judge.forged
        horizon_ns = max(node.policy().horizon_ns or 0 for node in (one, other))
        limit, made = self.message_limit(other.number), self.judge.made
        messages = (made[digest] for digest in lacking)
        return sum(
            each.timestamp_ns >= horizon_ns and each.size_bytes <= limit for each in messages
        )

    def _close(self) -> None:
        """Run a session of each pair, which finds nothing, and stop all nodes."""
        for node in self.nodes:
            for peer in node.peers:
                report = self._session(node, peer)
                if report.ending in (SyncEnding.ABORTED, SyncEnding.REFUSED):
                    continue
                assert node.peering is not None
                what = f"{node.name} and {peer.host}: {described(report)}"
                assert report.compared, what
                result = node.peering.exchange.last[report.node_id]
                refused = [
                    *self._too_large(result.to_send, peer.host),
                    *self._too_large(result.to_receive, node.name),
                ]
                found = {each[1] for each in (*result.to_send, *result.to_receive)}
                forged = len((found & self.judge.forged) - set(refused))
                assert report.differences == len(refused) + forged, what
                assert not (forged and self.scenario.all_summed), what
                is_searched = refused or forged or report.conflicts
                assert is_searched or result.rounds <= CLOSING_ROUNDS, what
        self.look_around()
        for database in self.databases:
            database.check()
        for node in self.nodes:
            if node.process is not None:
                work = ask_coverage(node, node.process)
                self.wait_for(node.process.begin_task("coverage", work))
        for node in self.nodes:
            if node.peering is not None and node.process is not None:
                self.wait_for(node.process.begin_task("stop", node.peering.stop()))

    def _too_large(self, ids: SyncIds, host: str) -> list[bytes]:
        (limit,) = (self.message_limit(each.number) for each in self.nodes if each.name == host)
        return [digest for _, digest in ids if self.judge.made[digest].size_bytes > limit]

    def _session(self, node: Node, peer: PeerAddress) -> SessionReport:
        assert node.peering is not None
        return self.wait_for(node.peering.ask(peer, 0))

    def _count(self) -> None:
        judge, crashes = self.judge, [node.crashes for node in self.nodes]
        counted = {
            "nodes": len(self.nodes),
            "messages": len(judge.made),
            "acknowledged": len(judge.acknowledged),
            "compared": judge.compared,
            "crashes": sum(crashes) + sum(member.crashes for member in self.members),
            "confirmed": sum(len(each.confirmed) for each in self.databases),
            "answers": self.gossip_checker.answers,
        }
        if self.members:
            # Of messages, those of the channel.
            counted |= self.group_judge.count([member.view for member in self.members])
        self.counts.update(counted)


def _restore(database: Database, messages: list[Message]) -> None:
    """Store messages as if they had been there all along."""
    admission = Admission(Policy(max_drift_ns=None), START_NS, Source.RESTORE)
    admission.admit([message.encoded for message in messages])
    database.add(admission.admitted.batch, 0)
