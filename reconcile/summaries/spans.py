"""Operations on ascending, disjoint spans of IDs: cut, joined, and divided at a bound."""

from __future__ import annotations

import numpy as np

from reconcile.ids import HASH_WORDS, Bools, Ints, SyncId, SyncIds, differ, less, match, rank
from reconcile.view import Spans, chain_spans

_NO_HASH = bytes(8 * HASH_WORDS)


def last_cut(ids: SyncIds) -> SyncId:
    """Return the greatest bound with IDs before it and one behind it, expressible if possible.

    ``ids`` ascend and are two at least. The bound is at the beginning of the last one's
    nanosecond, or where all share that, between the last two.
    """
    timestamp, last = ids.at(len(ids) - 1)
    if ids.timestamps[0] < timestamp:
        return timestamp, _NO_HASH
    before = ids.hashes[-2].tobytes()
    length = next(place for place in range(len(last)) if before[place] != last[place]) + 1
    return timestamp, last[:length].ljust(len(last), b"\0")


def join_spans(spans: Spans) -> Spans:
    """Join spans that touch."""
    if not len(spans):
        return spans
    apart = differ(spans.upper[:-1], spans.lower[1:])
    first = np.concatenate(([True], apart))
    last = np.concatenate((apart, [True]))
    return Spans(spans.lower[first], spans.upper[last])


def divide_spans(keys: Ints, spans: Spans, bound: SyncId) -> tuple[Ints, Spans, Ints, Spans]:
    """Divide spans at a bound; one may be on both sides, cut in two.

    Returns:
        The keys and the spans before the bound, and those behind it.
    """
    begun, ended = rank(spans.lower, bound), rank(spans.upper, bound)
    ended += int(ended < len(spans) and spans.upper.at(ended) == bound)
    before, after = spans[:begun], spans[ended:]
    if begun > ended:
        cut = SyncIds.of([bound])
        before = Spans(before.lower, SyncIds.join([before.upper[:-1], cut]))
        after = Spans(SyncIds.join([cut, after.lower[1:]]), after.upper)
    return keys[:begun], before, keys[ended:], after


def cut_spans(spans: Spans, edges: SyncIds) -> tuple[Ints, Spans]:
    """Cut spans at ascending edges inside of them; return the number of its span for each part."""
    at = match(edges, spans.lower)
    first, end = at.places + at.found, match(edges, spans.upper).places
    counts = end - first
    ends = np.cumsum(counts + 1)
    total = int(ends[-1]) if len(ends) else 0
    owners = np.repeat(np.arange(len(spans)), counts + 1)
    places = np.arange(total) - (ends - counts - 1 - first)[owners]
    is_last = np.zeros(total, np.bool_)
    is_last[ends - 1] = True
    bounds = SyncIds.join([edges, spans.upper])
    upper = bounds[np.where(is_last, len(edges) + owners, places)]
    return owners, chain_spans(spans.lower, ends - counts - 1, upper)


def are_covered(spans: Spans, by: Spans) -> Bools:
    """Return ``(n,)``: does each span lie in one of some others."""
    at = match(by.lower, spans.lower)
    places = at.places + at.found - 1
    covered = places >= 0
    chosen = np.flatnonzero(covered)
    covered[chosen] = ~less(by.upper[places[chosen]], spans.upper[chosen])
    return covered
