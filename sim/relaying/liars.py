"""Peers that lie: each connects to some routers, and again when it is disconnected."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sim.limits import NS_PER_MS, NS_PER_S
from sim.relaying.scenario import Trick
from store.gateway.gossipsub_wire import (
    MESSAGE_ID_BYTES,
    GossipMessage,
    Prune,
    encode_graft,
    encode_idontwant,
    encode_ihave,
    encode_iwant,
    encode_message,
    encode_prune,
    encode_subscriptions,
    parse_rpc,
)
from store.gateway.wire import bytes_field

if TYPE_CHECKING:
    from sim.relaying.world import RelayWorld

_PAUSE_NS: Final = 2 * NS_PER_S
_LIE_NS: Final = 300 * NS_PER_MS
_FLOOD: Final = 1_100
_REMEMBERED: Final = 12


class Liar:
    """A liar; ``name`` is what it calls itself now."""

    def __init__(self, world: RelayWorld, number: int, trick: Trick) -> None:
        self.name = f"x{number}"
        self.trick = trick
        self.is_done = False
        self._world = world
        self._number = number
        self._lives = 0
        self._received: deque[GossipMessage] = deque(maxlen=_REMEMBERED)

    def haunt(self, victim: str) -> None:
        """Connect to a router, and lie to it until it ends the connection."""
        if self.is_done:
            return
        world = self._world
        pause_ns = NS_PER_S if self.trick in (Trick.ANNOUNCE, Trick.REFUSE) else _LIE_NS
        if not world.is_linked(self.name, victim):
            if self.trick is Trick.CHURN:
                self._lives += 1
                self.name = f"x{self._number}.{self._lives}"
                world.liars[self.name] = self
            world.link(self.name, victim)
            world.transmit(self.name, victim, encode_subscriptions(world.topics))
            if self.trick in (Trick.STAY, Trick.WITHHOLD):
                world.transmit(self.name, victim, encode_graft(world.topics[0]))
            pause_ns = _LIE_NS if self.trick is Trick.CHURN else _PAUSE_NS
        elif self.trick is Trick.CHURN:
            world.unlink(self.name, victim)
            pause_ns = _PAUSE_NS
        if self.trick is Trick.CHURN or pause_ns != _PAUSE_NS:
            for rpc in self._lies():
                world.transmit(self.name, victim, rpc)
        world.timeline.after(pause_ns, lambda: self.haunt(victim))

    def receive(self, data: bytes, peer: str) -> None:
        """Read an RPC of a router."""
        rpc = parse_rpc(data)
        self._received.extend(each for each in rpc.messages if each not in self._received)
        others = [each for each in self._world.victims_of(self.name) if each != peer]
        for message in rpc.messages if self.trick is Trick.SIGN else ():
            for victim in others:
                self._world.transmit(self.name, victim, _signed(message))

    def announce(self, message: GossipMessage) -> None:
        """Announce a message at the moment when it is published, if that is the trick."""
        if self.trick is Trick.WITHHOLD:
            for victim in self._world.victims_of(self.name):
                announced = encode_ihave(message.topic, [message.message_id])
                self._world.transmit(self.name, victim, announced)

    def _lies(self) -> list[bytes]:
        rng, topic = self._world.rng, self._world.topics[0]
        received_ids = [each.message_id for each in self._received]
        lies: dict[Trick, Callable[[], list[bytes]]] = {
            Trick.ANNOUNCE: lambda: [encode_ihave(topic, self._invented())],
            Trick.GRAFT: lambda: [encode_prune(Prune(topic, 1)), encode_graft(topic)] * 4,
            Trick.DEMAND: lambda: [encode_iwant(received_ids * 3)],
            Trick.REFUSE: lambda: [encode_idontwant(self._invented())],
            Trick.SIGN: lambda: [
                _signed(self._received[-1] if received_ids else GossipMessage(topic, b"x"))
            ],
            Trick.INVALID: lambda: [encode_message(topic, rng.randbytes(40))],
            Trick.GARBAGE: lambda: [b"\xff" + rng.randbytes(40) for _ in range(4)],
            Trick.REPLAY: lambda: [
                b"".join(encode_message(each.topic, each.data) for each in self._received)
            ],
            Trick.CHURN: lambda: [encode_graft(topic), encode_prune(Prune(topic, 2**40))],
        }
        return lies[self.trick]() if self.trick in lies else []

    def _invented(self) -> list[bytes]:
        invented = self._world.rng.randbytes(_FLOOD * MESSAGE_ID_BYTES)
        return [
            invented[at : at + MESSAGE_ID_BYTES] for at in range(0, len(invented), MESSAGE_ID_BYTES)
        ]


def _signed(message: GossipMessage) -> bytes:
    parts = bytes_field(2, message.data) + bytes_field(4, message.topic.encode())
    return bytes_field(2, parts + bytes_field(5, b"signature"))
