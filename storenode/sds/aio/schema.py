"""The tables of a participant's state, in SQLite.

One state belongs to one participant of one channel. Rows are added and removed; only the one row
of `sds_participant` is updated in place. Lamport timestamps are unsigned 64-bit numbers, which
databases lack: they are stored minus 2^63, in the same order. IDs are stored as UTF-8 bytes: others
choose them, a database's text type does not take all of them, and bytes sort by code point as the
log does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

VERSION: Final = 2
LAMPORT_OFFSET: Final = 2**63


@dataclass(frozen=True, slots=True)
class StateTable:
    """A table whose first column is its key; ``columns`` are (name, type)."""

    name: str
    columns: tuple[tuple[str, str], ...]

    @property
    def key(self) -> str:
        """The column that rows are replaced and removed by."""
        return self.columns[0][0]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, in their order."""
        return tuple(name for name, _ in self.columns)

    def create(self) -> str:
        """Return the statement that creates the table."""
        columns = ", ".join(f"{name} {kind}" for name, kind in self.columns)
        return f"create table {self.name} ({columns}, primary key ({self.key}))"

    def insert(self) -> str:
        """Return the statement that adds a row given in the order of `names`."""
        marks = ", ".join("?" for _ in self.columns)
        return f"insert into {self.name} ({', '.join(self.names)}) values ({marks})"  # noqa: S608


_INTEGER: Final = "bigint not null"
_BYTES: Final = "blob not null"
_TEXT: Final = "text not null"

PARTICIPANT: Final = StateTable(
    "sds_participant",
    (
        ("id", _INTEGER),
        ("version", _INTEGER),
        ("channel_id", _TEXT),
        ("sender_id", _TEXT),
        ("owner", _TEXT),
        ("commits", _INTEGER),
        ("clock", _INTEGER),
        ("sends", _INTEGER),
        ("serial", _INTEGER),
        ("counts", _TEXT),
        ("gap_from_ns", "bigint"),
        ("online_ns", _INTEGER),
    ),
)
"""One row. ``commits`` counts transactions, ``serial`` messages that entered the filter;
``gap_from_ns`` is where a scan must begin, ``online_ns`` when the feed was last live."""

CURSORS: Final = StateTable("sds_cursors", (("node", _TEXT), ("cursor", _BYTES)))

LOG: Final = StateTable(
    "sds_log",
    (
        ("serial", _INTEGER),
        ("lamport", _INTEGER),
        ("message_id", _BYTES),
        ("sender_id", _BYTES),
        ("content", _BYTES),
        ("hint", "blob"),
        ("unmet", _TEXT),
        ("committed", _INTEGER),
        ("proof", _TEXT),
        ("history", _BYTES),
    ),
)
"""``serial`` is the message's place in the filter, ``committed`` the transaction that added it,
``proof`` a `storenode.sds.claims.Proof`, ``history`` as `storenode.sds.codec.encode_history`
writes it."""

LOG_ID: Final = "create index sds_log_id on sds_log (message_id)"

LOG_ORDER: Final = "create unique index sds_log_order on sds_log (lamport, message_id)"

WAITING: Final = StateTable(
    "sds_waiting",
    (("serial", _INTEGER), ("payload", _BYTES), ("hint", "blob"), ("arrived_ms", _INTEGER)),
)

UNACKNOWLEDGED: Final = StateTable(
    "sds_unacknowledged",
    (
        ("message_id", _BYTES),
        ("payload", _BYTES),
        ("due_ms", _INTEGER),
        ("sends", _INTEGER),
        ("witnesses", _TEXT),
        ("error", "double precision not null"),
    ),
)

OUTBOX: Final = StateTable(
    "sds_outbox",
    (
        ("number", _INTEGER),
        ("message_id", _BYTES),
        ("payload", _BYTES),
        ("timestamp_ns", _INTEGER),
    ),
)
"""Own messages that no node has taken yet, byte for byte as they will be published."""

LOST: Final = StateTable("sds_lost", (("message_id", _BYTES),))

ACKNOWLEDGED: Final = StateTable(
    "sds_acknowledged", (("message_id", _BYTES), ("sender_id", _BYTES))
)
"""Own messages that somebody has, and whose message showed it first."""

ALL: Final = (PARTICIPANT, CURSORS, LOG, WAITING, UNACKNOWLEDGED, OUTBOX, LOST, ACKNOWLEDGED)
