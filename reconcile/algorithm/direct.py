"""The answer to a whole payload by one compiled call, from an index in memory.

`reconcile.algorithm.turn` does the same step by step, for every kind of view. Here the payload
goes to the kernel as it came; only the plan is made in between, by the code that a turn uses.
Anything unusual is left to the turn.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from reconcile import kernel
from reconcile.algorithm.plan import (
    RATE_EDGES,
    SIZE_EDGES,
    RangeSample,
    SplitPlan,
    likeliest,
    tables,
)
from reconcile.algorithm.questions import Territory
from reconcile.algorithm.turn import Reply, Rules
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
    said = own.reply(index, data, head, numbers, partial(_plan, rules))
    if said is None:
        return None
    payload, own_count, lower_ns, upper_ns, *found = said
    reply = Reply(payload, [_ids(*found[:2])], [_ids(*found[2:])], False, own_count)
    return reply, ((lower_ns, LOWEST[1]), (upper_ns, LOWEST[1]))


def _plan(rules: Rules, own_count: int, sample: bytes) -> tuple[kernel.Column, ...]:
    """Return the plan as columns: see `make_plan` in `reconcile/native/choice.c`."""
    tuning = rules.tuning
    compared = _sample_of(sample) if rules.ordinal > 2 else None
    known = None if compared is None else likeliest(compared)
    large = own_count >= tuning.large_count if rules.large is None else rules.large
    plan = SplitPlan(tuning, rules.ordinal, large, known)
    numbers = np.array(
        [
            known is not None,
            plan.first_parts,
            tuning.min_parts if plan.depth > 1 else 0,
            -1 if plan.depth else tuning.largest_late_set,
            tuning.gauges if plan.gauge else 0,
        ]
    )
    density = np.array([0.0 if known is None else known.density])
    table = tables(plan.depth)
    choices = table.probe, table.after_probe, table.unprobed, tables(2).after_probe
    return numbers, density, SIZE_EDGES, RATE_EDGES, *choices


def _ids(times: bytes, hashes: bytes) -> SyncIds:
    if not times:
        return SyncIds.empty()
    rows: NDArray[np.uint8] = np.frombuffer(hashes, HASH_DTYPE).reshape(-1, HASH_BYTES)
    return SyncIds(np.frombuffer(times, np.int64), rows)


def _sample_of(packed: bytes) -> RangeSample | None:
    numbers = np.frombuffer(packed, np.int64)
    count, least, most = numbers[:3].tolist()
    if not count:
        return None
    total, different, items = numbers[3:].reshape(3, -1)
    return RangeSample(least, most, total, different, items)
