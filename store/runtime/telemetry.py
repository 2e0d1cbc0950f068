"""Gauges of the states of a node, read from its parts and its database."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Final

from store.config.node import NodeConfig
from store.db.condition import StoreCondition, read_condition
from store.domain.ports import NotServingError, StoreSummary, StoreUnavailableError
from store.domain.unread import UnreadSummary
from store.observe.logging import suppressed_total
from store.runtime.services import NodeParts
from store.runtime.tasks import SingleFlightCache
from store.serving.tls import MAX_PEM_BYTES
from storenode.message.limits import NS_PER_S

FOLLOW_INTERVAL_S: Final = 30.0
CONDITION_INTERVAL_S: Final = 60.0
"""How often the horizon and the condition of the database are read while nobody asks for them."""

SUMMARY_REST_S: Final = 1.0
CONDITION_REST_S: Final = 5.0
"""The database is not asked more often for what it holds, and for its condition."""

METRICS_PATIENCE_S: Final = 2.0
"""How long a request for metrics waits for that; then it shows older numbers."""
FEWEST_DEAD_ROWS: Final = 100_000
"""Fewer dead rows in a table are no problem."""


def read_expiries_s(config: NodeConfig) -> dict[str, float]:
    """Return by file when its certificates end, in Unix seconds.

    A chain ends with the first of its certificates, a file of authorities with the last: old ones
    stay in it while they are replaced. A file that cannot be read is left out.
    """
    expiries_s: dict[str, float] = {}
    for path, end in ((config.tls_cert, min), (config.tls_ca, max), (config.client_ca, max)):
        if path is not None:
            from cryptography import x509  # noqa: PLC0415 - only where there is TLS

            with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
                found = x509.load_pem_x509_certificates(file.read(MAX_PEM_BYTES))
                expiries_s[str(path)] = end(each.not_valid_after_utc.timestamp() for each in found)
    return expiries_s


class Telemetry:
    """The gauges of a node, and the readings of its database that they are set from.

    ``summary`` and ``unread`` are of the last reading. ``stored`` and ``condition`` are read again
    on demand, when they are old. ``callers``: when nodes, by their IDs, called last.
    """

    def __init__(
        self, stack: AsyncExitStack, parts: NodeParts, callers: Mapping[str, float]
    ) -> None:
        self._callers = callers
        self._silent: dict[str, float] = {}
        self._metrics = parts.metrics
        self._parts = parts
        self._policy = parts.policy
        self._config = config = parts.config
        self._blocking_age_ns = config.retention if config.retention_requires_archive else None
        self.summary = StoreSummary(b"", 0, 0, 0, 0)
        self.unread = UnreadSummary(0, 0, 0)
        self.stored = SingleFlightCache("summary", self._read_summary, SUMMARY_REST_S)
        self.condition = SingleFlightCache("condition", self._read_condition, CONDITION_REST_S)
        stack.push_async_callback(self.stored.stop)
        stack.push_async_callback(self.condition.stop)

    async def read_database(self) -> None:
        """Renew the gauges of the database, unless they are a few seconds old at most."""
        deadline_s = time.monotonic() + METRICS_PATIENCE_S
        await self.stored.get(METRICS_PATIENCE_S)
        await self.condition.get(max(0.0, deadline_s - time.monotonic()))

    def read_process(self) -> None:
        """Set the gauges of the process itself."""
        self._read_pools()
        self._read_clocks()
        self._read_peers()
        self._metrics.feed_position.set(self._parts.feed.head[0])
        self._metrics.index_entries.set(self._parts.reconcilable.index_entries)
        self._metrics.log_events_suppressed.set(suppressed_total())
        maintainer = self._parts.maintainer
        self._metrics.maintenance_in_charge.set(int(maintainer.in_charge))
        self._metrics.retention_paused.set(int(maintainer.is_clock_wrong))
        self._metrics.maintenance_failing.clear()
        for task in maintainer.failing:
            self._metrics.maintenance_failing.labels(task).set(1)

    async def read_summary(self) -> StoreSummary:
        """Return what the database holds; from one that is away, what was read last."""
        with contextlib.suppress(NotServingError):
            await self._read_summary()
        return self.summary

    async def follow(self) -> None:
        """Read the horizon of the store, and if retention is held."""
        await self.read_summary()
        with contextlib.suppress(StoreUnavailableError):
            if not self._config.read_only:
                await self._policy.settle_retention(self._parts.database, self._metrics)

    async def _read_summary(self) -> StoreSummary:
        summary = await self._parts.services.reader.summary()
        unread = await self._parts.unread.summary()
        self.summary, self.unread = summary, unread
        self._policy.set_horizon(summary.horizon_ns)
        self._metrics.messages.set(summary.messages)
        self._metrics.oldest_timestamp_seconds.set(summary.oldest_timestamp_ns / NS_PER_S)
        self._metrics.unread_events.set(unread.count)
        self._metrics.unread_oldest_seconds.set(unread.oldest_ns / NS_PER_S)
        self._metrics.unconfirmed_oldest_seconds.set(unread.overdue_ns / NS_PER_S)
        self._metrics.waiting_events.set(unread.waiting)
        return summary

    async def _read_condition(self) -> StoreCondition:
        """Read the condition of the database, and the ends of the certificates."""
        expiries_s = await asyncio.to_thread(read_expiries_s, self._config)
        for name, expiry_s in expiries_s.items():
            self._metrics.certificate_expiry.labels(name).set(expiry_s)
        now_ns = time.time_ns()
        found = await self._parts.database.read(lambda each: read_condition(each, now_ns))
        self._show(found)
        return found

    def _show(self, condition: StoreCondition) -> None:
        metrics, archive = self._metrics, condition.archive
        for name, count in condition.partitions.items():
            metrics.partitions.labels(name).set(count)
        for name, table in condition.tables.items():
            metrics.table_bytes.labels(name).set(table.size_bytes)
            metrics.table_rows.labels(name, "live").set(table.live_rows)
            metrics.table_rows.labels(name, "dead").set(table.dead_rows)
            rows = table.dead_rows + table.live_rows
            is_large = table.dead_rows >= FEWEST_DEAD_ROWS
            metrics.table_dead_ratio.labels(name).set(table.dead_rows / rows if is_large else 0)
        metrics.partitions_until.set(condition.covered_until_ns / NS_PER_S)
        metrics.standbys.set(condition.standbys)
        metrics.standby_slots.labels("active").set(condition.slots_in_use)
        metrics.standby_slots.labels("inactive").set(condition.slots_unused)
        metrics.standby_lag_bytes.clear()
        for name, lag_bytes in condition.standby_lag_bytes.items():
            metrics.standby_lag_bytes.labels(name).set(lag_bytes)
        metrics.unarchived_hours.set(archive.unarchived_hours)
        metrics.oldest_unarchived.set(archive.oldest_unarchived_ns / NS_PER_S)
        metrics.archived_until.set(archive.archived_until_ns / NS_PER_S)
        age_ns = time.time_ns() - archive.oldest_unarchived_ns
        is_blocked = self._blocking_age_ns is not None and self._blocking_age_ns < age_ns
        metrics.retention_blocked.set(int(is_blocked and archive.oldest_unarchived_ns > 0))

    def _read_clocks(self) -> None:
        metrics, clocks = self._metrics, self._parts.clocks
        metrics.clock_limit_seconds.set(clocks.limit_ns / NS_PER_S)
        metrics.clock_refused_publishers.set(clocks.refused_publishers())
        metrics.clock_offset_seconds.clear()
        offsets_s = clocks.offsets_s()
        for name, offset_s in offsets_s.items():
            metrics.clock_offset_seconds.labels(name).set(offset_s)
        off = sum(abs(each) > clocks.limit_ns / NS_PER_S for each in offsets_s.values())
        metrics.clocks_off_ratio.set(off / len(offsets_s) if offsets_s else 0)

    def _read_peers(self) -> None:
        parts, live = self._parts, self._parts.gossip_peers()
        gauge = self._metrics.gossip_peers
        gauge.labels("connected").set(sum(peer.connected for peer in live))
        gauge.labels("slowed").set(sum(peer.slowed for peer in live))
        gauge.labels("cut_off").set(sum(peer.cut_off_until_ns > 0 for peer in live))
        for peer, since_ns in () if parts.gossip is None else parts.gossip.absences():
            self._metrics.peer_absent_since.labels(str(peer)).set(since_ns / NS_PER_S)
        known = {each.node_id for each in parts.synchronizer.peers()}
        known |= {each.node_id for each in live if each.connected}
        silent = {name: at_s for name, at_s in self._callers.items() if name not in known}
        for name in self._silent.keys() - silent.keys():
            self._metrics.peer_silent_since.remove(name)
        for name, at_s in silent.items():
            self._metrics.peer_silent_since.labels(name).set(at_s)
        self._silent = silent

    def _read_pools(self) -> None:
        connections, refused = self._metrics.pool_connections, self._metrics.connections_refused
        refused.clear()
        if (failure := self._parts.database.connect_failure) is not None:
            refused.labels(failure.sentence).set(1)
        for pool in self._parts.database.pools:
            stats = pool.get_stats()
            size, idle = stats.get("pool_size", 0), stats.get("pool_available", 0)
            connections.labels(pool.name, "idle").set(idle)
            connections.labels(pool.name, "used").set(size - idle)
            connections.labels(pool.name, "waiting").set(stats.get("requests_waiting", 0))
