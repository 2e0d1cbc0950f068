"""Relay in the simulator: networks of gossipsub routers with faults and lying peers.

There are faults and liars first, then liars alone, then silence. What must hold:

1. A router accepts a message once, and forwards only what was published, on its topic, and is
   fresh; to the peer that it came from only if that asks for it, and to one that asks at most
   `MAX_SERVED` times.
2. A message that is published while all is well, but for liars, reaches every honest router.
3. No honest router is disconnected by another one; each liar whose trick can be punished is.
4. No GRAFT is sent within a minute after an earlier stream to the peer ended, as nwaku punishes
   it, nor before the end of a back-off.
5. A peer is asked for a bounded number of messages between two heartbeats. What a router keeps is
   bounded (`Router.check`), and nothing is left of it some minutes after the last message.
6. A leaf sends no message, no announcement and no GRAFT.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import count
from typing import Final

from sim.judge import ViolationError
from sim.limits import NS_PER_MS, NS_PER_S, START_NS
from sim.rng import Random, happens
from sim.stage import Stage
from store.gateway.gossipsub import (
    BACKOFF_S,
    MAX_SERVED,
    MESSAGE_ID_BYTES,
    QUIET_S,
    SEEN_S,
    Arrived,
    Disconnect,
    GossipMessage,
    Router,
    RouterEffect,
    SendRpc,
    encode_control,
    encode_message,
    encode_subscriptions,
    ids_of,
    messages_of,
    parse_rpc,
)
from store.gateway.limits import MAX_IWANT_PER_HEARTBEAT
from storenode.message.varint import delimited

MIN_ROUTERS: Final = 3
MAX_ROUTERS: Final = 10
FRESH_NS: Final = 20 * NS_PER_S
_MAX_LIARS: Final = 4
_LARGE_RPC_BYTES: Final = 4_096
_PAUSE_NS: Final = 2 * NS_PER_S
_LIE_NS: Final = 300 * NS_PER_MS
_FLOOD: Final = 1_100
_REMEMBERED: Final = 12
_FAULTS_NS: Final = 90 * NS_PER_S
_CALM_NS: Final = 2 * QUIET_S * NS_PER_S
_ARRIVAL_NS: Final = 15 * NS_PER_S
"""The time for a message to reach every router: a heartbeat and a delay at each of ten steps."""

_REST_NS: Final = (SEEN_S + 90) * NS_PER_S

_REDIAL_NS: Final = 5 * NS_PER_S
_PUBLISHED_WITH_FAULTS: Final = 30
_PUBLISHED: Final = 4
_TOPICS: Final = ("/waku/2/rs/7/0", "/waku/2/rs/7/1")


class Trick(StrEnum):
    """A fault of a liar, which it repeats."""

    ANNOUNCE = "announce"
    """Announces thousands of IDs of messages that do not exist."""
    WITHHOLD = "withhold"
    """Announces each message before the others do, and never sends one."""
    GRAFT = "graft"
    """Requests a place in the mesh, however often it is pruned."""
    STAY = "stay"
    """Stays in the mesh, ignores a PRUNE, and forwards nothing."""
    DEMAND = "demand"
    """Requests announced messages again and again."""
    REFUSE = "refuse"
    """Refuses thousands of messages in advance."""
    SIGN = "sign"
    """Sends announced messages with a signature."""
    INVALID = "invalid"
    """Sends bytes that are not a message."""
    GARBAGE = "garbage"
    """Sends bytes that are not an RPC."""
    REPLAY = "replay"
    """Sends old messages."""
    CHURN = "churn"
    """Connects under ever new names, prunes for an hour, and disconnects."""


PUNISHED: Final = frozenset({Trick.ANNOUNCE, Trick.GRAFT, Trick.SIGN, Trick.INVALID, Trick.GARBAGE})
"""Tricks for which a peer is disconnected in the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayScenario:
    """The parameters of a run.

    ``links`` connect routers, the first of each pair is the one that connects. ``leaves``: the last
    routers, this many, forward nothing. ``losses``: the share of RPCs that is lost while there are
    faults; ``breaks`` and ``restarts``: their number. ``pushes`` False: messages that were not
    requested by their receiver are lost, and there are no other faults but liars.
    """

    routers: int
    leaves: int
    links: tuple[tuple[int, int], ...]
    delay_ns: int
    losses: float
    breaks: int
    restarts: int
    tricks: tuple[Trick, ...]
    victims: int
    pushes: bool = True


