"""The plan of splits: a cost model of a reconciliation, and an estimate of the differences.

Suppose that differences lie in a range like raindrops, `mu` of them on average (a Poisson law), a
half on each side. Of a range that differs somewhere, the side that must answer can

- name the one difference, if there is just one and it is its own (the deduction),
- send the items (a set), which the other side answers with the differences alone,
- send fingerprints of parts, and the other side is in the same position with each of them that
  differs, one message later,
- send its own fingerprint of the range again, so that the other side may name the one difference.

With `k` messages left that hold fingerprints, few bytes are sent if each of them divides the items
around a difference, `s` of them, by their root of order `k + 1`, and the last items are sent. Where
a message would need more parts than it should have, an earlier one makes a few first.

Nothing here can make a reconciliation wrong: a poor estimate costs bytes or one more message.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import log1p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reconcile.ids import Bools, Ints, total
from reconcile.limits import CodecLimits, SessionLimits

Floats = NDArray[np.float64]

ITEM_BYTES = 36.5  # a time difference and a hash
PROBE_FREELY = 30_000  # items in a message that are searched without asking

FINISHING_BYTES = 4_096
"""The size below which the items of all differing ranges are sent, to save messages."""

SATURATED = 0.95
"""Share of ranges that differ from which on it says little about how many differences there are."""

MAX_PARTS = 256
"""Parts of one range in one message."""

FORCED_PARTS = 16
"""Parts of a question that must be split because it is too large for one answer; then two."""

MOST_DEPTH = 5
"""Messages with fingerprints that are planned for; in more of them a choice would be the same."""

_PARTS_SHARE = 0.7
"""The factor for the number of parts: a fingerprint takes more bytes than an item."""

_DENSE_ITEMS = 4
"""Items for each difference up to which the items are sent."""

_PROBED_RATE = 5
_PROBED_ITEMS = 3_000
"""The number of items below which a search for a single difference is worth its time."""

_STEPS_PER_DOUBLING = 2
_SIZES = 2.0 ** (np.arange(49) / _STEPS_PER_DOUBLING)  # 1 to 2^24 items
_RATES = 2.0 ** ((np.arange(40) - 8) / _STEPS_PER_DOUBLING)  # mu from 1/16 to about 2^15
_HALF_A_STEP = 2.0 ** (0.5 / _STEPS_PER_DOUBLING)
_SIZE_EDGES = _SIZES[:-1] * _HALF_A_STEP
_RATE_EDGES = _RATES[:-1] * _HALF_A_STEP
"""Half-way between the sizes, and between the rates, that choices are made for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The parameters that were chosen by measuring; no result depends on them.

    Attributes:
        first_parts: parts of the whole window in the first answer.
        large_first_parts: the same for windows of `large_count` items or more.
        last_fingerprints: ordinal of the last message of a session (the initiator's first is 1)
            that should hold fingerprints; later ones should be sets.
        large_last_fingerprints: the same for large windows.
        large_count: items from which a window is large.
        min_parts: parts in all that a message may have without regard to what seems needed:
            differences that sit together look like few from afar.
        largest_late_set: items of a range that is sent as a set only because it is late.
        gauges: ranges that are cut ever finer, where everything differs, to find out how densely.
    """

    first_parts: int = 64
    large_first_parts: int = 128
    last_fingerprints: int = 5
    large_last_fingerprints: int = 7
    large_count: int = 4_000_000
    min_parts: int = 64
    largest_late_set: int = 4_096
    gauges: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of a turn.

    Attributes:
        cluster: sent with every payload.
        shards: likewise.
        limits: of the session.
        differences_left: how many more differences the session may find.
        tuning: the parameters.
        ordinal: of the message that will carry the answer, the initiator's first being 1.
        large: whether the window is large; None: to be found out in this turn.
    """

    cluster: int
    shards: tuple[int, ...]
    limits: SessionLimits
    differences_left: int
    tuning: Tuning
    ordinal: int
    large: bool | None


@dataclass(frozen=True, slots=True)
class PlanTable:
    """The best choices, by size and rate.

    Attributes:
        probe: True: search the range for the one ID that may be all the difference.
        after_probe: the fan-out if that found nothing; 0 is the set.
        unprobed: the fan-out without a search.
    """

    probe: NDArray[np.bool_]
    after_probe: Ints
    unprobed: Ints


@cache
def tables(depth: int) -> PlanTable:
    """Return the choices for ``depth`` messages that may have fingerprints, this one included."""
    depth = min(max(depth, 0), MOST_DEPTH)
    size, rate = np.broadcast_arrays(_SIZES[:, None], _RATES)
    differences = rate / -np.expm1(-rate)  # there is one at least
    around = size / differences
    parts = _PARTS_SHARE * differences * around ** (1 / (depth + 1))
    if depth > 1:
        parts = np.where(parts > MAX_PARTS, parts / MAX_PARTS, parts)
    unprobed = np.clip(parts, 2, MAX_PARTS).round().astype(np.int64)
    unprobed[(around <= _DENSE_ITEMS) | (depth == 0)] = 0
    # A search in vain means that a single difference is the peer's: it is asked to name it.
    theirs = (depth > 0) & (size > 1) & (rate < 1)
    after_probe = np.where(theirs, np.maximum(unprobed // 2, 1), unprobed)
    probe = (rate < _PROBED_RATE) & ((size <= _PROBED_ITEMS) | (depth == 0))
    return PlanTable(probe, after_probe, unprobed)


def fan_outs(sizes: Ints, density: float, depth: int, *, probed: bool = True) -> Ints:
    """Return into how many parts to split ranges that differ; 0: send the items.

    Args:
        sizes: items in each range.
        density: differences per item, about.
        depth: in how many messages, this one included, fingerprints may be sent; 0 and less:
            in none.
        probed: True: the ranges were searched for a single difference, in vain.
    """
    table = tables(depth)
    chosen = table.after_probe if probed else table.unprobed
    return chosen[_place(sizes, density)]


def _place(sizes: Ints, density: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the place of sizes in the tables."""
    size = np.maximum(sizes, 1.0)
    return _SIZE_EDGES.searchsorted(size), _RATE_EDGES.searchsorted(size * density)


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate of the differences by a message's fingerprints.

    Attributes:
        density: differences per item.
        saturated: nearly everything differed, so that the density is only a lower bound.
    """

    density: float
    saturated: bool


_DENSITIES = np.geomspace(1e-9, 4.0, 221)
_COARSE = 10
"""The stride of the densities that are examined first."""


def estimate(sizes: Ints, differs: NDArray[np.bool_]) -> Estimate:
    """Return the most likely density of differences, given which of some ranges differ.

    Ranges of one magnitude, those of equal bit length, count as equally large. If all differ, the
    density is one at which that is as likely as not.
    """
    items = np.maximum(sizes, 1)
    count, hit = len(sizes), int(np.count_nonzero(differs))
    if 0 < hit < count and sizes.max() < 2 * sizes.min():
        share = hit / count
        return Estimate(-log1p(-share) * count / int(items.sum()), share > SATURATED)
    magnitude = np.frexp(items.astype(np.float64))[1]
    total = np.bincount(magnitude)
    used = total > 0
    total = total[used]
    different = np.bincount(magnitude, differs)[used]
    mean_size = np.bincount(magnitude, items)[used] / total
    equal = total - different
    if hit == count:
        smallest = int(np.argmin(mean_size))
        return Estimate(float(np.log(total[smallest] + 1.0) / mean_size[smallest]), True)
    # The likelihood has one peak.
    near = _COARSE * _likeliest(_DENSITIES[::_COARSE], mean_size, different, equal)
    densities = _DENSITIES[max(0, near - _COARSE) : near + _COARSE + 1]
    density = float(densities[_likeliest(densities, mean_size, different, equal)])
    return Estimate(density, hit > SATURATED * count and len(total) <= 2)


def _likeliest(
    densities: Floats, sizes: Floats, different: NDArray[Any], equal: NDArray[Any]
) -> int:
    """Return the row of the likeliest density, given how many ranges of each size differ."""
    rates = sizes[:, None] * densities[None, :]
    return int((different @ np.log(-np.expm1(-rates) + 1e-300) - equal @ rates).argmax())


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The plan of one message.

    Attributes:
        tuning: the parameters.
        ordinal: of the message, the initiator's first being 1.
        large: True: the window is large.
        known: the estimate by received fingerprints; None: there were none, or only one.
    """

    tuning: Tuning
    ordinal: int
    large: bool
    known: Estimate | None

    @property
    def depth(self) -> int:
        """The number of remaining messages, this one included, in which to send fingerprints."""
        tuning = self.tuning
        last = tuning.large_last_fingerprints if self.large else tuning.last_fingerprints
        return max(0, last + 1 - self.ordinal)

    @property
    def gauge(self) -> bool:
        """True if some finer parts are sent, to find out how dense the differences are."""
        return self.depth > 1 and self.known is not None and self.known.saturated

    @property
    def first_parts(self) -> int:
        """The number of parts of the window in the first answer."""
        return self.tuning.large_first_parts if self.large else self.tuning.first_parts

    @classmethod
    def of(cls, rules: Rules, stored: int, sizes: Ints, differs: Bools) -> SplitPlan:
        """Return the plan by the number of IDs asked about, and by ranges that were compared."""
        tuning, ordinal, large = rules.tuning, rules.ordinal, rules.large
        if large is None:
            large = stored >= tuning.large_count
        known = estimate(sizes, differs) if ordinal > 2 and len(sizes) else None
        return cls(tuning, ordinal, large, known)

    def parts(self, sizes: Ints, probed: NDArray[np.bool_]) -> Ints:
        """Return into how many parts to split ranges that differ; 0: send the items.

        Args:
            sizes: items in each range.
            probed: which of them were searched for a single difference, in vain.
        """
        tuning = self.tuning
        if self.known is None:
            parts = np.minimum(-(-self.first_parts // max(len(sizes), 1)), sizes // 8)
            return np.where(parts < 3, 0, parts)
        density = self.known.density
        if int(sizes.sum()) * ITEM_BYTES < FINISHING_BYTES:
            return np.zeros(len(sizes), np.int64)
        parts = fan_outs(sizes, density, self.depth)
        if not probed.all():
            parts = np.where(probed, parts, fan_outs(sizes, density, self.depth, probed=False))
        if self.depth > 1 and len(sizes) < tuning.min_parts:
            floor = np.minimum(-(-tuning.min_parts // max(len(sizes), 1)), sizes // 8)
            parts = np.where(parts > 0, np.maximum(parts, floor), parts)
        if self.depth == 0:
            late = sizes > tuning.largest_late_set
            parts = np.where(late, np.maximum(fan_outs(sizes, density, 2), 16), parts)
        return parts

    def worth_probing(self, sizes: Ints) -> NDArray[np.bool_]:
        """Return which ranges that differ to search for one ID that may be all the difference."""
        if self.known is None:
            return sizes <= PROBE_FREELY
        worth = tables(self.depth).probe[_place(sizes, self.known.density)]
        if not worth.all():
            worth |= np.cumsum(sizes) <= PROBE_FREELY
        return worth


def wanted_parts(
    plan: SplitPlan, sizes: Ints, probed: Bools, hollow: Bools, limits: CodecLimits
) -> Ints:
    """Choose into how many parts to split ranges that differ; 0: send the items.

    ``hollow``: where the peer has no ID, because its fingerprint is zero.
    """
    parts = plan.parts(sizes, probed)
    parts[(sizes <= 1) | hollow] = 0
    parts[(parts == 0) & (sizes > limits.max_elements)] = FORCED_PARTS
    return parts


def limited_parts(parts: Ints, sizes: Ints, limits: CodecLimits) -> Ints:
    """Limit parts to what a payload may have; 1: leave the range for later."""
    parts = np.minimum(parts, max(2, limits.max_ranges // 4))
    if total(sizes) > limits.max_elements or total(parts) > limits.max_ranges // 2:
        over = np.cumsum(np.where(parts == 0, sizes, 0)) > limits.max_elements
        over |= np.cumsum(parts) > limits.max_ranges // 2
        over[0] = False
        parts[over] = 1
    return parts
