"""The content of the status page, as JSON: see docs/operations.md, "The status page".

Times are Unix seconds, 0 for never; what is not known yet is null. Nothing secret is in it, and
texts of peers are cut.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from store.db.condition import (
    TIMELINE_DAYS,
    StoreCondition,
    Timeline,
    read_timeline,
)
from store.domain.coverage import HOUR_NS, Coverage, CoverageStep, StoreCoverage, aligned
from store.domain.partitioning import DAY_NS
from store.domain.ports import StoreSummary
from store.domain.unread import GossipPeerState, GossipState, UnreadSummary
from store.observe.metrics import Metrics, read_totals, samples, total
from store.observe.problems import Problem
from store.runtime.health import NodeHealth
from store.runtime.services import NodeParts
from store.runtime.tasks import SingleFlightCache
from store.runtime.telemetry import Telemetry
from store.serving.context import DiskState, NodeState, ServedDatabase
from store.sync.resume import ResumeState
from store.sync.schedule import PeerState
from store.sync.session.report import SessionReport
from storenode.message.limits import NS_PER_S

STATUS_REST_S: Final = 1.0
"""How often the data of the status page is put together, however many look at it."""

STATUS_PATIENCE_S: Final = 2.0
"""How long it waits for the database; then it shows what was read before."""

TIMELINE_REST_S: Final = 3.0
COVERAGE_REST_S: Final = 15.0
"""How often it reads what is held by time."""

MAX_STATUS_TEXT_CHARS: Final = 300
MAX_STATUS_NOTES: Final = 5
"""Of a text that a peer may have written, and of the notes of one session."""

Fields = dict[str, Any]
"""An object of JSON."""


class StatusReport:
    """The data of the status page; `complete` when the node serves."""

    def __init__(self, version: str, metrics: Metrics, health: NodeHealth) -> None:
        self._version = version
        self._metrics = metrics
        self._health = health
        self._started_s = time.time()
        self._database: _Database | None = None
        self._parts: NodeParts | None = None
        self._telemetry: Telemetry | None = None
        self._callers: Mapping[str, float] = {}
        self._page = SingleFlightCache("status", self._render, STATUS_REST_S, factor=0)

    def complete(
        self,
        stack: AsyncExitStack,
        parts: NodeParts,
        telemetry: Telemetry,
        callers: Mapping[str, float],
    ) -> None:
        """Show all of it from now on; `stack` ends what is being read."""
        self._parts, self._telemetry, self._callers = parts, telemetry, callers
        self._database = _Database(parts, telemetry)
        stack.push_async_callback(self._database.stop)
        stack.push_async_callback(self._page.stop)

    async def render(self) -> bytes:
        """Return the page's data, rendered at most once in `STATUS_REST_S`."""
        found = await self._page.get(STATUS_PATIENCE_S * 2)
        return await self._render() if found is None else found

    async def _render(self) -> bytes:
        now_s, health = time.time(), self._health.value
        fields: Fields = {
            "version": self._version,
            "node_id": None,
            "store_id": None,
            "time": now_s,
            "started": self._started_s,
            "revision": health.revision,
            "ready": health.ready,
            "why_not_ready": health.unready,
            "problems": [_problem(each) for each in health.problems],
            "ended": [_problem(each) | {"ended": int(each.ended_s)} for each in self._health.ended],
            "disks": [
                _fields(each, "volume", "free_bytes", "size_bytes") for each in self._disks()
            ],
            "clocks_ahead_s": self._clocks_ahead_s(),
            "totals": read_totals(self._metrics),
            "followers": total(self._metrics.followers),
            "publishes_in_flight": total(self._metrics.publishes_in_flight),
            "conflicts": int(total(self._metrics.conflicts)),
            "peers": [],
            "gossip": None,
            "resume": None,
            "held": None,
            "history": None,
            "coverage": None,
            "database": None,
            "archive": None,
        }
        if self._parts is not None and self._database is not None:
            fields |= await self._database.fields()
            fields |= _exchange(self._parts, self._callers)
        running = sum(peer.get("in_session", False) for peer in fields["peers"])
        fields["sessions"] = {"running": running, "ended": self._sessions_ended()}
        return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()

    async def state(self) -> NodeState:
        """Return the state for ``GetStatus``; of a database that is away, as it was last read."""
        parts, telemetry = self._parts, self._telemetry
        assert parts is not None
        assert telemetry is not None
        index = parts.reconcilable
        is_up = bool(total(self._metrics.database_up))
        summary = await telemetry.read_summary() if is_up else telemetry.summary
        condition = await telemetry.condition.get(STATUS_PATIENCE_S if is_up else 0)
        return NodeState(
            messages=summary.messages,
            oldest_timestamp_ns=summary.oldest_timestamp_ns,
            newest_timestamp_ns=summary.newest_timestamp_ns,
            index_entries=index.index_entries,
            index_start_ns=index.index_start_ns,
            gossip=None
            if parts.gossip is None
            else GossipState(telemetry.unread, parts.gossip_peers()),
            conflicts=int(total(self._metrics.conflicts)),
            database=self._served_database(condition),
        )

    def _served_database(self, condition: StoreCondition | None) -> ServedDatabase | None:
        if condition is None:
            return None
        return ServedDatabase(
            host=condition.host,
            standby=condition.standby,
            timeline=int(total(self._metrics.database_timeline)),
            standbys=int(total(self._metrics.standbys)),
            size_bytes=condition.size_bytes,
            disks=self._disks(),
            archived=condition.archive.archived_until_ns > 0,
            oldest_unarchived_ns=condition.archive.oldest_unarchived_ns,
        )

    def _disks(self) -> list[DiskState]:
        metrics = self._metrics
        sizes = {labels["volume"]: size for labels, size in samples(metrics.disk_size_bytes)}
        return [
            DiskState(name, int(free), int(sizes.get(name, 0)))
            for labels, free in samples(metrics.disk_free_bytes)
            if (name := labels["volume"])
        ]

    def _clocks_ahead_s(self) -> Fields:
        offsets = samples(self._metrics.clock_offset_seconds)
        return {_text(labels["other"]): round(value, 1) for labels, value in offsets}

    def _sessions_ended(self) -> Fields:
        ended: Fields = {}
        for labels, count in samples(self._metrics.sync_sessions):
            outcome = labels["outcome"]
            ended[outcome] = ended.get(outcome, 0) + int(count)
        return ended


