"""The durable state of a participant: tables in memory that outlive it, and can fail.

A transaction may be refused, or written although it reports an error; it may be the last thing
before a crash, or the first thing that a crash loses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sim.rng import happens
from storenode.sds.aio.state import (
    LAMPORT_OFFSET,
    TABLES,
    Row,
    StateBatch,
    StateError,
    StateTaken,
    StoredEntry,
)
from storenode.sds.log import Key

if TYPE_CHECKING:
    from sim.bridge import Life
    from sim.groups.member import Member


class Disk:
    """The durable tables of one participant.

    Attributes:
        row: the participant's row.
        tables: the small tables: name -> key -> row.
        log: message ID -> row.
        away: every transaction fails.
    """

    def __init__(self) -> None:
        self.row: Row = {"commits": 0, "serial": 0, "gap_from_ns": 0, "online_ns": 0}
        self.tables: dict[str, dict[Any, Row]] = {name: {} for name in TABLES}
        self.log: dict[str, Row] = {}
        self.away = False

    def write(self, batch: StateBatch) -> None:
        """Write all of a batch."""
        self.row.update(batch.small)
        for message_id in batch.gone:
            del self.log[message_id]
        again = [row for row in batch.log if row["message_id"].decode() in self.log]
        assert not again, f"{len(again)} messages of the log: one ID is written twice"
        self.log.update((row["message_id"].decode(), row) for row in batch.log)
        for message_id, hint in batch.hints.items():
            self.log[message_id]["hint"] = hint
        for name, rows in batch.rows.items():
            table = self.tables[name]
            for key, row in rows.items():
                table.pop(key, None)
                if row is not None:
                    table[key] = row

    def in_order(self) -> list[Row]:
        """Return the log in its order."""
        return sorted(self.log.values(), key=_place)


class SimState:
    """A disk as one life of a participant has it: a `storenode.sds.aio.state.DurableState`."""

    in_memory = False

    def __init__(self, member: Member, life: Life) -> None:
        self.shown = f"of {member.name}"
        self._member = member
        self._disk = member.disk
        self._life = life

    def open(self) -> Row:
        """Return the participant's row as it was written last."""
        return dict(self._disk.row)

    def close(self) -> None:
        """Close nothing: there are no files."""

    def commit(self, batch: StateBatch) -> None:
        """Write a batch, unless something goes wrong.

        Raises:
            StateError: it may have been written or not.
            StateTaken: the participant that writes is one of the past.
        """
        member, disk = self._member, self._disk
        faults, rng = member.world.faults_now, member.world.rng
        if self._life.ended or batch.number not in (disk.row["commits"], disk.row["commits"] + 1):
            raise StateTaken("The state has another participant.")
        self._fail(disk.away or happens(rng, faults.refused_saves))
        if happens(rng, faults.save_crashes):
            member.crash_soon("before a transaction")
            self._fail(broken=True)
        if batch.number > disk.row["commits"]:
            disk.write(batch)
        if happens(rng, faults.send_crashes):
            member.crash_soon("between a transaction and what follows from it")
        self._fail(happens(rng, faults.doubtful_saves))
        with member.world.judging():
            member.world.group_judge.saved(member.view, disk, batch)

    def _fail(self, broken: bool) -> None:
        if broken:
            self._member.world.counts["a transaction failed"] += 1
            world, view = self._member.world, self._member.view
            with world.judging():
                world.group_judge.tried(view, "a transaction", world.timeline.now_ns)
            raise StateError("The disk fails.")

    def rows(self, name: str) -> list[Row]:
        """Return all rows of a small table."""
        table = self._disk.tables[name]
        return [table[key] for key in sorted(table)]

    def entries(self) -> Iterator[StoredEntry]:
        """Yield the log in order."""
        for row in self._disk.in_order():
            lamport, message_id = _key(row)
            sender_id = row["sender_id"].decode()
            yield StoredEntry(
                lamport, message_id, sender_id, row["hint"], row["serial"], row["proof"]
            )

    def page(
        self, limit: int, *, after: Key | None, before: Key | None, committed: int
    ) -> list[Row]:
        """Return messages of the log in order."""
        known = self._disk.tables["acknowledged"]
        found = [
            {**row, "acknowledged_by": known.get(row["message_id"], {}).get("sender_id")}
            for row in self._disk.in_order()
            if row["committed"] <= committed
        ]
        if after is not None:
            return [row for row in found if _key(row) > after][:limit]
        return [row for row in found if before is None or _key(row) < before][-limit:]

    def messages(self, message_ids: Sequence[str]) -> list[Row]:
        """Return messages of the log by their IDs."""
        if self._member.participant is not None:
            self._member.world.counts["a message was read to answer others"] += 1
        return [self._disk.log[name] for name in message_ids if name in self._disk.log]


def _place(row: Row) -> tuple[int, bytes]:
    return row["lamport"], row["message_id"]


def _key(row: Row) -> Key:
    return row["lamport"] + LAMPORT_OFFSET, row["message_id"].decode()
