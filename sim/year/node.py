"""A node whose certificate ends, whose store is kept by partitions, and which is upgraded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.calls import End
from sim.database import Database
from sim.node import Node
from sim.peering import Peering
from sim.process import Process
from sim.year.keeping import Archive, Shelf, maintain
from store.domain.partitioning import DAY_NS

if TYPE_CHECKING:
    from sim.year.world import YearWorld


class YearNode(Node):
    """One node.

    Attributes:
        shelf: the partitions of its store.
        certificate_until_ns: from then on its peers do not talk with it.
        refused: calls that it refused since a certificate had ended.
    """

    def __init__(
        self, world: YearWorld, number: int, database: Database, archive: Archive | None
    ) -> None:
        super().__init__(world, number, database)
        self._calendar = world.calendar
        self._others = world.nodes_by_id
        self.shelf = Shelf(world.calendar.retention_ns, archive)
        self.certificate_until_ns = 0
        self.refused = self.upgrades = 0
        # The nodes do not get theirs on one day.
        self.renew(world.timeline.now_ns - number * world.calendar.month_days // 3 * DAY_NS)
        self._others[self.who.node_id] = self

    @property
    def retention_ns(self) -> int | None:
        """How long its store keeps messages."""
        return self._calendar.retention_ns

    def renew(self, now_ns: int) -> None:
        """Take a new certificate."""
        self.certificate_until_ns = now_ns + self._calendar.certificate_days * DAY_NS

    def has_certificate(self) -> bool:
        """Is it valid now?"""
        return self.clock.unix_ns() < self.certificate_until_ns

    def begin(self, process: Process) -> None:
        """Begin everything that a life does."""
        process.begin_task("retention", maintain(process, self))
        self.peering = Peering(process, self.peers)
        self.peering.start()

    def serve(self, method: str, end: End) -> bool:
        """Take a call, where both certificates are valid."""
        if not (self.has_certificate() and self._others[end.there.node_id].has_certificate()):
            self.refused += 1
            return False
        return super().serve(method, end)
