"""A follower of every node's feed, which shows at any moment which messages each node holds.

It has wires of its own, which no fault touches, and resumes at its cursor when a node was away.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from store.demo.tasks import Tasks
from storenode.client.node import connect
from storenode.client.retry import Retry
from storenode.connection.channel import TlsIdentity

PERSISTENT: Final = Retry(attempts=None, first_delay_s=0.1, max_delay_s=1.0, at_start=True)


class Auditor:
    """The hashes that each node holds; ``addresses`` are where it reaches the nodes."""

    def __init__(self, addresses: dict[str, str], tls: TlsIdentity, tasks: Tasks) -> None:
        self.held: dict[str, set[bytes]] = {name: set() for name in addresses}
        self.all: set[bytes] = set()
        for name, address in addresses.items():
            tasks.start(self._follow(name, address, tls))

    def lacking(self, name: str) -> set[bytes]:
        """Return the hashes that a node lacks and another one holds."""
        return self.all - self.held[name]

    @property
    def unequal(self) -> int:
        """The number of messages that nodes lack and others hold."""
        return sum(len(self.all) - len(held) for held in self.held.values())

    async def _follow(self, name: str, address: str, tls: TlsIdentity) -> None:
        async with (
            connect(address, tls=tls, retry=PERSISTENT) as client,
            aclosing(client.follow(from_beginning=True, include_data=False)) as pages,
        ):
            async for page in pages:
                digests = [item.message_hash for item in page.messages]
                self.held[name].update(digests)
                self.all.update(digests)
