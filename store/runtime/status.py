"""The state of a node: as gauges, as the answer of ``GetStatus``, and as JSON for the status page.

The page's data are that answer, by its descriptor, and what docs/operations.md lists beside it.
Nothing secret is in them, and texts of peers are cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from prometheus_client import Gauge

from store.config.node import NodeConfig
from store.db.condition import (
    TIMELINE_DAYS,
    StoreCondition,
    Timeline,
    read_condition,
    read_timeline,
)
from store.domain.coverage import Coverage, aligned
from store.domain.partitioning import DAY_NS, HOUR_NS
from store.domain.ports import NotServingError, StoreSummary
from store.domain.unread import UnreadSummary
from store.observe.logging import FLOOD_GATE, get_logger
from store.observe.metrics import read_totals, samples, total
from store.observe.problems import Problem
from store.rpc.admin import filled, peer_status
from store.serving.tls import MAX_PEM_BYTES
from storenode.message.limits import NS_PER_S
from storenode.wire.storenode.v1 import admin_pb2
from storenode.wire.storenode.v1.store_pb2 import CoverageStep, StoreCoverage

if TYPE_CHECKING:
    from store.runtime.node import NodeRuntime

_LOG = get_logger("store.runtime.status")

READ_TIMEOUT_S: Final = 20.0
"""A read that takes longer is given up; a database that is away has been given up before."""

STATUS_REST_S: Final = 1.0
"""The data of the status page, and what the database holds, is read no more often."""

CONDITION_REST_S: Final = 5.0
"""The condition of the database, and its messages by time, are read no more often."""

PATIENCE_S: Final = 2.0
"""The time that a request waits for the database; then it shows the previous data."""

FEWEST_DEAD_ROWS: Final = 100_000
"""Fewer dead rows in a table are no problem."""

MAX_STATUS_TEXT_CHARS: Final = 300
"""The length to which texts are cut, since peers may have written them."""

Fields = dict[str, Any]
"""An object of JSON."""

_T = TypeVar("_T")


class SharedRead(Generic[_T]):
    """The last result of a read, which all who ask share, and which is read again when it is old.

    A read that fails because the database does not serve leaves the result as it is.
    """

    def __init__(self, read: Callable[[], Awaitable[_T]], rest_s: float) -> None:
        self._read = read
        self._rest_s = rest_s
        self._clock = asyncio.get_running_loop().time
        self._task: asyncio.Task[None] | None = None
        self._next_s = 0.0
        self.value: _T | None = None

    async def get(self, patience_s: float) -> _T | None:
        """Return the result, read again if it is old and that takes no longer; else the last.

        None: it was never read. A read that takes longer continues for the next caller.
        """
        if self._task is None and self._clock() >= self._next_s:
            self._task = asyncio.create_task(self._refresh())
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=patience_s)
        return self.value

    async def stop(self) -> None:
        """End a read that is under way, and begin no other."""
        self._rest_s = self._next_s = inf
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                self.value = await self._read()
        except (NotServingError, TimeoutError):
            pass
        except Exception:  # noqa: BLE001 - a fault of ours; readers get the last result
            _LOG.exception("read_failed")
        finally:
            self._next_s = self._clock() + self._rest_s
            self._task = None


class NodeStatus:
    """The state of a node as it is shown, and the readings of its database behind that.

    ``summary`` and ``unread`` are those that were read last. Of a database that is away everything
    is shown as it was. Before the node `is_open` only the page can be rendered.
    """

    def __init__(self, node: NodeRuntime) -> None:
        self._node = node
        self._metrics = node.metrics
        self._started_s = time.time()
        self._silent: dict[str, float] = {}
        self._summary = StoreSummary(b"", 0, 0, 0, 0)
        self._unread = UnreadSummary(0, 0, 0)
        self._summary_s = 0.0
        self._stored = SharedRead(self._read_summary, STATUS_REST_S)
        self.condition = SharedRead(self._read_condition, CONDITION_REST_S)
        self._history = SharedRead(self._read_history, CONDITION_REST_S)
        self._page = SharedRead(self._render_page, STATUS_REST_S)

    async def stop(self) -> None:
        """End the reads that are under way."""
        for each in (self._page, self._history, self.condition, self._stored):
            await each.stop()

    # Readings of the database

    async def read_summary(self) -> None:
        """Read what the database holds, if it serves."""
        with contextlib.suppress(NotServingError):
            await self._read_summary()

    async def _read_summary(self) -> None:
        node, metrics = self._node, self._metrics
        summary = await node.reader.summary()
        unread = await node.unread.summary()
        self._summary, self._unread, self._summary_s = summary, unread, time.monotonic()
        node.policy.set_horizon(summary.horizon_ns)
        metrics.messages.set(summary.messages)
        metrics.oldest_timestamp_seconds.set(summary.oldest_timestamp_ns / NS_PER_S)
        metrics.unread_events.set(unread.count)
        metrics.unread_oldest_seconds.set(unread.oldest_ns / NS_PER_S)
        metrics.unconfirmed_oldest_seconds.set(unread.overdue_ns / NS_PER_S)
        metrics.waiting_events.set(unread.waiting)

    async def _read_condition(self) -> StoreCondition:
        """Read the condition of the database, and the ends of the certificates."""
        config, metrics = self._node.config, self._metrics
        for name, expiry_s in (await asyncio.to_thread(read_expiries_s, config)).items():
            metrics.certificate_expiry.labels(name).set(expiry_s)
        now_ns = time.time_ns()
        found = await self._node.database.read(lambda each: read_condition(each, now_ns))
        _replace(metrics.partitions, found.partitions)
        for name, table in found.tables.items():
            metrics.table_bytes.labels(name).set(table.size_bytes)
            metrics.table_rows.labels(name, "live").set(table.live_rows)
            metrics.table_rows.labels(name, "dead").set(table.dead_rows)
            rows = table.dead_rows + table.live_rows
            is_large = table.dead_rows >= FEWEST_DEAD_ROWS
            metrics.table_dead_ratio.labels(name).set(table.dead_rows / rows if is_large else 0)
        metrics.partitions_until.set(found.covered_until_ns / NS_PER_S)
        metrics.standbys.set(found.standbys)
        metrics.standby_slots.labels("active").set(found.slots_in_use)
        metrics.standby_slots.labels("inactive").set(found.slots_unused)
        _replace(metrics.standby_lag_bytes, found.standby_lag_bytes)
        metrics.unarchived_hours.set(found.unarchived_hours)
        metrics.oldest_unarchived.set(found.oldest_unarchived_ns / NS_PER_S)
        metrics.archived_until.set(found.archived_until_ns / NS_PER_S)
        oldest_ns, age_ns = found.oldest_unarchived_ns, config.retention
        is_late = age_ns is not None and 0 < oldest_ns < now_ns - age_ns
        metrics.retention_blocked.set(int(is_late and config.retention_requires_archive))
        return found

    async def _read_history(self) -> tuple[Timeline, Fields]:
        now_ns = time.time_ns()
        timeline = await self._node.database.read(lambda each: read_timeline(each, now_ns))
        return timeline, await read_hour_coverage(self._node.coverage, now_ns)

    # The process

    def read_process(self) -> None:
        """Set the gauges of the process itself, once the node is open."""
        node, metrics = self._node, self._metrics
        if not node.is_open:
            return
        self._read_pools()
        self._read_clocks()
        self._read_peers()
        metrics.feed_position.set(node.feed.head[0])
        metrics.index_entries.set(node.index.entries)
        metrics.log_events_suppressed.set(FLOOD_GATE.total)
        metrics.maintenance_in_charge.set(int(node.maintainer.in_charge))
        metrics.retention_paused.set(int(node.maintainer.is_clock_wrong))
        _replace(metrics.maintenance_failing, dict.fromkeys(node.maintainer.failing, 1))
        if node.canary is not None:
            node.canary.measure(metrics.commit_age_seconds)

    def _read_clocks(self) -> None:
        metrics, clocks = self._metrics, self._node.clocks
        metrics.clock_limit_seconds.set(clocks.limit_ns / NS_PER_S)
        metrics.clock_refused_publishers.set(clocks.refused_publishers())
        offsets_s = clocks.offsets_s()
        _replace(metrics.clock_offset_seconds, offsets_s)
        off = sum(abs(each) > clocks.limit_ns / NS_PER_S for each in offsets_s.values())
        metrics.clocks_off_ratio.set(off / len(offsets_s) if offsets_s else 0)

    def _read_peers(self) -> None:
        node, gossip = self._node, self._node.gossip
        live = () if gossip is None else gossip.peers()
        gauge = self._metrics.gossip_peers
        gauge.labels("connected").set(sum(peer.connected for peer in live))
        gauge.labels("slowed").set(sum(peer.slowed for peer in live))
        gauge.labels("cut_off").set(sum(peer.cut_off_until > 0 for peer in live))
        for peer, since_ns in () if gossip is None else gossip.absences():
            self._metrics.peer_absent_since.labels(str(peer)).set(since_ns / NS_PER_S)
        known = {each.node_id for each in node.peer_states.states()}
        known |= {each.node_id for each in live if each.connected}
        silent = {name: at_s for name, at_s in node.callers.items() if name not in known}
        for name in self._silent.keys() - silent.keys():
            self._metrics.peer_silent_since.remove(name)
        for name, at_s in silent.items():
            self._metrics.peer_silent_since.labels(name).set(at_s)
        self._silent = silent

    def _read_pools(self) -> None:
        metrics, failure = self._metrics, self._node.database.connect_failure
        connections = metrics.pool_connections
        _replace(metrics.connections_refused, {failure.sentence: 1} if failure else {})
        for pool in self._node.database.pools:
            connections.labels(pool.name, "idle").set(len(pool.idle))
            connections.labels(pool.name, "used").set(pool.lent)
            connections.labels(pool.name, "waiting").set(pool.waiting)

    async def render_metrics(self) -> bytes:
        """Return the metrics as text, those of the database a few seconds old at most."""
        if self._node.is_open:
            await asyncio.gather(self._stored.get(PATIENCE_S), self.condition.get(PATIENCE_S))
        self.read_process()
        return self._metrics.render()

    # The answer of ``GetStatus``

    async def state(self) -> admin_pb2.NodeStatus:
        """Return the answer of ``GetStatus``."""
        is_up = bool(total(self._metrics.database_up))
        if is_up:
            await self.read_summary()
        await self.condition.get(PATIENCE_S if is_up else 0)
        return self._message()

    def _message(self) -> admin_pb2.NodeStatus:
        """Return the state of the parts now, and of the database as it was read last."""
        node, health = self._node, self._node.health
        # After all that was waited for, so that the revision is that of what is reported.
        health.look()
        status = admin_pb2.NodeStatus(
            version=node.version,
            ready=health.ready,
            unready=health.unready or "",
            revision=health.revision,
            problems=map(_problem, health.problems),
        )
        if node.is_open:
            status.MergeFrom(self._parts())
        return status

    def _parts(self) -> admin_pb2.NodeStatus:
        node, metrics, summary = self._node, self._metrics, self._summary
        identity, resume, condition = node.identity, node.resumer.state(), self.condition.value
        gossip = database = None
        if node.gossip is not None:
            gossip = admin_pb2.GossipStatus(
                unread=self._unread.count,
                oldest_unread=self._unread.oldest_ns,
                waiting=self._unread.waiting,
                peers=node.gossip.peers(),
            )
        if condition is not None:
            database = filled(
                admin_pb2.DatabaseStatus,
                condition,
                timeline=int(total(metrics.database_timeline)),
                disks=self._disks(),
                archived=condition.archived_until_ns > 0,
            )
        return admin_pb2.NodeStatus(
            node_id=identity.node_id,
            store_id=identity.store_id,
            messages=summary.messages,
            oldest_timestamp=summary.oldest_timestamp_ns,
            newest_timestamp=summary.newest_timestamp_ns,
            index_entries=node.index.entries,
            index_start=node.index.floor_ns,
            peers=map(peer_status, node.peer_states.states()),
            resume=None if resume is None else filled(admin_pb2.ResumeStatus, resume),
            gossip=gossip,
            conflicts=int(total(metrics.conflicts)),
            database=database,
        )

    def _disks(self) -> list[admin_pb2.DiskStatus]:
        metrics = self._metrics
        sizes = {labels["volume"]: size for labels, size in samples(metrics.disk_size_bytes)}
        return [
            admin_pb2.DiskStatus(volume=name, free_bytes=int(free), size_bytes=int(sizes[name]))
            for labels, free in samples(metrics.disk_free_bytes)
            if (name := labels["volume"]) in sizes
        ]

    # The status page

    async def render_page(self) -> bytes:
        """Return the page's data, rendered at most once in `STATUS_REST_S`."""
        found = await self._page.get(2 * PATIENCE_S)
        return await self._render_page() if found is None else found

    async def _render_page(self) -> bytes:
        node, metrics = self._node, self._metrics
        if node.is_open:
            reads = self._stored, self._history, self.condition
            await asyncio.gather(*(each.get(PATIENCE_S) for each in reads))
        ended = Counter[str]()
        for labels, count in samples(metrics.sync_sessions):
            ended[labels["outcome"]] += int(count)
        fields: Fields = {
            "time": time.time(),
            "started": self._started_s,
            "status": as_json(self._message()),
            "ended": [
                as_json(_problem(each)) | {"ended": int(each.ended_s)}
                for each in node.health.rules.ended
            ],
            "clocks_ahead_s": {
                _text(labels["other"]): round(value, 1)
                for labels, value in samples(metrics.clock_offset_seconds)
            },
            "totals": read_totals(metrics),
            "followers": total(metrics.followers),
            "publishes_in_flight": total(metrics.publishes_in_flight),
            "sessions_ended": ended,
            "calls": {name: int(at_s) for name, at_s in node.callers.items()},
            **self._known(),
        }
        return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()

    def _known(self) -> Fields:
        """Return the fields that are read from the database; they are null until then."""
        policy, condition, history = self._node.policy, self.condition.value, self._history.value
        fields: Fields = dict.fromkeys(("held", "history", "coverage", "tables"))
        if self._summary_s:
            age_ns = policy.retention_ns
            fields["held"] = {
                "age_s": round(time.monotonic() - self._summary_s, 1),
                "horizon": _seconds(self._summary.horizon_ns),
                "retention_s": None if age_ns is None else _seconds(age_ns),
                "shortfall_s": _seconds(policy.shortfall_ns()),
            }
        if history is not None:
            timeline, fields["coverage"] = history
            fields["history"] = {
                "complete": timeline.complete,
                "hours_start": _seconds(timeline.hours_start_ns),
                "hours": timeline.hours,
            }
        if condition is not None:
            tables = condition.tables.values()
            fields["tables"] = {
                "partitions": condition.partitions,
                "rows": sum(each.live_rows for each in tables),
                "dead_rows": sum(each.dead_rows for each in tables),
                "ahead_s": max(0, _seconds(condition.covered_until_ns - time.time_ns())),
                "hosts_refused": int(total(self._metrics.database_hosts_refused)),
            }
        return fields


