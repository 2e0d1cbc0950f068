"""The half of a transfer that sends: from IDs to messages on the stream to the peer's answers.

=========  ==========  =======================================================
state      answered?   how an ID comes out of it
=========  ==========  =======================================================
WAITING    no          it is loaded: QUEUED, or PRUNED where it is held no more
QUEUED     no          it goes into a frame: SENT
SENT       no          the peer answers
PRUNED     no          the peer answers ("not received", once this side is done)
WITHHELD   no          the peer answers; it refused this one in an earlier session
any        yes         never again: a second answer is a fault
=========  ==========  =======================================================

An answer may come before the message is sent (the peer got it another way): then it is not sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import compress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile.ids import SyncIds
from store.sync.errors import ProtocolBrokenError
from store.sync.limits import MAX_REASON_BYTES, MAX_REASONS_SHOWN, TransferLimits
from store.sync.session.report import UNSOLICITED, SessionReport
from store.sync.transfer.id_lookup import IdLookup, hash_column
from store.sync.transfer.policy_memory import OTHER, POLICY_LABELS, Book

NOT_RECEIVED: Final = "not received"
"""The reason for an ID that the sender has not sent, word for word as the contract has it."""

REPEATED: Final = "sent twice"

_WAITING: Final = 0
_QUEUED: Final = 1
_SENT: Final = 2
_PRUNED: Final = 3
_WITHHELD: Final = 4
_ANSWERED: Final = 0x80

_FIRST_GUESS_BYTES: Final = 1_024

Answer = tuple[bytes, str | None]
"""A message hash, and why it is refused; None: it is stored."""

PlacedAnswers = tuple[NDArray[np.int64], list[str | None]]
"""The places of answers, and their reasons."""


class Sending:
    """The state of sending: what is still to be sent, and what the peer has answered.

    Attributes:
        unanswered: IDs that the peer has not answered.
        reasons: some of the peer's reasons, in its words.
    """

    def __init__(
        self, ids: SyncIds, limits: TransferLimits, report: SessionReport, refusals: Book
    ) -> None:
        self.ids = ids
        self._refusals = refusals
        self._lookup = IdLookup(ids)
        self._limits = limits
        self._report = report
        self._states = np.zeros(len(ids), np.uint8)
        self._next = 0
        self._asked: NDArray[np.int64] | None = None
        self._queue: deque[tuple[int, bytes]] = deque()
        self._queued_bytes = 0
        self._message_bytes = _FIRST_GUESS_BYTES
        self.unanswered = len(ids)
        self._withheld: dict[int, str] = {}
        self.reasons: dict[str, None] = {}

    @property
    def loading(self) -> bool:
        """True while messages are being read."""
        return self._asked is not None

    @property
    def exhausted(self) -> bool:
        """True when all that will be sent is sent."""
        return self._next == len(self.ids) and self._asked is None and not self._queue

    def check(self) -> None:
        """Verify the invariants, and the bound on what is read ahead; linear in the IDs.

        Raises:
            AssertionError: one is broken.
        """
        limits, sizes = self._limits, [len(message) for _, message in self._queue]
        assert self._queued_bytes == sum(sizes)
        assert self._queued_bytes <= limits.unsent_bytes + max(sizes, default=0)
        assert self.unanswered == np.count_nonzero(self._states < _ANSWERED)
        assert self._asked is None or 0 < len(self._asked) <= limits.load_ids
        assert not (self._states[self._next :] & (_ANSWERED - 1) == _SENT).any()
        assert len(self._withheld) <= len(self.ids)
        assert len(self.reasons) <= MAX_REASONS_SHOWN

    def withhold(self, now_ns: int) -> None:
        """Mark what the peer has refused before: it is not sent."""
        hashes, labels = self._refusals.known(now_ns)
        places = self._lookup.find(hashes)
        known = zip(places.tolist(), labels, strict=True)
        self._withheld = {place: label for place, label in known if place >= 0}
        self._states[places[places >= 0]] = _WITHHELD
        self._report.refused_by_peer.update(self._withheld.values())
        self._report.withheld = len(self._withheld)

    def load(self) -> tuple[SyncIds, int] | None:
        """Return the next portion to read, and how many bytes of it, when there is room for it."""
        limits = self._limits
        room = limits.unsent_bytes - self._queued_bytes
        if self._asked is not None or 2 * room < limits.unsent_bytes:
            return None
        while self._next < len(self.ids):
            ahead = self._states[self._next : self._next + limits.load_ids]
            waiting = np.flatnonzero(ahead == _WAITING) + self._next
            if len(waiting):
                self._asked = waiting[: max(1, room // self._message_bytes)]
                return self.ids[self._asked], room
            self._next += len(ahead)
        return None

    def loaded(self, messages: Sequence[bytes | None]) -> None:
        """Take in encoded ``WakuMessageAndTopic`` of the first IDs of the portion, in order.

        At least one; None for messages that are no longer held. The others are asked for again.
        """
        assert self._asked is not None
        places = self._asked[: len(messages)].tolist()
        self._asked, self._next = None, places[-1] + 1
        before, pruned = self._queued_bytes, 0
        for place, message in zip(places, messages, strict=True):
            if message is None:
                self._states[place] |= _PRUNED
                pruned += 1
            elif self._states[place] == _WAITING:
                self._states[place] = _QUEUED
                self._queue.append((place, message))
                self._queued_bytes += len(message)
        self._message_bytes = 1 + (self._queued_bytes - before) // len(places)
        self._report.pruned += pruned

    def take(self, frame_bytes: int, *, alone: bool) -> list[bytes]:
        """Return messages for a frame, which has room for ``frame_bytes``.

        ``alone``: nothing else is in the frame yet, and a message of any size may be.
        """
        messages: list[bytes] = []
        left = min(frame_bytes, self._limits.frame_bytes)
        while self._queue and len(messages) < self._limits.frame_messages:
            place, message = self._queue[0]
            if self._states[place] == _QUEUED:
                fits = len(message) + 5 <= (left if messages else frame_bytes)
                if not fits and (messages or not alone):
                    break
                self._states[place] = _SENT
                left -= len(message) + 5
                messages.append(message)
            self._queue.popleft()
            self._queued_bytes -= len(message)
        self._report.sent += len(messages)
        return messages

    def find(self, answers: Sequence[Answer], *, partial: bool) -> PlacedAnswers:
        """Return answers of the peer with their places; changes nothing.

        ``partial``: answers about what only the peer has found are passed over.

        Raises:
            ProtocolBrokenError: an answer is not about this session, or is the second one.
        """
        try:
            hashes = hash_column([digest for digest, _ in answers])
        except ValueError as error:
            raise ProtocolBrokenError(f"in an answer, {error}") from None
        if not partial and len(answers) > self.unanswered:
            raise ProtocolBrokenError("the peer answers more IDs than are open")
        places = self._lookup.find(hashes)
        reasons = [reason for _, reason in answers]
        if partial:
            reasons = list(compress(reasons, places >= 0))
            places = places[places >= 0]
        elif (places < 0).any():
            digest = hashes[int(np.argmax(places < 0))].tobytes().hex()
            raise ProtocolBrokenError(f"the peer answers {digest}, which it was not sent")
        if len(np.unique(places)) < len(places) or (self._states[places] & _ANSWERED).any():
            raise ProtocolBrokenError("the peer answers an ID for the second time")
        return places, reasons

    def answered(self, now_ns: int, answers: PlacedAnswers) -> None:
        """Take in the answers that `find` has placed."""
        places, reasons = answers
        self._states[places] |= _ANSWERED
        self.unanswered -= len(places)
        refused: list[int] = []
        labels: list[str] = []
        for place, reason in zip(places.tolist(), reasons, strict=True):
            label = self._label(reason)
            if label is None and place in self._withheld:
                self._report.refused_by_peer[self._withheld.pop(place)] -= 1
                self._refusals.forget([self.ids.at(place)[1]])
            elif label is not None and place not in self._withheld:
                refused.append(place)
                labels.append(label)
            if label is None and reason is not None:
                self._report.missed_by_peer += int(self._states[place] != _PRUNED | _ANSWERED)
        self._report.messages_sent += reasons.count(None)
        self._report.withheld = len(self._withheld)
        self._report.refused_by_peer.update(labels)
        self._refusals.add(now_ns, self.ids[np.array(refused, np.int64)], labels)

    def _label(self, reason: str | None) -> str | None:
        """Return the label of a refusal by the peer's rules; None: it is none."""
        label = None if reason is None else reason.partition(":")[0]
        if reason is None or label in (NOT_RECEIVED, UNSOLICITED, REPEATED):
            return None
        if len(self.reasons) < MAX_REASONS_SHOWN:
            self.reasons.setdefault(shorten(reason))
        return label if label in POLICY_LABELS else OTHER


def shorten(reason: str) -> str:
    """Return a reason within its limit, in bytes."""
    return reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
