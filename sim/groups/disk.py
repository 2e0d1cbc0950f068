"""The durable state of a participant: a database in memory that outlives it, and can fail.

A transaction may be refused, or written although it reports an error; it may be the last thing
before a crash, or the first thing that a crash loses.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from sim.groups.link import ROUTE
from sim.rng import happens
from storenode.sds.aio.state import TABLES, Row, SqliteState, StateBatch, StateError

if TYPE_CHECKING:
    from sim.bridge import Life
    from sim.groups.member import Member


class Disk:
    """The database of one participant, and a plain account of it for the judge.

    Attributes:
        connection: the database; None before the first life.
        row: the participant's row.
        tables: the small tables: name -> key -> row.
        log: message ID -> row.
        away: every transaction fails.
    """

    def __init__(self) -> None:
        self.connection: Any = None
        self.row: Row = {"commits": 0, "gap_from_ns": 0}
        self.tables: dict[str, dict[Any, Row]] = {name: {} for name in TABLES}
        self.log: dict[str, Row] = {}
        self.away = False

    def backup(self) -> Disk:
        """Return a copy, as of now."""
        copy = Disk()
        copy.connection = type(self.connection)(":memory:", isolation_level=None)
        copy.connection.row_factory = self.connection.row_factory
        self.connection.backup(copy.connection)
        copy.row, copy.tables, copy.log = deepcopy((self.row, self.tables, self.log))
        return copy

    def write(self, batch: StateBatch) -> None:
        """Write all of a batch."""
        self.row.update(batch.small)
        for message_id in batch.gone:
            del self.log[message_id]
        again = [row for row in batch.log if row["message_id"].decode() in self.log]
        assert not again, f"{len(again)} messages of the log: one ID is written twice"
        self.log.update((row["message_id"].decode(), row) for row in batch.log)
        for message_id, changed in batch.updates.items():
            self.log[message_id].update(changed)
        for name, rows in batch.rows.items():
            table = self.tables[name]
            for key, row in rows.items():
                table.pop(key, None)
                if row is not None:
                    table[key] = row


class SimState(SqliteState):
    """A disk as one life of a participant has it: the shipped state, whose transactions fail."""

    def __init__(self, member: Member, life: Life) -> None:
        super().__init__(None, ROUTE.channel_id, member.name)
        self._connection = member.disk.connection
        self._member = member
        self._life = life

    @property
    def in_memory(self) -> bool:
        """A flag: False, since the disk outlives its participant."""
        return False

    def open(self) -> Row:
        """Open the database, which the first life makes."""
        row = super().open()
        self._member.disk.connection = self._connection
        return row

    def close(self) -> None:
        """Close nothing: the next life continues with the database."""

    def commit(self, batch: StateBatch) -> None:
        """Write a batch, unless something goes wrong.

        Raises:
            StateError: it may have been written or not.
            StateTakenError: the participant that writes is one of the past.
        """
        member, disk = self._member, self._member.disk
        faults, rng = member.world.faults_now, member.world.rng
        if self._life.ended:
            raise self._taken()
        self._fail(disk.away or happens(rng, faults.refused_saves))
        if happens(rng, faults.save_crashes):
            member.crash_soon("before a transaction")
            self._fail(broken=True)
        super().commit(batch)
        if batch.number > disk.row["commits"]:
            disk.write(batch)
        if happens(rng, faults.send_crashes):
            member.crash_soon("between a transaction and what follows from it")
        self._fail(happens(rng, faults.doubtful_saves))
        member.world.group_judge.saved(member.view, disk, batch)

    def messages(self, message_ids: Sequence[str]) -> list[Row]:
        """Return messages of the log by their IDs."""
        if self._member.participant is not None:
            self._member.world.counts["a message was read to answer others"] += 1
        return super().messages(message_ids)

    def _fail(self, broken: bool) -> None:
        if broken:
            world = self._member.world
            world.counts["a transaction failed"] += 1
            world.group_judge.tried(self._member.view, "a transaction")
            raise StateError("The disk fails.")
