"""A pair of compact sessions joined in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from reconcile.compact.session import CompactInitiator, CompactResponder, CompactStep, Outcome
from reconcile.ids import LOWEST, SyncId, SyncIds
from reconcile.index import IndexView

EVERYTHING = (LOWEST, (2**63 - 1, bytes(32)))
NONCES = (b"initiator nonce.", b"responder nonce.")


@dataclass
class Joined:
    """A pair of sides and what they sent.

    Attributes:
        sides: the initiator and the responder.
        frames: what each sent.
        outcomes: the last outcome of each.
    """

    sides: tuple[CompactInitiator, CompactResponder]
    frames: tuple[list[bytes], list[bytes]] = field(default_factory=lambda: ([], []))
    outcomes: list[Outcome | None] = field(default_factory=lambda: [None, None])

    def run(self, *, offered: bool = True) -> None:
        """Pass frames between the sides until none is left; without offer, the responder begins."""
        if offered:
            step, receiver = CompactStep(self.sides[0].begin()), 1
        else:
            self.sides[0].await_slices()
            step, receiver = CompactStep(self.sides[1].begin()), 0
        while step.frame is not None:
            self.frames[1 - receiver].append(step.frame)
            step = self.sides[receiver].receive(step.frame)
            if step.outcome is not None:
                self.outcomes[receiver] = step.outcome
            receiver = 1 - receiver


def compact_pair(
    ours: IndexView,
    theirs: IndexView,
    window: tuple[SyncId, SyncId] = EVERYTHING,
    nonces: tuple[bytes, bytes] = NONCES,
) -> Joined:
    """Return two sides of a session, before the first frame."""
    first = CompactInitiator(ours, window, nonces[0])
    first.agree(nonces[1])
    return Joined((first, CompactResponder(theirs, window, nonces, first.claim)))


def reconcile_compactly(ours: list[SyncId], theirs: list[SyncId]) -> Joined:
    """Reconcile two sets."""
    joined = compact_pair(IndexView.of(SyncIds.of(ours)), IndexView.of(SyncIds.of(theirs)))
    joined.run()
    return joined
