"""Retention: a store drops, partition by partition, what is older than it keeps."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from sim.database import Unavailable
from sim.limits import NS_PER_S
from sim.marks import Mark
from sim.process import Process
from store.domain.partitioning import Bounds
from store.domain.retention import (
    FINE_TABLE,
    Partition,
    RetentionClock,
    RetentionPolicy,
    plan_prune,
)

_EVERY_NS: Final = 2 * NS_PER_S


async def keep(process: Process, age_ns: int) -> None:
    """Drop what is older, for as long as the process lasts."""
    database, clock, policy = process.database, process.clock, RetentionPolicy(age_ns)
    witness_ns = database.committed_at_ns or clock.unix_ns()
    retention_clock = RetentionClock(witness_ns, clock.steady_ns())
    while True:
        reading = retention_clock.read(clock.unix_ns(), clock.steady_ns())
        try:
            dropped = await database.look(partial(_prune, process, policy, reading.time_ns))
        except Unavailable:
            dropped = 0
        if dropped:
            process.note(f"drops {dropped}")
            process.mark(Mark.DROPPED)
        await asyncio.sleep(clock.true_delay_ns(_EVERY_NS) / NS_PER_S)


def _prune(process: Process, policy: RetentionPolicy, now_ns: int) -> int:
    database, width_ns = process.database, process.scenario.partition_ns
    lows = sorted({time_ns - time_ns % width_ns for time_ns, _ in database.ids})
    fine = [Partition(FINE_TABLE, str(low), Bounds(low, low + width_ns)) for low in lows]
    plan = plan_prune(fine, [], policy=policy, now_ns=now_ns, horizon_ns=database.horizon_ns)
    return sum(database.prune(step.horizon_ns) for step in plan.steps)
