"""The report of a transfer, and what its counts are about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from storenode.message.rules import Reason

MAX_KEPT_CONFLICTS: Final = 100
"""Conflicts of one transfer that are kept with their digests; more are only counted."""


@dataclass(frozen=True, slots=True)
class ContentConflict:
    """A message hash under which two stores hold different contents, by content digests."""

    timestamp: int
    message_hash: bytes
    own_digest: bytes
    peer_digest: bytes


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


Count = Callable[[Direction, MessageOutcome, int, str], None]
"""Count messages for the metrics; the text is the label of the reason, of what was refused."""


class TransferFault(StrEnum):
    """The reason why a transfer ended before its end.

    PROTOCOL and LIMIT are the peer's doing (`INVALID_ARGUMENT`, `RESOURCE_EXHAUSTED`), SILENCE too
    (`DEADLINE_EXCEEDED`); SLOW is a limit on time that was passed on either side
    (`DEADLINE_EXCEEDED`); LOST: the stream, or this node's database, is gone.
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
