"""What two sides agree on beyond WAKU-SYNC, and what follows for a reconciliation.

Source: `ReconcileExtension` in the schema. Rules:

- Each side offers a nonce in its first frame, and says from when on it can compute keyed digests.
  An offer of another version counts as none; without both offers nothing of this applies.
- Who ends the reconciliation by an empty payload sends its digests with it, and the other answers
  with its own. A side that cannot compute one sends none.
- The keyed digest is about what both have in memory, the lattice digest about what lies below.
- A part of the extension that comes in another frame, or has another size, breaks the protocol.

    frame                      offer  digests             lattice steps       hashes
    -------------------------  -----  ------------------  ------------------  ------------------
    first of each side         yes    with empty payload  no                  no
    a later one                no     with empty payload  no                  no
    the answer to digests      no     yes                 with empty payload  no
    after steps of days        no     no                  with empty payload  no
    after steps of hours       no     no                  with a payload      no
    after digests that differ  no     no                  no                  with empty payload
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final

import numpy as np

from reconcile.folds import NAME_BYTES, Folds
from reconcile.ids import LOWEST, SyncId, SyncIds
from reconcile.keyed import DIGEST_BYTES, NONCE_BYTES, PairKey, Sum, digest_of, sum_of
from reconcile.session import Bounds, Result, Role
from store.domain.view import Times
from store.sync.errors import ProtocolBroken
from store.sync.frames import Extension, Reconcile
from store.sync.limits import MAX_LATTICE_SPAN_NS, MAX_REMEMBERED_PEERS
from storenode.common.bounded import BoundedDict
from storenode.message.limits import HASH_BYTES, MAX_TIMESTAMP_NS, NS_PER_S

VERSION: Final = 3

HOUR_NS: Final = 3600 * NS_PER_S
"""Digests that cannot begin where the range does begin at a whole hour."""

NOTHING_HEARD: Final = Extension()


class Phase(Enum):
    """Which frame of the peer comes next: the rows of this module's table."""

    FIRST = auto()
    LATER = auto()
    ANSWER = auto()
    DAYS = auto()
    HOURS = auto()
    SEARCH = auto()


@dataclass(frozen=True, slots=True)
class Proof:
    """How a session has compared the two sides.

    Attributes:
        keyed_from_ns: from here on by digests that cannot be forged, which were equal in the end;
            None: nowhere.
        compact: the differences were found in the compact mode.
        hidden: differences that the fingerprints of WAKU-SYNC did not show.
    """

    keyed_from_ns: int | None = None
    compact: bool = False
    hidden: SyncIds = field(default_factory=SyncIds.empty)


BY_XOR: Final = Proof()


Pairs = BoundedDict[str, Folds]
"""By peer the keys of sums that it and this node remember, with what was summed up."""


def new_pairs() -> Pairs:
    """Nothing is remembered yet; the peer that was not met for longest is forgotten first."""
    return BoundedDict(MAX_REMEMBERED_PEERS)


