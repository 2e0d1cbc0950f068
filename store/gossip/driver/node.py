"""The gossip of a node, put together: its driver, its streams, and the waits for confirmations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

from store.domain.environment import Environment
from store.domain.ports import PeerAddress
from store.gossip.driver.confirmations import ConfirmationWaits
from store.gossip.driver.driver import GossipDriver
from store.gossip.driver.ports import DriverDatabase, GossipConnector, Meter
from store.gossip.driver.streams import NodeStoppingError, PeerConnection, PeerStreams
from store.gossip.machine import Gossip


class GossipNode:
    """The parts of gossip, which last as long as the node.

    It is stopped in this order: `close`, the tasks that do `work`, then ``driver.stop()``.
    ``make``: makes a machine. ``max_needed``: stores that an unread event waits for at most.
    """

    def __init__(
        self,
        make: Callable[[], Gossip],
        node_id: str,
        peers: Sequence[PeerAddress],
        *,
        database: DriverDatabase,
        connector: GossipConnector,
        environment: Environment,
        meter: Meter,
        max_needed: int,
    ) -> None:
        self.driver = GossipDriver(make, database, environment, meter, expected=len(peers))
        self.streams = PeerStreams(node_id, self.driver, connector, environment.steady_ns)
        self.waits = ConfirmationWaits(
            database.unread,
            reach=self.driver.reach,
            is_tracked=database.tracking.is_tracked,
            want=self.driver.want,
            most_tracked=max_needed,
        )
        self.driver.on_confirmed = self.waits.confirm
        self._connecting = {peer: PeerConnection(peer, self.streams, environment) for peer in peers}

    def work(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        """Yield the tasks that run until the node stops: name and coroutine function."""
        yield "gossip", self.driver.run
        for peer, connecting in self._connecting.items():
            yield f"gossip with {peer}", connecting.run

    def absences(self) -> Iterator[tuple[PeerAddress, int]]:
        """Yield each configured peer, and since when it is away, 0 if it is not."""
        for peer, connecting in self._connecting.items():
            yield peer, connecting.observe_absence()

    def close(self) -> None:
        """End all streams, and answer the requests that wait."""
        self.streams.close(NodeStoppingError("the node is stopping"))
        self.waits.stop()
