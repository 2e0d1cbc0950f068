"""Relay: the gateway as a peer of a Waku network, between the mesh and the node.

Messages of the mesh are validated, forwarded and published at the node. New messages of the node
that did not come from the mesh are sent to it: those that clients push at this gateway at once,
others after `DELAY_S`, unless the mesh brings them meanwhile. So several gateways at one store send
a message once, and messages that reconciliation brings are never sent.

A *router* forwards messages without verifying proofs of RLN, for networks without RLN. A *leaf*
forwards and sends nothing, accepts configured peers only, and stores what they let through.

Source: 11/WAKU2-RELAY.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection, Sequence
from typing import Final
from weakref import WeakKeyDictionary

from store.domain.quota import Bucket, QuotaExceededError
from store.gateway import limits
from store.gateway.connection import SendQueue, Stream, WakuConnection
from store.gateway.faults import RefusalError, StreamEndedError
from store.gateway.gossipsub import (
    Arrived,
    Disconnect,
    GossipMessage,
    Router,
    RouterEffect,
    SeenMessages,
    SendRpc,
    encode_subscriptions,
)
from store.gateway.metrics import GatewayMetrics
from store.gateway.node import FollowedMessage, NodeFeed, Spool
from store.gateway.wire import delimited, parse_relayable
from store.observe.logging import get_logger
from storenode.message.hashing import message_hash
from storenode.message.limits import NS_PER_S

RELAY: Final = "/vac/waku/relay/2.0.0"

FRESH_NS: Final = 20 * NS_PER_S
"""The largest difference of a message's timestamp from now at which it is forwarded (nwaku)."""

DELAY_S: Final = 1.0
DELAY_JITTER_S: Final = 0.5
HEARTBEAT_S: Final = 1.0
_MESSAGE_BYTES: Final = 1_024  # beside its encoding
_log = get_logger("store.gateway")


def parse_message(message: GossipMessage) -> tuple[bytes, int] | None:
    """Return message hash and timestamp of a ``WakuMessage``; None if its topic is not UTF-8.

    Raises:
        ValueError: It is one that nwaku punishes a peer for.
    """
    found = parse_relayable(message.data)
    if len(message.data) + len(message.topic) > limits.MAX_RELAYED_BYTES:
        raise ValueError("a message is too large to be relayed")
    try:
        found.content_topic.decode()
    except UnicodeDecodeError:
        return None
    parts = found.payload, found.content_topic, found.meta, found.timestamp
    return message_hash(message.topic, *parts), found.timestamp


