"""Inputs and effects of a `store.sync.transfer.core.Transfer`: plain batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from reconcile.ids import SyncIds
from store.domain.admission import Admitted
from store.domain.ports import ContentConflict
from store.messages.record import RecordBatch
from storenode.message.rules import Reason

MAX_KEPT_CONFLICTS: Final = 100
"""Conflicts of one transfer that are kept with their digests; more are only counted."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The session begins: the first frame goes out.

    ``clock_ns``: what the clock shows, in Unix nanoseconds. What is remembered of refusals is about
    that time; all else is about the time of the steps, of a monotonic clock.
    """

    clock_ns: int


@dataclass(frozen=True, slots=True)
class TransferReceived:
    """A frame of the peer, whose messages admission has judged (`Source.TRANSFER`).

    ``size_bytes`` is the size of the whole frame as it came. ``stored`` and the hashes in
    ``refused`` are the peer's answers.
    """

    session_id: str
    published: Admitted
    size_bytes: int
    stored: Sequence[bytes] = ()
    refused: Sequence[tuple[bytes, str]] = ()
    done: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """The answer to the last `Load`: encoded ``WakuMessageAndTopic`` of its first IDs, in order.

    At least one, None for messages that are no longer held; the others are asked for again.
    """

    messages: Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class Persisted:
    """The batch of the `Persist` with this token is durable; per message True if it was new.

    ``conflicts``: the messages of it that are not stored, since others have their hashes; by place
    in the batch.
    """

    token: int
    new: Sequence[bool]
    conflicts: Mapping[int, ContentConflict] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to the last `Find`: per ID whether it is held."""

    is_stored: Sequence[bool]


@dataclass(frozen=True, slots=True)
class SendReady:
    """The stream has taken the last frame."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class StreamLost:
    """The stream or the database is gone, or the node stops; ``sentence`` says which."""

    sentence: str


Input = Begin | TransferReceived | Loaded | Persisted | Found | SendReady | Ticked | StreamLost


@dataclass(frozen=True, slots=True)
class Load:
    """Read messages to send, in order and of ``max_bytes`` in all, but one at least."""

    ids: SyncIds
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Persist:
    """Store a batch durably (`Source.TRANSFER`); several may be under way."""

    token: int
    batch: RecordBatch


@dataclass(frozen=True, slots=True)
class Find:
    """Look which of these are held, now."""

    ids: SyncIds


@dataclass(frozen=True, slots=True)
class Frame:
    """A ``TransferFrame`` to send, or a piece of a received one, of which the last has ``done``.

    ``messages`` are said to be ``WakuMessageAndTopic``. ``size_bytes``: of the received piece.
    """

    session_id: str
    messages: Sequence[bytes] = ()
    stored: Sequence[bytes] = ()
    refused: Sequence[tuple[bytes, str]] = ()
    done: bool = False
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Write a frame to the stream, then say `SendReady`; at most one is under way."""

    frame: Frame


class Direction(StrEnum):
    """The direction of a message, as this node sees it (label ``direction`` of the metrics)."""

    SENT = "sent"
    RECEIVED = "received"


class MessageOutcome(StrEnum):
    """The fate of a message (label ``outcome`` of the metrics).

    STORED: durable, and new there or (sent) so said the peer. DUPLICATE: it came, but was held
    already. REFUSED: by policy. UNSOLICITED: not part of this session, or sent twice.
    UNDELIVERED: promised, and it never came. PRUNED: dropped here before it could be sent.
    CONFLICT: it came, and another message here has its hash.
    """

    STORED = "stored"
    DUPLICATE = "duplicate"
    REFUSED = "refused"
    UNSOLICITED = "unsolicited"
    UNDELIVERED = "undelivered"
    PRUNED = "pruned"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Counted:
    """A count for the metrics; ``reason`` is a label, of what this node refused."""

    direction: Direction
    outcome: MessageOutcome
    count: int
    reason: str = ""


class TransferFault(StrEnum):
    """The reason why a transfer ended before its end.

    PROTOCOL and LIMIT are the peer's doing (`INVALID_ARGUMENT`, `RESOURCE_EXHAUSTED`), SILENCE too
    (`DEADLINE_EXCEEDED`); SLOW is a limit on time that was passed on either side
    (`DEADLINE_EXCEEDED`); LOST is what the driver has said.
    """

    NONE = ""
    PROTOCOL = "protocol"
    LIMIT = "limit"
    SILENCE = "silence"
    SLOW = "slow"
    LOST = "lost"


@dataclass(slots=True)
class Report:
    """The result of a transfer; the counts are messages, and those by reason are by label.

    Of those to send: ``sent`` were written to the stream; the peer answered ``stored_by_peer`` as
    stored, ``refused_by_peer`` by its policy, and ``missed_by_peer`` as not received or not
    wanted; ``pruned`` were gone before they could be sent; ``unanswered`` are open.

    Of those to receive: ``stored`` came and were new, ``duplicates`` came and were held already,
    ``elsewhere`` came another way; ``refused`` are those of this node's policy (also those
    that it refused in an earlier session and that were not sent again); ``undelivered`` never
    came although the peer said that it was done; ``outstanding`` are open.

    ``unsolicited`` messages came without being asked for, ``repeated`` ones twice.

    ``conflict_count`` messages came that are not stored, since others here have their hashes;
    ``conflicts`` has the first `MAX_KEPT_CONFLICTS` of them.
    """

    sent: int = 0
    stored_by_peer: int = 0
    refused_by_peer: Counter[str] = field(default_factory=Counter)
    missed_by_peer: int = 0
    pruned: int = 0
    unanswered: int = 0
    stored: int = 0
    duplicates: int = 0
    elsewhere: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    undelivered: int = 0
    outstanding: int = 0
    unsolicited: int = 0
    repeated: int = 0
    conflict_count: int = 0
    conflicts: list[ContentConflict] = field(default_factory=list)
    fault: TransferFault = TransferFault.NONE
    error: str = ""
    reasons_of_peer: tuple[str, ...] = ()

    @property
    def refused_by_policy(self) -> int:
        """Messages that one side's rules keep from being equal."""
        return self.refused.total() + self.refused_by_peer.total()

    @property
    def in_conflict(self) -> int:
        """Messages for which the two sides hold different ones of the same hash."""
        label = str(Reason.CONFLICT)
        return self.conflict_count + self.refused[label] + self.refused_by_peer[label]

    def note_conflict(self, conflict: ContentConflict) -> None:
        """Count a conflict, and keep it if there is room."""
        self.conflict_count += 1
        if len(self.conflicts) < MAX_KEPT_CONFLICTS:
            self.conflicts.append(conflict)

    @property
    def equal(self) -> bool:
        """True if both sides hold all of it, but for what policy refuses or retention dropped."""
        open_ends = self.missed_by_peer + self.unanswered + self.undelivered + self.outstanding
        return not self.error and not open_ends and not self.in_conflict


@dataclass(frozen=True, slots=True)
class TransferEnded:
    """The transfer is over; no input is allowed after it. What was persisted stays."""

    report: Report


Effect = Load | Persist | Find | SendFrame | Counted | TransferEnded
