"""A gossipsub router as a state machine: no socket, no clock, no randomness of its own.

Whatever carries the RPCs calls `Router` and carries out the effects that it returns. Each
`Arrived` message is judged by `accept` or `reject`, or ignored, before it is forwarded. Times are
seconds of a clock that never goes back. Parameters are nwaku's (29/WAKU2-CONFIG).

Peers are scored coarsely: penalties add up and halve about every 12 heartbeats, by peer ID, also
while the peer is away. A message is requested from each peer that announces it until one has sent
it, so that a peer that announces what it never sends keeps nothing back.

nwaku remembers a peer for 60 s after its stream ended, and takes a GRAFT within that time as a
fault that costs 40 minutes outside of its mesh. So no peer is sent a GRAFT for `QUIET_S` after its
stream opened; until then it is sent messages as if it were in the mesh.

Source: libp2p, "gossipsub v1.1", and IDONTWANT of "v1.2", with StrictNoSign as 11/WAKU2-RELAY has
it: a message is data and a topic. ``ping`` and ``pong`` are an addition of nim-libp2p.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any, Final, TypeVar

from store.gateway import limits
from store.gateway.wire import parse, require
from storenode.common.bounded_dict import BoundedDict
from storenode.wire.storenode.internal.v1.libp2p_pb2 import (
    GossipsubControl,
    GossipsubIds,
    GossipsubMessage,
    GossipsubRpc,
    GossipsubSubscription,
    GossipsubWanted,
)

MESSAGE_ID_BYTES: Final = 32
MESH_PEERS: Final = 6
MIN_MESH_PEERS: Final = 4
MAX_MESH_PEERS: Final = 8
"""Peers of a topic's mesh (D, D_low, D_high)."""

GOSSIP_PEERS: Final = 6
GOSSIP_SHARE: Final = 4
"""Peers outside of the mesh that a heartbeat announces messages to: 6, or a quarter if more."""

BACKOFF_S: Final = 60
BACKOFF_SLACK_S: Final = 2
MIN_BACKOFF_S: Final = 5
MAX_BACKOFF_S: Final = 3_600
"""Bounds of the back-off that a peer asks for."""

SEEN_S: Final = 120
"""The time that a message is remembered; messages 20 s old or older are not forwarded."""

QUIET_S: Final = BACKOFF_S + 2 * BACKOFF_SLACK_S
CACHE_S: Final = 6
GOSSIP_S: Final = 3
"""The time that a message is sent to peers that request it, and announced to others."""

REFUSAL_HEARTBEATS: Final = 6
"""The number of heartbeats that a message is not sent to a peer that refused it in advance."""

PROMISE_S: Final = 3
"""The time within which a requested message must arrive."""

MAX_SERVED: Final = 3
"""Times that a message is sent to one peer that requests it."""

IHAVE_IDS: Final = 4_000
MAX_PING_BYTES: Final = 64
DECAY: Final = 0.944
REJECTED_PENALTY: Final = 1.0
MALFORMED_PENALTY: Final = 0.2
EARLY_GRAFT_PENALTY: Final = 0.2
GRAFT_PENALTY: Final = 2.0
"""A peer with more is not grafted."""

CUT_OFF_PENALTY: Final = 20.0
"""A peer with more is disconnected, and not accepted before it has decayed to half."""


@dataclass(frozen=True)
class GossipMessage:
    """A message of a topic; ``is_signed`` if it has a field that StrictNoSign refuses."""

    topic: str
    data: bytes
    is_signed: bool = False

    @cached_property
    def message_id(self) -> bytes:
        """The SHA-256 of the data, as nwaku has it."""
        return hashlib.sha256(self.data).digest()


def parse_rpc(data: bytes) -> GossipsubRpc:
    """Parse an RPC; raise ValueError if it is malformed or larger than any of an honest peer."""
    rpc = parse(GossipsubRpc, data)
    control = rpc.control
    about_topics = rpc.subscriptions, rpc.messages, control.ihave, control.graft, control.prune
    count = sum(len(entries) for entries in (*about_topics, control.iwant, control.idontwant))
    if count > limits.MAX_RPC_ENTRIES:
        raise ValueError(f"an RPC has more than {limits.MAX_RPC_ENTRIES:,} entries")
    about_ids = control.ihave, control.iwant, control.idontwant
    if sum(len(each.message_ids) for entries in about_ids for each in entries) > limits.MAX_RPC_IDS:
        raise ValueError(f"an RPC has more than {limits.MAX_RPC_IDS:,} message IDs")
    for entries in about_topics:
        for each in entries:
            require(each, "topic")
    return rpc


