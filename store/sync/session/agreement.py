"""What two sides agree on beyond WAKU-SYNC, and what follows for a reconciliation.

Source: `ReconcileExtension` in the schema. Rules:

- Each side makes an offer in its first frame: a nonce, and from when on it compares messages. An
  offer of another version counts as none; without both offers nothing of this applies.
- The side that ends the reconciliation by an empty payload sends its sum with it, and the other
  side answers with its own. A side that does not know its sum sends none.
- A part of the extension that comes in another frame, or has another size, breaks the protocol.

    frame                      offer  sum                 search
    -------------------------  -----  ------------------  ------------------
    first of each side         yes    with empty payload  no
    a later one                no     with empty payload  no
    the answer to a sum        no     yes                 with a sum
    after sums that differ     no     no                  with empty payload
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import numpy as np

from reconcile.compact.keys import NONCE_BYTES
from reconcile.ids import LOWEST, SyncId, SyncIds
from reconcile.lattice import DIGEST_BYTES
from reconcile.session import Result, Role
from store.domain.ports import ContentConflict
from store.domain.view import Times
from store.sync.errors import ProtocolBroken
from store.sync.frames import Extension, Reconcile
from storenode.message.limits import MAX_TIMESTAMP_NS

VERSION: Final = 4

NOTHING_HEARD: Final = Extension()


class Phase(Enum):
    """The frame of the peer that comes next: a row of this module's table."""

    FIRST = auto()
    LATER = auto()
    ANSWER = auto()
    SEARCH = auto()


@dataclass(frozen=True, slots=True)
class Proof:
    """How a session has compared the two sides.

    Attributes:
        summed_from_ns: from here on lattice sums were equal in the end, but for the conflicts;
            None: nowhere.
        compact: the differences were found in the compact mode.
        hidden: differences that the fingerprints of WAKU-SYNC did not show.
        conflicts: IDs with different contents on the two sides.
    """

    summed_from_ns: int | None = None
    compact: bool = False
    hidden: SyncIds = field(default_factory=SyncIds.empty)
    conflicts: tuple[ContentConflict, ...] = ()


BY_XOR: Final = Proof()


class Agreement:
    """One side's part in one session.

    ``lower``: below it this side compares nothing. ``memory_start``: from here on every ID is in
    memory.
    """

    def __init__(
        self, role: Role, nonce: bytes, *, lower: SyncId, memory_start: SyncId | None
    ) -> None:
        self._role = role
        self._nonce = nonce
        # A bound inside a nanosecond leaves that nanosecond out.
        self._lower_ns = min(lower[0] + (lower[1] != LOWEST[1]), MAX_TIMESTAMP_NS)
        self._is_in_memory = memory_start is not None and memory_start <= lower
        self._phase = Phase.FIRST
        self._theirs: Extension | None = None
        self.heard = NOTHING_HEARD
        """The extension of the peer's last frame."""
        self.compact = False
        """Frames of the compact mode may come after the first one."""
        self.takes_slices = False
        """This initiator takes slices of the mode as an answer."""

    @property
    def start(self) -> SyncId:
        """The bound from which on both sides compare messages."""
        theirs = 0 if self._theirs is None else self._theirs.compared_from_ns or 0
        return max(self._lower_ns, theirs), LOWEST[1]

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
        """The nonce of this side."""
        return self._nonce

    @property
    def whole(self) -> bool:
        """All that both sides compare is in memory here, and the peer compares all of it."""
        return self._is_in_memory and self.start[0] == self._lower_ns

    def offer(self) -> Extension:
        """Return the offer for this side's first frame."""
        return Extension(
            version=VERSION,
            nonce=self._nonce,
            slices=self.takes_slices,
            compared_from_ns=self._lower_ns,
        )

    def summed(self, result: Result) -> Times | None:
        """Return the range of the sums that conclude a reconciliation; None: there is none."""
        end_ns, end_hash = result.window[1]
        if not self.peer_knows or result.truncated or result.refusal or end_hash != LOWEST[1]:
            return None
        return (self.start[0], end_ns) if self.start[0] < end_ns else None

    def expect(self, phase: Phase) -> None:
        """Set the row of the table that the peer's next frame belongs to."""
        self._phase = phase

    def hear(self, frame: Reconcile) -> Extension:
        """Take the extension of a frame of the peer.

        Raises:
            ProtocolBroken: a part of it does not belong there, or has another size.
        """
        self.heard = NOTHING_HEARD
        phase, told = self._phase, frame.extension
        if phase is Phase.FIRST:
            self._phase = Phase.LATER
            if told is not None and told.version == VERSION:
                self._take(told)
        if self._theirs is None or told is None:
            return self.heard
        last = not frame.payload
        _demand(phase is Phase.FIRST or not told.nonce, "a nonce after its first frame")
        summed = phase is Phase.ANSWER or (last and phase is not Phase.SEARCH)
        _demand(summed or not told.sum, "a sum before its last frame")
        _demand(len(told.sum) in (0, DIGEST_BYTES), f"a sum of {len(told.sum)} bytes")
        searched = phase is Phase.SEARCH or (phase is Phase.ANSWER and bool(told.sum))
        _demand((searched and last) or told.search is None, "a search before sums that differ")
        placed = phase is Phase.FIRST or self.compact
        _demand(placed or not told.size_bytes, "a compact frame nobody asked for")
        self.heard = told
        return told

    def _take(self, offer: Extension) -> None:
        _demand(len(offer.nonce) == NONCE_BYTES, f"a nonce of {len(offer.nonce)} bytes")
        known = (offer.compared_from_ns or 0) <= MAX_TIMESTAMP_NS
        _demand(known, "a time beyond the last timestamp")
        self._theirs = offer


def parted(ids: SyncIds, spans: Sequence[Times]) -> tuple[SyncIds, SyncIds]:
    """Return ascending IDs outside of some spans of time, and those inside of them."""
    inside = np.zeros(len(ids), np.bool_)
    for low_ns, high_ns in spans:
        first, end = np.searchsorted(ids.timestamps, (low_ns, high_ns))
        inside[first:end] = True
    return ids[~inside], ids[inside]


def without(ids: SyncIds, others: SyncIds) -> SyncIds:
    """Return the IDs whose hashes are not among those of others."""
    known = set(others.opaque.tolist())
    return ids[np.array([digest not in known for digest in ids.opaque.tolist()], np.bool_)]


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise ProtocolBroken(f"the peer sends {what}: see ReconcileExtension in the schema")