class _Database:
    """The readings of the database, each with its own refresh interval."""

    def __init__(self, parts: NodeParts, telemetry: Telemetry) -> None:
        self._parts, self._telemetry = parts, telemetry
        database = parts.database
        self.timeline = SingleFlightCache(
            "timeline",
            lambda: database.read(lambda to: read_timeline(to, time.time_ns())),
            TIMELINE_REST_S,
        )
        self.coverage = SingleFlightCache(
            "coverage",
            lambda: read_hour_coverage(parts.coverage, time.time_ns()),
            COVERAGE_REST_S,
        )

    async def stop(self) -> None:
        for each in (self.timeline, self.coverage):
            await each.stop()

    async def fields(self) -> Fields:
        deadline_s = time.monotonic() + STATUS_PATIENCE_S

        def patience_s() -> float:
            return max(0.0, deadline_s - time.monotonic())

        parts, telemetry = self._parts, self._telemetry
        summary = await telemetry.stored.get(patience_s())
        unread = None if summary is None else telemetry.unread
        timeline = await self.timeline.get(patience_s())
        condition = await telemetry.condition.get(patience_s())
        return {
            "node_id": parts.identity.node_id,
            "store_id": parts.identity.store_id,
            "held": _stored(summary, telemetry.stored.age_s, parts),
            "history": _history(timeline),
            "coverage": await self.coverage.get(patience_s()),
            "database": _condition(condition, parts.metrics),
            "archive": _archive(condition),
            "gossip": None if parts.gossip is None else _gossip(unread),
        }


def _stored(summary: StoreSummary | None, age_s: float | None, parts: NodeParts) -> Fields | None:
    if summary is None:
        return None
    retention_ns = parts.policy.retention_ns
    return {
        "age_s": round(age_s or 0.0, 1),
        "messages": summary.messages,
        "oldest": _seconds(summary.oldest_timestamp_ns),
        "newest": _seconds(summary.newest_timestamp_ns),
        "horizon": _seconds(summary.horizon_ns),
        "retention_s": None if retention_ns is None else _seconds(retention_ns),
        "shortfall_s": _seconds(parts.policy.shortfall_ns()),
        "index_entries": parts.reconcilable.index_entries,
    }


def _history(timeline: Timeline | None) -> Fields | None:
    if timeline is None:
        return None
    names = "complete", "hours_start", "hours", "slots_start", "slot_days", "slots"
    return _fields(timeline, *names)


def _condition(condition: StoreCondition | None, metrics: Metrics) -> Fields | None:
    if condition is None:
        return None
    tables = condition.tables.values()
    return _fields(condition, "host", "standby", "size_bytes", "partitions") | {
        "rows": sum(each.live_rows for each in tables),
        "dead_rows": sum(each.dead_rows for each in tables),
        "timeline": int(total(metrics.database_timeline)),
        "hosts_refused": int(total(metrics.database_hosts_refused)),
        "ahead_s": max(0, _seconds(condition.covered_until_ns - time.time_ns())),
    }


def _archive(condition: StoreCondition | None) -> Fields | None:
    # None also where nothing was ever archived: then there is no archive to lag behind.
    if condition is None or not condition.archive.archived_until_ns:
        return None
    oldest_ns = condition.archive.oldest_unarchived_ns
    return {"oldest_unarchived": _seconds(oldest_ns) if oldest_ns else None}


