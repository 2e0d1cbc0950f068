"""A whole run of gossip: faults and liars first, then peace, and all honest stores are the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from reconcile.ids import SyncId
from sim.database import Database
from sim.dice import Dice, happens
from sim.gossiping.driver import Gossiping
from sim.gossiping.durable import Records
from sim.gossiping.intake import GossipIntake
from sim.gossiping.judge import GossipJudge
from sim.gossiping.liars import Liar
from sim.gossiping.scenario import GossipScenario
from sim.intake import PUBSUB
from sim.judge import Violation
from sim.limits import NS_PER_S, START_NS
from sim.messages import Message, message_of
from sim.node import Node
from sim.process import Process, Service
from sim.world import Summary, World
from store.domain.admission import Admission
from store.domain.ports import Source
from store.gossip.config import GossipConfig
from store.gossip.events import GraphEvent, What
from store.gossip.graph import graph_events
from store.gossip.machine import Gossip
from storenode.message.rules import Policy
from storenode.sds.codec import encode

_CHANNEL = "channel"
_TOPIC = "/sim/1/sds/proto"
_SETTLE_LOOK_NS = NS_PER_S // 4
_PATIENCE_NS = 600 * NS_PER_S
_PARENTS = 3
_RECENT = 12
_HOUR_NS = 3_600 * NS_PER_S

MakeMachine = Callable[[GossipConfig], Gossip]


@dataclass(frozen=True, slots=True)
class GossipSummary:
    """What a run came to. ``counts``: what the machines counted, of all nodes together."""

    world: Summary
    counts: dict[str, int]
    confirmed: int
    read: int


class GossipNode(Node):
    """A node with gossip, and with reconciliation only if the scenario says so."""

    def __init__(self, world: GossipWorld, number: int, database: Database) -> None:
        super().__init__(world, number, database)
        self._gossip_world = world
        self._gossiping: Gossiping | None = None

    def make_services(self, process: Process) -> list[Service]:
        """Those of every node, or none of them, and gossip."""
        gossiping = self._gossiping = Gossiping(process, self._gossip_world)
        if self._gossip_world.gossip.beside:
            return [*super().make_services(process), gossiping]
        return [self.make_intake(process), gossiping]

    def make_intake(self, process: Process) -> Service:  # noqa: ARG002 - as overridden
        """What takes messages from clients."""
        assert self._gossiping is not None
        return GossipIntake(self._gossiping)


class GossipWorld(World):
    """All of it.

    Attributes:
        records: by store ID.
        counts: what the machines counted; ``frames``: how many they sent.
    """

    def __init__(
        self,
        gossip: GossipScenario,
        dice: Dice,
        make: MakeMachine = Gossip,
        sink: Callable[[str], None] | None = None,
    ) -> None:
        self.gossip = gossip
        self._make = make
        self._graph: dict[bytes, GraphEvent] = {}
        self._named: list[tuple[str, bytes]] = []
        super().__init__(gossip.base, dice, sink)
        self.gossip_judge = GossipJudge(self)
        self.counts: Counter[What] = Counter()
        self.frames = 0
        self.records = {
            database.store_id: Records(
                database, gossip.config.max_confirms, gossip.replayed, self.gossip_judge
            )
            for database in self.databases
        }
        self.liars = [Liar(self, number, trick) for number, trick in enumerate(gossip.tricks)]
        for liar in self.liars:
            self.network.add(liar)

    def run_gossip(self) -> GossipSummary:
        """From the beginning to the end.

        Raises:
            Violation: something that must hold does not.
            AssertionError: a machine's invariant, or a bound, is broken.
        """
        summary = self.run()
        confirmed = sum(len(each.confirmed) for each in self.records.values())
        read = sum(len(each.read) for each in self.records.values())
        counts = {str(what): count for what, count in sorted(self.counts.items())}
        return GossipSummary(summary, counts, confirmed, read)

    # For those who act in it

    def make_node(self, number: int, database: Database) -> Node:
        """One of the nodes."""
        return GossipNode(self, number, database)

    def make_machine(self, store_id: str) -> Gossip:
        """The machine of one process."""
        return self._make(replace(self.gossip.config, store_id=store_id))

    def events_of(self, ids: Iterable[bytes]) -> list[GraphEvent]:
        """Those that have SDS metadata."""
        return [self._graph[digest] for digest in ids if digest in self._graph]

    def ids_of(self, messages: Sequence[bytes]) -> list[bytes]:
        """The hashes of encoded messages."""
        admission = Admission(Policy(max_drift_ns=None), START_NS, Source.RESTORE)
        admission.admit(messages)
        return [digest for digest in admission.admitted.hashes if digest]

    def store(self, store_id: str) -> Database | None:
        """The store of honest nodes with this ID."""
        return next((each for each in self.databases if each.store_id == store_id), None)

    def neighbours(self, database: Database) -> list[Database]:
        """The other stores that have a node with which a node of this one talks."""
        stores = {
            other.database.store_id: other.database
            for node in self.nodes
            for other in self.nodes
            if node.database is database and self._are_peers(node.number, other.number)
        }
        return [each for each in stores.values() if each is not database]

    def compose(self, payload: bytes, time_ns: int, *, ephemeral: bool = False) -> Message:
        """A message; some are events whose parents are among the last ones."""
        if ephemeral or not happens(self.dice, self.gossip.events):
            return super().compose(payload, time_ns, ephemeral=ephemeral)
        name = f"m{len(self._graph)}"
        chosen = self._named[-_RECENT:]
        parents = self.dice.sample(chosen, min(len(chosen), self.dice.randint(0, _PARENTS)))
        if happens(self.dice, self.gossip.strange):
            parents.append(("unknown", self.dice.randbytes(32)))
        content = encode(_CHANNEL, name, parents=parents, content=payload)
        message = message_of(PUBSUB, _TOPIC, content, time_ns)
        self._named.append((name, message.digest))
        admission = Admission(Policy(max_drift_ns=None), time_ns, Source.RESTORE)
        admission.admit([message.encoded])
        for event in graph_events(admission.admitted.batch):
            self._graph[event.id] = event
        return message

    # The phases

    def _fill(self) -> None:
        super()._fill()
        for database in self.databases:
            records = self.records[database.store_id]
            records.log += [digest for _, digest in database.ids]
            database.followers.append(partial(self._committed, records))
        names = [node.name for node in self.nodes]
        for liar in self.liars:
            liar.start(self.dice.sample(names, self.gossip.victims))

    def _committed(self, records: Records, _: int, added: list[SyncId]) -> None:
        records.committed(self.timeline.now_ns, added)

    def _let_pass(self, duration_ns: int) -> None:
        if self.gossip.hour_off is not None:
            ahead = self.dice.choice((-1, 1))
            self.nodes[self.gossip.hour_off].clock.offset_ns = ahead * _HOUR_NS
        part_ns = duration_ns // (len(self.nodes) + 1)
        for node in self.nodes if self.gossip.rolling else []:
            super()._let_pass(part_ns)
            duration_ns -= part_ns
            if node.process is not None:
                node.crash("in its turn")
        super()._let_pass(duration_ns)

    def _settle(self) -> None:
        deadline_ns = self.timeline.now_ns + _PATIENCE_NS
        while unequal := self._unequal() or self.gossip_judge.unsettled():
            if self.timeline.now_ns > deadline_ns:
                raise Violation(f"the stores do not become equal: {unequal}")
            super()._let_pass(_SETTLE_LOOK_NS)
        self.trace.note("world", "is equal")

    def _close(self) -> None:
        if self.gossip.beside:
            super()._close()
            return
        self._check()
        for database in self.databases:
            database.check()

    def _are_peers(self, one: int, other: int) -> bool:
        peers = self.scenario.peers
        return other in peers[one] or one in peers[other]