class Agreement:
    """One side's part in one session.

    ``names`` gives the node and store IDs of the initiator, then of the responder, as soon as the
    peer was heard; before, what is known of them. ``lower``: below it this side compares nothing.
    ``memory_start``: from here on it can compute digests.
    """

    def __init__(
        self,
        names: Callable[[], tuple[str, str, str, str]],
        role: Role,
        nonce: bytes,
        *,
        lower: SyncId,
        memory_start: SyncId | None,
        pairs: Pairs,
    ) -> None:
        self._names = names
        self._role = role
        self._nonce = nonce
        self._lower_ns = lower[0]
        self._memory_start = memory_start
        self._pairs = pairs
        self._phase = Phase.FIRST
        self._theirs: Extension | None = None
        self.key: PairKey | None = None
        """Once both sides have made an offer."""
        self.folds: Folds | None = None
        """Sums under the key, once there is one."""
        self.heard = NOTHING_HEARD
        """Of the peer's last frame."""
        self._remembered: Folds | None = None
        self.compact = False
        """Frames of the compact mode may come after the first one."""
        self.takes_slices = False
        """This initiator takes slices of the mode as an answer."""

    @property
    def cut(self) -> SyncId:
        """Digests begin here."""
        theirs = 0 if self._theirs is None else self._theirs.keyed_from_ns or 0
        return max(self._keyed_from_ns(), theirs), LOWEST[1]

    @property
    def peer_knows(self) -> bool:
        """The peer has made an offer."""
        return self._theirs is not None

    @property
    def peer_takes_slices(self) -> bool:
        """The peer takes slices of the compact mode as an answer."""
        return self._theirs is not None and self._theirs.slices

    @property
    def nonces(self) -> tuple[bytes, bytes]:
        """The initiator's and the responder's, once both sides have made an offer."""
        theirs = b"" if self._theirs is None else self._theirs.nonce
        return (self._nonce, theirs) if self._role is Role.INITIATOR else (theirs, self._nonce)

    @property
    def own_nonce(self) -> bytes:
        """Of this side."""
        return self._nonce

    @property
    def whole(self) -> bool:
        """Digests begin where the range does, on this side and by the peer's offer."""
        lower_ns = self._lower_ns
        return self._keyed_from_ns() == lower_ns == max(self.cut[0], lower_ns)

    def offer(self) -> Extension:
        """For the own first frame; a responder has heard the initiator's by then."""
        keyed_from_ns = self._keyed_from_ns()
        if self._role is Role.INITIATOR:
            self._remembered = self._pairs.get(self._peer_id)
        return Extension(
            version=VERSION,
            nonce=self._nonce,
            keyed=True,
            keyed_from_ns=keyed_from_ns,
            lattice=True,
            slices=self.takes_slices,
            lattice_from_ns=self._lower_ns if self._lower_ns < keyed_from_ns else None,
            remembered=b"" if self._remembered is None else self._remembered.name,
        )

    def below(self, result: Result) -> Times | None:
        """What lattice digests are about; None: there is nothing, or the peer does not know them.

        It is what both sides compare below the keyed digests, or the newest part of it.
        """
        theirs, (end_ns, end_hash) = self._theirs, result.window[1]
        if theirs is None or not theirs.lattice or not _is_whole(result) or end_hash != LOWEST[1]:
            return None
        keyed_from_ns = theirs.keyed_from_ns or 0
        theirs_ns = keyed_from_ns if theirs.lattice_from_ns is None else theirs.lattice_from_ns
        until_ns = min(self.cut[0], end_ns)
        from_ns = max(self._lower_ns, theirs_ns, until_ns - MAX_LATTICE_SPAN_NS)
        return (from_ns, until_ns) if from_ns < until_ns else None

    def expect(self, phase: Phase) -> None:
        """The next frame of the peer is another one of the table."""
        self._phase = phase

    def hear(self, frame: Reconcile) -> Extension:
        """Take the extension of a frame of the peer.

        Raises:
            ProtocolBroken: a part of it does not belong there, or has another size.
        """
        self.heard = NOTHING_HEARD
        phase = self._phase
        if phase is Phase.FIRST:
            self._phase = Phase.LATER
            if frame.extension is not None and frame.extension.version == VERSION:
                self._take(frame.extension)
        told = frame.extension
        if self.key is None or told is None:
            return self.heard
        last = not frame.payload
        early = phase is Phase.FIRST or not (told.nonce or told.remembered)
        _demand(early, "a nonce after its first frame")
        digests = told.digest or told.lattice_digest
        _demand(not digests or _digest_belongs(phase, last=last), "a digest before its last")
        _demand(told.steps is None or _steps_belong(phase, last=last), "hours nobody asked for")
        _demand(not told.hashes or (phase is Phase.SEARCH and last), "hashes nobody asked for")
        placed = phase is Phase.FIRST or self.compact
        _demand(placed or not told.size_bytes, "a compact frame nobody asked for")
        for digest in (told.digest, told.lattice_digest):
            _demand(len(digest) in (0, DIGEST_BYTES), f"a digest of {len(digest)} bytes")
        _demand(not len(told.hashes) % HASH_BYTES, "hashes that are cut off")
        self.heard = told
        return told

    def comparable(self, result: Result) -> bool:
        """Can keyed digests be compared for what a reconciliation came to."""
        return self.key is not None and _is_whole(result) and self.cut < result.window[1]

    def digest(self, result: Result, own: Sum) -> bytes:
        """The digest of what both sides hold together; ``own``: the sum of what is held here."""
        assert self.key is not None
        expected = sum_of(divided(result.to_receive, self.cut)[1], self.key.fold)
        return digest_of(self.key, own + expected, self.cut, result.window[1])

    def _take(self, offer: Extension) -> None:
        keyed_from_ns = offer.keyed_from_ns or 0
        known = len(offer.remembered) in (0, NAME_BYTES)
        _demand(known, f"a name of a key of {len(offer.remembered)} bytes")
        _demand(len(offer.nonce) == NONCE_BYTES, f"a nonce of {len(offer.nonce)} bytes")
        latest_ns = max(keyed_from_ns, offer.lattice_from_ns or 0)
        _demand(latest_ns <= MAX_TIMESTAMP_NS, "a time beyond the last timestamp")
        if not offer.keyed:
            return
        self._theirs = offer
        if self._role is Role.RESPONDER:
            self._remembered = self._pairs.get(self._peer_id)
        key, remembered = PairKey.derive(self.nonces, self._names()), self._remembered
        if remembered is None or offer.remembered != remembered.name:
            remembered = Folds(key.fold)
            self._remembered = None
        self.key, self.folds = replace(key, fold=remembered.key), remembered
        self._pairs[self._peer_id] = remembered

    @property
    def _peer_id(self) -> str:
        return self._names()[2 if self._role is Role.INITIATOR else 0]

    def _keyed_from_ns(self) -> int:
        """From when on this side can compute digests of what it compares."""
        theirs = 0 if self._theirs is None else self._theirs.keyed_from_ns or 0
        lower_ns = self._lower_ns
        if self._role is Role.RESPONDER:
            lower_ns = max(lower_ns, theirs)
        if self._memory_start is None:
            return MAX_TIMESTAMP_NS
        if self._memory_start <= (lower_ns, LOWEST[1]):
            return lower_ns
        return min(-(-self._memory_start[0] // HOUR_NS) * HOUR_NS, MAX_TIMESTAMP_NS)


def divided(ids: SyncIds, bound: SyncId) -> tuple[SyncIds, SyncIds]:
    """Ascending IDs before a bound at the beginning of a nanosecond, and the others."""
    place = int(np.searchsorted(ids.timestamps, bound[0]))
    return ids[:place], ids[place:]


def parted(ids: SyncIds, spans: Sequence[Bounds]) -> tuple[SyncIds, SyncIds]:
    """Ascending IDs outside of spans whose bounds are such ones, and those inside of them."""
    inside = np.zeros(len(ids), np.bool_)
    for lower, upper in spans:
        first, end = np.searchsorted(ids.timestamps, (lower[0], upper[0]))
        inside[first:end] = True
    return ids[~inside], ids[inside]


def without(ids: SyncIds, others: SyncIds) -> SyncIds:
    """The IDs whose hashes are not among those of others."""
    known = set(others.opaque.tolist())
    return ids[np.array([digest not in known for digest in ids.opaque.tolist()], np.bool_)]


def _is_whole(result: Result) -> bool:
    return not (result.truncated or result.refusal)


def _steps_belong(phase: Phase, *, last: bool) -> bool:
    return phase is Phase.HOURS if not last else phase in (Phase.ANSWER, Phase.DAYS)


def _digest_belongs(phase: Phase, *, last: bool) -> bool:
    return phase is Phase.ANSWER or (last and phase is not Phase.SEARCH)


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise ProtocolBroken(f"the peer sends {what}: see ReconcileExtension in the schema")