def drawn_relay(rng: Random) -> RelayScenario:
    """Draw a scenario: the routers that forward are always connected by links."""
    count = rng.randint(MIN_ROUTERS, MAX_ROUTERS)
    leaves = rng.randint(0, 1)
    links = {(number, rng.randint(0, number - 1)) for number in range(1, count)}
    for _ in range(rng.randint(0, 2 * count)):
        one, two = rng.sample(range(count), 2)
        if (two, one) not in links:
            links.add((one, two))
    for leaf in range(count, count + leaves):
        links |= {(leaf, other) for other in rng.sample(range(count), 2)}
    liars = rng.randint(0, _MAX_LIARS)
    return RelayScenario(
        routers=count + leaves,
        leaves=leaves,
        links=tuple(sorted(links)),
        delay_ns=rng.choice((2, 50, 200)) * NS_PER_MS,
        losses=0.1 if happens(rng, 0.5) else 0.0,
        breaks=rng.choice((0, 4, 20)),
        restarts=rng.choice((0, 1, 3)),
        tricks=tuple(rng.choice(list(Trick)) for _ in range(liars)),
        victims=rng.randint(1, 3),
    )


def without_pushes(scenario: RelayScenario) -> RelayScenario:
    """Return a scenario in which requested messages arrive alone, and all liars withhold some."""
    liars = (Trick.WITHHOLD,) * len(scenario.tricks)
    return replace(scenario, pushes=False, tricks=liars, losses=0.0)


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