class Relay:
    """The relay peers of the gateway, by peer ID: each has a stream each way.

    A stream on a newer connection replaces the peer, since the older connection may hang. Older
    streams of the peer are reset: its subscriptions are forgotten, and come again on a new one.
    A peer that takes no stream leaves; with its next RPC it joins again, with its subscriptions.
    """

    def __init__(
        self,
        pubsub_topics: Collection[str],
        configured_peers: frozenset[str],
        *,
        forwards: bool,
        spool: Spool,
        feed: NodeFeed,
        metrics: GatewayMetrics,
    ) -> None:
        self._forwards = forwards
        self._pubsub_topics = frozenset(pubsub_topics)
        self._configured_peers = configured_peers
        self._spool = spool
        self._metrics = metrics
        self._rng = random.Random()  # noqa: S311 - which peers receive an announcement
        self._router = Router(sorted(pubsub_topics), self._rng, forwards=forwards)
        self._peers: dict[str, SendQueue] = {}
        self._left: WeakKeyDictionary[WakuConnection, bytes] = WeakKeyDictionary()
        self._rates: WeakKeyDictionary[WakuConnection, Bucket] = WeakKeyDictionary()
        self._known = SeenMessages()
        self._delayed: set[bytes] = set()
        self._delayed_bytes = 0
        metrics.relay_topics.set(len(self._pubsub_topics))
        if forwards:
            feed.listeners.append(self.offer)
            feed.acquire()

    def beat(self) -> None:
        """Forget what is old, and keep the meshes; every `HEARTBEAT_S`."""
        now_s = time.monotonic()
        self._known.forget(now_s)
        self._apply(self._router.heartbeat(now_s))
        connected = self._configured_peers & self._peers.keys()
        apart = sum(not self._router.common_topics(key) for key in connected)
        self._metrics.relay_peers_apart.set(apart)

    def describe(self) -> list[str]:
        """Return a line about each relay peer, for operators."""
        return [
            f"{key} at {peer.connection.client.network}"
            f" ({'--relay-peer' if key in self._configured_peers else 'accepted'}):"
            f" {self._router.common_topics(key)} common topics, in the mesh of"
            f" {self._router.meshes(key)}"
            for key, peer in self._peers.items()
        ]

    async def serve(self, stream: Stream) -> None:
        """Take the RPCs of a peer, no faster than its limits, until its stream ends."""
        connection, key, before = stream.connection, stream.connection.peer_id, None
        # For all streams of the connection together, and of a peer that joins again.
        rate = self._rates.setdefault(connection, Bucket(limits.RELAY_BYTES_PER_S, "bytes"))
        while True:
            try:
                rpc = await stream.delimited(limits.MAX_RPC_BYTES)
            except StreamEndedError:
                return
            stream.release()
            await _wait_for_room(rate, max(len(rpc), limits.MIN_RELAY_BYTES))
            peer = self._peers.get(key)
            if peer is None or (before is None and peer.connection.began_ns < connection.began_ns):
                peer = self.join(connection)
            elif before is not None and before is not peer.connection:
                raise StreamEndedError
            before = peer.connection
            self._apply(self._router.receive(time.monotonic(), key, rpc))

    def join(self, connection: WakuConnection) -> SendQueue:
        """Add a peer, and open a stream to it; raise RefusalError if it is not accepted."""
        key = connection.peer_id
        is_configured = key in self._configured_peers
        if not self._forwards and not is_configured:
            raise RefusalError("identity", f"the relay peer {key} is not one of --relay-peer")
        before = self._peers.get(key)
        if len(self._peers) >= limits.MAX_RELAY_PEERS and not (is_configured or before):
            raise RefusalError("busy", f"there are {limits.MAX_RELAY_PEERS} relay peers already")
        if before is not None:
            self._leave(key, before)
            before.stop()
        peer = self._peers[key] = SendQueue(
            connection,
            RELAY,
            limits.MAX_QUEUED_RPCS,
            self._metrics,
            lambda: self._leave(key, peer),
            greeting=delimited(encode_subscriptions(self._pubsub_topics)),
        )
        self._metrics.relay_peers.set(len(self._peers))
        _log.info("relay_peer_joined", peer=key, configured=is_configured)
        # Strangers cannot keep out of the mesh a peer that the operator named.
        now_s = time.monotonic()
        self._apply(self._router.join(now_s, key, is_outbound=is_configured))
        self._apply(self._router.receive(now_s, key, self._left.pop(connection, b"")))
        return peer

    def publish(self, topic: str, digest: bytes, encoded: bytes) -> None:
        """Send a message of this node to the mesh, unless it came from there."""
        if not self._forwards or topic not in self._pubsub_topics:
            return
        now_s = time.monotonic()
        if self._known.add(digest, now_s):
            self._metrics.relayed.labels("sent").inc()
            self._apply(self._router.publish(now_s, GossipMessage(topic, encoded)))

    def offer(self, message: FollowedMessage) -> None:
        """Send a new message of the node to the mesh, unless the mesh brings it in a moment."""
        digest = message.message_hash
        if digest in self._known or digest in self._delayed:
            return
        if abs(time.time_ns() - message.timestamp_ns) > FRESH_NS:
            return
        size_bytes = self._delayed_bytes + _MESSAGE_BYTES + len(message.encoded)
        if size_bytes > limits.MAX_DELAYED_BYTES:
            self._metrics.relayed.labels("dropped").inc()
            return
        pause_s = DELAY_S + self._rng.random() * DELAY_JITTER_S
        self._delayed.add(digest)
        self._delayed_bytes = size_bytes
        asyncio.get_running_loop().call_later(pause_s, self._end_delay, message)

    def _end_delay(self, message: FollowedMessage) -> None:
        self._delayed.remove(message.message_hash)
        self._delayed_bytes -= _MESSAGE_BYTES + len(message.encoded)
        self.publish(message.pubsub_topic, message.message_hash, message.encoded)

    def _apply(self, effects: Sequence[RouterEffect]) -> None:
        for effect in effects:
            match effect:
                case SendRpc(key, rpc):
                    peer = self._peers.get(key)
                    if peer is not None and not peer.put(delimited(rpc)):
                        self._metrics.relayed.labels("unsent").inc()
                case Disconnect(key, reason):
                    self._disconnect(key, reason)
                case Arrived(key, message):
                    self._judge(key, message)

    def _judge(self, key: str, message: GossipMessage) -> None:
        try:
            parsed = parse_message(message)
        except ValueError as error:
            self._metrics.relayed.labels("invalid").inc()
            self._apply(self._router.reject(key, f"a message is malformed: {error}"))
            return
        if parsed is None or abs(time.time_ns() - parsed[1]) > FRESH_NS:
            # A replay of an old message: others forward it, and no peer is punished for it.
            self._metrics.relayed.labels("ignored").inc()
            return
        self._metrics.relayed.labels("received").inc()
        is_new = self._known.add(parsed[0], time.monotonic())
        self._apply(self._router.accept(key, message))
        if is_new:
            self._spool.put(message.topic, message.data)

    def _disconnect(self, key: str, reason: str) -> None:
        peer = self._peers.get(key)
        _log.warning("relay_peer_disconnected", peer=key, reason=reason)
        self._metrics.refused("relay_peer")
        if peer is not None:
            peer.connection.end()

    def _leave(self, key: str, peer: SendQueue) -> None:
        if self._peers.get(key) is peer:
            del self._peers[key]
            self._left[peer.connection] = self._router.leave(key)
            self._metrics.relay_peers.set(len(self._peers))
            _log.info("relay_peer_left", peer=key)


async def _wait_for_room(bucket: Bucket, count: int) -> None:
    """Wait until a rate allows ``count`` more; meanwhile the peer's stream is not read."""
    while True:
        try:
            bucket.take(count, time.monotonic_ns())
        except QuotaExceededError as error:
            await asyncio.sleep(error.retry_after_ns / NS_PER_S)
        else:
            return
