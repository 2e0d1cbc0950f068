"""The two halves of a transfer: IDs to send, and IDs to receive.

Sending: from IDs to messages on the stream to the peer's answers.

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

Receiving: from judged messages to durable ones to answers.

==========  ============================================================================
state       how an ID comes out of it
==========  ============================================================================
EXPECTED    its message comes: PENDING, or REFUSED by policy; the peer is done: looked up
            and STORED ("another way") or REFUSED ("not received")
PENDING     it is durable: STORED
DECLINED    refused in an earlier session, and so answered at once; if the message comes
            nevertheless, it is passed over: REFUSED
STORED      never; its message, should it come again, is "sent twice"
REFUSED     the same
==========  ============================================================================
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile.ids import SyncIds
from store.domain.admission import Admitted, Verdict
from store.messages.conflicts import StoreResult
from store.messages.record import RecordBatch
from store.sync.errors import Fault, ProtocolBrokenError, SessionFaultError
from store.sync.limits import (
    MAX_DETAILED_REFUSALS,
    MAX_REASON_BYTES,
    MAX_REASONS_SHOWN,
    MAX_SHOWN_HIDDEN,
    TransferLimits,
)
from store.sync.session.report import UNSOLICITED, ContentConflict, SessionReport
from store.sync.transfer.policy_memory import OTHER, POLICY_LABELS, PolicyMemory, Side
from storenode.message.limits import HASH_BYTES
from storenode.message.rules import CONFLICT

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
_HASH: Final = np.dtype(f"S{HASH_BYTES}")

Answer = tuple[bytes, str | None]
"""A message hash, and why it is refused; None: it is stored."""

_EXPECTED: Final = 0
_PENDING: Final = 1
_DECLINED: Final = 2
_STORED: Final = 3
_DENIED: Final = 4

_NAMELESS: Final = bytes(HASH_BYTES)
_UNSOLICITED: Final = f"{UNSOLICITED}: this session has not found that message missing here"
_REPEATED: Final = f"{REPEATED}: this session has had that message before"
_CONFLICT: Final = f"{CONFLICT.label}: {CONFLICT.sentence}"
_BY_POLICY: Final = "the rules of this node refuse such a message: keep it out of its reach"


class IdLookup:
    """Finds the places of hashes in ``ids``; made in about 0.25 s for a million.

    IDs are in the order of time, and what comes back from a peer are hashes: the places of the IDs
    in the order of their hashes are kept, 8 bytes each. Whole hashes are compared, so that made-up
    ones with a common beginning cost nothing more.
    """

    def __init__(self, ids: SyncIds) -> None:
        self._keys = np.ascontiguousarray(ids.hashes).view(_HASH).reshape(-1)
        self._order = np.argsort(self._keys, kind="stable")

    def find(self, hashes: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the places of hashes, -1 for those that are not there; about 3 us each.

        Raises:
            ValueError: one of them does not have 32 bytes.
        """
        if any(len(digest) != HASH_BYTES for digest in hashes):
            raise ValueError(f"a message hash does not have {HASH_BYTES} bytes")
        if not len(self._keys) or not hashes:
            return np.full(len(hashes), -1, np.int64)
        wanted = np.frombuffer(b"".join(hashes), _HASH)
        ranks = np.searchsorted(self._keys, wanted, sorter=self._order)
        places = self._order[np.minimum(ranks, len(self._keys) - 1)]
        return np.where(self._keys[places] == wanted, places, -1)


