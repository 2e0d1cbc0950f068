"""The state of the peers: the outcome of every session, inbound or outbound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Final

from reconcile.session import Role
from store.domain.ports import PeerAddress, Source
from store.observe.logging import get_logger
from store.observe.metrics import Metrics
from store.rpc.peer_calls import PeerConnector
from store.sync.schedule import PeerState
from store.sync.session.report import SessionReport, SyncEnding
from storenode.message.limits import NS_PER_S

_LOG = get_logger("store.sync")
_DONE: Final = (SyncEnding.DONE, SyncEnding.ABORTED)


class PeerStates:
    """Keeps the state of the configured peers, as the `SyncObserver` of all sessions.

    A peer that only calls, and is not configured here, is counted and logged but not listed.
    """

    def __init__(
        self,
        peers: tuple[PeerAddress, ...],
        metrics: Metrics,
        now_ns: Callable[[], int],
        *,
        connections: PeerConnector | None = None,
        is_scheduled: bool = True,
    ) -> None:
        self._known = {peer: PeerState(peer.target, peer.node_id) for peer in peers}
        self._metrics = metrics
        self._now_ns = now_ns
        self._is_scheduled = is_scheduled
        self._connections = connections
        for peer in peers:
            metrics.peer_failures.labels(str(peer))
            metrics.peer_refusals.labels(str(peer))
            if is_scheduled:
                metrics.peer_silent_since.labels(str(peer)).set(now_ns() / NS_PER_S)
        # Of a count that begins with 1 Prometheus knows no growth.
        for role, ending in product(Role, SyncEnding):
            metrics.sync_sessions.labels(role.value, ending.value)

    def failed(self, peer: PeerAddress, error: str) -> None:
        """Note a failure outside of a session with a peer."""
        self._known[peer].last_error = error

    def states(self) -> list[PeerState]:
        """Return the configured peers, in the order of the options."""
        found = self._connections
        return [
            replace(
                known,
                node_id=self._id_of(peer),
                connected=found is not None and found.connected(peer),
            )
            for peer, known in self._known.items()
        ]

    # SyncObserver

    def session_began(self, peer: PeerAddress) -> None:
        """Note that this node begins a session with a peer."""
        self._known[peer].in_session = True

    def session_progressed(self, report: SessionReport) -> None:
        """Count the bytes and messages that have moved."""
        for (direction, what), count in report.take_progress().items():
            if what == "bytes":
                self._metrics.sync_bytes.labels(direction).inc(count)
            else:
                self._metrics.transfer_messages.labels(direction, what).inc(count)

    def session_ended(self, report: SessionReport) -> None:
        """Count and log a session of either role; also a caller's is news of a configured peer."""
        metrics, is_done = self._metrics, report.ending is SyncEnding.DONE
        metrics.sync_sessions.labels(report.role.value, str(report.ending)).inc()
        self.session_progressed(report)
        metrics.count_intake(Source.TRANSFER.value, report.duplicates, report.rejected())
        if is_done:
            metrics.sync_round_trips.observe(report.round_trips)
            metrics.sync_differences.observe(report.differences)
            metrics.sync_comparisons.labels(report.equality.name.lower()).inc()
            metrics.sync_modes.labels("compact" if report.compact else "base").inc()
        if report.hidden is not None:
            metrics.sync_hidden_differences.inc(report.hidden.count)
            _LOG.error(
                "fingerprint_forged",
                peer=report.node_id,
                differences=report.hidden.count,
                first_timestamp=report.hidden.first_ns,
                last_timestamp=report.hidden.last_ns,
                hashes=[digest.hex() for digest in report.hidden.hashes],
            )
        for each in report.shown_conflicts:
            _LOG.warning(
                "content_conflict",
                peer=report.node_id,
                timestamp=each.timestamp,
                hash=each.message_hash.hex(),
                own_digest=each.own_digest.hex(),
                peer_digest=each.peer_digest.hex(),
            )
        if report.peer is not None:
            self._note_own(report.peer, report)
        for peer, known in self._known.items():
            if not report.node_id or self._id_of(peer) != report.node_id:
                continue
            known.store_id = report.store_id or known.store_id
            if is_done:
                now_ns = self._now_ns()
                known.last_sync_ns = now_ns
                # What it refused before a restart, it takes now.
                metrics.peer_refusals.labels(str(peer)).set(0)
                known.lacks = max(0, report.missing_there - report.messages_sent)
                known.has = max(0, report.missing_here - report.messages_received)
                gauges = metrics.peer_last_sync_timestamp_seconds, metrics.peer_silent_since
                for gauge in gauges if self._is_scheduled else gauges[:1]:
                    gauge.labels(str(peer)).set(now_ns / NS_PER_S)
        _write(report)

    def _note_own(self, peer: PeerAddress, report: SessionReport) -> None:
        """Note the end of a session that this node began."""
        known = self._known[peer]
        known.in_session = False
        if report.ending is not SyncEnding.ABORTED:
            known.last = report
        if report.ending in _DONE:
            known.failures, known.last_error = 0, ""
        else:
            known.failures += report.ending is not SyncEnding.UNAVAILABLE
            known.last_error = report.error
        self._metrics.peer_failures.labels(str(peer)).set(known.failures)
        refusals = self._metrics.peer_refusals.labels(str(peer))
        if report.ending is SyncEnding.REFUSED:
            refusals.inc()
        else:
            refusals.set(0)
        if report.ending is SyncEnding.DONE:
            window = "recent" if report.window.time_start_ns else "whole"
            moved = report.messages_received + report.messages_sent
            # What policy keeps different does not count.
            left = 0 if report.in_sync else report.conflicts + max(0, report.differences - moved)
            self._metrics.peer_differences.labels(str(peer), window).set(left)

    def _id_of(self, peer: PeerAddress) -> str:
        return peer.node_id if self._connections is None else self._connections.node_id(peer)


def _write(report: SessionReport) -> None:
    fields: dict[str, object] = {
        "role": report.role.value,
        "peer": report.node_id,
        "outcome": str(report.ending),
        "in_sync": report.in_sync,
        "compared": report.equality.value,
        "compact": report.compact,
        "sent": report.messages_sent,
        "received": report.messages_received,
        "round_trips": report.round_trips,
        "bytes_sent": report.bytes_sent,
        "bytes_received": report.bytes_received,
        "seconds": round(report.seconds, 3),
    }
    for name in ("refused_by_policy", "undelivered", "unsolicited", "conflicts", "error"):
        if value := getattr(report, name):
            fields[name] = value
    if report.notes:
        fields["notes"] = "; ".join(report.notes)
    broken = report.ending not in _DONE or report.undelivered or report.unsolicited
    (_LOG.warning if broken else _LOG.info)("session_ended", **fields)
