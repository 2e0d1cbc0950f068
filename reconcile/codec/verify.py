"""The order that bounds and items must have, for ranges that were read in bulk."""

import numpy as np
from numpy.typing import NDArray

from reconcile.codec.ranges import RangeKind, Ranges
from reconcile.ids import LOWEST, SyncIds, from_opaque, hashes_less

Rows = NDArray[np.int64]


def in_order(ranges: Ranges) -> bool:
    """Do bounds ascend, and items ascend inside their ranges."""
    if not (_ascend(ranges.upper) and _ascend(ranges.items)):
        return False
    if len(ranges) and ranges.upper.at(0) == LOWEST:
        return False
    filled = ranges.item_counts.nonzero()[0]
    owners = (ranges.kinds == RangeKind.ITEM_SET).nonzero()[0][filled]
    ends = ranges.item_offsets[filled + 1]
    firsts = ends - ranges.item_counts[filled]
    # The first range begins at the lowest ID there is: nothing is below.
    bounded = int(len(owners) > 0 and owners[0] == 0)
    return bool(
        not _less(ranges.items, firsts[bounded:], ranges.upper, owners[bounded:] - 1).any()
        and _less(ranges.items, ends - 1, ranges.upper, owners).all()
    )


def _ascend(ids: SyncIds) -> bool:
    """Is each greater than the one before it."""
    times = ids.timestamps
    if (times[1:] < times[:-1]).any():
        return False
    ties = (times[1:] == times[:-1]).nonzero()[0]
    return not len(ties) or bool(_less(ids, ties, ids, ties + 1).all())


def _less(left: SyncIds, left_rows: Rows, right: SyncIds, right_rows: Rows) -> NDArray[np.bool_]:
    """``(n,)``: is one row of ``left`` before another of ``right``; few hashes are touched."""
    before, after = left.timestamps[left_rows], right.timestamps[right_rows]
    result = before < after
    ties = (before == after).nonzero()[0]
    if len(ties):
        result[ties] = hashes_less(
            from_opaque(left.opaque[left_rows[ties]]),
            from_opaque(right.opaque[right_rows[ties]]),
        )
    return result
