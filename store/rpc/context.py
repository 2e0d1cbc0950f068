"""What gRPC's handlers of a node need besides its services; ``store.runtime`` fills it in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from store.domain.quota import ClientLimits
from store.observe.problems import Problem
from store.rpc.health import Health
from store.rpc.limits import MAX_CALLERS, MAX_UNFINISHED_OPEN_REQUESTS
from store.rpc.receiving import Receiving
from store.rpc.unfinished import Unfinished
from store.serving.context import NodeContext
from storenode.common.bounded import BoundedDict

if TYPE_CHECKING:
    from store.gossip.driver.streams import PeerStreams
    from store.rpc.gossiping import GossipTransport
    from store.sync.schedule.driver import Synchronizer
    from store.sync.session.exchange import Exchange


@dataclass(frozen=True, slots=True)
class PeerRules:
    """Who may call as a peer.

    ``tls``: the listener demands client certificates, whose first DNS name is the node ID; without
    it the ID in the metadata is believed, from loopback, or from anywhere with ``insecure``.
    ``allowed``: node IDs that may call; without TLS, empty allows every one. ``tokens``: clients
    need tokens, so that metadata alone make nobody a peer.
    """

    tls: bool = False
    insecure: bool = False
    allowed: frozenset[str] = frozenset()
    tokens: bool = False

    @property
    def trusted(self) -> bool:
        """Who calls has proven who it is, or the operator has named it."""
        return self.tls or bool(self.allowed)

    @property
    def names_suffice(self) -> bool:
        """Who calls in clear is believed to be who it says."""
        return self.trusted or not self.tokens


async def _first_revision(_since: int) -> int:
    return 1


@dataclass(frozen=True, slots=True)
class RpcContext(NodeContext):
    """Everything that gRPC's handlers take from the node that they run in.

    ``exchange``: the exchange with peers; None while the node starts.
    ``sessions``: what sessions that peers begin work on; None serves none.
    ``peers``: None when no peer may call on these listeners.
    ``gossip``: the streams of live exchange; None while it is switched off.
    ``open_admin``: the admin listener is on loopback (then it needs no token file).
    ``receiving``, ``open_receiving``: where requests are read, and those of calls without a token.
    ``callers``: when peers began or ended a call last, in Unix seconds, the oldest first.
    ``problems``: what is wrong with the node. ``await_revision``: waits for a revision of its
    health above the given one, and returns it.
    ``unfinished``: what callers have sent of requests that have not come in full.
    """

    health: Health = field(kw_only=True)
    exchange: Synchronizer | None = None
    sessions: Exchange | None = None
    gossip: tuple[PeerStreams, GossipTransport] | None = None
    peers: PeerRules | None = None
    peer_limits: ClientLimits = field(default_factory=ClientLimits)
    open_admin: bool = False
    receiving: Receiving = field(default_factory=Receiving)
    open_receiving: Receiving = field(
        default_factory=lambda: Receiving(MAX_UNFINISHED_OPEN_REQUESTS)
    )
    unfinished: Unfinished = field(default_factory=Unfinished)
    callers: dict[str, float] = field(default_factory=lambda: BoundedDict(MAX_CALLERS))
    problems: Callable[[], Sequence[Problem]] = tuple
    await_revision: Callable[[int], Awaitable[int]] = _first_revision