def _replace(gauge: Gauge, values: Mapping[str, float]) -> None:
    """Set the series of a gauge with one label, and end the others."""
    gauge.clear()
    for label, value in values.items():
        gauge.labels(label).set(value)


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


def _problem(problem: Problem) -> admin_pb2.Problem:
    return admin_pb2.Problem(
        name=problem.page,
        critical=problem.critical,
        sentence=problem.sentence,
        since=int(problem.since_s * NS_PER_S),
        runbook_url=problem.url,
    )


def as_json(message: Message) -> Fields:
    """Return the fields of a message by name, texts cut; one that is not set is null."""

    def value_of(value: Any) -> Any:  # noqa: ANN401 - whatever a field has
        if isinstance(value, Message):
            return as_json(value)
        if isinstance(value, bytes):
            return value.hex()
        return _text(value) if isinstance(value, str) else value

    fields: Fields = {}
    for each in cast("Sequence[FieldDescriptor]", message.DESCRIPTOR.fields):
        value = getattr(message, each.name)
        if each.is_repeated:
            fields[each.name] = [value_of(item) for item in value]
        else:
            is_unset = each.has_presence and not message.HasField(each.name)
            fields[each.name] = None if is_unset else value_of(value)
    return fields


def _seconds(time_ns: int) -> int:
    return time_ns // NS_PER_S


