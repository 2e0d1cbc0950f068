"""What a compact session comes to."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reconcile.compact.keys import ShortKey
from reconcile.ids import Bools, SyncIds, Words


@dataclass(frozen=True, slots=True)
class Expected:
    """IDs that the peer has and the view lacks: by their short IDs, and the XOR of their hashes.

    Attributes:
        shorts: ``(n,)``, ascending.
        xor: ``(4,)``.
        key: of the short IDs.
    """

    shorts: Words
    xor: Words
    key: ShortKey = field(repr=False)

    def __len__(self) -> int:
        return len(self.shorts)

    def accepts(self, hashes: NDArray[np.uint8]) -> Bools:
        """``(n,)``: is each of ``(n, 32)`` hashes one of these."""
        if not len(self.shorts):
            return np.zeros(len(hashes), np.bool_)
        found = self.key.of_hashes(hashes)
        at = np.minimum(self.shorts.searchsorted(found), len(self.shorts) - 1)
        return np.asarray(self.shorts[at] == found)

    def complete(self, hashes: NDArray[np.uint8]) -> bool:
        """Are ``(n, 32)`` different hashes just these, to all of their 256 bits together."""
        if len(hashes) != len(self.shorts) or not bool(self.accepts(hashes).all()):
            return False
        words = np.ascontiguousarray(hashes).view(np.uint64)
        return bool((np.bitwise_xor.reduce(words, axis=0) == self.xor).all())


@dataclass(frozen=True, slots=True)
class Found:
    """The differences.

    Attributes:
        to_send: IDs that the peer lacks, ascending; all of them are in the view.
        to_receive: what the peer has and the view lacks.
    """

    to_send: SyncIds
    to_receive: Expected


@dataclass(frozen=True, slots=True)
class FallBack:
    """Nothing was found out: begin a base session. ``reason``: why, for the log."""

    reason: str


Outcome = Found | FallBack


@dataclass(frozen=True, slots=True)
class Step:
    """What follows a frame: one to send, if any, and the outcome, if that is all."""

    frame: bytes | None
    outcome: Outcome | None = None
