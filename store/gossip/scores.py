"""Faults of peers, as points that fade: with some a peer is slowed, with more it is cut off.

=====================================================================  ======================
fault                                                                  points
=====================================================================  ======================
an announced message that was asked for and not delivered              1/16, up to 2 a frame
a body that came before on this stream, and was not asked for again    1/16
a body that is asked for again after it was sent                       1/256
an announcement that was made before                                   1/16384
more announced, or asked for, than may wait                            1 per frame
leaves more often than four times in their interval                    1/16
a message that policy refuses                                          1/16, never a cut-off
a message that is asked for and not held                               1/1024, the same
a stream that begins, or a frame that says nothing                     1/16
other content under a hash than is stored here                         1/64, never a cut-off
a frame that breaks the protocol or a limit                            all at once
=====================================================================  ======================

Points halve every minute. A store that keeps to the protocol collects none, or next to none,
whatever networks and crashes do to it: what is not delivered counts only while the peer talks.
Refusals are an honest difference of rules or clocks as often as not, and what is asked for may be
the parent of something that is held, so these never cut off.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from store.gossip.limits import MAX_CUT_OFF_NS, MAX_OFFENDERS
from storenode.message.limits import NS_PER_S

SLOW_POINTS: Final = 4.0
CUT_POINTS: Final = 12.0
HALF_LIFE_NS: Final = 60 * NS_PER_S

UNDELIVERED_POINTS: Final = 1 / 16
UNDELIVERED_MOST_POINTS: Final = 2.0
REPEATED_BODY_POINTS: Final = 1 / 16
ASKED_AGAIN_POINTS: Final = 1 / 256
REPEATED_ID_POINTS: Final = 1 / 16384
OVERFLOW_POINTS: Final = 1.0
LEAVES_POINTS: Final = 1 / 16
REFUSED_POINTS: Final = 1 / 16
NOT_STORED_POINTS: Final = 1 / 1024
STREAM_POINTS: Final = 1 / 16
EMPTY_POINTS: Final = 1 / 16
CONFLICT_POINTS: Final = 1 / 64
PROTOCOL_POINTS: Final = CUT_POINTS


class PeerStanding(Enum):
    """The treatment of a peer."""

    GOOD = "good"
    SLOWED = "slowed"
    CUT_OFF = "cut off"


@dataclass(slots=True)
class _Record:
    points: float = 0.0
    at_ns: int = 0
    cuts: int = 0
    until_ns: int = 0
    reason: str = ""

    def faded(self, now_ns: int) -> float:
        return float(self.points * 0.5 ** ((now_ns - self.at_ns) / HALF_LIFE_NS))


class Scores:
    """The points of peers, by their names; also while they are away.

    ``cut_off_ns``: how long the first cut-off lasts.
    """

    def __init__(self, cut_off_ns: int) -> None:
        self._cut_off_ns = cut_off_ns
        self._records: dict[str, _Record] = {}

    def add(self, now_ns: int, peer: str, points: float, reason: str = "") -> PeerStanding:
        """Add points to a peer, and return its treatment; without a reason they only slow it."""
        record = self._record(now_ns, peer)
        faded = record.faded(now_ns)
        record.points, record.at_ns = faded + points, now_ns
        if not reason:
            record.points = max(faded, min(SLOW_POINTS, record.points))
            return self.standing(now_ns, peer)
        if record.points < CUT_POINTS:
            return PeerStanding.GOOD if record.points < SLOW_POINTS else PeerStanding.SLOWED
        if now_ns - record.until_ns >= MAX_CUT_OFF_NS:
            record.cuts = 0
        length_ns = min(MAX_CUT_OFF_NS, self._cut_off_ns << min(record.cuts, 16))
        record.cuts, record.until_ns, record.reason = record.cuts + 1, now_ns + length_ns, reason
        record.points = SLOW_POINTS
        return PeerStanding.CUT_OFF

    def standing(self, now_ns: int, peer: str) -> PeerStanding:
        """Return the treatment of a peer."""
        record = self._records.get(peer)
        if record is None:
            return PeerStanding.GOOD
        if now_ns < record.until_ns:
            return PeerStanding.CUT_OFF
        # What fades reaches no sharp bound: a little less than the limit is as good as it.
        slowed = record.faded(now_ns) >= SLOW_POINTS * 0.99
        return PeerStanding.SLOWED if slowed else PeerStanding.GOOD

    def sentence(self, peer: str) -> tuple[int, str]:
        """Return until when a peer is cut off, and why."""
        record = self._records[peer]
        return record.until_ns, record.reason

    def cut_off(self, now_ns: int) -> list[tuple[str, int, str]]:
        """Return the peers that are cut off now: name, until when, why."""
        return [
            (peer, record.until_ns, record.reason)
            for peer, record in self._records.items()
            if now_ns < record.until_ns
        ]

    def check(self) -> None:
        """Raise AssertionError if an invariant or a bound is broken."""
        assert len(self._records) <= MAX_OFFENDERS
        assert all(0 <= record.points < CUT_POINTS for record in self._records.values())

    def _record(self, now_ns: int, peer: str) -> _Record:
        record = self._records.get(peer)
        if record is None:
            if len(self._records) >= MAX_OFFENDERS:
                least = min(
                    self._records.items(), key=lambda each: (each[1].until_ns, each[1].points)
                )
                del self._records[least[0]]
            record = self._records[peer] = _Record(at_ns=now_ns)
        return record
