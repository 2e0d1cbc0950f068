"""Slices of time of about the same size, along the partitions of the database.

Pure functions: fingerprints and bounds in, slices out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from store.domain.partitioning import Bounds
from store.pipeline.fingerprints import Fingerprints
from store.pipeline.limits import (
    HOUR_NS,
    MAX_SLICE_ROWS,
    MAX_STEP_MESSAGES,
    MIN_SLICE_ROWS,
    MIN_STEP_MESSAGES,
    STEP_SHARE,
)

T = TypeVar("T")


class Slice(NamedTuple):
    """About ``rows`` messages from ``low_ns`` to ``high_ns``, which is excluded."""

    low_ns: int
    high_ns: int
    rows: int


def plan_slices(
    held: Fingerprints,
    partitions: Iterable[Bounds],
    within: Bounds,
    slice_rows: int,
    length_ns: int = HOUR_NS,
) -> list[Slice]:
    """Return ascending slices that together hold the messages of some hours ``within`` a range.

    ``held`` may be about minutes as well, which ``length_ns`` says. No slice reaches over the
    bounds of a partition, or over a gap in what is held. An hour that has much more than
    ``slice_rows`` messages is cut by time.
    """
    cuts = sorted({edge for each in partitions for edge in (each.low, each.high)})
    pieces: list[Slice] = []
    for start in sorted(held):
        for piece in _cut(start, length_ns, held[start].messages, cuts, slice_rows):
            low, high = max(piece.low_ns, within.low), min(piece.high_ns, within.high)
            if low < high:
                pieces.append(Slice(low, high, piece.rows))
    return _joined(pieces, set(cuts), slice_rows)


def good_slice_rows(total: int, tasks: int) -> int:
    """Return the number of messages per slice that keeps ``tasks`` tasks busy."""
    return min(MAX_SLICE_ROWS, max(MIN_SLICE_ROWS, -(-total // max(1, tasks))))


def grouped(slices: Sequence[Slice], groups: int) -> list[list[Slice]]:
    """Group neighbouring slices into at most ``groups`` with about the same number of messages."""
    share = max(1, -(-sum(each.rows for each in slices) // max(1, groups)))
    return in_shares(slices, lambda each: each.rows, share)


def in_steps(held: Fingerprints) -> list[Fingerprints]:
    """Group hours in the order of time to those that are published in one commit."""
    total = sum(each.messages for each in held.values())
    share = min(MAX_STEP_MESSAGES, max(MIN_STEP_MESSAGES, -(-total // STEP_SHARE)))
    steps = in_shares(sorted(held), lambda hour: held[hour].messages, share)
    return [{hour: held[hour] for hour in hours} for hours in steps]


def in_shares(items: Sequence[T], rows_of: Callable[[T], int], share: int) -> list[list[T]]:
    """Group neighbouring items, with about ``share`` rows in each group and no group empty.

    An item belongs to the group that its middle falls into, so no group is far from its share
    unless one of its items is. There are at most as many groups as shares in all.
    """
    groups: dict[int, list[T]] = {}
    before = 0
    for each in items:
        rows = rows_of(each)
        groups.setdefault(max(0, 2 * before + rows - 1) // (2 * share), []).append(each)
        before += rows
    return list(groups.values())


def to_text(slices: Iterable[Slice]) -> str:
    """Return the text of slices for the option of the data source."""
    return json.dumps([list(each) for each in slices])


def from_text(text: str) -> list[Slice]:
    """Parse slices from the text that `to_text` returns.

    Raises:
        ValueError: it is something else.
    """
    rows = json.loads(text)
    try:
        return [Slice(int(low), int(high), int(count)) for low, high, count in rows]
    except TypeError as error:
        raise ValueError("the slices are no list of three numbers each") from error


def _cut(
    start: int, length_ns: int, count: int, cuts: Sequence[int], slice_rows: int
) -> list[Slice]:
    parts = max(1, count // slice_rows)
    edges = {start + length_ns * part // parts for part in range(parts + 1)}
    edges |= {edge for edge in cuts if start < edge < start + length_ns}
    ordered = sorted(edges)
    rows = count // (len(ordered) - 1)
    return [Slice(low, high, rows) for low, high in pairwise(ordered)]


def _joined(pieces: Iterable[Slice], cuts: set[int], slice_rows: int) -> list[Slice]:
    joined: list[Slice] = []
    for each in pieces:
        last = joined[-1] if joined else None
        fits = last is not None and last.rows + each.rows <= slice_rows
        if last is not None and fits and last.high_ns == each.low_ns and each.low_ns not in cuts:
            joined[-1] = Slice(last.low_ns, each.high_ns, last.rows + each.rows)
        else:
            joined.append(each)
    return joined
