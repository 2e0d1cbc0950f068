"""Which hours two sides hold differently, by lattice digests of days and of hours.

    lattice digests differ
      the side that answers ─ digests of all days ──────────────────────► the other side
                            ◄─ hours of days that differ, with digests ──
                             ─ hours that differ, which are searched ───►

Sums are of what both sides together hold, as far as each knows: what is held, and what the
reconciliation has found to be missing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np

from reconcile.ids import LOWEST, SyncIds
from reconcile.keyed import PairKey, lattice_digest_of
from reconcile.lattice import LatticeSum
from reconcile.session import Bounds
from store.domain.view import OpenView, Times
from store.sync.errors import ProtocolBroken
from store.sync.frames import Steps
from store.sync.limits import MAX_LATTICE_DAYS, MAX_SEARCHED_IDS
from store.sync.session.agreement import HOUR_NS

STEP_BYTES: Final = 8

_DAY_HOURS: Final = 24
_DAY_NS: Final = _DAY_HOURS * HOUR_NS


class Below:
    """One side's view of what lies below keyed digests.

    ``span``: what the digests are about. ``missing``: what the reconciliation has found to be
    missing here.
    """

    def __init__(self, view: OpenView, key: PairKey, span: Times, missing: SyncIds) -> None:
        self._view = view
        self._key = key
        self.span = span
        self._missing = missing

    async def digest(self) -> bytes:
        """What is sent at the end of a reconciliation; empty: the sum is not known."""
        sums = await self._sums([self.span])
        return b"" if sums is None else lattice_digest_of(self._key, sums[0], self.span)

    async def days(self) -> Steps:
        """The digests of all days."""
        digests, _ = await self._digests(self._days())
        return Steps(digests=b"".join(digests))

    async def hours(self, told: Steps | None) -> Steps:
        """The hours of the newest days that differ from those of the peer, with digests.

        Raises:
            ProtocolBroken: what the peer tells is none, or no day differs.
        """
        days = self._days()
        _demand(told is not None and not told.hours)
        assert told is not None
        theirs = _cut(told.digests, len(days))
        digests, _ = await self._digests(days)
        differing = [
            day for day, own, other in zip(days, digests, theirs, strict=True) if own != other
        ]
        _demand(bool(differing))
        hours = self._hours_of(differing[-MAX_LATTICE_DAYS:])
        digests, _ = await self._digests([self._hour(hour) for hour in hours])
        return Steps(hours, b"".join(digests), more=len(differing) > MAX_LATTICE_DAYS)

    async def choose(self, told: Steps | None) -> Steps:
        """The hours that differ from those of the peer, the newest, as many as can be searched.

        Raises:
            ProtocolBroken: what the peer tells is none, or no hour differs.
        """
        _demand(told is not None and bool(told.hours))
        assert told is not None
        self._check(told.hours)
        theirs = _cut(told.digests, len(told.hours))
        digests, sums = await self._digests([self._hour(hour) for hour in told.hours])
        differing = [
            (hour, each.count)
            for hour, own, other, each in zip(told.hours, digests, theirs, sums, strict=True)
            if own != other
        ]
        _demand(bool(differing))
        chosen = _newest(differing)
        return Steps(chosen, more=told.more or len(chosen) < len(differing))

    def chosen(self, told: Steps | None, offered: Steps) -> list[Bounds]:
        """What the peer has chosen of the hours that it was told.

        Raises:
            ProtocolBroken: it names others.
        """
        _demand(told is not None and bool(told.hours) and not told.digests)
        assert told is not None
        self._check(told.hours)
        _demand(set(told.hours) <= set(offered.hours))
        return self.bounds(told.hours)

    def bounds(self, hours: Sequence[int]) -> list[Bounds]:
        """Hours as bounds of SyncIDs."""
        spans = [self._hour(hour) for hour in hours]
        return [((low, LOWEST[1]), (high, LOWEST[1])) for low, high in spans]

    def _check(self, hours: Sequence[int]) -> None:
        ascending = all(one < other for one, other in itertools.pairwise(hours))
        first, last = self.span[0] // HOUR_NS, (self.span[1] - 1) // HOUR_NS
        _demand(ascending and first <= hours[0] and hours[-1] <= last)

    def _days(self) -> list[Times]:
        first, last = self.span[0] // _DAY_NS, (self.span[1] - 1) // _DAY_NS
        return [self._clipped(day * _DAY_NS, _DAY_NS) for day in range(first, last + 1)]

    def _hours_of(self, days: Sequence[Times]) -> tuple[int, ...]:
        return tuple(
            hour for low, high in days for hour in range(low // HOUR_NS, (high - 1) // HOUR_NS + 1)
        )

    def _hour(self, hour: int) -> Times:
        return self._clipped(hour * HOUR_NS, HOUR_NS)

    def _clipped(self, start_ns: int, length_ns: int) -> Times:
        return max(self.span[0], start_ns), min(self.span[1], start_ns + length_ns)

    async def _digests(self, spans: Sequence[Times]) -> tuple[list[bytes], list[LatticeSum]]:
        sums = await self._sums(spans)
        if sums is None:  # They were known a moment ago, and take no more in parts.
            raise ProtocolBroken("the sums of the hours that differ are not known here")
        digests = [
            lattice_digest_of(self._key, total, span, STEP_BYTES)
            for total, span in zip(sums, spans, strict=True)
        ]
        return digests, sums

    async def _sums(self, spans: Sequence[Times]) -> list[LatticeSum] | None:
        held = await self._view.lattices(spans)
        if held is None:
            return None
        times, sums = self._missing.timestamps, []
        for (low, high), total in zip(spans, held, strict=True):
            first, end = np.searchsorted(times, (low, high))
            lacked = self._missing[first:end]
            sums.append(total + LatticeSum.of(lacked.hashes.tobytes()) if len(lacked) else total)
        return sums


def _newest(differing: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Hours with their counts; at least one of them."""
    chosen: list[int] = []
    total = 0
    for hour, count in reversed(differing):
        total += count
        if chosen and total > MAX_SEARCHED_IDS:
            break
        chosen.append(hour)
    return tuple(reversed(chosen))


def _cut(digests: bytes, count: int) -> list[bytes]:
    _demand(len(digests) == STEP_BYTES * count)
    return [digests[at : at + STEP_BYTES] for at in range(0, len(digests), STEP_BYTES)]


def _demand(holds: bool) -> None:
    if not holds:
        raise ProtocolBroken(
            "the peer tells other lattice steps than its digest has: see LatticeSteps in the schema"
        )
