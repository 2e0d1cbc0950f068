"""The partitions of a store over a year, as the shipped rules make and drop them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from sim.database import Database, Unavailable
from sim.judge import Violation
from sim.process import Process
from store.domain.partitioning import (
    MAX_COARSE,
    Bounds,
    Cover,
    ahead,
    ends,
    plan_coarse,
    plan_messages,
)
from store.domain.retention import FINE_TABLE, Partition, RetentionPolicy, plan_prune

_EVERY_S: Final = 6 * 3_600.0
_COARSE: Final = "hashes"


class Partitions:
    """The partitions of a store: days of messages, and a table that looks them up."""

    def __init__(self, retention_ns: int) -> None:
        self.fine: list[Bounds] = []
        self.coarse: list[Bounds] = []
        self.dropped = 0
        self._retention_ns = retention_ns

    def maintain(self, database: Database, now_ns: int) -> None:
        """Create what is lacking, and drop what is too old."""
        wanted = [*ahead(now_ns), *(time_ns for time_ns, _ in database.ids)]
        self.fine = sorted([*self.fine, *plan_messages(self.fine, wanted, now_ns)])
        plan = plan_coarse(self.coarse, ends(self.fine, wanted), now_ns, self._retention_ns)
        gone = {each.old for each in plan.extensions}
        wider = [each.new for each in plan.extensions]
        remaining = [each for each in self.coarse if each not in gone]
        self.coarse = sorted([*remaining, *wider, *plan.create])
        self._prune(database, now_ns)

    def _prune(self, database: Database, now_ns: int) -> None:
        plan = plan_prune(
            _partitions(FINE_TABLE, self.fine),
            [_partitions(_COARSE, self.coarse)],
            policy=RetentionPolicy(self._retention_ns),
            now_ns=now_ns,
            horizon_ns=database.horizon_ns,
        )
        for step in plan.steps:
            for drop in step.drops:
                bounds, table = drop.partition.bounds, drop.partition.table
                (self.fine if table == FINE_TABLE else self.coarse).remove(bounds)
                self.dropped += 1
            database.prune(step.horizon_ns)
        self.check(database)

    def check(self, database: Database) -> None:
        """Verify that each message has its partitions, as after `maintain`.

        Raises:
            Violation: one has not, or there are too many tables.
        """
        for bounds in (self.fine, self.coarse):
            cover = Cover(bounds)
            cover.check()
            if any(cover.find(time_ns) is None for time_ns, _ in database.ids):
                raise Violation(f"{database.store_id} holds a message without a partition")
        if len(self.coarse) > MAX_COARSE:
            raise Violation(f"{database.store_id} has {len(self.coarse)} coarse partitions")


async def maintain(process: Process, partitions: Partitions) -> None:
    """Keep up the partitions of a node's store for as long as the process lasts."""
    database, clock = process.database, process.clock
    while True:
        try:
            await database.look(lambda: partitions.maintain(database, clock.unix_ns()))
        except Unavailable:
            process.note("cannot maintain its partitions")
        await asyncio.sleep(_EVERY_S)


def _partitions(table: str, bounds: Iterable[Bounds]) -> list[Partition]:
    return [Partition(table, str(each.low), each) for each in bounds]