def _text(text: str) -> str:
    return text if len(text) <= MAX_STATUS_TEXT_CHARS else text[:MAX_STATUS_TEXT_CHARS] + "…"


MAX_STORES: Final = 16
"""Stores that are shown; a node has fewer peers."""


async def read_hour_coverage(reads: Coverage, now_ns: int) -> Fields:
    """Return by store the runs of hours of which the same is known.

    A run is its first hour, their number, the state, as of when, up to when it is equal, how many
    messages were missing here and there, and as of when it was last equal. Times are Unix seconds.
    """
    end_ns = now_ns // DAY_NS * DAY_NS + DAY_NS
    hours = list(aligned(end_ns - TIMELINE_DAYS * DAY_NS, end_ns, HOUR_NS))
    steps = await reads.steps(hours)
    stores = sorted({each.store_id for step in steps for each in step.stores})[:MAX_STORES]
    return {
        "start": hours[0][0] // NS_PER_S,
        "stores": [{"store_id": name, "runs": _runs(name, steps)} for name in stores],
    }


def _runs(store_id: str, steps: Sequence[CoverageStep]) -> list[list[Any]]:
    runs: list[list[Any]] = []
    start = 0
    for known, hours in groupby(_known(step, store_id) for step in steps):
        count = len(list(hours))
        if known is not None:
            runs.append([start, count, *known])
        start += count
    return runs


def _known(step: CoverageStep, store_id: str) -> list[Any] | None:
    found = next((each for each in step.stores if each.store_id == store_id), None)
    if found is None:
        return None
    partly = step.time_start < found.equal_until < step.time_end
    return [
        StoreCoverage.State.Name(found.state).lower(),
        found.compared_at // NS_PER_S,
        found.equal_until // NS_PER_S if partly else 0,
        found.missing_here,
        found.missing_there,
        found.last_equal // NS_PER_S,
    ]
