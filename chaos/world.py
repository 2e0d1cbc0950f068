"""The world of a run: nodes, the wires between them, clients, participants, and its history.

The demo and the soak are scenarios of it: each starts nodes of its own kind, breaks some of it, and
ends with `settle` and `check`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random
from subprocess import TimeoutExpired
from typing import Any, Final

from chaos.checker.clients import Endpoint, Follower, Publisher, read_holding
from chaos.checker.history import History, Violation
from chaos.checker.logs import Log, check_logs
from chaos.checker.stores import Holding, check_stores
from chaos.link import Traffic
from chaos.network import Network
from chaos.node import NodeProcess
from chaos.participant import Participant
from chaos.tasks import StuckError, Tasks, Waiter
from storenode.connection.channel import TlsIdentity
from storenode.sds.aio.node import StoreNode
from storenode.sds.channel import ChannelFullError
from storenode.sds.config import ChannelConfig

_START_TIMEOUT_S: Final = 600.0
_STOP_TIMEOUT_S: Final = 20.0


class World:
    """The processes and clients of one run.

    While participants talk, a random one sends a line every ``mean_pause_s``.

    Attributes:
        nodes: the nodes by name.
        lives: the number of the database that each node has now.
        followers: a client that follows each node.
        participants: the SDS participants by name.
        given_up: the waits of `until` that were given up.
        logs: the logs of all participants, once `settle` has read them.
        holdings: what the nodes hold, once `check` has read it.
    """

    def __init__(self, directory: Path, rng: Random, waiter: Waiter, mean_pause_s: float) -> None:
        self.directory = directory
        self.rng = rng
        self.waiter = waiter
        self.history = History()
        self.network = Network()
        self.tasks = Tasks()
        self.nodes: dict[str, NodeProcess] = {}
        self.lives: Counter[str] = Counter()
        self.followers: dict[str, Follower] = {}
        self.participants: dict[str, Participant] = {}
        self.given_up: list[StuckError] = []
        self.logs: list[Log] = []
        self.holdings: list[Holding] = []
        self._mean_pause_s = mean_pause_s
        self._traffic = Traffic(self.history, lambda link: self.store(self.network.find_node(link)))
        self._silent = asyncio.Event()
        self._talking: asyncio.Task[Any] | None = None
        self._publishing_ends = asyncio.Event()
        self._publishing: list[asyncio.Task[Any]] = []

    def store(self, name: str) -> str:
        """Return the store behind a node now: the life of its database."""
        return f"{name}#{self.lives[name]}"

    async def start_node(self, name: str) -> None:
        """Start a node, and lead its wires to it.

        Raises:
            NodeFailedError: It did not start.
        """
        node = self.nodes[name]
        node.launch()
        await asyncio.to_thread(node.wait_ready, _START_TIMEOUT_S)
        self.network.move(name, node.ready)

    async def stop_node(self, name: str) -> None:
        """Stop a node, by SIGKILL if that takes too long."""
        with suppress(TimeoutExpired):
            await asyncio.to_thread(self.nodes[name].close, _STOP_TIMEOUT_S)

    def follow(self, name: str, endpoint: Endpoint) -> None:
        """Follow a node from now until the end."""
        self.followers[name] = Follower(name, endpoint)
        self.tasks.start(self.followers[name].run())

    async def add_participant(
        self, config: ChannelConfig, home: str, tls: TlsIdentity | None = None
    ) -> None:
        """Add a participant that reaches the node ``home`` first, then the others in turn."""
        name, names = config.sender_id, list(self.nodes)
        first = names.index(home)
        order = names[first:] + names[:first]
        wires = [await self.network.open_wire(node, name) for node in order]
        nodes = [StoreNode(wire.address, tls=tls) for wire in wires]
        state = self.directory / f"{name}.db"
        self.participants[name] = Participant(config, nodes, state, self._traffic)

    def members(self, channel_id: str) -> list[Participant]:
        """Return the participants of a channel."""
        return [each for each in self.participants.values() if each.channel_id == channel_id]

    async def join(self) -> None:
        """Let all participants join."""
        await asyncio.gather(*(each.join(self.tasks) for each in self.participants.values()))

    async def leave(self) -> None:
        """Let all participants leave."""
        await self.stop_talk()
        await asyncio.gather(*(each.leave() for each in self.participants.values()))

    def start_talk(self) -> None:
        """Send lines of random participants until `stop_talk`."""
        self._silent.clear()
        self._talking = self.tasks.start(self._talk())

    async def stop_talk(self) -> None:
        """End the talk; a line that was begun is sent."""
        self._silent.set()
        if self._talking is not None:
            await self._talking

    async def say(self, name: str, text: str = "") -> str:
        """Send a line, by default the next of many, and return its ID; empty if it is not sent."""
        who = self.participants[name]
        with suppress(ChannelFullError):
            return await who.send((text or f"{name} says {len(who.sent) + 1}").encode())
        return ""

    def count_due(self) -> int:
        """Return the number of lines that participants lack, have not published, or wait for."""
        due = 0
        for each in self.participants.values():
            status = each.look()
            lines = sum(len(other.sent) for other in self.members(each.channel_id))
            lacking = max(lines - each.length - len(each.lost), 0)
            due += lacking + status.unpublished + int(not status.synced)
        return due

    def find_all(self) -> set[bytes]:
        """Return the hashes of all messages that any node holds, as its follower sees it."""
        return set().union(*(each.stored for each in self.followers.values()))

    def start_publisher(self, publisher: Publisher) -> None:
        """Let a client publish until `settle`."""
        self._publishing.append(self.tasks.start(publisher.run(self._publishing_ends)))

    def count_lacking(self, name: str, digests: Collection[bytes]) -> int:
        """Return how many of some messages a node lacks that its retention did not drop."""
        published, may_go_ns = self.history.published, self.history.may_go_ns(self.store(name))
        return sum(
            each not in published or published[each].timestamp_ns >= may_go_ns
            for each in set(digests) - self.followers[name].stored
        )

    async def until(self, what: str, count: Callable[[], int]) -> bool:
        """Wait until nothing is left of what is counted; return False if that was given up."""
        try:
            await self.waiter.until_none(what, count)
        except StuckError as error:
            self.given_up.append(error)
            return False
        return True

    async def settle(self) -> None:
        """Send nothing new, wait until all have caught up, and read the logs of participants."""
        self._publishing_ends.set()
        await asyncio.gather(*self._publishing)
        await self.stop_talk()
        await self.until("every participant has every line", self.count_due)
        self.logs = [await each.read_log() for each in self.participants.values()]
        # Their sync messages would keep the stores from becoming equal.
        await self.leave()
        owed = {digest for digest in self.history.acks if not self.history.may_be_lost(digest)}

        def count_unequal() -> int:
            everything = owed | self.find_all()
            return sum(self.count_lacking(name, everything) for name in self.followers)

        await self.until("every store has every message", count_unequal)

    async def check(self, patience_s: float) -> list[Violation]:
        """Read everything from every node, as clients get it; return the rules that are broken."""
        reading = (
            read_holding(each, self.store(name), self.history, patience_s)
            for name, each in self.followers.items()
        )
        self.holdings = await asyncio.gather(*reading)
        return [*check_stores(self.history, self.holdings), *check_logs(self.logs)]

    async def close(self) -> None:
        """End everything, the last first; a failure of one part keeps no other one running."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.network.close)
            stack.push_async_callback(self._stop_nodes)
            stack.push_async_callback(self.tasks.stop)
            stack.push_async_callback(self.leave)

    async def _stop_nodes(self) -> None:
        await asyncio.gather(*map(self.stop_node, self.nodes))

    async def _talk(self) -> None:
        while not self._silent.is_set():
            await self.say(self.rng.choice(list(self.participants)))
            with suppress(TimeoutError):
                async with asyncio.timeout(self.rng.expovariate(1 / self._mean_pause_s)):
                    await self._silent.wait()
