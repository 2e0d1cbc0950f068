"""A whole run of gossip: faults and liars first, then peace, and all honest stores are the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, fields
from typing import Any, Final

from sim.database import Database
from sim.dice import Dice, happens
from sim.gossiping.database import GossipDatabase
from sim.gossiping.faults import GossipFaultInjector
from sim.gossiping.judge import GossipJudge
from sim.gossiping.liars import Liar
from sim.gossiping.node import SPREAD_S, GossipNode
from sim.gossiping.scenario import GossipScenario
from sim.intake import PUBSUB, Publish
from sim.judge import Judge, Violation
from sim.limits import NS_PER_MS, NS_PER_S
from sim.messages import Message, message_of
from sim.world import Summary, World
from store.gossip.events import GossipCounter
from storenode.sds.codec import encode

_CHANNEL: Final = "channel"
_TOPIC: Final = "/sim/1/sds/proto"
_CHECK_NS: Final = 500 * NS_PER_MS
_PATIENCE_NS: Final = 600 * NS_PER_S
"""Cut-offs last for minutes, and a peer that refused is not asked again for half a minute."""

_REST_NS: Final = 75 * NS_PER_S
"""A pause after which every stream is made anew that was dead without anybody knowing."""

_MESSAGE_BYTES: Final = 100_000
_PARENTS: Final = 3
_RECENT: Final = 12


@dataclass(frozen=True, slots=True)
class GossipSummary(Summary):
    """What a run came to.

    ``confirmed``: messages that another store has confirmed. ``answers``: to publishers that wanted
    confirmations. ``counts``: what the machines counted, of all nodes together.
    """

    frames: int
    confirmed: int
    answers: int
    counts: dict[str, int]


class GossipWorld(World):
    """All of it. `run` goes from the beginning to the end, once.

    Attributes:
        counts: what the machines counted; ``frames``: how many the nodes sent.
    """

    judge: GossipJudge
    nodes: list[GossipNode]  # type: ignore[assignment]
    max_events = 1_000_000
    check_every = 2_048

    known = 0.05
    """Of messages that clients publish, the share that is published already."""

    def __init__(
        self,
        gossip: GossipScenario,
        dice: Dice,
        sink: Callable[[str], None] | None = None,
    ) -> None:
        self.gossip = gossip
        self.counts: Counter[GossipCounter] = Counter()
        self.frames = 0
        self.stores: list[GossipDatabase] = []
        super().__init__(gossip.base, dice, sink)
        self.liars = [Liar(self, number, trick) for number, trick in enumerate(gossip.tricks)]
        for liar in self.liars:
            self.network.add(liar)
        self._named: list[tuple[str, bytes]] = []
        self._stored: dict[bytes, None] = {}
        self._lying: list[asyncio.Task[None]] = []

    def run(self) -> GossipSummary:
        """From the beginning to the end.

        Raises:
            Violation: something that must hold does not.
            AssertionError: a machine's invariant, or a bound, is broken.
        """
        with self.loop.running():
            return self._run()

    # What differs from runs without gossip

    def make_judge(self) -> Judge:
        """The judge of the run."""
        return GossipJudge(self)

    def make_database(self, number: int) -> Database:
        """One of the stores."""
        self.stores.append(GossipDatabase(self, number))
        return self.stores[-1]

    def make_node(self, number: int, database: Database) -> GossipNode:
        """One of the nodes."""
        return GossipNode(self, number, database)

    def message_limit(self, number: int) -> int:  # noqa: ARG002 - as overridden
        """The largest message that a node takes."""
        return _MESSAGE_BYTES

    def compose(self, payload: bytes, time_ns: int, *, ephemeral: bool = False) -> Message:
        """A message; some are events whose parents are among the last ones, some known already."""
        if self.faulty and self.judge.made and happens(self.dice, self.known):
            return self.dice.choice(list(self.judge.made.values()))
        if not happens(self.dice, self.gossip.events):
            return super().compose(payload, time_ns, ephemeral=ephemeral)
        name = f"m{len(self._named)}"
        # Parents that no store ever holds are drawn as `strange` ones.
        chosen = [each for each in self._named if each[1] in self._stored][-_RECENT:]
        parents = self.dice.sample(chosen, min(len(chosen), self.dice.randint(0, _PARENTS)))
        if happens(self.dice, self.gossip.strange):
            parents.append(("unknown", self.dice.randbytes(32)))
        content = encode(_CHANNEL, name, parents=parents, content=payload)
        message = message_of(PUBSUB, _TOPIC, content, time_ns, ephemeral=ephemeral)
        self._named.append((name, message.digest))
        return message

    # For those who act in it

    def committed(self, added: list[bytes]) -> None:
        """A store has committed messages."""
        self._stored.update(dict.fromkeys(added))

    def reached(self, node: GossipNode) -> list[GossipDatabase]:
        """The other stores with a node of which a node talks."""
        peers = self.scenario.peers
        found = {
            other.database: None
            for other in self.nodes
            if other.number in peers[node.number] or node.number in peers[other.number]
        }
        return [each for each in found if each is not node.database]

    # The phases

    def _run(self) -> GossipSummary:
        self._fill()
        for node in self.nodes:
            node.boot()
        faults = GossipFaultInjector(self)
        faults.start()
        self._act(client.run() for client in self.clients)
        names = [node.name for node in self.nodes]
        for liar in self.liars:
            for victim in self.dice.sample(names, self.gossip.victims):
                self._lying.append(self.loop.begin(None, liar.haunt(victim)))
        self._let_pass(self.scenario.faults_ns)
        self._calm(faults)
        calm_ns = self.timeline.now_ns
        self._wait_until_equal(self._patience_ns() if self.gossip.beside else _PATIENCE_NS)
        settled_ns = self.timeline.now_ns
        self.trace.note("world", "is equal")
        self._publish_in_peace()
        self._end()
        return self._summary(settled_ns - calm_ns)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._await(self.loop.begin(None, work))

    def _wait_until_equal(self, patience_ns: int) -> None:
        deadline_ns = self.timeline.now_ns + patience_ns
        while unequal := self._unequal() or self.judge.unsettled():
            if self.timeline.now_ns > deadline_ns:
                raise Violation(f"the stores do not become equal: {unequal}")
            self._let_pass(_CHECK_NS)

    def _publish_in_peace(self) -> None:
        """Everything is well: what is published now is soon everywhere, and confirmed."""
        for task in self._lying:
            task.cancel()
        self._let_pass(_REST_NS)
        for node in self.nodes:
            message = self.compose(b"peace " + node.name.encode(), self.timeline.now_ns)
            self.judge.make(message)
            self.judge.in_peace[message.digest] = not self.reached(node)
            node.receive(node.name, Publish(0, (message.encoded,)))
        self._let_pass(int(SPREAD_S * NS_PER_S) + _CHECK_NS)
        if self.judge.unanswered():
            raise Violation(f"{self.judge.unanswered()} publishers are not answered in peace")
        self._wait_until_equal(int(SPREAD_S * NS_PER_S))

    def _end(self) -> None:
        for node in self.nodes:
            self._begin(node.gossip.stop() if self.gossip.beside else node.stop())
        if self.gossip.beside:
            self._close()
        self._let_pass(_CHECK_NS)
        self.look_around()

    def _summary(self, settling_ns: int) -> GossipSummary:
        summary = super()._summary(settling_ns)
        return GossipSummary(
            **{each.name: getattr(summary, each.name) for each in fields(summary)},
            frames=self.frames,
            confirmed=sum(len(each.confirmed) for each in self.stores),
            answers=self.judge.answers,
            counts={str(what): count for what, count in sorted(self.counts.items())},
        )