class Sending:
    """The state of sending: what is still to be sent, and what the peer has answered.

    Attributes:
        unanswered: IDs that the peer has not answered.
        reasons: some of the peer's reasons, in its words.
    """

    def __init__(
        self, ids: SyncIds, limits: TransferLimits, report: SessionReport, memory: PolicyMemory
    ) -> None:
        self.ids = ids
        self._memory = memory
        self._peer = report.node_id
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
        refused = self._memory.known(self._peer, Side.THEIRS, now_ns)
        places = self._lookup.find(list(refused))
        known = zip(places.tolist(), refused.values(), strict=True)
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

    def answered(self, now_ns: int, answers: Sequence[Answer], *, partial: bool) -> None:
        """Take in answers of the peer, all or none.

        ``partial``: answers about what only the peer has found are passed over.

        Raises:
            ProtocolBrokenError: an answer is not about this session, or is the second one.
        """
        try:
            places = self._lookup.find([digest for digest, _ in answers])
        except ValueError as error:
            raise ProtocolBrokenError(f"in an answer, {error}") from None
        if not partial and len(answers) > self.unanswered:
            raise ProtocolBrokenError("the peer answers more IDs than are open")
        is_known = places >= 0
        if not (partial or is_known.all()):
            digest = answers[int(np.argmin(is_known))][0].hex()
            raise ProtocolBrokenError(f"the peer answers {digest}, which it was not sent")
        reasons = list(compress((reason for _, reason in answers), is_known))
        places = places[is_known]
        if len(np.unique(places)) < len(places) or (self._states[places] & _ANSWERED).any():
            raise ProtocolBrokenError("the peer answers an ID for the second time")
        self._states[places] |= _ANSWERED
        self.unanswered -= len(places)
        refused: list[int] = []
        labels: list[str] = []
        for place, reason in zip(places.tolist(), reasons, strict=True):
            label = self._label(reason)
            if label is None and place in self._withheld:
                self._report.refused_by_peer[self._withheld.pop(place)] -= 1
                self._memory.forget(self._peer, Side.THEIRS, [self.ids.at(place)[1]])
            elif label is not None and place not in self._withheld:
                refused.append(place)
                labels.append(label)
            if label is None and reason is not None:
                self._report.missed_by_peer += int(self._states[place] != _PRUNED | _ANSWERED)
        self._report.messages_sent += reasons.count(None)
        self._report.withheld = len(self._withheld)
        self._report.refused_by_peer.update(labels)
        ids = self.ids[np.array(refused, np.int64)]
        self._memory.add(self._peer, Side.THEIRS, now_ns, ids, labels)

    def _label(self, reason: str | None) -> str | None:
        """Return the label of a refusal by the peer's rules; None: it is none."""
        label = None if reason is None else reason.partition(":")[0]
        if reason is None or label in (NOT_RECEIVED, UNSOLICITED, REPEATED):
            return None
        if len(self.reasons) < MAX_REASONS_SHOWN:
            self.reasons.setdefault(shorten(reason))
        return label if label in POLICY_LABELS else OTHER


@dataclass(frozen=True, slots=True, eq=False)
class Accepted:
    """Messages on their way to be durable, with the places of their IDs."""

    batch: RecordBatch
    places: NDArray[np.int64]
    size_bytes: int


