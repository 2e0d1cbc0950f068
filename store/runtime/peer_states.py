"""The state of the peers: the outcome of every session, inbound or outbound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Final

from store.domain.ports import PeerAddress
from store.observe.logging import get_logger
from store.observe.metrics import Metrics
from store.rpc.connector import PeerConnector
from store.sync.schedule import PeerState, SyncDone
from store.sync.session.report import Hidden, SyncEnding, SyncOutcome, SyncRole
from storenode.message.limits import NS_PER_S

_LOG = get_logger("store.sync")
_DONE: Final = (SyncEnding.DONE, SyncEnding.ABORTED)


class PeerStates:
    """Keeps the state of configured peers: a `store.sync.session.report.SyncObserver`.

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
        for role, ending in product(SyncRole, SyncEnding):
            metrics.sync_sessions.labels(role.value, ending.value)

    def begun(self, peer: PeerAddress) -> None:
        """Note that this node begins a session with a peer."""
        self._known[peer].in_session = True

    def ended(self, done: SyncDone) -> None:
        """Note the end of a session that this node began."""
        known = self._known[done.peer]
        known.in_session = False
        if done.outcome.ending is not SyncEnding.ABORTED:
            known.last = done
        if done.outcome.ending in _DONE:
            known.failures = 0
            known.last_error = ""
        else:
            known.failures += done.outcome.ending is not SyncEnding.UNAVAILABLE
            known.last_error = done.outcome.error
        self._metrics.peer_failures.labels(str(done.peer)).set(known.failures)
        refusals = self._metrics.peer_refusals.labels(str(done.peer))
        if done.outcome.ending is SyncEnding.REFUSED:
            refusals.inc()
        else:
            refusals.set(0)
        if done.outcome.ending is SyncEnding.DONE:
            window = "recent" if done.window.time_start_ns else "whole"
            left = self._metrics.peer_differences.labels(str(done.peer), window)
            left.set(_differences_left(done.outcome))

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

    def session_ended(
        self, role: SyncRole, peer_node_id: str, peer_store_id: str, outcome: SyncOutcome
    ) -> None:
        """Count and log a session of either role; also a caller's is news of a configured peer."""
        metrics, is_done = self._metrics, outcome.ending is SyncEnding.DONE
        metrics.sync_sessions.labels(role.value, outcome.ending.value).inc()
        if is_done:
            metrics.sync_round_trips.observe(outcome.round_trips)
            metrics.sync_differences.observe(outcome.differences)
            metrics.sync_comparisons.labels(outcome.equality.name.lower()).inc()
            metrics.sync_modes.labels("compact" if outcome.compact else "base").inc()
        if outcome.hidden is not None:
            metrics.sync_hidden_differences.inc(outcome.hidden.count)
            _write_hidden(peer_node_id, outcome.hidden)
        for each in outcome.shown_conflicts:
            _LOG.warning(
                "content_conflict",
                peer=peer_node_id,
                timestamp=each.timestamp,
                hash=each.message_hash.hex(),
                own_digest=each.own_digest.hex(),
                peer_digest=each.peer_digest.hex(),
            )
        for peer, known in self._known.items():
            if not peer_node_id or self._id_of(peer) != peer_node_id:
                continue
            known.store_id = peer_store_id or known.store_id
            if is_done:
                now_ns = self._now_ns()
                known.last_sync_ns = now_ns
                # What it refused before a restart, it takes now.
                metrics.peer_refusals.labels(str(peer)).set(0)
                known.lacks = max(0, outcome.missing_there - outcome.messages_sent)
                known.has = max(0, outcome.missing_here - outcome.messages_received)
                gauges = metrics.peer_last_sync_timestamp_seconds, metrics.peer_silent_since
                for gauge in gauges if self._is_scheduled else gauges[:1]:
                    gauge.labels(str(peer)).set(now_ns / NS_PER_S)
        _write(role, peer_node_id, outcome)

    def transferred(self, direction: str, outcome: str, count: int) -> None:
        """Count messages of a transfer."""
        self._metrics.transfer_messages.labels(direction, outcome).inc(count)

    def sync_bytes(self, direction: str, count: int) -> None:
        """Count bytes of reconciliation payloads."""
        self._metrics.sync_bytes.labels(direction).inc(count)

    def _id_of(self, peer: PeerAddress) -> str:
        return peer.node_id if self._connections is None else self._connections.node_id(peer)


def _differences_left(outcome: SyncOutcome) -> int:
    """Return how many messages one side still lacks, or holds with another content.

    What policy keeps different does not count.
    """
    if outcome.in_sync:
        return 0
    moved = outcome.messages_received + outcome.messages_sent
    return outcome.conflicts + max(0, outcome.differences - moved)


def _write_hidden(peer_node_id: str, hidden: Hidden) -> None:
    _LOG.error(
        "fingerprint_forged",
        peer=peer_node_id,
        differences=hidden.count,
        first_timestamp=hidden.first_ns,
        last_timestamp=hidden.last_ns,
        hashes=[digest.hex() for digest in hidden.hashes],
    )


def _write(role: SyncRole, peer_node_id: str, outcome: SyncOutcome) -> None:
    fields: dict[str, object] = {
        "role": role.value,
        "peer": peer_node_id,
        "outcome": outcome.ending.value,
        "in_sync": outcome.in_sync,
        "compared": outcome.equality.value,
        "compact": outcome.compact,
        "sent": outcome.messages_sent,
        "received": outcome.messages_received,
        "round_trips": outcome.round_trips,
        "bytes_sent": outcome.bytes_sent,
        "bytes_received": outcome.bytes_received,
        "seconds": round(outcome.seconds, 3),
    }
    for name in ("refused_by_policy", "undelivered", "unsolicited", "conflicts"):
        if getattr(outcome, name):
            fields[name] = getattr(outcome, name)
    if outcome.notes:
        fields["notes"] = "; ".join(outcome.notes)
    if outcome.error:
        fields["error"] = outcome.error
    broken = outcome.ending not in _DONE or outcome.undelivered or outcome.unsolicited
    (_LOG.warning if broken else _LOG.info)("session_ended", **fields)