def _gossip(unread: UnreadSummary | None) -> Fields:
    if unread is None:
        return {"unread": None, "oldest_unread_s": None, "waiting": None}
    return {
        "unread": unread.count,
        "oldest_unread_s": _seconds(unread.oldest_ns),
        "waiting": unread.waiting,
    }


def _exchange(parts: NodeParts, callers: Mapping[str, float]) -> Fields:
    peers, resume = parts.synchronizer.peers(), parts.synchronizer.resume()
    return {
        "peers": _peers(peers, parts.gossip_peers(), callers),
        "resume": None if resume is None else _resume(resume),
    }


def _peers(
    configured: Sequence[PeerState],
    live: Sequence[GossipPeerState],
    last_call_s: Mapping[str, float],
) -> list[Fields]:
    by_id = {each.node_id: each for each in live}
    listed = [
        _peer(peer) | {"live": _live(by_id.pop(peer.node_id, None))}
        for peer in sorted(configured, key=lambda peer: peer.address)
    ]
    others = (by_id.keys() | last_call_s.keys()) - {peer.node_id for peer in configured}
    callers = [
        {
            "node_id": _text(name),
            "live": _live(by_id.get(name)),
            "last_heard": int(last_call_s.get(name, 0)),
        }
        for name in sorted(others)
    ]
    return listed + callers


def _problem(problem: Problem) -> Fields:
    return {
        "name": problem.page,
        "critical": problem.critical,
        "sentence": _text(problem.sentence),
        "since": int(problem.since_s),
        "runbook": problem.url,
    }


def _peer(peer: PeerState) -> Fields:
    names = "address", "node_id", "store_id", "connected", "in_session", "last_sync", "failures"
    return _fields(peer, *names, "lacks", "has") | {
        "error": _text(peer.last_error),
        "last": None if peer.last is None else _session(peer.last),
    }


def _session(report: SessionReport) -> Fields:
    return _fields(
        report, "in_sync", "keyed_from", "compact", "missing_here", "missing_there", "conflicts"
    ) | {
        "outcome": str(report.ending),
        "equality": report.equality.value,
        "received": report.messages_received,
        "sent": report.messages_sent,
        "seconds": round(report.seconds, 3),
        "window": [_seconds(report.window.time_start_ns), _seconds(report.window.time_end_ns)],
        "notes": [_text(note) for note in report.notes[:MAX_STATUS_NOTES]],
    }


def _live(peer: GossipPeerState | None) -> Fields | None:
    if peer is None:
        return None
    return _fields(peer, "connected", "slowed", "cut_off_until", "reason")


def _resume(resume: ResumeState) -> Fields:
    return _fields(resume, "running", "reached", "messages", "stored", "error") | {
        "start": _seconds(resume.time_start_ns),
        "end": _seconds(resume.time_end_ns),
    }


def _fields(state: object, *names: str) -> Fields:
    """Return attributes by name, texts cut, and times (``..._ns``) in seconds."""
    found: Fields = {}
    for name in names:
        value = getattr(state, name if hasattr(state, name) else f"{name}_ns")
        if isinstance(value, str):
            value = _text(value)
        elif value is not None and not hasattr(state, name):
            value = _seconds(value)
        found[name] = value
    return found


def _seconds(time_ns: int) -> int:
    return time_ns // NS_PER_S


def _text(text: str) -> str:
    return text if len(text) <= MAX_STATUS_TEXT_CHARS else text[:MAX_STATUS_TEXT_CHARS] + "…"


MAX_STORES: Final = 16
"""Stores that are shown; a node has fewer peers."""


async def read_hour_coverage(reads: Coverage, now_ns: int) -> Fields:
    """Return by store the runs of hours of which the same is known.

    A run is its first hour, their number, the state, as of when, up to when it is equal, how many
    messages were missing here and there, how many of each hour were held here then, where that is
    known, and as of when it was last equal. Times are Unix seconds.
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
    for place, step in enumerate(steps):
        found = next((each for each in step.stores if each.store_id == store_id), None)
        if found is None:
            continue
        known = _known(step, found)
        if runs and runs[-1][0] + runs[-1][1] == place and runs[-1][2:] == known:
            runs[-1][1] += 1
        else:
            runs.append([place, 1, *known])
    return runs


def _known(step: CoverageStep, found: StoreCoverage) -> list[Any]:
    partly = step.start_ns < found.equal_until_ns < step.end_ns
    return [
        found.state.value,
        found.compared_ns // NS_PER_S,
        found.equal_until_ns // NS_PER_S if partly else 0,
        found.missing_here,
        found.missing_there,
        found.stored_here,
        found.last_equal_ns // NS_PER_S,
    ]