class Receiving:
    """The half that receives: expected IDs, batches under way, and answers that wait.

    Attributes:
        outstanding: IDs about which nothing is decided, or which are not durable yet.
        news: grows with every message that came for the first time and was expected.
        peer_is_done: it has sent all that it will send.
    """

    def __init__(
        self, ids: SyncIds, limits: TransferLimits, report: SessionReport, memory: PolicyMemory
    ) -> None:
        """Take the parts; after a partial result the peer may send others too, however many."""
        self.ids = ids
        self._memory = memory
        self._peer = report.node_id
        self._lookup = IdLookup(ids)
        self._limits = limits
        self._report = report
        # One more state: of what is not expected, whose place is -1.
        self._states = np.append(np.zeros(len(ids), np.uint8), np.uint8(_DENIED))
        self._pending: list[Accepted] = []
        self._looked = 0
        self._finding: NDArray[np.int64] | None = None
        self.answers = Answers(ids)
        self.outstanding = len(ids)
        self.peer_is_done = False
        self.news = 0

    @property
    def looks(self) -> bool:
        """True while a batch is on its way to be durable, or IDs are being looked up."""
        return bool(self._pending) or self._finding is not None

    @property
    def reading(self) -> bool:
        """False while too much waits, to be durable or to be answered, for another frame."""
        crowded = self._report.left_over and self.answers.named >= self._limits.unsolicited_messages
        pending, limits = self._pending, self._limits
        is_full = len(pending) >= limits.unstored_pieces
        is_full = is_full or sum(each.size_bytes for each in pending) >= limits.unstored_bytes
        return not is_full and not crowded

    @property
    def _strays(self) -> int:
        return self._report.unsolicited + self._report.repeated

    def check(self) -> None:
        """Verify the invariants, and the bound on what waits to be durable; linear in the IDs.

        Raises:
            AssertionError: one is broken.
        """
        sizes = [each.size_bytes for each in self._pending]
        assert sum(sizes[:-1]) < self._limits.unstored_bytes, "read on although too much waits"
        assert len(sizes) <= self._limits.unstored_pieces, "read on although too much waits"
        assert all((self._states[each.places] == _PENDING).all() for each in self._pending)
        pending = sum(len(each.places) for each in self._pending)
        assert pending == np.count_nonzero(self._states == _PENDING)
        assert self.outstanding == np.count_nonzero(self._states <= _PENDING)
        assert self._report.left_over or self._strays <= self._limits.unsolicited_messages
        assert len(self.answers) <= len(self.ids) + self._strays
        assert self._finding is None or 0 < len(self._finding) <= self._limits.find_ids

    def decline(self, now_ns: int) -> None:
        """Refuse at once what this node has refused before."""
        refused = self._memory.known(self._peer, Side.OURS, now_ns)
        places = self._lookup.find(list(refused))
        by_label: dict[str, list[int]] = {}
        for place, label in zip(places.tolist(), refused.values(), strict=True):
            if place >= 0:
                by_label.setdefault(label, []).append(place)
        for label, members in by_label.items():
            self._settle(np.array(members, np.int32), f"{label}: {_BY_POLICY}", _DECLINED)
            self._report.refused[label] += len(members)
            self._report.declined[label] += len(members)

    def receive(self, now_ns: int, admitted: Admitted, size_bytes: int) -> Accepted | None:
        """Take in judged messages, all or none; return those that are to be stored.

        Raises:
            SessionFaultError: too many were not expected, or the peer has said that it was done.
        """
        verdicts = admitted.verdicts
        if verdicts and self.peer_is_done:
            raise ProtocolBrokenError("the peer sends messages after it was done")
        places = self._places_of(admitted)
        states = self._states[places]
        fresh = np.zeros(len(places), np.bool_)
        fresh[np.unique(places, return_index=True)[1]] = True
        fresh &= (states == _EXPECTED) | (states == _DECLINED)
        self._refuse_strays(admitted, places, np.flatnonzero(~fresh).tolist())
        self.news += int(fresh.sum())
        self._states[places[fresh & (states == _DECLINED)]] = _DENIED
        taken = np.flatnonzero(fresh & (states == _EXPECTED))
        rejected = np.array([verdicts[at] is Verdict.REJECTED for at in taken.tolist()], np.bool_)
        self._refuse_by_policy(now_ns, admitted, taken[rejected], places[taken[rejected]])
        accepted = taken[~rejected]
        if not len(accepted):
            return None
        at = [admitted.positions[index] for index in accepted.tolist()]
        batch = admitted.batch if len(at) == len(admitted.batch) else admitted.batch.select(at)
        pending = Accepted(batch, places[accepted].astype(np.int32), size_bytes)
        self._pending.append(pending)
        self._states[pending.places] = _PENDING
        return pending

    def _places_of(self, admitted: Admitted) -> NDArray[np.int64]:
        """Return the places of judged messages, -1 where no such ID is expected."""
        hashes = admitted.hashes
        places = self._lookup.find([digest or _NAMELESS for digest in hashes])
        places[[not digest for digest in hashes]] = -1
        # A message that is refused has no timestamp here, and is not stored anyway.
        at = np.array(admitted.positions, np.int64)
        dated = np.flatnonzero((places >= 0) & (at >= 0))
        timestamps = np.array(admitted.batch.timestamps, np.int64)
        misdated = timestamps[at[dated]] != self.ids.timestamps[places[dated]]
        places[dated[misdated]] = -1
        return places

    def persisted(self, accepted: Accepted, result: StoreResult) -> None:
        """Take in that messages are durable; conflicts, which are not stored, are refused."""
        self._pending.remove(accepted)
        batch, places, conflicts = accepted.batch, accepted.places, result.conflicts
        for at, stored in conflicts.items():
            conflict = ContentConflict(
                batch.timestamps[at], batch.hashes[at], stored, batch.content_digests[at]
            )
            self._states[places[at]] = _DENIED
            self.answers.refuse_by_name(conflict.message_hash, _CONFLICT)
            self._report.unstored_conflicts += 1
            if len(self._report.shown_conflicts) < MAX_SHOWN_HIDDEN:
                self._report.shown_conflicts.append(conflict)
        self.outstanding -= len(conflicts)
        self._settle(np.delete(places, list(conflicts)), "", _STORED)
        added = sum(result)
        self._report.stored += added
        self._report.duplicates += len(places) - added - len(conflicts)

    def find(self) -> SyncIds | None:
        """Return what has not come, to be looked up; a portion at a time."""
        if not self.peer_is_done or self._finding is not None:
            return None
        while self._looked < len(self.ids):
            ahead = self._states[self._looked : self._looked + self._limits.find_ids]
            missing = np.flatnonzero(ahead == _EXPECTED) + self._looked
            self._looked += len(ahead)
            if len(missing):
                self._finding = missing
                return self.ids[missing]
        return None

    def found(self, is_stored: Sequence[bool]) -> None:
        """Settle what has not come: it is here another way, or it was not delivered."""
        assert self._finding is not None
        places, here = self._finding.astype(np.int32), np.array(is_stored, np.bool_)
        self._finding = None
        self._settle(places[here], "", _STORED)
        self._settle(places[~here], NOT_RECEIVED, _DENIED)
        self._report.elsewhere += int(here.sum())
        self._report.undelivered += int((~here).sum())

    def _refuse_strays(
        self, admitted: Admitted, places: NDArray[np.int64], strays: Sequence[int]
    ) -> None:
        """Refuse by name what was not asked for, and what has come before.

        Raises:
            SessionFaultError: these are too many.
        """
        limit = self._limits.unsolicited_messages
        if self._strays + len(strays) > limit and not self._report.left_over:
            raise SessionFaultError(
                Fault.LIMIT,
                f"limit of {limit:,} messages that nobody asked for is passed: send what the "
                "session found missing, each once",
            )
        for at in strays:
            is_known, digest = places[at] >= 0, admitted.hashes[at]
            self._report.repeated += bool(is_known)
            self._report.unsolicited += not is_known
            if digest:
                self.answers.refuse_by_name(digest, _REPEATED if is_known else _UNSOLICITED)

    def _refuse_by_policy(
        self,
        now_ns: int,
        admitted: Admitted,
        rejected: NDArray[np.int64],
        refused: NDArray[np.int64],
    ) -> None:
        labels: list[str] = []
        for at, place in zip(rejected.tolist(), refused.tolist(), strict=True):
            label, sentence = admitted.refusals[at]
            if self.answers.named < MAX_DETAILED_REFUSALS:
                digest = admitted.hashes[at]
                self.answers.refuse_by_name(digest, shorten(f"{label}: {sentence}"))
            else:
                self.answers.add([place], f"{label}: {_BY_POLICY}")
            labels.append(str(label))
        self.outstanding -= len(refused)
        self._states[refused] = _DENIED
        self._memory.add(self._peer, Side.OURS, now_ns, self.ids[refused], labels)
        self._report.refused.update(labels)

    def _settle(self, places: NDArray[np.int32], reason: str, state: int) -> None:
        """Decide about IDs, and answer them; ``reason`` empty: they are stored."""
        self._states[places] = state
        self.outstanding -= len(places)
        self.answers.add(places.tolist(), reason)


