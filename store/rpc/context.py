"""What the handlers of a node need besides its services; ``store.runtime`` fills it in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from store.domain.access import Access
from store.domain.completeness import CoverageSource
from store.domain.limits import RequestLimits
from store.domain.ports import Synchronization
from store.domain.quota import ClientLimits, Quota
from store.domain.unread import Confirmations, GossipState, NoConfirmations
from store.observe.metrics import Metrics
from store.observe.problems import Problem
from store.rpc.callers import Callers
from store.rpc.drain import Drain
from store.rpc.followed import Followed
from store.rpc.health import Health
from store.rpc.limits import MAX_IN_FLIGHT_PUBLISH_BYTES, MAX_UNFINISHED_OPEN_REQUESTS
from store.rpc.receiving import Receiving
from store.rpc.secret import PeerSecret
from store.rpc.unfinished import Unfinished
from store.rpc.unsent import UnsentAnswers
from store.rpc.window import Budget
from storenode.message.rules import Policy

if TYPE_CHECKING:
    from store.gossip.driver.streams import PeerStreams
    from store.observe.tracing import Tracing
    from store.rpc.gossiping import GossipTransport
    from store.sync.session.exchange import Exchange


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Who this node is, towards peers and in its status.

    ``store_id`` names the database behind the node: two nodes on one database have the same.
    """

    node_id: str
    store_id: str
    version: str


@dataclass(frozen=True, slots=True)
class NodeState:
    """What ``Admin.GetStatus`` answers, besides the node's identity.

    Timestamps in Unix nanoseconds, 0 when nothing is held. ``index_entries``: SyncIDs in memory,
    which begin at ``index_start_ns``. ``gossip``: None where it is switched off.
    """

    ready: bool
    messages: int
    oldest_timestamp_ns: int
    newest_timestamp_ns: int
    index_entries: int
    index_start_ns: int = 0
    gossip: GossipState | None = None


@dataclass(frozen=True, slots=True)
class PeerRules:
    """Who may call as a peer.

    ``tls``: the listener demands client certificates, whose first DNS name is the node ID; without
    it the ID in the metadata is believed, from loopback, or from anywhere with ``insecure``.
    ``allowed``: node IDs that may call; without TLS, empty allows every one. ``secret``: without
    TLS, what peers prove to know. ``tokens``: clients need tokens, so that metadata alone make
    nobody a peer.
    """

    tls: bool = False
    insecure: bool = False
    allowed: frozenset[str] = frozenset()
    secret: PeerSecret | None = None
    tokens: bool = False

    @property
    def trusted(self) -> bool:
        """Who calls has proven who it is, or the operator has named it."""
        return self.tls or bool(self.allowed) or self.secret is not None

    @property
    def names_suffice(self) -> bool:
        """Who calls in clear is believed to be who it says."""
        return self.trusted or not self.tokens


@dataclass(frozen=True, slots=True)
class RpcContext:
    """Everything that handlers take from the node that they run in.

    ``policy``: the rules for messages of clients, as they are now, horizon included.
    ``access``: the token file's present content.
    ``now_ns``: the node's clock, Unix nanoseconds. ``monotonic_ns``: one that never goes back.
    ``unready``: one sentence why the node cannot serve now, or None.
    ``state``: what the node holds; may raise the errors of ``store.domain.ports``.
    ``exchange``: the exchange with peers; None while the node starts.
    ``sessions``: what sessions that peers begin work on; None serves none.
    ``peers``: None when no peer may call on these listeners.
    ``gossip``: the streams of live exchange; None while it is switched off.
    ``confirmations``: who waits for other stores to confirm what a publisher wants confirmed.
    ``tracing``: None while it is off.
    ``open_admin``: the admin listener is on loopback (then it needs no token file).
    ``receiving``, ``open_receiving``: where requests are read, and those of calls without a token.
    ``coverage``: what is known of other stores; None where nothing is. It is read for one caller at
    a time, beside the node's sessions.
    ``callers``: peers that have called. ``problems``: what is wrong with the node.
    ``unfinished``: what callers have sent of requests that have not come in full.
    """

    identity: NodeIdentity
    policy: Callable[[], Policy]
    access: Callable[[], Access]
    now_ns: Callable[[], int]
    monotonic_ns: Callable[[], int]
    unready: Callable[[], str | None]
    state: Callable[[], Awaitable[NodeState]]
    metrics: Metrics
    health: Health
    limits: RequestLimits = field(default_factory=RequestLimits)
    quota: Quota = field(default_factory=Quota)
    exchange: Synchronization | None = None
    sessions: Exchange | None = None
    gossip: tuple[PeerStreams, GossipTransport] | None = None
    confirmations: Confirmations = field(default_factory=NoConfirmations)
    coverage: CoverageSource | None = None
    coverage_turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    peers: PeerRules | None = None
    peer_limits: ClientLimits = field(default_factory=ClientLimits)
    open_admin: bool = False
    drain: Drain = field(default_factory=Drain)
    tracing: Tracing | None = None
    followed: Followed = field(default_factory=Followed)
    unsent: UnsentAnswers = field(default_factory=lambda: UnsentAnswers(time.monotonic))
    in_flight: Budget = field(default_factory=lambda: Budget(MAX_IN_FLIGHT_PUBLISH_BYTES))
    receiving: Receiving = field(default_factory=Receiving)
    open_receiving: Receiving = field(
        default_factory=lambda: Receiving(MAX_UNFINISHED_OPEN_REQUESTS)
    )
    unfinished: Unfinished = field(default_factory=Unfinished)
    callers: Callers = field(default_factory=Callers)
    problems: Callable[[], Sequence[Problem]] = tuple
