"""The agreement of two sides beyond WAKU-SYNC: the extension of their frames.

Source: `ReconcileExtension` in the schema. Rules:

- Each side makes an offer in its first frame: a nonce, and from when on it compares messages. An
  offer of another version counts as none; without both offers nothing of this applies.
- The side that ends the reconciliation by an empty payload sends its sum with it, and the other
  side answers with its own. A side that does not know its sum sends none.
- A part of the extension that comes in another frame (see `_ALLOWED`), or has another size, breaks
  the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from reconcile.compact.keys import NONCE_BYTES
from reconcile.ids import LOWEST, SyncId
from reconcile.lattice import DIGEST_BYTES
from reconcile.session import Result, Role
from store.domain.view import OpenView, Span
from store.sync.errors import ProtocolBrokenError
from store.sync.frames import compact_bytes
from storenode.message.limits import MAX_TIMESTAMP_NS
from storenode.wire.storenode.v1.peer_pb2 import (
    RECONCILE_FEATURE_SLICES,
    ReconcileExtension,
    ReconcileFrame,
)

VERSION: Final = 4


class Phase(Enum):
    """The frame of the peer that comes next."""

    FIRST = auto()
    LATER = auto()
    ANSWER = auto()  # to a sum
    SEARCH = auto()  # after sums that differ


class _When(Enum):
    NEVER = auto()
    ALWAYS = auto()
    LAST = auto()  # with an empty payload
    WITH_SUM = auto()  # and an empty payload


_ALLOWED: Final[Mapping[Phase, tuple[_When, _When, _When]]] = {
    # the frame: a nonce, a sum, a search
    Phase.FIRST: (_When.ALWAYS, _When.LAST, _When.NEVER),
    Phase.LATER: (_When.NEVER, _When.LAST, _When.NEVER),
    Phase.ANSWER: (_When.NEVER, _When.ALWAYS, _When.WITH_SUM),
    Phase.SEARCH: (_When.NEVER, _When.NEVER, _When.LAST),
}


class Agreement:
    """The part of one side in the agreement of a session.

    ``view``: what this side compares, and nothing of it below ``lower``.

    Attributes:
        compact: frames of the compact mode may come after the first one.
        takes_slices: this initiator takes slices of the mode as an answer.
    """

    def __init__(self, role: Role, nonce: bytes, view: OpenView, lower: SyncId) -> None:
        self._role = role
        self.view = view
        self.own_nonce = nonce
        # A bound inside a nanosecond leaves that nanosecond out.
        self._lower_ns = min(lower[0] + (lower[1] != LOWEST[1]), MAX_TIMESTAMP_NS)
        start = view.memory_start
        self._is_in_memory = start is not None and start <= lower
        self._phase = Phase.FIRST
        self._theirs: ReconcileExtension | None = None
        self.compact = False
        self.takes_slices = False

    @property
    def start(self) -> SyncId:
        """The bound from which on both sides compare messages."""
        theirs = 0 if self._theirs is None else self._theirs.compared_from
        return max(self._lower_ns, theirs), LOWEST[1]

    @property
    def peer_knows(self) -> bool:
        """True once the peer has made an offer."""
        return self._theirs is not None

    @property
    def peer_takes_slices(self) -> bool:
        """True if the peer takes slices of the compact mode as an answer."""
        return self._theirs is not None and RECONCILE_FEATURE_SLICES in self._theirs.features

    @property
    def nonces(self) -> tuple[bytes, bytes]:
        """The initiator's and the responder's nonce, once both sides have made an offer."""
        theirs = b"" if self._theirs is None else self._theirs.nonce
        own = self.own_nonce
        return (own, theirs) if self._role is Role.INITIATOR else (theirs, own)

    @property
    def whole(self) -> bool:
        """True if all that both sides compare is in memory here, and the peer compares it all."""
        return self._is_in_memory and self.start[0] == self._lower_ns

    def offer(self) -> ReconcileExtension:
        """Return the offer for this side's first frame."""
        return ReconcileExtension(
            version=VERSION,
            nonce=self.own_nonce,
            features=[RECONCILE_FEATURE_SLICES] if self.takes_slices else [],
            compared_from=self._lower_ns,
        )

    def summed(self, result: Result) -> Span | None:
        """Return the range of the sums that conclude a reconciliation; None: there is none."""
        end_ns, end_hash = result.window[1]
        if not self.peer_knows or result.truncated or result.refusal or end_hash != LOWEST[1]:
            return None
        return (self.start[0], end_ns) if self.start[0] < end_ns else None

    def expect(self, phase: Phase) -> None:
        """Set which frame of the peer comes next."""
        self._phase = phase

    def receive(self, frame: ReconcileFrame) -> ReconcileExtension:
        """Return the extension of a frame of the peer; an empty one if there is no agreement.

        Raises:
            ProtocolBrokenError: a part of it does not belong there, or has another size.
        """
        phase, extension = self._phase, frame.extension
        if phase is Phase.FIRST:
            self._phase = Phase.LATER
            if extension.version == VERSION:
                self._accept(extension)
        if self._theirs is None:
            return ReconcileExtension()
        holds = {
            _When.NEVER: False,
            _When.ALWAYS: True,
            _When.LAST: not frame.ranges_data,
            _When.WITH_SUM: not frame.ranges_data and bool(extension.sum),
        }
        nonce, own_sum, search = (holds[when] for when in _ALLOWED[phase])
        _require(nonce or not extension.nonce, "a nonce after its first frame")
        _require(own_sum or not extension.sum, "a sum before its last frame")
        size_bytes = len(extension.sum)
        _require(size_bytes in (0, DIGEST_BYTES), f"a sum of {size_bytes} bytes")
        _require(search or not extension.HasField("search"), "a search before sums that differ")
        compact = phase is Phase.FIRST or self.compact
        _require(compact or not compact_bytes(extension), "a compact frame nobody asked for")
        return extension

    def _accept(self, offer: ReconcileExtension) -> None:
        _require(len(offer.nonce) == NONCE_BYTES, f"a nonce of {len(offer.nonce)} bytes")
        _require(offer.compared_from <= MAX_TIMESTAMP_NS, "a time beyond the last timestamp")
        self._theirs = offer


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ProtocolBrokenError(f"the peer sends {what}: see ReconcileExtension in the schema")
