"""The context of a node for gRPC's handlers, besides its services; made by ``store.runtime``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from store.domain.quota import ClientLimits
from store.rpc.limits import MAX_CALLERS, MAX_UNFINISHED_OPEN_REQUESTS
from store.rpc.request_memory import IncompleteRequests
from store.serving.context import HealthValue, NodeContext
from store.serving.limits import MAX_UNFINISHED_REQUESTS
from store.serving.queue import RequestSlots
from storenode.common.bounded import BoundedDict

if TYPE_CHECKING:
    from store.gossip.driver.streams import PeerStreams
    from store.rpc.gossip import GossipTransport
    from store.sync.schedule import Synchronizer
    from store.sync.session.exchange import Exchange


@dataclass(frozen=True, slots=True)
class PeerRules:
    """The rules that say who may call as a peer.

    ``tls``: the listener demands client certificates, whose first DNS name is the node ID; without
    it the ID in the metadata is accepted, from loopback, or from anywhere with ``insecure``.
    ``allowed``: node IDs that may call; without TLS, empty allows every one. ``tokens``: clients
    need tokens, so that metadata alone make no caller a peer.
    """

    tls: bool = False
    insecure: bool = False
    allowed: frozenset[str] = frozenset()
    tokens: bool = False

    @property
    def trusted(self) -> bool:
        """True if a caller has proven its identity, or the operator has named it."""
        return self.tls or bool(self.allowed)

    @property
    def names_suffice(self) -> bool:
        """True if the name that a caller in clear gives is accepted."""
        return self.trusted or not self.tokens


async def _first_revision(since: int) -> int:
    if since > 0:
        await asyncio.get_running_loop().create_future()
    return 1


@dataclass(frozen=True, slots=True)
class RpcContext(NodeContext):
    """The parts of a node that gRPC's handlers use.

    ``exchange``: the exchange with peers; None while the node starts.
    ``sessions``: what sessions that peers begin work on; None serves none.
    ``peers``: None when no peer may call on these listeners.
    ``gossip``: the streams of live exchange; None while it is switched off.
    ``open_admin``: the admin listener is on loopback (then it needs no token file).
    ``requests``, ``open_requests``: slots of requests, and of those of calls without a token.
    ``callers``: when peers began or ended a call last, in Unix seconds, the oldest first.
    ``look``: evaluates the node's health, and returns it. ``await_revision``: waits for a
    revision of it above the given one, and returns that.
    ``incomplete``: the bytes of requests that have not come in full.
    """

    exchange: Synchronizer | None = None
    sessions: Exchange | None = None
    gossip: tuple[PeerStreams, GossipTransport] | None = None
    peers: PeerRules | None = None
    peer_limits: ClientLimits = field(default_factory=ClientLimits)
    open_admin: bool = False
    requests: RequestSlots = field(default_factory=lambda: RequestSlots(MAX_UNFINISHED_REQUESTS))
    open_requests: RequestSlots = field(
        default_factory=lambda: RequestSlots(MAX_UNFINISHED_OPEN_REQUESTS)
    )
    incomplete: IncompleteRequests = field(default_factory=IncompleteRequests)
    callers: dict[str, float] = field(default_factory=lambda: BoundedDict(MAX_CALLERS))
    look: Callable[[], HealthValue] = HealthValue
    await_revision: Callable[[int], Awaitable[int]] = _first_revision
