"""Partitions of a store over a year, as the shipped rules make and drop them, and its archive."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from sim.database import Database, Unavailable
from sim.judge import Violation
from sim.limits import NS_PER_S
from sim.process import Process
from store.domain.partitioning import (
    DAY_NS,
    MAX_COARSE,
    Bounds,
    Cover,
    ahead,
    ends,
    plan_coarse,
    plan_messages,
)
from store.domain.retention import FINE_TABLE, Partition, RetentionPolicy, plan_prune

if TYPE_CHECKING:
    from sim.year.node import YearNode

_EVERY_S: Final = 6 * 3_600.0
_COARSE: Final = "hashes"
_SETTLED_NS: Final = 3_600 * NS_PER_S
"""So long after its end a day is archived."""


class Archive:
    """What the nightly job has copied of one store, day by day."""

    def __init__(self) -> None:
        self.digests: set[bytes] = set()

    def take(self, database: Database, now_ns: int) -> None:
        """Copy the days that are over."""
        end_ns = (now_ns - _SETTLED_NS) // DAY_NS * DAY_NS
        self.digests.update(digest for time_ns, digest in database.ids if time_ns < end_ns)

    def has_all(self, database: Database, bounds: Bounds) -> bool:
        """Has everything been copied that the store holds in a partition?"""
        first = bisect_left(database.ids, (bounds.low, b""))
        last = bisect_left(database.ids, (bounds.high, b""))
        return all(digest in self.digests for _, digest in database.ids[first:last])


class Shelf:
    """The partitions of a store: days of messages, and a table that looks them up.

    ``archive``: what must have a partition before it is dropped; None where nothing must.
    """

    def __init__(self, retention_ns: int, archive: Archive | None) -> None:
        self.fine: list[Bounds] = []
        self.coarse: list[Bounds] = []
        self.dropped = 0
        self._retention_ns = retention_ns
        self._archive = archive

    def keep(self, database: Database, now_ns: int) -> None:
        """Make what is lacking, and drop what may go."""
        wanted = [*ahead(now_ns), *(time_ns for time_ns, _ in database.ids)]
        self.fine = sorted([*self.fine, *plan_messages(self.fine, wanted, now_ns)])
        plan = plan_coarse(self.coarse, ends(self.fine, wanted), now_ns, self._retention_ns)
        gone = {each.old for each in plan.extensions}
        wider = [each.new for each in plan.extensions]
        kept_ones = [each for each in self.coarse if each not in gone]
        self.coarse = sorted([*kept_ones, *wider, *plan.create])
        self._prune(database, now_ns)

    def _prune(self, database: Database, now_ns: int) -> None:
        plan = plan_prune(
            _partitions(FINE_TABLE, self._droppable(database)),
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
                if table == FINE_TABLE and not self._archived(database, bounds):
                    raise Violation(f"{database.store_id} drops {bounds}, which is not archived")
            database.prune(step.horizon_ns)
        self.check(database)

    def _droppable(self, database: Database) -> list[Bounds]:
        for number, bounds in enumerate(self.fine):
            if not self._archived(database, bounds):
                return self.fine[:number]
        return self.fine

    def _archived(self, database: Database, bounds: Bounds) -> bool:
        return self._archive is None or self._archive.has_all(database, bounds)

    def check(self, database: Database) -> None:
        """Verify that each message has its places, as after `keep`.

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


async def maintain(process: Process, node: YearNode) -> None:
    """Keep the partitions of a node's store, for as long as the process lasts."""
    while True:
        try:
            await process.database.look(
                lambda: node.shelf.keep(process.database, process.clock.unix_ns())
            )
        except Unavailable:
            process.note("cannot keep its partitions")
        await asyncio.sleep(_EVERY_S)


def _partitions(table: str, bounds: Iterable[Bounds]) -> list[Partition]:
    return [Partition(table, str(each.low), each) for each in bounds]
