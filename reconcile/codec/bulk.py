"""Reading ``RangesData`` many records at a time.

The type of a range is a byte of 0, 1 or 2. Each such byte of a block is a candidate, and each
candidate says where the next type would have to be. What nothing points to is dropped, and the
first type leads through the others: the chain of true records, exactly. Item sets, and bounds
that end in a byte of a hash, are left out until the chain comes upon one. What arrays cannot read
(a later varint of nine bytes, a very large item set, the end of the payload) ends the chain
early, and the sequential parser goes on from there.

So a guess decides how far the arrays come and never what is read. What a chain does not show,
the order of bounds and items, is left to ``reconcile.codec.verify``.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile.codec.draft import Draft
from reconcile.codec.itemwalk import NO_SETS, ItemSets, find_item_sets, item_columns
from reconcile.codec.ranges import RangeKind
from reconcile.codec.varints import (
    WORD_BYTES,
    Source,
    unfinished,
    varint_lengths,
    varint_values,
)
from reconcile.limits import CodecLimits
from storenode.message.limits import HASH_BYTES

_MAX_DROPS: Final = 8
"""Passes over the candidates before those that are left are followed, run by run."""

_MIN_BYTES_PER_CANDIDATE: Final = 24
"""Of a block with more candidates less is read at a time, or their arrays would be many times the
payload.
"""

_FEW_CANDIDATES: Final = 12_288
"""So many are looked at together in any case."""

_BYTE: Final = np.uint64(0xFF)
_FINGERPRINT_BYTES: Final = np.uint8(HASH_BYTES)

Offsets = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Chain:
    """True records, m of them, of which s are item sets.

    Attributes:
        starts: ``(m,)`` offsets of their bounds.
        types_at: ``(m,)`` offsets of their types.
        kinds: ``(m,)`` types.
        end: offset of what follows the last.
        sets: the item sets among them.
    """

    starts: Offsets
    types_at: Offsets
    kinds: NDArray[np.uint8]
    end: int
    sets: ItemSets


class BulkParser:
    """Reads runs of records into a draft.

    Attributes:
        shortened: whether the last run was to read less, since there were many candidates.
    """

    def __init__(self, source: Source, limits: CodecLimits, draft: Draft) -> None:
        self._source = source
        self._limits = limits
        self._draft = draft
        # What is not there need not be looked for.
        self.shortened = False
        self._has_sets = False
        self._has_prefixes = False

    def run(self, at: int, lowest: int, stop: int) -> int:
        """Read records from offset ``at``, whose first range begins at time ``lowest``.

        Only records whose types lie before ``stop`` are read. Returns where the first record
        begins that was not read: ``at`` itself if nothing was.
        """
        stop = min(stop, len(self._source.data) - WORD_BYTES - HASH_BYTES)
        chain = self._chain(at, stop, lowest) if at < stop else None
        if chain is None or not self._take(chain, lowest):
            return at
        return chain.end

    def _chain(self, at: int, stop: int, lowest: int) -> Chain | None:
        candidates = (self._source.octets[at:stop] <= RangeKind.ITEM_SET).nonzero()[0]
        most = max((stop - at) // _MIN_BYTES_PER_CANDIDATE, _FEW_CANDIDATES)
        self.shortened = len(candidates) > most
        if self.shortened:
            stop = at + int(candidates[most])
            candidates = candidates[:most].copy()
        candidates += at
        while True:
            chain, next_type = self._chain_of(candidates, at, stop, lowest)
            if next_type >= stop or not self._learn(next_type):
                return chain

    def _learn(self, next_type: int) -> bool:
        """Whether a true candidate was left out: its like are not left out again."""
        kind, before = self._source.data[next_type], self._source.data[next_type - 1]
        if kind == RangeKind.ITEM_SET and not self._has_sets:
            self._has_sets = True
        elif kind <= RangeKind.ITEM_SET and before >= 0x80 and not self._has_prefixes:
            self._has_prefixes = True
        else:
            return False
        return True

    def _chain_of(
        self, types_at: Offsets, at: int, stop: int, lowest: int
    ) -> tuple[Chain | None, int]:
        """The chain, if any, and where the type must be that follows it."""
        if not self._has_prefixes:
            types_at = types_at[self._source.octets[types_at - 1] < 0x80]
        kinds = self._source.octets[types_at]
        possible = (kinds == RangeKind.ITEM_SET).nonzero()[0]
        ends = types_at + 1
        ends += (kinds == RangeKind.FINGERPRINT) * _FINGERPRINT_BYTES
        sets = NO_SETS
        if self._has_sets:
            budget = 2 * (stop - at) // HASH_BYTES
            sets = find_item_sets(self._source, types_at[possible] + 1, lowest, budget)
        ends[possible] = sets.ends if self._has_sets else len(self._source.data)
        true, next_type = self._link(at, stop, types_at, ends)
        if not len(true):
            return None, next_type
        if self._has_sets:
            sets = sets[possible.searchsorted(true[kinds[true] == RangeKind.ITEM_SET])]
        ends = ends[true]
        starts = np.concatenate(([at], ends[:-1]))
        return Chain(starts, types_at[true], kinds[true], int(ends[-1]), sets), next_type

    def _link(self, at: int, stop: int, types_at: Offsets, ends: Offsets) -> tuple[Offsets, int]:
        """Indices of the candidates that the record at ``at`` leads to, and where the type
        after them must be.
        """
        known = (ends < len(self._source.data)).nonzero()[0]
        targets = self._types_after(np.concatenate(([at], ends[known]))) - at
        chosen = follow(types_at[known] - at, targets[1:], int(targets[0]), stop - at)
        return known[chosen], at + int(targets[chosen[-1] + 1] if len(chosen) else targets[0])

    def _types_after(self, ends: Offsets) -> Offsets:
        """Where the type of the record must be that begins at each offset.

        Where the arrays cannot tell it is the payload's size, behind every candidate.
        """
        inside = np.minimum(ends, len(self._source.words) - 1)
        words = self._source.words[inside]
        types_at = inside.copy()
        types_at += varint_lengths(words)
        zero = ((words & _BYTE) == 0).nonzero()[0]
        if len(zero):
            prefixes = ((words[zero] >> np.uint64(8)) & _BYTE).astype(np.int64)
            types_at[zero] = inside[zero] + 2 + prefixes
            types_at[zero[(prefixes < 1) | (prefixes > HASH_BYTES)]] = len(self._source.data)
        types_at[unfinished(words) | (inside != ends)] = len(self._source.data)
        return types_at

    def _take(self, chain: Chain, lowest: int) -> bool:
        """Add the records to the draft, unless their numbers or a limit say otherwise."""
        draft, limits = self._draft, self._limits
        deltas, _, sound = varint_values(self._source.words[chain.starts])
        bounds = deltas.view(np.int64).cumsum()
        bounds += lowest
        items = item_columns(self._source.words, chain.sets)
        fits = len(draft.kinds) + len(bounds) <= limits.max_ranges
        if items is None or not fits or len(draft.items) + len(items[0]) > limits.max_elements:
            return False
        if not sound.all() or (bounds < 0).any():
            return False
        prefixed = (deltas == 0).nonzero()[0]
        if len(prefixed):
            lengths_at = chain.starts[prefixed] + 1
            rows = prefixed + len(draft.kinds)
            draft.add_prefixes(rows, lengths_at + 1, self._source.octets[lengths_at])
        fingerprints = chain.kinds == RangeKind.FINGERPRINT
        draft.add_ranges(bounds, chain.kinds, chain.types_at[fingerprints] + 1)
        if len(chain.sets.counts):
            draft.add_sets(chain.sets.counts, self._source.octets[chain.sets.ends - 1])
            draft.add_items(*items)
        return True


def follow(places: Offsets, targets: Offsets, first: int, size: int) -> Offsets:
    """Indices of the candidates that the one at ``first`` leads to, itself included.

    ``places`` ascend and lie below ``size``; each target lies behind its place. A target that
    is no candidate's place ends the chain, and if ``first`` is none, the chain is empty.
    """
    pointed = np.zeros(size + 1, np.bool_)
    chosen = np.arange(len(places))
    targets = np.minimum(targets, size)
    for _ in range(_MAX_DROPS):
        pointed[targets] = True
        pointed[min(first, size)] = True
        kept = pointed[places].nonzero()[0]
        pointed[targets] = False
        few = len(places) - len(kept) <= len(places) // 64
        places, targets, chosen = places[kept], targets[kept], chosen[kept]
        if few:
            break
    return chosen[_follow_runs(places, targets, first)]


def _follow_runs(places: Offsets, targets: Offsets, first: int) -> Offsets:
    """What ``follow`` gives, in a step for each run of candidates that follow each other."""
    index = int(places.searchsorted(first))
    if index == len(places) or places[index] != first:
        return np.empty(0, np.int64)
    jumps = (targets[:-1] != places[1:]).nonzero()[0]
    landings = places.searchsorted(targets[jumps])
    found = places[np.minimum(landings, len(places) - 1)]
    landings[found != targets[jumps]] = len(places)
    leaves, lands = [*jumps.tolist(), len(places) - 1], [*landings.tolist(), len(places)]
    runs: list[Offsets] = []
    jump = 0
    while index < len(places):
        jump = bisect_left(leaves, index, jump)
        runs.append(np.arange(index, leaves[jump] + 1))
        index = lands[jump]
    return np.concatenate(runs)
