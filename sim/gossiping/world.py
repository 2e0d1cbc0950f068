"""A whole run of gossip: faults and liars first, then peace, and all honest stores are the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from sim.dice import Dice, happens
from sim.gossiping.clients import Publisher, Reconciler
from sim.gossiping.faults import Faults
from sim.gossiping.judge import GossipJudge
from sim.gossiping.liars import Liar
from sim.gossiping.loop import VirtualLoop
from sim.gossiping.network import Host, Network, outside
from sim.gossiping.node import SimNode
from sim.gossiping.scenario import GossipScenario
from sim.gossiping.store import Store
from sim.gossiping.trace import Trace
from sim.judge import Violation
from sim.limits import START_NS
from sim.messages import Message, message_of
from store.domain.admission import Admission
from store.domain.ports import Source
from store.gossip.config import GossipConfig
from store.gossip.events import GraphEvent, What
from store.gossip.graph import graph_events
from store.gossip.machine import Gossip
from storenode.message.rules import Policy
from storenode.sds.codec import encode

PUBSUB: Final = "/waku/2/rs/7/0"
_CHANNEL: Final = "channel"
_TOPIC: Final = "/sim/1/sds/proto"
_TOPICS: Final = ("/sim/1/a/proto", "/sim/1/b/proto", "/sim/1/c/proto")
_CHECK_S: Final = 0.5
_PATIENCE_S: Final = 600.0
"""Cut-offs last for minutes, and a peer that refused is not asked again for half a minute."""

_SPREAD_S: Final = 30.0
"""In peace, what is published is everywhere, and confirmed, within so long."""

_REST_S: Final = 75.0
"""A pause after which every link is made anew that was dead without anybody knowing."""

_PARENTS: Final = 3
_RECENT: Final = 12

MakeMachine = Callable[[GossipConfig], Gossip]


@dataclass(frozen=True, slots=True)
class GossipSummary:
    """What a run came to. ``counts``: what the machines counted, of all nodes together.

    ``answers``: to publishers that wanted confirmations. ``marks``: rare things that happened.
    """

    digest: str
    virtual_s: float
    settling_s: float
    messages: int
    frames: int
    crashes: int
    confirmed: int
    answers: int
    sessions: int
    marks: dict[str, int]
    counts: dict[str, int]


class GossipWorld:
    """All of it.

    Attributes:
        counts: what the machines counted; ``frames``: how many the nodes sent.
    """

    def __init__(
        self,
        gossip: GossipScenario,
        dice: Dice,
        make: MakeMachine = Gossip,
        sink: Callable[[str], None] | None = None,
    ) -> None:
        self.gossip = gossip
        self.dice = dice
        self.make = make
        self.loop = VirtualLoop()
        self.trace = Trace(sink)
        self.judge = GossipJudge(self)
        self.marks: Counter[str] = Counter()
        self.counts: Counter[What] = Counter()
        self.frames = 0
        self.network = Network(self.loop, dice, self.marks)
        self.network.connected = self.judge.connects
        self.network.weather.delay_s = gossip.network_delay_s
        self.stores = [Store(self, f"store-{number}") for number in range(max(gossip.stores) + 1)]
        for store in self.stores:
            store.disk.delay_s = gossip.disk_delay_s
        self.nodes = [
            SimNode(self, number, self.stores[store]) for number, store in enumerate(gossip.stores)
        ]
        self.liars = [Liar(self, number, trick) for number, trick in enumerate(gossip.tricks)]
        hosts: list[Host] = [*self.nodes, *self.liars]
        for host in hosts:
            self.network.add(host)
        self._reconciler = Reconciler(self)
        self._graph: dict[bytes, GraphEvent] = {}
        self._ids: dict[bytes, bytes] = {}
        self._named: list[tuple[str, bytes]] = []
        self._stored: dict[bytes, None] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def run(self) -> GossipSummary:
        """From the beginning to the end.

        Raises:
            Violation: something that must hold does not.
        """
        return self.loop.run(self._run())

    # For those who act in it

    def now_ns(self) -> int:
        """True time in Unix nanoseconds."""
        return START_NS + self.loop.now_ns()

    def note(self, who: str, what: str) -> None:
        """Something happened."""
        self.trace.note(self.loop.now_ns(), who, what)

    def config_of(self, store: Store) -> GossipConfig:
        """What the gossip of a node is like."""
        return replace(self.gossip.config, store_id=store.store_id)

    def ended(self, task: asyncio.Task[Any]) -> None:
        """A task of a node has ended; the driver's raise nothing."""
        if not task.cancelled() and (error := task.exception()) is not None:
            sentence = f"{task.get_name()} has failed: {type(error).__name__}: {error}"
            self.judge.failures.append(Violation(sentence))

    def restart_later(self, node: SimNode) -> None:
        """A node is down; it is started again."""
        delay_s = self.dice.random() * self.dice.choice((1, 20, 45))
        self.loop.call_later(delay_s, node.boot, context=outside())

    def events_of(self, ids: Iterable[bytes]) -> list[GraphEvent]:
        """Those that have SDS metadata."""
        return [self._graph[digest] for digest in ids if digest in self._graph]

    def id_of(self, message: bytes) -> bytes:
        """The hash of an encoded message."""
        return self._ids.get(message, bytes(32))

    def committed(self, added: list[bytes]) -> None:
        """A store has committed messages."""
        self._stored.update(dict.fromkeys(added))

    def store(self, store_id: str) -> Store | None:
        """The store of honest nodes with this ID."""
        return next((each for each in self.stores if each.store_id == store_id), None)

    def holding(self, digest: bytes, beside: Store) -> int:
        """How many other stores hold a message."""
        return sum(digest in store.held for store in self.stores if store is not beside)

    def neighbours(self, store: Store) -> list[Store]:
        """The other stores that have a node with which a node of this one talks."""
        found = {
            other.store.store_id: other.store
            for node in self.nodes
            for other in self.nodes
            if node.store is store and self._are_peers(node.number, other.number)
        }
        return [each for each in found.values() if each is not store]

    def _reached(self, node: SimNode) -> int:
        """With how many other stores a node talks."""
        stores = {
            other.store.store_id
            for other in self.nodes
            if self._are_peers(node.number, other.number)
        }
        return len(stores - {node.store.store_id})

    def compose(self, payload: bytes, time_ns: int) -> Message:
        """A message; some are events whose parents are among the last ones."""
        if not happens(self.dice, self.gossip.events):
            return self._made(message_of(PUBSUB, self.dice.choice(_TOPICS), payload, time_ns))
        name = f"m{len(self._graph)}"
        # Parents that no store ever holds are drawn as `strange` ones.
        chosen = [each for each in self._named if each[1] in self._stored][-_RECENT:]
        parents = self.dice.sample(chosen, min(len(chosen), self.dice.randint(0, _PARENTS)))
        if happens(self.dice, self.gossip.strange):
            parents.append(("unknown", self.dice.randbytes(32)))
        content = encode(_CHANNEL, name, parents=parents, content=payload)
        message = self._made(message_of(PUBSUB, _TOPIC, content, time_ns))
        self._named.append((name, message.digest))
        admission = Admission(Policy(max_drift_ns=None), time_ns, Source.RESTORE)
        admission.admit([message.encoded])
        for event in graph_events(admission.admitted.batch):
            self._graph[event.id] = event
        return message

    def _made(self, message: Message) -> Message:
        self.judge.made[message.digest] = message
        self._ids[message.encoded] = message.digest
        return message

    # The phases

    async def _run(self) -> GossipSummary:
        names = [node.name for node in self.nodes]
        for node in self.nodes:
            node.boot()
        faults = Faults(self)
        faults.start()
        busy = [Publisher(self, f"c{number}").run() for number in range(self.gossip.clients)]
        if self.gossip.sync_every_s:
            busy.append(self._reconciler.run())
        tasks = [self._begin(work) for work in busy]
        for liar in self.liars:
            for victim in self.dice.sample(names, self.gossip.victims):
                self._begin(liar.haunt(victim))
        await self.pass_time(self.gossip.faults_s)
        self.note("world", "is calm from now on")
        faults.stop()
        for task in tasks[: self.gossip.clients]:
            task.cancel()
        for node in self.nodes:
            node.boot()
        calm_s = self.loop.time()
        await self._settle(_PATIENCE_S)
        settled_s = self.loop.time()
        self.note("world", "is equal")
        await self._publish_in_peace()
        await self._close()
        return self._summary(settled_s - calm_s)

    def _begin(self, work: Any) -> asyncio.Task[None]:  # noqa: ANN401 - a coroutine
        task: asyncio.Task[None] = self.loop.create_task(work)
        self._tasks.append(task)  # asyncio itself has no more than a weak reference
        task.add_done_callback(self.ended)
        return task

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and look at everything now and then."""
        end_s = self.loop.time() + seconds
        while (left_s := end_s - self.loop.time()) > 0:
            await asyncio.sleep(min(_CHECK_S, left_s))
            self.check()

    def check(self) -> None:
        """Verify what can be verified at any moment.

        Raises:
            Violation: something does not hold.
        """
        for context in self.loop.errors:
            error = context.get("exception")
            raise Violation(f"{context['message']}: {error!r}") from error
        if self.judge.failures:
            raise self.judge.failures[0]
        self.judge.check()

    async def _settle(self, patience_s: float) -> None:
        deadline_s = self.loop.time() + patience_s
        while unequal := self.judge.unequal() or self.judge.unsettled():
            if self.loop.time() > deadline_s:
                raise Violation(f"the stores do not become equal: {unequal}")
            await self.pass_time(_CHECK_S)

    async def _publish_in_peace(self) -> None:
        """Everything is well: what is published now is soon everywhere, and confirmed."""
        for task in self._tasks:
            task.cancel()
        await self.pass_time(_REST_S)
        calls = []
        for node in self.nodes:
            assert node.life is not None
            message = self.compose(b"peace " + node.name.encode(), self.now_ns())
            self.judge.in_peace[message.digest] = None
            asked = self._reached(node)
            publish = partial(node.life.publish, [message.encoded], asked, timeout_s=_SPREAD_S)
            calls.append(node.life.call(publish))
        await self._settle(_SPREAD_S)
        await asyncio.gather(*calls)
        self.check()

    async def _close(self) -> None:
        for node in self.nodes:
            await node.stop()
        await self.pass_time(_CHECK_S)

    def _are_peers(self, one: int, other: int) -> bool:
        peers = self.gossip.peers
        return other in peers[one] or one in peers[other]

    def _summary(self, settling_s: float) -> GossipSummary:
        return GossipSummary(
            digest=self.trace.digest,
            virtual_s=round(self.loop.time(), 6),
            settling_s=round(settling_s, 6),
            messages=len(self.judge.made),
            frames=self.frames,
            crashes=sum(node.crashes for node in self.nodes),
            confirmed=sum(len(each.confirmed) for each in self.stores),
            answers=self.judge.answers,
            sessions=self._reconciler.sessions,
            marks=dict(sorted(self.marks.items())),
            counts={str(what): count for what, count in sorted(self.counts.items())},
        )
