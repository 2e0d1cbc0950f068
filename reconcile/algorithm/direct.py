"""The answer to a whole payload by one compiled call, from an index in memory.

`reconcile.algorithm.turn` does the same step by step, for every kind of view. Here the payload
goes to the kernel as it came; only the plan is made in between, by the code that a turn uses.
Anything unusual is left to the turn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reconcile import kernel
from reconcile.algorithm.plan import Rules, SplitPlan, limited_parts, wanted_parts
from reconcile.algorithm.questions import Territory
from reconcile.algorithm.turn import Reply
from reconcile.ids import HASH_DTYPE, LOWEST, SyncIds
from storenode.message.limits import HASH_BYTES


def answer(
    data: bytes,
    head: int,
    bounds_ns: tuple[int, int],
    rules: Rules,
    memory: tuple[kernel.RowsHandle, int],
) -> tuple[Reply, Territory] | None:
    """Compute the answer to a payload from an index in memory.

    Args:
        data: the payload.
        head: how many bytes are in front of its ranges; the answer has the same there.
        bounds_ns: the bounds of the session, at the beginnings of nanoseconds.
        rules: the rules of the turn.
        memory: the index, and the time from which on it has everything.

    Returns:
        The reply, and the bounds that were asked about, before they were cut to those of the
        session; None: the case is left to a turn.
    """
    own, limits, (index, start_ns) = kernel.compiled, rules.limits.payload, memory
    if own is None:
        return None
    most = limits.max_ranges, limits.max_elements, limits.max_payload_bytes
    numbers = np.array([*most, max(0, rules.differences_left), *bounds_ns, start_ns])
    said = own.reply(index, data, head, numbers, _Planner(rules))
    if said is None:
        return None
    payload, own_count, lower_ns, upper_ns, *found = said
    reply = Reply(payload, [_ids(*found[:2])], [_ids(*found[2:])], False, own_count)
    return reply, ((lower_ns, LOWEST[1]), (upper_ns, LOWEST[1]))


class _Planner:
    """The plan of an answer, for which the kernel asks about the ranges of a payload."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._plan: SplitPlan

    def search(self, stored: int, packed: bytes, flags: bytes) -> bytes:
        """Return the ranges to search for one ID that may be all of a difference: a byte each.

        Args:
            stored: the number of own IDs in all of them.
            packed: the number in each.
            flags: of each: 1, the fingerprint is of all of it; 2, it differs; 4, it is not zero.
        """
        self._sizes, bits = np.frombuffer(packed, np.int64), np.frombuffer(flags, np.uint8)
        known = (bits & 1).nonzero()[0]
        self._plan = SplitPlan.of(self._rules, stored, self._sizes[known], (bits[known] & 2) != 0)
        self._hollow = (bits & (1 | 4)) == 1
        probed: NDArray[np.bool_] = bits == (1 | 2 | 4)
        rows = probed.nonzero()[0]
        counts = self._sizes[rows]
        probed[rows] = (counts > 0) & self._plan.worth_probing(counts)
        self._probed = probed
        return probed.tobytes()

    def parts(self, unsettled: bytes) -> bytes:
        """Return into how many parts to split ranges that differ, then the number of gauges."""
        if not any(unsettled):
            return bytes(8 * (len(unsettled) + 1))
        rows = np.frombuffer(unsettled, np.bool_).nonzero()[0]
        sizes, limits = self._sizes[rows], self._rules.limits.payload
        parts = np.zeros(len(self._sizes) + 1, np.int64)
        beside = self._probed[rows], self._hollow[rows]
        wanted = wanted_parts(self._plan, sizes, *beside, limits)
        parts[rows] = limited_parts(wanted, sizes, limits)
        parts[-1] = self._rules.tuning.gauges if self._plan.gauge else 0
        return parts.tobytes()


def _ids(times: bytes, hashes: bytes) -> SyncIds:
    if not times:
        return SyncIds.empty()
    rows: NDArray[np.uint8] = np.frombuffer(hashes, HASH_DTYPE).reshape(-1, HASH_BYTES)
    return SyncIds(np.frombuffer(times, np.int64), rows)