class RelayJudge:
    """Watches what routers do; ``made`` has each published message and when that was."""

    def __init__(self, world: RelayWorld) -> None:
        self._world = world
        self.made: dict[GossipMessage, int] = {}
        self.punished: set[str] = set()
        self._sent: Counter[tuple[object, str, GossipMessage]] = Counter()
        self._wanted: set[tuple[object, str, bytes]] = set()
        self._asked: Counter[tuple[str, str]] = Counter()
        self._stream_ended_ns: dict[tuple[str, str], int] = {}
        self._backoff_until_ns: dict[tuple[str, str, str], int] = {}

    def is_fresh(self, message: GossipMessage) -> bool:
        """Return True for a published message that may still be forwarded."""
        now_ns = self._world.timeline.now_ns
        return now_ns - self.made.get(message, -FRESH_NS - 1) <= FRESH_NS

    def accepts(self, router: RelayRouter, message: GossipMessage) -> None:
        """Note that a router accepts a message that a peer sent."""
        if message in router.accepted:
            raise ViolationError(f"{router.name} accepts a message twice")
        router.accepted.add(message)
        self._world.counts["accepted"] += 1

    def sends(self, router: RelayRouter, peer: str, data: bytes) -> None:
        """Check an RPC that a router sends."""
        rpc, now_ns = parse_rpc(data), self._world.timeline.now_ns
        if router.is_leaf and (rpc.messages or rpc.control.ihave or rpc.control.graft):
            raise ViolationError(f"the leaf {router.name} sends messages")
        for message in messages_of(rpc):
            if message not in self.made:
                raise ViolationError(f"{router.name} forwards what was never published")
            if router.sources.get(message) == peer and not self.is_wanted(router, peer, message):
                raise ViolationError(f"{router.name} sends a message back to {peer}")
            self._sent[router.life, peer, message] += 1
            if self._sent[router.life, peer, message] > 1 + MAX_SERVED:
                raise ViolationError(f"{router.name} sends a message to {peer} without end")
        self._asked[router.name, peer] += len(ids_of(*rpc.control.iwant))
        if self._asked[router.name, peer] > MAX_IWANT_PER_HEARTBEAT:
            raise ViolationError(f"{router.name} asks {peer} for too many messages")
        for topic in (each.topic for each in rpc.control.graft):
            ended_ns = self._stream_ended_ns.get((router.name, peer), -BACKOFF_S * NS_PER_S)
            if now_ns - ended_ns < BACKOFF_S * NS_PER_S:
                raise ViolationError(f"{router.name} grafts {peer}, which remembers an old stream")
            if now_ns < self._backoff_until_ns.get((router.name, peer, topic), 0):
                raise ViolationError(f"{router.name} grafts {peer} within the back-off")

    def is_wanted(self, router: RelayRouter, peer: str, message: GossipMessage) -> bool:
        """Return True if a peer has requested a message."""
        return (router.life, peer, message.message_id) in self._wanted

    def receives(self, router: RelayRouter, peer: str, data: bytes) -> None:
        """Note the requests and the back-offs in an RPC that a router receives."""
        if len(data) > _LARGE_RPC_BYTES:
            # A flood, in which is neither.
            return
        try:
            rpc = parse_rpc(data)
        except ValueError:
            return
        self._wanted.update((router.life, peer, each) for each in ids_of(*rpc.control.iwant))
        for prune in rpc.control.prune:
            until_ns = self._world.timeline.now_ns + min(prune.backoff_s, 3_600) * NS_PER_S
            self._backoff_until_ns[router.name, peer, prune.topic] = until_ns

    def beats(self, router: RelayRouter) -> None:
        """Note a heartbeat, and check what the router keeps."""
        for pair in [each for each in self._asked if each[0] == router.name]:
            del self._asked[pair]
        router.core.check()

    def disconnects(self, router: RelayRouter, peer: str, reason: str) -> None:
        """Note that a router disconnects a peer."""
        if peer in self._world.routers:
            raise ViolationError(f"{router.name} disconnects the honest {peer}: {reason}")
        self.punished.add(peer)
        self._world.counts["punished"] += 1

    def stream_ends(self, one: str, two: str) -> None:
        """Note the end of the streams between two."""
        for pair in ((one, two), (two, one)):
            self._stream_ended_ns[pair] = self._world.timeline.now_ns
            self._asked.pop(pair, None)

    def require_everywhere(self, message: GossipMessage) -> None:
        """Check that a message has reached every router."""
        missing = [
            each.name for each in self._world.routers.values() if message not in each.accepted
        ]
        if missing:
            raise ViolationError(f"a message does not reach {', '.join(missing)}")

    def require_rest(self, router: RelayRouter) -> None:
        """Check that nothing is left of the messages of a run."""
        core = router.core
        left = (core._seen, core._cache, core._promises, core._penalties)
        if any(left):
            raise ViolationError(f"{router.name} still keeps what is long over")


