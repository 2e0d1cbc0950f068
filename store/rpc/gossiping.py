"""The streams of gossip of a node: at most one with each peer, whoever began it.

Where both sides dial, the stream that the lower node ID began stays, on both sides. A stream that
its peer begins anew takes the place of the one before, which may be dead without anybody knowing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import grpc

from store.domain.admission import Admission
from store.domain.ports import PeerAddress
from store.domain.streams import FrameStream
from store.rpc.call import Call, Context
from store.rpc.dial import PeerDialer
from store.rpc.failure import RpcFailure
from store.rpc.gossip_link import Link, LinkUser
from store.rpc.identity import NODE_ID, STORE_ID, read_metadata
from store.rpc.streams import CallerStream
from storenode.wire.storenode.v1 import peer_pb2

if TYPE_CHECKING:
    from store.observe.tracing import Tracing

GOSSIP: Final = f"/{peer_pb2.DESCRIPTOR.services_by_name['Peer'].full_name}/Gossip"


class GossipUser(LinkUser, Protocol):
    """The node's gossip, as its streams see it; all on the event loop's thread."""

    def admission(self) -> Admission:
        """Admission of the messages of one frame."""
        ...

    def joined(self, link: Link) -> None:
        """There is a stream with a peer; closing it turns the peer away."""
        ...

    def left(self, link: Link) -> None:
        """The stream is no more."""
        ...


class Links:
    """The streams there are; one per node."""

    def __init__(
        self, node_id: str, user: GossipUser, dialer: PeerDialer, tracing: Tracing | None = None
    ) -> None:
        self._node_id = node_id
        self._tracing = tracing
        self._user = user
        self._dialer = dialer
        self._links: dict[str, Link] = {}

    async def serve(self, context: Context) -> None:
        """Answer ``Gossip``."""
        told = read_metadata(context).told
        peer = told[NODE_ID]
        await self._run(self._link(CallerStream(context), peer, told[STORE_ID], peer))

    async def dial(self, peer: PeerAddress) -> None:
        """Begin a stream, and pass frames on until it ends.

        Raises:
            PeerFailed: the peer cannot be reached, ended the stream, or it broke.
            RpcFailure: this side ended it; ABORTED: there is another stream with the peer.
        """
        async with self._dialer.call(peer, GOSSIP) as call:
            callee = call.callee
            await self._run(self._link(call, callee.node_id, callee.store_id, self._node_id))

    def _link(self, stream: FrameStream, peer: str, store_id: str, dialler: str) -> Link:
        return Link(stream, peer, store_id, dialler, self._user.admission, tracing=self._tracing)

    async def absence(self, peer: PeerAddress) -> None:
        """Wait until there is no stream with a peer, as far as it is known who that is."""
        while (link := self._links.get(self._dialer.node_id(peer))) is not None:
            await link.ended()

    def close(self, failure: RpcFailure) -> None:
        """End all streams for this reason."""
        for link in list(self._links.values()):
            self._end(link)
            link.close(failure)

    async def _run(self, link: Link) -> None:
        self._make_way(link)
        self._links[link.peer] = link
        self._user.joined(link)
        try:
            await link.run(self._user)
        finally:
            self._end(link)

    def _make_way(self, link: Link) -> None:
        other = self._links.get(link.peer)
        if other is None:
            return
        if other.dialler < link.dialler or other.dialler == link.dialler == self._node_id:
            raise RpcFailure(
                grpc.StatusCode.ABORTED, "there is a stream of gossip between the two already"
            )
        self._end(other)
        other.close(RpcFailure(grpc.StatusCode.ABORTED, "another stream takes the place of this"))

    def _end(self, link: Link) -> None:
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            self._user.left(link)


class GossipService:
    """The handler of the method."""

    def __init__(self, links: Links | None) -> None:
        self._links = links

    async def gossip(self, _call: Call, context: Context) -> None:
        """Answer ``Gossip``."""
        if self._links is None:
            raise RpcFailure(
                grpc.StatusCode.FAILED_PRECONDITION,
                "this node exchanges nothing live: start it with --gossip on",
            )
        await self._links.serve(context)
