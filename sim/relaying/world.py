"""A whole run of relay: faults and liars first, then liars alone, then silence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Final

from sim.judge import Violation
from sim.limits import NS_PER_S, START_NS
from sim.relaying.judge import RelayJudge
from sim.relaying.liars import Liar
from sim.relaying.scenario import PUNISHED, RelayScenario
from sim.rng import Rng, happens
from sim.world import World
from store.gateway.gossipsub import (
    QUIET_S,
    SEEN_S,
    Arrived,
    Disconnect,
    Router,
    RouterEffect,
    SendRpc,
)
from store.gateway.gossipsub_wire import GossipMessage, encode_subscriptions, parse_rpc

_FAULTS_NS: Final = 90 * NS_PER_S
_CALM_NS: Final = 2 * QUIET_S * NS_PER_S
_ARRIVAL_NS: Final = 15 * NS_PER_S
"""In which a message reaches every router: a heartbeat and a delay at each of ten steps."""

_REST_NS: Final = (SEEN_S + 90) * NS_PER_S

_REDIAL_NS: Final = 5 * NS_PER_S
_PUBLISHED_WITH_FAULTS: Final = 30
_PUBLISHED: Final = 4
_TOPICS: Final = ("/waku/2/rs/7/0", "/waku/2/rs/7/1")


class RelayRouter:
    """A router, which a restart replaces by a new one of the same name.

    Attributes:
        life: Differs for each of its routers.
        accepted: The messages that this life has, and ``sources`` the peers that sent them.
    """

    def __init__(self, world: RelayWorld, number: int, *, is_leaf: bool) -> None:
        self.name = f"r{number}"
        self.is_leaf = is_leaf
        self._world = world
        self.start()

    def start(self) -> None:
        """Begin a life."""
        self.life = object()
        self.accepted: set[GossipMessage] = set()
        self.sources: dict[GossipMessage, str] = {}
        self.core = Router(self._world.topics, self._world.rng, forwards=not self.is_leaf)

    def apply(self, effects: Iterable[RouterEffect]) -> None:
        """Execute effects."""
        world = self._world
        for effect in effects:
            match effect:
                case SendRpc(peer, rpc):
                    world.judge.sends(self, peer, rpc)
                    world.transmit(self.name, peer, rpc)
                case Disconnect(peer, reason):
                    world.judge.disconnects(self, peer, reason)
                    world.unlink(self.name, peer)
                case Arrived(peer, message):
                    self._judge(peer, message)

    def _judge(self, peer: str, message: GossipMessage) -> None:
        world = self._world
        if message not in world.judge.made:
            self.apply(self.core.reject(peer, "it sends what is no message"))
        elif world.judge.is_fresh(message):
            self.sources[message] = peer
            world.judge.accepts(self, message)
            self.apply(self.core.accept(peer, message))

    def beat(self) -> None:
        """Run heartbeats, as long as the world lasts."""
        self._world.judge.beats(self)
        self.apply(self.core.heartbeat(self._world.now_s))
        self._world.timeline.after(NS_PER_S, self.beat)

    def publish(self, message: GossipMessage) -> None:
        """Publish a message."""
        self._world.judge.made[message] = self._world.timeline.now_ns
        self.accepted.add(message)
        self.apply(self.core.publish(self._world.now_s, message))


class RelayWorld(World):
    """A network of routers and liars."""

    topics: tuple[str, ...] = _TOPICS
    scenario: RelayScenario
    max_events = 60_000
    check_every = 1_000

    def __init__(
        self, scenario: RelayScenario, rng: Rng, sink: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(rng, scenario.delay_ns, sink)
        self.scenario = scenario
        self.judge = RelayJudge(self)
        first_leaf = scenario.routers - scenario.leaves
        routers = [
            RelayRouter(self, number, is_leaf=number >= first_leaf)
            for number in range(scenario.routers)
        ]
        self.routers = {each.name: each for each in routers}
        self.liars: dict[str, Liar] = {}
        self._links: dict[tuple[str, str], int] = {}
        self._lives = count()
        self._due_ns: dict[tuple[str, str], int] = {}
        self._numbers = count()
        self._is_faulty = True

    @property
    def now_s(self) -> float:
        """The time of the routers' clock."""
        return (self.timeline.now_ns - START_NS) / NS_PER_S

    def play(self) -> int:
        """Let faults and liars act, then liars alone; then wait until nothing is kept."""
        scenario, rng = self.scenario, self.rng
        for router in self.routers.values():
            self.timeline.after(rng.randint(0, NS_PER_S), router.beat)
        for one, two in scenario.links:
            self._connect(f"r{one}", f"r{two}")
        liars = [Liar(self, *each) for each in enumerate(scenario.tricks)]
        names = [each.name for each in self.routers.values() if not each.is_leaf]
        for liar in liars:
            self.liars[liar.name] = liar
            for victim in rng.sample(names, min(len(names), scenario.victims)):
                self.timeline.after(rng.randint(0, NS_PER_S), partial(liar.haunt, victim))
        if not scenario.pushes:
            # Before any mesh has formed, IHAVE goes to all peers.
            self.pass_for(_REDIAL_NS)
            self._publish_and_wait()
            return 0
        self._plan_faults()
        self.pass_for(_FAULTS_NS)
        self._is_faulty = False
        self.pass_for(2 * _REDIAL_NS)
        self._publish_and_wait()
        self.pass_for(_CALM_NS)
        self._publish_and_wait()
        for liar in liars:
            if liar.trick in PUNISHED and liar.name not in self.judge.punished:
                raise Violation(f"{liar.name} is never disconnected for {liar.trick}")
            liar.is_done = True
        for pair in [each for each in self._links if each[0] in self.liars]:
            self.unlink(*pair)
        self.pass_for(_REST_NS)
        for router in self.routers.values():
            self.judge.require_rest(router)
        return 0

    # Links

    def is_linked(self, one: str, two: str) -> bool:
        """Return True if one has connected to the other."""
        return (one, two) in self._links

    def victims_of(self, liar: str) -> list[str]:
        """Return the routers that a liar is connected to."""
        return [two for one, two in self._links if one == liar]

    def link(self, one: str, two: str) -> None:
        """Connect one to another."""
        self.trace.note(one, f"connects to {two}")
        self._links[one, two] = next(self._lives)
        for name, peer in ((one, two), (two, one)):
            if (router := self.routers.get(name)) and self._life(one, two) is not None:
                router.apply(router.core.join(self.now_s, peer, is_outbound=name == one))

    def unlink(self, one: str, two: str) -> None:
        """End the connection of two; a router that had made it makes it again after a while."""
        pair = (one, two) if (one, two) in self._links else (two, one)
        if self._links.pop(pair, None) is None:
            return
        self.trace.note(one, f"is no longer connected to {two}")
        self.judge.stream_ends(one, two)
        for name, peer in ((one, two), (two, one)):
            if name in self.routers:
                self.routers[name].core.leave(peer)
        if pair[0] in self.routers:
            pause_ns = self.rng.randint(NS_PER_S, _REDIAL_NS)
            self.timeline.after(pause_ns, lambda: self._connect(*pair))

    def transmit(self, sender: str, receiver: str, rpc: bytes) -> None:
        """Send an RPC; those of one sender arrive in order, unless the connection ends before.

        Some are lost, as they are where too many wait, but not the first of a connection.
        """
        life = self._life(sender, receiver)
        is_first = rpc == encode_subscriptions(self.topics)
        is_lost = self._is_faulty and not is_first and happens(self.rng, self.scenario.losses)
        if not self.scenario.pushes:
            router, messages = self.routers.get(sender), parse_rpc(rpc).messages
            is_lost = router is not None and not all(
                self.judge.is_wanted(router, receiver, each) for each in messages
            )
        if life is None or is_lost:
            return
        delay_ns = self.rng.randint(self.scenario.delay_ns // 10, self.scenario.delay_ns)
        due_ns = max(self.timeline.now_ns + delay_ns, self._due_ns.get((sender, receiver), 0))
        self._due_ns[sender, receiver] = due_ns

        def arrive() -> None:
            if self._life(sender, receiver) == life:
                self._deliver(sender, receiver, rpc)

        self.timeline.at(due_ns, arrive)

    def _deliver(self, sender: str, receiver: str, rpc: bytes) -> None:
        self.trace.note(receiver, f"receives {len(rpc)} bytes from {sender}")
        router = self.routers.get(receiver)
        if router is None:
            self.liars[receiver].receive(rpc, sender)
        else:
            self.judge.receives(router, sender, rpc)
            router.apply(router.core.receive(self.now_s, sender, rpc))

    def _life(self, one: str, two: str) -> int | None:
        return self._links.get((one, two), self._links.get((two, one)))

    def _connect(self, one: str, two: str) -> None:
        if self._life(one, two) is None:
            self.link(one, two)

    # Phases

    def _plan_faults(self) -> None:
        rng, timeline, scenario = self.rng, self.timeline, self.scenario
        for _ in range(scenario.breaks):
            one, two = rng.choice(scenario.links)
            when_ns = rng.randint(0, _FAULTS_NS)
            timeline.after(when_ns, partial(self.unlink, f"r{one}", f"r{two}"))
        for _ in range(scenario.restarts):
            router = rng.choice(list(self.routers.values()))
            timeline.after(rng.randint(0, _FAULTS_NS), partial(self._restart, router))
        for _ in range(_PUBLISHED_WITH_FAULTS):
            timeline.after(rng.randint(0, _FAULTS_NS), self._publish)

    def _restart(self, router: RelayRouter) -> None:
        self.trace.note(router.name, "restarts")
        for pair in [each for each in self._links if router.name in each]:
            self.unlink(*pair)
        router.start()

    def _publish(self) -> GossipMessage:
        """Publish a message at a router that forwards."""
        routers = [each for each in self.routers.values() if not each.is_leaf]
        router, topic = self.rng.choice(routers), self.rng.choice(self.topics)
        size_bytes = self.rng.choice((0, 40, 2_000))
        message = GossipMessage(topic, b"%d " % next(self._numbers) + bytes(size_bytes))
        self.trace.note(router.name, f"publishes {message.data[:8]!r}")
        for liar in self.liars.values():
            liar.announce(message)
        router.publish(message)
        return message

    def _publish_and_wait(self) -> None:
        """Publish some messages, which must reach every router."""
        messages = [self._publish() for _ in range(_PUBLISHED)]
        self.pass_for(_ARRIVAL_NS)
        for message in messages:
            self.judge.require_everywhere(message)
        self.counts["settled"] += len(messages)