def messages_of(rpc: GossipsubRpc) -> Iterator[GossipMessage]:
    """Yield the messages of an RPC."""
    for each in rpc.messages:
        is_signed = each.source or each.sequence_number or each.signature or each.key
        yield GossipMessage(each.topic, each.data, bool(is_signed))


def ids_of(*entries: GossipsubIds | GossipsubWanted) -> list[bytes]:
    """Return the message IDs of some entries, without those of other sizes than SHA-256 has."""
    return [one for each in entries for one in each.message_ids if len(one) == MESSAGE_ID_BYTES]


def encode_subscriptions(topics: Iterable[str]) -> bytes:
    """Encode the subscription to some topics."""
    subscriptions = [GossipsubSubscription(is_subscribed=True, topic=each) for each in topics]
    return GossipsubRpc(subscriptions=subscriptions).SerializeToString()


def encode_message(topic: str, data: bytes) -> bytes:
    """Encode one message."""
    return GossipsubRpc(messages=[GossipsubMessage(topic=topic, data=data)]).SerializeToString()


def encode_control(kind: str, topic: str = "", **entry: Any) -> bytes:  # noqa: ANN401 - fields
    """Encode one entry of a kind, such as ``graft``, with its topic and its other fields."""
    if topic:
        entry["topic"] = topic
    control: Any = {kind: [entry]}
    return GossipsubRpc(control=control).SerializeToString()


@dataclass(frozen=True, slots=True)
class SendRpc:
    """An effect: send an encoded RPC to a peer."""

    peer: str
    rpc: bytes


