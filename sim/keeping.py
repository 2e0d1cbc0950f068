"""Retention: a store drops, partition by partition, what is older than it keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from sim.database import Unavailable
from sim.limits import NS_PER_S
from sim.marks import Mark
from sim.process import Handler, Process
from sim.tasks import Steps
from store.domain.partitioning import Bounds
from store.domain.retention import FINE_TABLE, Partition, RetentionPolicy, plan_prune
from store.domain.retention_clock import RetentionClock

_EVERY_NS: Final = 2 * NS_PER_S


class Keeper:
    """The retention of one process; a `sim.process.Service`."""

    def __init__(self, process: Process, age_ns: int | None) -> None:
        self._process = process
        self._age_ns = age_ns

    def methods(self) -> Mapping[str, Handler]:
        """None."""
        return {}

    def letters(self) -> Mapping[type, Callable[[str, Any], None]]:
        """None."""
        return {}

    def start(self) -> None:
        """Begin, if there is anything to do."""
        if self._age_ns is not None:
            self._process.spawn("retention", self._run(RetentionPolicy(self._age_ns)))

    def check(self) -> None:
        """Nothing is kept."""

    def _run(self, policy: RetentionPolicy) -> Steps[None]:
        process, database, clock = self._process, self._process.database, self._process.clock
        witness_ns = database.committed_at_ns or clock.unix_ns()
        retention_clock = RetentionClock(witness_ns, clock.steady_ns())
        while True:
            reading = retention_clock.read(clock.unix_ns(), clock.steady_ns())
            try:
                prune = partial(self._prune, policy, reading.time_ns)
                dropped = yield from database.look(prune).wait()
            except Unavailable:
                dropped = 0
            if dropped:
                process.note(f"drops {dropped}")
                process.mark(Mark.DROPPED)
            yield from process.sleep(_EVERY_NS)

    def _prune(self, policy: RetentionPolicy, now_ns: int) -> int:
        database, width_ns = self._process.database, self._process.scenario.partition_ns
        lows = sorted({time_ns - time_ns % width_ns for time_ns, _ in database.ids})
        fine = [Partition(FINE_TABLE, str(low), Bounds(low, low + width_ns)) for low in lows]
        plan = plan_prune(fine, [], policy=policy, now_ns=now_ns, horizon_ns=database.horizon_ns)
        return sum(database.prune(step.horizon_ns) for step in plan.steps)
