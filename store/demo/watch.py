"""What the nodes say of themselves: where messages came from, and what each session found."""

from __future__ import annotations

import asyncio
import http.client
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from store.demo.cluster import Cluster, short_name
from store.demo.limits import CALL_TIMEOUT_S, MAX_METRICS_BYTES, WATCH_EVERY_S
from storenode.client.errors import NodeError
from storenode.client.node import connect
from storenode.client.types import NodeStatus, SyncReport

_STORED: Final = re.compile(
    rb'^storenode_messages_stored_total\{source="(\w+)"\} ([0-9.e+]+)$', re.MULTILINE
)
SOURCES: Final = ("client", "gossip", "transfer", "resume")
"""Values of the label ``source``: published here, and the three ways from other nodes."""


@dataclass(frozen=True, slots=True)
class Session:
    """One reconciliation that ``caller`` began."""

    caller: str
    callee: str
    report: SyncReport

    @property
    def moved(self) -> int:
        """Messages that were sent either way."""
        return self.report.messages_received + self.report.messages_sent

    def __str__(self) -> str:
        report = self.report
        missing = f"{report.missing_here:,} and {report.missing_there:,} missing"
        found = report.error or f"{missing}, {self.moved:,} moved"
        return f"sync {self.caller}-{self.callee}: {found}"


@dataclass(slots=True)
class Sources:
    """Messages that one node has stored, by where they came from, over all its runs.

    ``before`` are those of runs that ended, as they were last read.
    """

    before: Counter[str] = field(default_factory=Counter)
    now: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> Counter[str]:
        """All of them."""
        return self.before + self.now

    def restarted(self) -> None:
        """Counters begin again."""
        self.before, self.now = self.total, Counter()


class Watch:
    """Asks the nodes every second, as an operator's tools do; ``found`` is told of sessions."""

    def __init__(self, cluster: Cluster, found: Callable[[Session], None]) -> None:
        self._cluster = cluster
        self._found = found
        self._tls = cluster.tls
        self._known: set[tuple[str, int, float]] = set()
        self.sources = {name: Sources() for name in cluster.nodes}
        self.statuses: dict[str, NodeStatus] = {}

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            await self.look()
            await asyncio.sleep(WATCH_EVERY_S)

    async def look(self) -> None:
        """Ask all nodes once; one that does not answer is as it was."""
        await asyncio.gather(*(self._look_at(name) for name in self._cluster.nodes))

    async def synchronize(self, caller: str, callee: str) -> None:
        """Have two nodes reconcile everything now, if the caller answers."""
        peers = self.statuses[caller].peers if caller in self.statuses else ()
        peer = next((each for each in peers if short_name(each.node_id) == callee), None)
        with suppress(NodeError):
            async with connect(self._cluster.admin_addresses[caller], tls=self._tls) as client:
                report = await client.synchronize(
                    "" if peer is None else peer.address, time_start=0, timeout_s=CALL_TIMEOUT_S
                )
            self._meet(caller, callee, report)

    async def _look_at(self, name: str) -> None:
        node = self._cluster.nodes[name]
        if not node.ready:
            return
        with suppress(OSError, http.client.HTTPException):
            text = await asyncio.to_thread(_metrics, node.ready["metrics"])
            counts = {key.decode(): int(float(value)) for key, value in _STORED.findall(text)}
            self.sources[name].now = Counter(counts)
        with suppress(NodeError):
            async with connect(self._cluster.admin_addresses[name], tls=self._tls) as client:
                self.statuses[name] = await client.status(timeout_s=CALL_TIMEOUT_S)
            for peer in self.statuses[name].peers:
                if peer.last_sync:
                    self._meet(name, short_name(peer.node_id), peer.last_report)

    def _meet(self, caller: str, callee: str, report: SyncReport) -> None:
        """A session has ended, which may be known already."""
        key = caller, report.time_end, report.seconds
        if key in self._known or report.outcome == "aborted":
            return
        self._known.add(key)
        self._found(Session(caller, callee, report))


def _metrics(address: str) -> bytes:
    connection = http.client.HTTPConnection(address, timeout=CALL_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read(MAX_METRICS_BYTES)
    finally:
        connection.close()