class Liar:
    """A liar, which calls itself ``name``, and by ``names`` at its victims if it changes them."""

    def __init__(self, world: RelayWorld, number: int, trick: Trick) -> None:
        self.name = f"x{number}"
        self.trick = trick
        self.is_done = False
        self.names: dict[str, str] = {}
        self._world = world
        self._lives = 0
        self._received: deque[GossipMessage] = deque(maxlen=_REMEMBERED)

    def haunt(self, victim: str) -> None:
        """Connect to a router, and lie to it until it ends the connection."""
        if self.is_done:
            return
        world, name = self._world, self.names.get(victim, self.name)
        pause_ns = NS_PER_S if self.trick in (Trick.ANNOUNCE, Trick.REFUSE) else _LIE_NS
        if victim not in world.victims_of(name):
            if self.trick is Trick.CHURN:
                self._lives += 1
                name = self.names[victim] = f"{self.name}.{self._lives}"
                world.liars[name] = self
            world.link(name, victim)
            world.transmit(name, victim, encode_subscriptions(world.topics))
            if self.trick in (Trick.STAY, Trick.WITHHOLD):
                world.transmit(name, victim, encode_control("graft", world.topics[0]))
            pause_ns = _LIE_NS if self.trick is Trick.CHURN else _PAUSE_NS
        elif self.trick is Trick.CHURN:
            world.unlink(name, victim)
            pause_ns = _PAUSE_NS
        if self.trick is Trick.CHURN or pause_ns != _PAUSE_NS:
            for rpc in self._lies():
                world.transmit(name, victim, rpc)
        world.timeline.after(pause_ns, lambda: self.haunt(victim))

    def receive(self, data: bytes, peer: str) -> None:
        """Read an RPC of a router."""
        messages = list(messages_of(parse_rpc(data)))
        self._received.extend(each for each in messages if each not in self._received)
        others = [each for each in self._world.victims_of(self.name) if each != peer]
        for message in messages if self.trick is Trick.SIGN else ():
            for victim in others:
                self._world.transmit(self.name, victim, _signed(message))

    def announce(self, message: GossipMessage) -> None:
        """Announce a message at the moment when it is published, if that is the trick."""
        if self.trick is Trick.WITHHOLD:
            for victim in self._world.victims_of(self.name):
                ids = [message.message_id]
                announced = encode_control("ihave", message.topic, message_ids=ids)
                self._world.transmit(self.name, victim, announced)

    def _lies(self) -> list[bytes]:
        rng, topic = self._world.rng, self._world.topics[0]
        received_ids = [each.message_id for each in self._received]
        graft = encode_control("graft", topic)
        lies: dict[Trick, Callable[[], list[bytes]]] = {
            Trick.ANNOUNCE: lambda: [encode_control("ihave", topic, message_ids=self._invented())],
            Trick.GRAFT: lambda: [encode_control("prune", topic, backoff_s=1), graft] * 4,
            Trick.DEMAND: lambda: [encode_control("iwant", message_ids=received_ids * 3)],
            Trick.REFUSE: lambda: [encode_control("idontwant", message_ids=self._invented())],
            Trick.SIGN: lambda: [
                _signed(self._received[-1] if received_ids else GossipMessage(topic, b"x"))
            ],
            Trick.INVALID: lambda: [encode_message(topic, rng.randbytes(40))],
            Trick.GARBAGE: lambda: [b"\xff" + rng.randbytes(40) for _ in range(4)],
            Trick.REPLAY: lambda: [
                b"".join(encode_message(each.topic, each.data) for each in self._received)
            ],
            Trick.CHURN: lambda: [graft, encode_control("prune", topic, backoff_s=2**40)],
        }
        return lies[self.trick]() if self.trick in lies else []

    def _invented(self) -> list[bytes]:
        invented = self._world.rng.randbytes(_FLOOD * MESSAGE_ID_BYTES)
        return [
            invented[at : at + MESSAGE_ID_BYTES] for at in range(0, len(invented), MESSAGE_ID_BYTES)
        ]


def _signed(message: GossipMessage) -> bytes:
    parts = delimited(b"\x12", message.data) + delimited(b"\x22", message.topic.encode())
    return delimited(b"\x12", parts + delimited(b"\x2a", b"signature"))


class RelayWorld(Stage):
    """A network of routers and liars."""

    topics: tuple[str, ...] = _TOPICS
    scenario: RelayScenario
    max_events = 60_000
    check_every = 1_000

    def __init__(
        self, scenario: RelayScenario, rng: Random, sink: Callable[[str], None] | None = None
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
                raise ViolationError(f"{liar.name} is never disconnected for {liar.trick}")
            liar.is_done = True
        for pair in [each for each in self._links if each[0] in self.liars]:
            self.unlink(*pair)
        self.pass_for(_REST_NS)
        for router in self.routers.values():
            self.judge.require_rest(router)
        return 0

    # Links

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
            router, messages = self.routers.get(sender), list(messages_of(parse_rpc(rpc)))
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
