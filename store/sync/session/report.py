"""The report of a session: filled while it runs, and shown by all who show sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Protocol

from reconcile.ids import SyncId, SyncIds
from reconcile.session import Result, Role
from store.domain.ports import PeerAddress
from store.sync.errors import Fault, shown
from store.sync.limits import MAX_SHOWN_HIDDEN
from storenode.message.limits import MAX_TIMESTAMP_NS, NS_PER_S
from storenode.message.rules import Reason

UNSOLICITED: Final = "unsolicited"
"""The label of unsolicited and of repeated messages."""


class Equality(StrEnum):
    """The way in which a session has compared the two sides.

    XOR: by the fingerprints of WAKU-SYNC, which publishers can forge. KEYED: by lattice sums over
    contents, which cannot be forged. PARTLY_KEYED: by these from some time on.
    """

    UNKNOWN = ""
    XOR = "xor"
    KEYED = "keyed"
    PARTLY_KEYED = "partly keyed"


@dataclass(frozen=True, slots=True)
class Hidden:
    """Differences that the fingerprints of WAKU-SYNC did not show: forged, or a fault.

    ``hashes``: some of their messages, few enough for a log. Times in Unix nanoseconds.
    """

    count: int
    first_ns: int
    last_ns: int
    hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ContentConflict:
    """A message hash under which two stores hold different contents, by content digests."""

    timestamp: int
    message_hash: bytes
    own_digest: bytes
    peer_digest: bytes


class SyncEnding(StrEnum):
    """The end of a session (label ``outcome`` of the metrics).

    DONE: both sides completed it. ABORTED: another session with this peer went before it, which is
    no error. REFUSED: one of the two does not reconcile. FAILED: it broke. UNAVAILABLE: the
    database of this node did not serve.
    """

    DONE = "done"
    ABORTED = "aborted"
    REFUSED = "refused"
    FAILED = "failed"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Window:
    """A half-open range of time in Unix nanoseconds; by default all of it."""

    time_start_ns: int = 0
    time_end_ns: int = MAX_TIMESTAMP_NS


@dataclass(slots=True)
class SessionReport:
    """The report of one session, on one side; `finish` completes it.

    ``node_id`` and ``store_id`` are the peer's, as far as it is known. ``peer`` and ``window``:
    what this node asked for, in a session that it began. ``error``: one sentence, empty for DONE
    and ABORTED; ``fault``: that of a transfer. ``in_sync``: both sides hold the same set over the
    window now, but for what lies below a horizon or is refused by policy (then ``notes`` say so).

    ``asked_from``: the lower bound that the initiator wanted; below ``horizon`` nothing was
    compared. ``opened_ns``: the clock before the view was opened. ``compared``: the reconciliation
    came to a result; only then the findings count. ``round_trips``: payloads that the initiator
    sent; bytes are those of reconciliation payloads. ``own_count`` and ``peer_count``: IDs over the
    window, None where unknown. ``missing_here`` are IDs that only the peer held, ``missing_there``
    those that only this node held, ``middle_ns`` a time amid the most of these. ``left_over``: a
    limit was reached; another session is due. From ``keyed_from_ns`` on lattice sums were equal in
    the end, but for the conflicts; None: nowhere. ``hidden``: differences that the fingerprints of
    WAKU-SYNC did not show. ``compact``: the differences were found in the compact
    mode, ``compact_failed``: why it was given up. ``found_conflicts``: hashes with two contents.

    The counts of the transfer are messages, and those by reason are by label. Of those to send:
    ``sent`` were written to the stream; the peer answered ``messages_sent`` as stored,
    ``refused_by_peer`` by its policy (of which ``withheld`` were not sent, since it had refused
    them in an earlier session), and ``missed_by_peer`` as not received or not wanted; ``pruned``
    were gone before they could be sent; ``unanswered`` are open. Of those to receive: ``stored``
    came and were new, ``duplicates`` came and were held already, ``elsewhere`` came another way;
    ``refused`` are those of this node's policy (of which ``declined`` were refused before);
    ``undelivered`` never came although the peer reported its end; ``outstanding`` are open.
    ``unsolicited`` messages came without being asked for, ``repeated`` ones twice;
    ``unstored_conflicts`` came that are not stored, since others here have their hashes.
    ``counted``: what `take_progress` has returned.
    """

    role: Role
    began_ns: int
    node_id: str = ""
    store_id: str = ""
    peer: PeerAddress | None = None
    window: Window = field(default_factory=Window)
    ending: SyncEnding | None = None
    error: str = ""
    fault: Fault = Fault.NONE
    seconds: float = 0.0
    in_sync: bool = False
    notes: tuple[str, ...] = ()

    asked_from: SyncId | None = None
    horizon: SyncId | None = None
    opened_ns: int = 0
    compared: bool = False
    round_trips: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    own_count: int | None = None
    peer_count: int | None = None
    missing_here: int = 0
    missing_there: int = 0
    left_over: bool = False
    middle_ns: int = 0
    keyed_from_ns: int | None = None
    equality: Equality = Equality.UNKNOWN
    hidden: Hidden | None = None
    compact: bool = False
    compact_failed: str = ""
    found_conflicts: int = 0
    shown_conflicts: list[ContentConflict] = field(default_factory=list)

    sent: int = 0
    messages_sent: int = 0
    refused_by_peer: Counter[str] = field(default_factory=Counter)
    withheld: int = 0
    missed_by_peer: int = 0
    pruned: int = 0
    unanswered: int = 0
    stored: int = 0
    duplicates: int = 0
    elsewhere: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    declined: Counter[str] = field(default_factory=Counter)
    undelivered: int = 0
    outstanding: int = 0
    unsolicited: int = 0
    repeated: int = 0
    unstored_conflicts: int = 0
    reasons_of_peer: tuple[str, ...] = ()
    counted: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def differences(self) -> int:
        """The number of IDs that one side lacked."""
        return self.missing_here + self.missing_there

    @property
    def messages_received(self) -> int:
        """The number of messages that came and are stored."""
        return self.stored + self.duplicates

    @property
    def refused_by_policy(self) -> int:
        """Messages that one side's rules keep from being equal."""
        return self.refused.total() + self.refused_by_peer.total()

    @property
    def transfer_conflicts(self) -> int:
        """Messages of the transfer for which the two sides hold different ones of one hash."""
        label = str(Reason.CONFLICT)
        return self.unstored_conflicts + self.refused[label] + self.refused_by_peer[label]

    @property
    def conflicts(self) -> int:
        """Hashes under which the two sides hold different contents."""
        return self.found_conflicts + self.transfer_conflicts

    @property
    def moved_all(self) -> bool:
        """True if both sides hold all of a transfer, but for what policy or retention keeps out."""
        open_ends = self.missed_by_peer + self.unanswered + self.undelivered + self.outstanding
        return not self.error and not open_ends and not self.transfer_conflicts

    @property
    def is_resolved(self) -> bool:
        """True if both sides hold all that one of them lacked."""
        return self.compared and not self.left_over and self.moved_all

    @property
    def counts_agree(self) -> bool:
        """True unless the differences do not explain how many IDs each side has."""
        own, peer = self.own_count, self.peer_count
        if own is None or peer is None or self.left_over:
            return True
        return own - self.missing_there == peer - self.missing_here

    def conclude(
        self, result: Result, hidden: SyncIds, conflicts: Sequence[ContentConflict]
    ) -> None:
        """Take in what the reconciliation came to.

        ``hidden``: ascending differences that fingerprints did not show.
        """
        self.found_conflicts = len(conflicts)
        self.shown_conflicts = list(conflicts[:MAX_SHOWN_HIDDEN])
        if len(hidden):
            hashes = tuple(digest for _, digest in hidden[:MAX_SHOWN_HIDDEN].pairs())
            first_ns, last_ns = int(hidden.timestamps[0]), int(hidden.timestamps[-1])
            self.hidden = Hidden(len(hidden), first_ns, last_ns, hashes)
        self.compared = True
        self.round_trips, self.left_over = result.rounds, result.truncated
        self.own_count = result.own_count
        self.missing_here, self.missing_there = len(result.to_receive), len(result.to_send)
        self.unanswered, self.outstanding = self.missing_there, self.missing_here
        if len(found := max(result.to_send, result.to_receive, key=len)):
            self.middle_ns = int(found.timestamps[len(found) // 2])
        self.equality = Equality.XOR if result.rounds else Equality.UNKNOWN
        if self.keyed_from_ns is not None:
            whole = self.keyed_from_ns <= result.window[0][0]
            self.equality = Equality.KEYED if whole else Equality.PARTLY_KEYED

    def finish(self, now_ns: int) -> None:
        """Complete the report at the end of the session."""
        self.seconds = (now_ns - self.began_ns) / NS_PER_S
        if self.ending is None:
            done = self.compared and not self.error
            self.ending = SyncEnding.DONE if done else SyncEnding.FAILED
        self.in_sync = self.is_resolved and not self.conflicts
        self.notes = tuple(_notes(self)) if self.compared else ()

    def take_progress(self) -> dict[tuple[str, str], int]:
        """Return what has moved since the last call, by direction.

        That are "bytes" of reconciliation payloads, and messages by their outcome. Refusals of
        earlier sessions, of which nothing was sent, do not count.
        """
        moved = {
            ("sent", "bytes"): self.bytes_sent,
            ("received", "bytes"): self.bytes_received,
            ("sent", "stored"): self.messages_sent,
            ("sent", "refused"): self.refused_by_peer.total() - self.withheld,
            ("sent", "undelivered"): self.missed_by_peer,
            ("sent", "pruned"): self.pruned,
            ("received", "stored"): self.stored,
            ("received", "duplicate"): self.duplicates,
            ("received", "refused"): self.refused.total() - self.declined.total(),
            ("received", "unsolicited"): self.unsolicited + self.repeated,
            ("received", "undelivered"): self.undelivered,
            ("received", "conflict"): self.unstored_conflicts,
        }
        before, self.counted = self.counted, moved
        return {key: more for key, n in moved.items() if (more := n - before.get(key, 0)) > 0}

    def rejected(self) -> Counter[str]:
        """Return the messages that came and were not stored, by label."""
        found = self.refused - self.declined
        if strays := self.unsolicited + self.repeated:
            found[UNSOLICITED] += strays
        if self.unstored_conflicts:
            found[str(Reason.CONFLICT)] += self.unstored_conflicts
        return found


class SyncObserver(Protocol):
    """An observer of sessions; must not block or raise."""

    def session_began(self, peer: PeerAddress) -> None:
        """Note that this node begins a session with a configured peer."""

    def session_progressed(self, report: SessionReport) -> None:
        """Note that a transfer continues."""

    def session_ended(self, report: SessionReport) -> None:
        """Note that a session of either role ended."""


def _notes(report: SessionReport) -> Iterator[str]:
    horizon = report.horizon
    if horizon is not None and (report.asked_from or horizon) < horizon:
        what = "what is" if report.round_trips else "the whole window, and no peer was asked: it is"
        yield f"not compared: {what} older than {_time(horizon[0])}, the horizon of this node"
    if report.left_over:
        yield "a session reports no more differences than these: the next one finds the rest"
    if report.refused:
        yield f"refused here by policy: {_counts(report.refused)}"
    if report.refused_by_peer:
        reasons = "; ".join(report.reasons_of_peer)
        yield f"refused by the peer: {_counts(report.refused_by_peer)}" + (
            f" ({shown(reasons)})" if reasons else ""
        )
    if report.undelivered:
        yield f"announced by the peer and not delivered: {report.undelivered:,}"
    if report.missed_by_peer:
        yield f"sent to the peer, which says that it did not get them: {report.missed_by_peer:,}"
    if report.pruned:
        yield f"dropped by retention here before they could be sent: {report.pruned:,}"
    if strays := report.unsolicited + report.repeated:
        yield f"sent by the peer although nobody asked for them: {strays:,}"
    if report.hidden is not None:
        hidden = report.hidden
        yield (
            "found by sums that nobody can forge and hidden from the fingerprints of WAKU-SYNC: "
            f"{hidden.count:,}, from {_time(hidden.first_ns)} to {_time(hidden.last_ns)}: a "
            "publisher forged them, or something is broken; see the runbook "
            "StorenodeForgedFingerprint"
        )
    if report.shown_conflicts:
        first = report.shown_conflicts[0]
        yield (
            "held with different contents under one hash: "
            f"{report.found_conflicts + report.unstored_conflicts:,}, such as "
            f"{first.message_hash.hex()}, content {first.own_digest.hex()} here and "
            f"{first.peer_digest.hex()} there; they are not transferred"
        )
    if not report.counts_agree:
        yield (
            f"held in the range: {report.own_count:,} here and {report.peer_count:,} by the peer's "
            "count, which the differences do not explain: the horizons of the two differ, or a "
            "fingerprint is forged"
        )
    if report.compact_failed:
        yield f"the compact mode was given up for a base session: {shown(report.compact_failed)}"


def _counts(by_label: Mapping[str, int]) -> str:
    return ", ".join(f"{label} {count:,}" for label, count in sorted(by_label.items()))


def _time(timestamp_ns: int) -> str:
    return datetime.fromtimestamp(timestamp_ns // NS_PER_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