class Answers:
    """Answers that wait until the stream takes them; 4 bytes each where there may be many."""

    def __init__(self, ids: SyncIds) -> None:
        self._ids = ids
        self._named: deque[tuple[bytes, str]] = deque()
        self._places: dict[str, array[int]] = {}  # by the reason; that of stored ones is empty

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._named) + sum(map(len, self._places.values()))

    @property
    def named(self) -> int:
        """The number of refusals by name that wait; those who add to them have a limit."""
        return len(self._named)

    def refuse_by_name(self, digest: bytes, reason: str) -> None:
        """Refuse one message, with a reason of its own."""
        self._named.append((digest, reason))

    def add(self, places: Sequence[int], reason: str) -> None:
        """Add answers about the IDs at some places: stored, or refused for one of a few reasons."""
        self._places.setdefault(reason, array("i")).extend(places)

    def take(self, most: int) -> tuple[list[bytes], list[tuple[bytes, str]]]:
        """Return the next ones, ``most`` at most: hashes that are stored, and refusals."""
        stored: list[bytes] = []
        refused = [self._named.popleft() for _ in range(min(most, len(self._named)))]
        for reason, places in list(self._places.items()):
            left = most - len(stored) - len(refused)
            joined = self._ids.hashes[np.array(places[:left], np.int64)].tobytes()
            hashes = [joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES)]
            if reason:
                refused += [(digest, reason) for digest in hashes]
            else:
                stored += hashes
            del places[:left]
            if not places:
                del self._places[reason]
        return stored, refused


def shorten(reason: str) -> str:
    """Return a reason within its limit, in bytes."""
    return reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
