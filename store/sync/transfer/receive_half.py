"""The half of a transfer that receives: from judged messages to durable ones to answers.

==========  ============================================================================
state       how an ID comes out of it
==========  ============================================================================
EXPECTED    its message comes: PENDING, or REFUSED by policy; the peer is done: looked up
            and STORED ("another way") or REFUSED ("not received")
PENDING     it is durable: STORED
DECLINED    refused in an earlier session, and so answered at once; if the message comes
            all the same, it is passed over: REFUSED
STORED      never; its message, should it come again, is "sent twice"
REFUSED     the same
==========  ============================================================================

Which answers wait for the stream: `Answers`.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile.ids import SyncIds
from store.domain.admission import Admitted, Verdict
from store.messages.record import RecordBatch
from store.sync.errors import TransferFault
from store.sync.limits import MAX_DETAILED_REFUSALS, TransferLimits
from store.sync.session.report import UNSOLICITED, ContentConflict, SessionReport
from store.sync.transfer.id_lookup import IdLookup, hash_column
from store.sync.transfer.policy_memory import Book
from store.sync.transfer.send_half import (
    NOT_RECEIVED,
    REPEATED,
    PeerFaultError,
    shorten,
)
from storenode.message.limits import HASH_BYTES
from storenode.message.rules import CONFLICT

_EXPECTED: Final = 0
_PENDING: Final = 1
_DECLINED: Final = 2
_STORED: Final = 3
_REFUSED: Final = 4

_NAMELESS: Final = bytes(HASH_BYTES)
_UNSOLICITED: Final = f"{UNSOLICITED}: this session has not found that message missing here"
_REPEATED: Final = f"{REPEATED}: this session has had that message before"
_CONFLICT: Final = f"{CONFLICT.label}: {CONFLICT.sentence}"
_BY_POLICY: Final = "the rules of this node refuse such a message: keep it out of its reach"

_Places = NDArray[np.int64]


class Receiving:
    """The half that receives: expected IDs, batches under way, and answers that wait.

    Attributes:
        outstanding: IDs about which nothing is decided, or which are not durable yet.
        news: grows with every message that came for the first time and was expected.
        peer_is_done: it has sent all that it will send.
    """

    def __init__(
        self,
        ids: SyncIds,
        limits: TransferLimits,
        report: SessionReport,
        refusals: Book,
        *,
        partial: bool = False,
    ) -> None:
        """Take the parts; ``partial``: the peer may send others too, as many as it likes."""
        self.ids = ids
        self._partial = partial
        self._refusals = refusals
        self.lookup = IdLookup(ids)
        self._limits = limits
        self._report = report
        self._states = np.zeros(len(ids), np.uint8)
        self.outstanding = len(ids)
        self._pending: dict[int, tuple[NDArray[np.int32], int]] = {}
        self._pending_bytes = 0
        self._tokens = 0
        self.peer_is_done = False
        self._looked = 0
        self._finding: _Places | None = None
        self.answers = Answers(ids)
        self.news = 0

    @property
    def looks(self) -> bool:
        """True while a batch is on its way to be durable, or IDs are being looked up."""
        return bool(self._pending) or self._finding is not None

    @property
    def reading(self) -> bool:
        """False while too much waits, to be durable or to be answered, for another frame."""
        crowded = self._partial and self.answers.named >= self._limits.unsolicited_messages
        return self._pending_bytes < self._limits.unstored_bytes and not crowded

    @property
    def _strays(self) -> int:
        return self._report.unsolicited + self._report.repeated

    def check(self) -> None:
        """Verify the invariants, and the bound on what waits to be durable; linear in the IDs.

        Raises:
            AssertionError: one is broken.
        """
        sizes = [size_bytes for _, size_bytes in self._pending.values()]
        pending = [places for places, _ in self._pending.values()]
        assert self._pending_bytes == sum(sizes)
        assert sum(sizes[:-1]) < self._limits.unstored_bytes, "read on although too much waits"
        assert all((self._states[places] == _PENDING).all() for places in pending)
        assert sum(map(len, pending)) == np.count_nonzero(self._states == _PENDING)
        assert self.outstanding == np.count_nonzero(self._states <= _PENDING)
        assert self._partial or self._strays <= self._limits.unsolicited_messages
        assert len(self.answers) <= len(self.ids) + self._strays
        assert self._finding is None or 0 < len(self._finding) <= self._limits.find_ids

    def decline(self, now_ns: int) -> None:
        """Refuse at once what this node has refused before."""
        hashes, labels = self._refusals.known(now_ns)
        places = self.lookup.find(hashes)
        by_label: dict[str, list[int]] = {}
        for place, label in zip(places.tolist(), labels, strict=True):
            if place >= 0:
                by_label.setdefault(label, []).append(place)
        for label, members in by_label.items():
            self._states[members] = _DECLINED
            self.answers.refuse(members, f"{label}: {_BY_POLICY}")
            self.outstanding -= len(members)
            self._report.refused[label] += len(members)
            self._report.declined[label] += len(members)

    def place(self, published: Admitted) -> _Places:
        """Return the place of each judged message, -1 for what is not expected.

        Raises:
            PeerFaultError: too many were not expected, or the peer has said that it was done.
        """
        if not published.verdicts:
            return np.empty(0, np.int64)
        if self.peer_is_done:
            raise PeerFaultError(
                TransferFault.PROTOCOL, "the peer sends messages after it was done"
            )
        places = self.lookup.find(hash_column([digest or _NAMELESS for digest in published.hashes]))
        places[self._misdated(published, places)] = -1
        places[[not digest for digest in published.hashes]] = -1
        strays = len(places) - int(self._fresh(places).sum())
        if self._strays + strays > self._limits.unsolicited_messages and not self._partial:
            raise PeerFaultError(
                TransferFault.LIMIT,
                f"limit of {self._limits.unsolicited_messages:,} messages that nobody asked for is "
                "passed: send what the session found missing, each once",
            )
        return places

    def receive(
        self, now_ns: int, published: Admitted, places: _Places, size_bytes: int
    ) -> tuple[int, RecordBatch] | None:
        """Take in messages that `place` has placed; return a batch to store, and its token."""
        fresh = self._fresh(places)
        self._name_strays(published, places, ~fresh)
        taken = np.flatnonzero(fresh)
        self.news += len(taken)
        expected = self._states[places[taken]] == _EXPECTED
        self._states[places[taken[~expected]]] = _REFUSED
        taken = taken[expected]
        verdicts = published.verdicts
        rejected = np.array([verdicts[at] is Verdict.REJECTED for at in taken.tolist()], np.bool_)
        self._refuse_by_policy(now_ns, published, taken[rejected], places)
        accepted = taken[~rejected]
        if not len(accepted):
            return None
        return self._persist(published, accepted, places[accepted], size_bytes)

    def persisted(
        self, token: int, new: Sequence[bool], conflicts: Mapping[int, ContentConflict]
    ) -> None:
        """Accept the messages of a durable batch: per message True if it was new.

        ``conflicts``: those that are not stored, since others have their hashes; by place in the
        batch. They are refused.
        """
        places, size_bytes = self._pending.pop(token)
        self._pending_bytes -= size_bytes
        added = sum(new)
        for at, conflict in conflicts.items():
            self._states[places[at]] = _REFUSED
            self.outstanding -= 1
            self.answers.refuse_by_name(conflict.message_hash, _CONFLICT)
            self._report.unstored_conflicts += 1
            self._report.show_conflict(conflict)
        self._store(np.delete(places, list(conflicts)))
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
        places, mask = (
            self._finding.astype(np.int32),
            np.fromiter(is_stored, np.bool_, len(is_stored)),
        )
        self._finding = None
        here, missing = places[mask], places[~mask]
        self._store(here)
        self._report.elsewhere += len(here)
        if not len(missing):
            return
        self._states[missing] = _REFUSED
        self.answers.refuse(missing.tolist(), NOT_RECEIVED)
        self.outstanding -= len(missing)
        self._report.undelivered += len(missing)

    def _fresh(self, places: _Places) -> NDArray[np.bool_]:
        fresh = np.zeros(len(places), np.bool_)
        fresh[np.unique(places, return_index=True)[1]] = True
        known = np.flatnonzero(places >= 0)
        states = self._states[places[known]]
        awaited = np.zeros(len(places), np.bool_)
        awaited[known] = (states == _EXPECTED) | (states == _DECLINED)
        return np.logical_and(fresh, awaited)

    def _misdated(self, published: Admitted, places: _Places) -> NDArray[np.bool_]:
        """Return which messages have an expected hash, and not its announced timestamp.

        A message that is refused has no timestamp here, and is not stored anyway.
        """
        at = np.array(published.positions, np.int64)
        misdated = np.zeros(len(places), np.bool_)
        dated = np.flatnonzero((at >= 0) & (places >= 0))
        if len(dated):
            timestamps = np.array(published.batch.timestamps, np.int64)
            misdated[dated] = timestamps[at[dated]] != self.ids.timestamps[places[dated]]
        return misdated

    def _name_strays(self, published: Admitted, places: _Places, strays: NDArray[np.bool_]) -> None:
        """Refuse by name what was not asked for, and what has come before."""
        unsolicited = 0
        for at in np.flatnonzero(strays).tolist():
            unknown, digest = places[at] < 0, published.hashes[at]
            unsolicited += bool(unknown)
            if digest:
                self.answers.refuse_by_name(digest, _UNSOLICITED if unknown else _REPEATED)
        count = int(strays.sum())
        self._report.unsolicited += unsolicited
        self._report.repeated += count - unsolicited

    def _refuse_by_policy(
        self, now_ns: int, published: Admitted, rejected: _Places, places: _Places
    ) -> None:
        labels: list[str] = []
        refused = places[rejected]
        for at, place in zip(rejected.tolist(), refused.tolist(), strict=True):
            label, sentence = published.refusals[at]
            if self.answers.named < MAX_DETAILED_REFUSALS:
                digest = published.hashes[at]
                self.answers.refuse_by_name(digest, shorten(f"{label}: {sentence}"))
            else:
                self.answers.refuse([place], f"{label}: {_BY_POLICY}")
            labels.append(str(label))
        self.outstanding -= len(refused)
        self._states[refused] = _REFUSED
        self._refusals.add(now_ns, self.ids[refused], labels)
        self._report.refused.update(labels)

    def _persist(
        self, published: Admitted, accepted: _Places, places: _Places, size_bytes: int
    ) -> tuple[int, RecordBatch]:
        at = [published.positions[index] for index in accepted.tolist()]
        batch = published.batch if len(at) == len(published.batch) else published.batch.select(at)
        self._tokens += 1
        self._pending[self._tokens] = places.astype(np.int32), size_bytes
        self._pending_bytes += size_bytes
        self._states[places] = _PENDING
        return self._tokens, batch

    def _store(self, places: NDArray[np.int32]) -> None:
        self._states[places] = _STORED
        self.answers.store(places)
        self.outstanding -= len(places)


class Answers:
    """Answers that wait until the stream takes them: stored, refused by name, refused in bulk.

    4 bytes each where there may be many.
    """

    def __init__(self, ids: SyncIds) -> None:
        self._ids = ids
        self._stored = array("i")
        self._named: deque[tuple[bytes, str]] = deque()
        self._refused: dict[str, array[int]] = {}

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._stored) + len(self._named) + sum(map(len, self._refused.values()))

    @property
    def named(self) -> int:
        """The number of refusals by name that wait; those who add to them have a limit."""
        return len(self._named)

    def store(self, places: NDArray[np.int32]) -> None:
        """Add the IDs at these places, which are durable."""
        self._stored.frombytes(places.tobytes())

    def refuse_by_name(self, digest: bytes, reason: str) -> None:
        """Refuse one message, with a reason of its own."""
        self._named.append((digest, reason))

    def refuse(self, places: Iterable[int], reason: str) -> None:
        """Refuse many, for one of a few reasons."""
        self._refused.setdefault(reason, array("i")).extend(places)

    def take(self, most: int) -> tuple[list[bytes], list[tuple[bytes, str]]]:
        """Return the next ones, ``most`` at most: hashes that are stored, and refusals."""
        stored = self._hashes(self._stored, most)
        most -= len(stored)
        count = min(most, len(self._named))
        refused = [self._named.popleft() for _ in range(count)]
        for reason in list(self._refused):
            hashes = self._hashes(self._refused[reason], most - len(refused))
            refused += [(digest, reason) for digest in hashes]
            if not self._refused[reason]:
                del self._refused[reason]
        return stored, refused

    def _hashes(self, places: array[int], most: int) -> list[bytes]:
        """Remove the first places and give their hashes."""
        first = places[:most]
        del places[:most]
        joined = self._ids.hashes[np.array(first, np.int64)].tobytes()
        return [joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES)]