@dataclass(frozen=True, slots=True)
class Disconnect:
    """An effect: end the stream of a peer, which has left the router."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Arrived:
    """An effect: judge a message that no peer has sent before."""

    peer: str
    message: GossipMessage


RouterEffect = SendRpc | Disconnect | Arrived
_T = TypeVar("_T")


@dataclass(slots=True)
class _RelayPeer:
    """A peer, whose stream opened at ``joined_s``.

    ``requested`` counts the IDs that it was asked for since the last heartbeat. At that,
    ``is_new`` was True if the peer may have remembered an earlier stream.
    """

    is_outbound: bool
    joined_s: float
    is_new: bool = True
    topics: set[str] = field(default_factory=set)
    requested: int = 0
    served: dict[bytes, int] = field(default_factory=dict)
    unwanted: deque[set[bytes]] = field(
        default_factory=lambda: deque([set()], maxlen=REFUSAL_HEARTBEATS)
    )

    def wants(self, message_id: bytes) -> bool:
        return not any(message_id in each for each in self.unwanted)


class SeenMessages(OrderedDict[Hashable, float]):
    """The messages of the last `SEEN_S` seconds, by any key, at most `MAX_SEEN_MESSAGES` of them.

    Times are seconds of a clock that never goes back.
    """

    def add(self, key: Hashable, now_s: float) -> bool:
        """Remember a message; False if it is remembered already."""
        if key in self:
            return False
        self[key] = now_s
        if len(self) > limits.MAX_SEEN_MESSAGES:
            self.popitem(last=False)
        return True

    def forget(self, now_s: float) -> None:
        """Forget the messages that are too old."""
        while self and next(iter(self.values())) < now_s - SEEN_S:
            self.popitem(last=False)


class Router:
    """The meshes of some topics.

    ``forwards`` False: messages are received and never sent on (a leaf of the network).
    """

    def __init__(self, topics: Iterable[str], rng: Random, *, forwards: bool = True) -> None:
        self._rng = rng
        self._forwards = forwards
        self._now_s = 0.0
        self._peers: dict[str, _RelayPeer] = {}
        self._mesh: dict[str, dict[str, None]] = {topic: {} for topic in topics}
        self._backoffs: BoundedDict[tuple[str, str], float] = BoundedDict(limits.MAX_BACKOFFS)
        self._penalties: BoundedDict[str, float] = BoundedDict(limits.MAX_PENALTIES)
        self._seen = SeenMessages()
        self._cache: dict[bytes, tuple[GossipMessage, float]] = {}
        self._cached_bytes = 0
        self._promises: dict[bytes, dict[str, float]] = {}
        self._effects: list[RouterEffect] = []

    def common_topics(self, key: str) -> int:
        """Count the topics of this router that a peer subscribes to."""
        peer = self._peers.get(key)
        return 0 if peer is None else len(peer.topics)

    def meshes(self, key: str) -> int:
        """Count the topics in whose mesh a peer is."""
        return sum(key in mesh for mesh in self._mesh.values())

    # Peers

    def join(self, now_s: float, key: str, *, is_outbound: bool) -> list[RouterEffect]:
        """Add a peer, to which there is a stream."""
        self._now_s = max(self._now_s, now_s)
        if self._penalties.get(key, 0.0) > CUT_OFF_PENALTY / 2:
            return [Disconnect(key, "the peer was disconnected a short time ago")]
        self._peers[key] = _RelayPeer(is_outbound, now_s)
        self._send(key, encode_subscriptions(self._mesh))
        return self._flush()

    def leave(self, key: str) -> bytes:
        """Remove a peer, and return an RPC of its subscriptions; it is empty if it has left."""
        for mesh in self._mesh.values():
            mesh.pop(key, None)
        peer = self._peers.pop(key, None)
        return encode_subscriptions(peer.topics) if peer is not None else b""

    # What arrives

    def receive(self, now_s: float, key: str, data: bytes) -> list[RouterEffect]:
        """Take an encoded RPC of a peer; nothing happens for one that has left."""
        self._now_s = max(self._now_s, now_s)
        peer = self._peers.get(key)
        if peer is None:
            return []
        try:
            rpc = parse_rpc(data)
        except ValueError:
            self._punish(key, MALFORMED_PENALTY, "it sends RPCs that are malformed or too large")
            return self._flush()
        for each in rpc.subscriptions:
            if not each.is_subscribed:
                peer.topics.discard(each.topic)
                self._mesh.get(each.topic, {}).pop(key, None)
            elif each.topic in self._mesh:
                peer.topics.add(each.topic)
        for message in messages_of(rpc):
            self._take_message(key, message)
        self._take_control(key, peer, rpc.control)
        if 0 < len(rpc.ping) < MAX_PING_BYTES:
            self._send(key, GossipsubRpc(pong=rpc.ping).SerializeToString())
        return self._flush()

    def _take_message(self, key: str, message: GossipMessage) -> None:
        if message.topic not in self._mesh:
            # Not noted as seen: its bytes may still come on a topic that is served.
            return
        if message.is_signed:
            # Not noted either: the same bytes may come without a signature.
            self._punish(key, REJECTED_PENALTY, "it sends signed messages")
            return
        message_id = message.message_id
        self._promises.pop(message_id, None)
        if not self._seen.add((message_id, message.topic), self._now_s):
            return
        self._effects.append(Arrived(key, message))

    def _take_control(self, key: str, peer: _RelayPeer, control: GossipsubControl) -> None:
        for prune in control.prune:
            if prune.topic in self._mesh:
                self._mesh[prune.topic].pop(key, None)
                backoff_s = min(max(prune.backoff_s or BACKOFF_S, MIN_BACKOFF_S), MAX_BACKOFF_S)
                self._back_off(prune.topic, key, backoff_s)
        room = limits.MAX_IDONTWANT_PER_HEARTBEAT - len(peer.unwanted[0])
        peer.unwanted[0].update(ids_of(*control.idontwant)[: max(0, room)])
        self._request(key, peer, control)
        for graft in control.graft:
            self._take_graft(key, peer, graft.topic)
        for message_id in ids_of(*control.iwant):
            self._serve(key, peer, message_id)

    def _request(self, key: str, peer: _RelayPeer, control: GossipsubControl) -> None:
        wanted = []
        for each in control.ihave:
            for message_id in ids_of(each) if each.topic in self._mesh else ():
                if peer.requested >= limits.MAX_IWANT_PER_HEARTBEAT:
                    break
                seen = (message_id, each.topic) in self._seen
                if seen or key in self._promises.get(message_id, ()):
                    continue
                peer.requested += 1
                self._promises.setdefault(message_id, {})[key] = self._now_s + PROMISE_S
                wanted.append(message_id)
        if wanted:
            self._send(key, encode_control("iwant", message_ids=wanted))

    def _take_graft(self, key: str, peer: _RelayPeer, topic: str) -> None:
        if topic not in self._mesh or key in self._mesh[topic]:
            return
        is_early = self._backoffs.get((topic, key), 0.0) - 2 * BACKOFF_SLACK_S > self._now_s
        if is_early:
            self._punish(key, EARLY_GRAFT_PENALTY, "it asks for a place in the mesh too often")
        is_full = len(self._mesh[topic]) >= MAX_MESH_PEERS and not peer.is_outbound
        if key not in self._peers:
            return
        if is_early or is_full or self._penalties.get(key, 0.0) > GRAFT_PENALTY:
            self._prune(topic, key)
        else:
            self._mesh[topic][key] = None

    def _serve(self, key: str, peer: _RelayPeer, message_id: bytes) -> None:
        cached, count = self._cache.get(message_id), peer.served.get(message_id, 0)
        if cached is not None and count < MAX_SERVED and self._forwards:
            peer.served[message_id] = count + 1
            self._send(key, encode_message(cached[0].topic, cached[0].data))

    # Judgements

    def accept(self, key: str, message: GossipMessage) -> list[RouterEffect]:
        """Forward a message that a peer has sent."""
        if self._forwards:
            self._keep(message)
            self._forward(message, self._receivers(message.topic), key)
        return self._flush()

    def reject(self, key: str, reason: str) -> list[RouterEffect]:
        """Count a fault of a peer for a message that no honest peer forwards."""
        self._punish(key, REJECTED_PENALTY, reason)
        return self._flush()

    def publish(self, now_s: float, message: GossipMessage) -> list[RouterEffect]:
        """Send a message of this node to all peers that subscribe, once."""
        self._now_s = max(self._now_s, now_s)
        if self._forwards and self._seen.add((message.message_id, message.topic), self._now_s):
            self._keep(message)
            everybody = [key for key, peer in self._peers.items() if message.topic in peer.topics]
            self._forward(message, everybody, "")
        return self._flush()

    def _receivers(self, topic: str) -> list[str]:
        """Return the peers of the mesh, and those that may not be asked to join it yet."""
        early = [
            key
            for key, peer in self._peers.items()
            if topic in peer.topics
            and peer.is_new
            and (topic, key) not in self._backoffs
            and key not in self._mesh[topic]
        ]
        return [*self._mesh[topic], *early]

    def _forward(self, message: GossipMessage, keys: Iterable[str], source: str) -> None:
        wanting = [
            key for key in keys if key != source and self._peers[key].wants(message.message_id)
        ]
        if wanting:
            rpc = encode_message(message.topic, message.data)
            for key in wanting if len(rpc) <= limits.MAX_RPC_BYTES else ():
                self._send(key, rpc)

    # Time

    def heartbeat(self, now_s: float) -> list[RouterEffect]:
        """Forget what is old, keep the meshes at their size, and announce messages; each second."""
        self._now_s = max(self._now_s, now_s)
        self._forget()
        for peer in self._peers.values():
            peer.requested = 0
            # Not before, or messages between would go neither to a new peer nor to one of the mesh.
            peer.is_new = peer.joined_s + QUIET_S > self._now_s
            peer.unwanted.appendleft(set())
            peer.served = {each: n for each, n in peer.served.items() if each in self._cache}
        if self._forwards:
            oldest_s = self._now_s - GOSSIP_S
            recent = [message for message, at_s in self._cache.values() if at_s > oldest_s]
            for topic in self._mesh:
                self._balance(topic)
                self._gossip(topic, recent)
        return self._flush()

    def _forget(self) -> None:
        self._seen.forget(self._now_s)
        for pair in [each for each, until_s in self._backoffs.items() if until_s <= self._now_s]:
            del self._backoffs[pair]
        for message_id, promised in list(self._promises.items()):
            for key in [each for each, until_s in promised.items() if until_s < self._now_s]:
                del promised[key]
                self._punish(key, MALFORMED_PENALTY, "it does not send what it announces")
            if not promised:
                del self._promises[message_id]
        for key, penalty in list(self._penalties.items()):
            self._penalties[key] = penalty * DECAY
            if penalty < MALFORMED_PENALTY / 2:
                del self._penalties[key]
        oldest_s = self._now_s - CACHE_S
        for message_id in [each for each, (_, at_s) in self._cache.items() if at_s < oldest_s]:
            self._cached_bytes -= len(self._cache.pop(message_id)[0].data)

    def _balance(self, topic: str) -> None:
        mesh = self._mesh[topic]
        fit = [key for key in self._peers if self._may_graft(topic, key)]
        # So that strangers cannot keep the peers out that this router connected to.
        wanted = [key for key in fit if self._peers[key].is_outbound]
        if len(mesh) + len(wanted) < MIN_MESH_PEERS:
            others = [key for key in fit if key not in wanted]
            wanted += self._sample(others, MESH_PEERS - len(mesh) - len(wanted))
        for key in wanted:
            mesh[key] = None
            self._send(key, encode_control("graft", topic))
        if len(mesh) > MAX_MESH_PEERS:
            others = [key for key in mesh if not self._peers[key].is_outbound]
            for key in self._sample(others, len(mesh) - MESH_PEERS):
                del mesh[key]
                self._prune(topic, key)

    def _may_graft(self, topic: str, key: str) -> bool:
        return (
            topic in self._peers[key].topics
            and key not in self._mesh[topic]
            and (topic, key) not in self._backoffs
            and not self._peers[key].is_new
            and self._penalties.get(key, 0.0) <= GRAFT_PENALTY
        )

    def _gossip(self, topic: str, recent: Iterable[GossipMessage]) -> None:
        ids = [each.message_id for each in recent if each.topic == topic]
        others = [
            key
            for key, peer in self._peers.items()
            if topic in peer.topics and key not in self._mesh[topic]
        ]
        if ids and others:
            for key in self._sample(others, max(GOSSIP_PEERS, len(others) // GOSSIP_SHARE)):
                self._send(
                    key,
                    encode_control("ihave", topic, message_ids=self._sample(ids, IHAVE_IDS)),
                )

    # Shared steps

    def check(self) -> None:
        """Raise AssertionError if an invariant or a bound is broken."""
        assert all(mesh.keys() <= self._peers.keys() for mesh in self._mesh.values())
        assert len(self._penalties) <= limits.MAX_PENALTIES
        assert len(self._backoffs) <= limits.MAX_BACKOFFS
        assert self._cached_bytes == sum(len(each.data) for each, _ in self._cache.values())
        assert self._cached_bytes <= limits.MAX_CACHED_MESSAGE_BYTES
        assert all(self._promises.values())
        for peer in self._peers.values():
            assert peer.topics <= self._mesh.keys()
            assert peer.requested <= limits.MAX_IWANT_PER_HEARTBEAT
            assert all(len(each) <= limits.MAX_IDONTWANT_PER_HEARTBEAT for each in peer.unwanted)
        assert not self._effects

    def _sample(self, population: Sequence[_T], count: int) -> Sequence[_T]:
        """Return at most ``count`` elements, in a random order."""
        shuffled = list(population)
        self._rng.shuffle(shuffled)
        return shuffled[:count]

    def _flush(self) -> list[RouterEffect]:
        effects, self._effects = self._effects, []
        return effects

    def _send(self, key: str, rpc: bytes) -> None:
        self._effects.append(SendRpc(key, rpc))

    def _prune(self, topic: str, key: str) -> None:
        self._back_off(topic, key, BACKOFF_S)
        self._send(key, encode_control("prune", topic, backoff_s=BACKOFF_S))

    def _back_off(self, topic: str, key: str, backoff_s: float) -> None:
        """Refuse and send no GRAFT for a while after a PRUNE, and at least as long as before."""
        until_s = self._now_s + backoff_s + BACKOFF_SLACK_S
        self._backoffs[topic, key] = max(until_s, self._backoffs.get((topic, key), 0.0))

    def _keep(self, message: GossipMessage) -> None:
        message_id, size_bytes = message.message_id, len(message.data)
        if (
            message_id not in self._cache
            and self._cached_bytes + size_bytes <= limits.MAX_CACHED_MESSAGE_BYTES
        ):
            self._cache[message_id] = message, self._now_s
            self._cached_bytes += size_bytes

    def _punish(self, key: str, penalty: float, reason: str) -> None:
        total = self._penalties[key] = self._penalties.get(key, 0.0) + penalty
        if total > CUT_OFF_PENALTY and key in self._peers:
            self.leave(key)
            self._effects.append(Disconnect(key, reason))
