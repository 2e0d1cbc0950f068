"""Follows every node's feed, and so knows at any moment which messages each of them holds.

It has wires of its own, which no fault touches, and goes on from its cursor when a node was away.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from store.demo.tasks import Tasks
from storenode.client.node import connect
from storenode.client.retry import Retry
from storenode.connection.channel import TlsIdentity

_PERSISTENT: Final = Retry(attempts=100_000, first_delay_s=0.1, max_delay_s=1.0, at_start=True)
_RATE_WINDOW_S: Final = 3.0


@dataclass(slots=True)
class Holdings:
    """What one node holds, by hash, and how many there were at moments of the last seconds."""

    held: set[bytes] = field(default_factory=set)
    moments: deque[tuple[float, int]] = field(default_factory=deque)

    def rate(self, now_s: float) -> float:
        """Messages a second that it has stored lately."""
        self.moments.append((now_s, len(self.held)))
        while self.moments[0][0] < now_s - _RATE_WINDOW_S:
            self.moments.popleft()
        (then_s, before), (_, after) = self.moments[0], self.moments[-1]
        return (after - before) / (now_s - then_s) if now_s > then_s else 0.0


class Auditor:
    """``addresses`` are where it reaches the nodes."""

    def __init__(self, addresses: dict[str, str], tls: TlsIdentity, tasks: Tasks) -> None:
        self.nodes = {name: Holdings() for name in addresses}
        self.all: set[bytes] = set()
        self._news = asyncio.Event()
        for name, address in addresses.items():
            tasks.start(self._follow(name, address, tls))

    @property
    def equal(self) -> bool:
        """Whether every node holds all that any of them holds."""
        return all(len(node.held) == len(self.all) for node in self.nodes.values())

    def lacks(self, name: str) -> int:
        """How many messages a node lacks that another one holds."""
        return len(self.all) - len(self.nodes[name].held)

    def lacking(self, name: str) -> set[bytes]:
        """Which."""
        return self.all - self.nodes[name].held

    async def until(self, condition: Callable[[], bool], patience_s: float) -> bool:
        """Wait until something is so, as what is held changes; False when the time is up."""
        deadline = time.monotonic() + patience_s
        while not condition():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self._news.clear()
            try:
                # Conditions may be about more than what is held, so they are looked at anyway.
                async with asyncio.timeout(min(left_s, 0.25)):
                    await self._news.wait()
            except TimeoutError:
                continue
        return True

    async def _follow(self, name: str, address: str, tls: TlsIdentity) -> None:
        held = self.nodes[name].held
        async with (
            connect(address, tls=tls, retry=_PERSISTENT) as client,
            aclosing(client.follow(from_beginning=True, include_data=False)) as pages,
        ):
            async for page in pages:
                digests = [item.message_hash for item in page.messages]
                held.update(digests)
                self.all.update(digests)
                self._news.set()
