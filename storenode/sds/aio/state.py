"""A participant's state in SQLite: opened by one process at a time, written atomically.

One state belongs to one participant of one channel. Rows are added and removed; only the one row
of ``sds_participant`` is updated in place. Lamport timestamps are unsigned 64-bit numbers, which
SQLite lacks: they are stored minus 2^63, in the same order. IDs are stored as UTF-8 bytes, which
sort by code point as the log does.

Everything here blocks, and a state is used in one thread. The database's own lock keeps a second
process out, and so does the owner's name in the participant's row: a process that finds another
name there has lost the state, and writes nothing more. So a file may be closed between two
transactions: many channels share a few threads, each of which has a bounded number of files open.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from storenode.common.errors import StorenodeError
from storenode.sds.claims import Proof, Unproven
from storenode.sds.log import Key, LogEntry

Row = dict[str, Any]
Rows = dict[Any, Row | None]
"""Rows by key; None removes one."""

VERSION: Final = 3
LAMPORT_OFFSET: Final = 2**63

TABLES: Final = {
    "cursors": "node",
    "waiting": "serial",
    "unacknowledged": "message_id",
    "outbox": "number",
    "lost": "message_id",
}
"""The tables whose rows are replaced by key, without their prefix, and that key."""

_SCHEMA: Final = (
    # One row. ``commits`` counts transactions, ``serial`` messages that entered the filter;
    # ``gap_from_ns`` is where a scan must begin, ``online_ns`` when the feed was last live.
    """create table sds_participant (
        version bigint not null, channel_id text not null, sender_id text not null,
        owner text not null default '', commits bigint not null default 0,
        clock bigint not null default 0, sends bigint not null default 0,
        serial bigint not null default 0, counts text not null default '',
        gap_from_ns bigint default 0, online_ns bigint not null default 0)""",
    "create table sds_cursors (node text primary key, cursor blob not null)",
    # ``serial`` is the message's place in the filter, ``committed`` the transaction that added it.
    # ``proof`` is a `storenode.sds.claims.Proof`, ``digest`` that of an `Unproven` message, and
    # ``acknowledged_by`` whose message showed first that somebody has an own one.
    """create table sds_log (
        serial bigint primary key, lamport bigint not null, message_id blob not null,
        sender_id blob not null, content blob not null, hint blob, unmet text not null,
        committed bigint not null, proof text not null, digest blob, history blob not null,
        acknowledged_by blob)""",
    "create unique index sds_log_order on sds_log (lamport, message_id)",
    "create index sds_log_id on sds_log (message_id)",
    """create table sds_waiting (
        serial bigint primary key, payload blob not null, hint blob, arrived_ms bigint not null)""",
    """create table sds_unacknowledged (
        message_id blob primary key, due_ms bigint not null, sends bigint not null,
        witnesses text not null, error double precision not null)""",
    # Own messages that no node has taken yet, byte for byte as they will be published.
    """create table sds_outbox (
        number bigint primary key, message_id blob not null, payload blob not null,
        timestamp_ns bigint not null)""",
    "create table sds_lost (message_id blob primary key)",
)

_LOCK_WAIT_S: Final = 1
_EXISTS: Final = "select 1 from sqlite_master where name = 'sds_participant'"
_PAGE: Final = "select * from sds_log where committed <= :committed and"
_AFTER: Final = "(lamport, message_id) > (:lamport, :message_id) order by lamport, message_id"
_BEFORE: Final = (
    "(lamport, message_id) < (:lamport, :message_id) order by lamport desc, message_id desc"
)
_END: Final = {"lamport": 2**63 - 1, "message_id": b"\xff"}
"""A place after all messages: no UTF-8 has this byte."""


class StateError(StorenodeError):
    """The state cannot be used, now or at all; the text is one sentence."""


class StateTakenError(StateError):
    """An error for a state that another process uses."""


@dataclass(slots=True)
class StateBatch:
    """The content of one transaction.

    ``small`` are columns of the participant's row; ``gone`` leave the log before ``log`` is added,
    whose older messages get new values from ``updates``.
    """

    number: int
    small: Row
    gone: list[str]
    log: list[Row]
    updates: dict[str, Row]
    rows: dict[str, Rows]


class SqliteState:
    """A state in a file, or with None in memory.

    Every method blocks, is called from one thread, and may raise `StateError`.
    """

    def __init__(self, path: str | Path | None, channel_id: str, sender_id: str) -> None:
        self._path = "" if path is None else str(path)
        scheme, mark, _ = self._path.partition("://")
        if mark:
            raise StateError(f"The state is a URL of {scheme!r}: name a file.")
        self._identity = channel_id, sender_id
        self._owner = uuid.uuid4().hex
        self._connection: sqlite3.Connection | None = None
        self.thread: StateThread | None = None

    @property
    def in_memory(self) -> bool:
        """A flag: it ends with the process, so a failed transaction is not tried again."""
        return not self._path

    @property
    def shown(self) -> str:
        """The place, for messages."""
        return self._path or "in memory"

    def open(self) -> Row:
        """Connect, lock, and make what is not there; return the participant's row.

        Raises:
            StateTakenError: Another process has it.
        """
        with self._transaction() as database:
            if database.execute(_EXISTS).fetchone() is None:
                for statement in _SCHEMA:
                    database.execute(statement)
                first = (
                    "insert into sds_participant (version, channel_id, sender_id) values (?, ?, ?)"
                )
                database.execute(first, (VERSION, *self._identity))
            row = dict(database.execute("select * from sds_participant").fetchone())
            self._check(row)
            database.execute("update sds_participant set owner = ?", (self._owner,))
            return row

    def close(self) -> None:
        """Close the database and give up its lock."""
        if self.thread is not None:
            self.thread.forget(self)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def commit(self, batch: StateBatch) -> None:
        """Write a batch; nothing happens when it was written before.

        Raises:
            StateTakenError: Another process took the state.
            StateError: The database failed; the same batch may be tried again.
        """
        try:
            with self._transaction() as database:
                if self._advance(database, batch):
                    _write(database, batch)
        except StateError:
            # A database in memory is its connection.
            if not self.in_memory:
                self.close()
            raise

    def rows(self, name: str) -> list[Row]:
        """Return all rows of a small table, in the order of their keys."""
        with self._transaction() as database:
            chosen = f"select * from sds_{name} order by {TABLES[name]}"  # noqa: S608
            return [dict(row) for row in database.execute(chosen)]

    def entries(self) -> Iterator[LogEntry]:
        """Yield the log in the order of coming."""
        chosen = "select lamport, message_id, sender_id, hint from sds_log order by serial"
        with self._transaction() as database:
            for lamport, message_id, sender_id, hint in database.execute(chosen):
                names = message_id.decode(), sender_id.decode()
                yield LogEntry(lamport + LAMPORT_OFFSET, *names, hint)

    def since(self, serial: int) -> list[tuple[int, str]]:
        """Return the serials and IDs of the messages of the log from a serial on, in order."""
        chosen = "select serial, message_id from sds_log where serial >= ? order by serial"
        with self._transaction() as database:
            return [(found, name.decode()) for found, name in database.execute(chosen, (serial,))]

    def unproven(self) -> Iterator[tuple[str, Unproven]]:
        """Yield what is kept of the messages that are not proven, in the order of their coming."""
        chosen = (
            "select message_id, lamport, digest, proof from sds_log where digest is not null"
            " order by serial"
        )
        with self._transaction() as database:
            for name, lamport, digest, proof in database.execute(chosen):
                own = proof == Proof.OWN.value
                yield name.decode(), Unproven(lamport + LAMPORT_OFFSET, digest, own)

    def unacknowledged(self) -> list[Row]:
        """Return the unacknowledged messages in order, with their rows of the log."""
        chosen = "select * from sds_log join sds_unacknowledged using (message_id) order by lamport"
        with self._transaction() as database:
            return [dict(row) for row in database.execute(chosen)]

    def messages(self, message_ids: Sequence[str]) -> list[Row]:
        """Return messages of the log by their IDs."""
        chosen = "select * from sds_log where message_id = ?"
        with self._transaction() as database:
            names = (name.encode() for name in message_ids)
            return [dict(row) for name in names for row in database.execute(chosen, (name,))]

    def page(
        self, limit: int, *, after: Key | None, before: Key | None, committed: int
    ) -> list[Row]:
        """Return messages of the log in order, of transactions up to ``committed``.

        They are the first after a key, or the last before one, or with neither the last of all.
        """
        values: Row = {"committed": committed, "limit": limit}
        where = _BEFORE if after is None else _AFTER
        if (key := after or before) is None:
            values |= _END
        else:
            values |= {"lamport": key[0] - LAMPORT_OFFSET, "message_id": key[1].encode()}
        with self._transaction() as database:
            chosen = database.execute(f"{_PAGE} {where} limit :limit", values)
            found = [dict(row) for row in chosen]
        return found if after is not None else found[::-1]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            if self.thread is not None:
                self.thread.use(self)
            connection = self._connected()
            try:
                # Nobody else can come before this transaction.
                connection.execute("begin immediate")
                yield connection
                connection.execute("commit")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.rollback()
                raise
        except sqlite3.Error as error:
            cause = " ".join(str(error).split())
            if "database is locked" in cause:
                raise self._taken() from error
            raise StateError(f"The state {self.shown} cannot be used ({cause}).") from error

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(
                self._path or ":memory:",
                timeout=_LOCK_WAIT_S,
                check_same_thread=False,
                isolation_level=None,
            )
            self._connection = connection
            connection.row_factory = sqlite3.Row
            for pragma in ("locking_mode = exclusive", "journal_mode = wal", "synchronous = full"):
                connection.execute(f"pragma {pragma}")
        return self._connection

    def _check(self, row: Row) -> None:
        if row["version"] != VERSION:
            raise StateError(
                f"The state {self.shown} has version {row['version']}, and this program reads "
                f"{VERSION}: begin a new state, and the past of the channel is read from its nodes."
            )
        found = row["channel_id"], row["sender_id"]
        if found != self._identity:
            raise StateError(
                f"The state {self.shown} is of channel {found[0]!r} and sender "
                f"{found[1]!r}: each participant needs one of its own."
            )

    def _advance(self, database: sqlite3.Connection, batch: StateBatch) -> bool:
        """Take the participant's row a step on; return False when this step was made before."""
        names = ", ".join(f"{name} = :{name}" for name in batch.small)
        step = f"update sds_participant set {names} where owner = :owner and commits = :before"  # noqa: S608
        values = {**batch.small, "owner": self._owner, "before": batch.number - 1}
        if database.execute(step, values).rowcount == 1:
            return True
        mine = "select commits from sds_participant where owner = ?"
        found = database.execute(mine, (self._owner,)).fetchone()
        if found is None or found["commits"] != batch.number:
            raise self._taken()
        return False

    def _taken(self) -> StateTakenError:
        return StateTakenError(
            f"The state {self.shown} is in use by another process: end that one, or give "
            "this one a state of its own."
        )


class StateThread:
    """A thread, and the states that are open in it, the one used last at the end."""

    def __init__(self, max_open: int) -> None:
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="sds-states")
        self._max_open = max_open
        self._open: dict[SqliteState, None] = {}

    def use(self, state: SqliteState) -> None:
        """Note the use of a state, after closing those that were unused for longest."""
        self.forget(state)
        while len(self._open) >= self._max_open:
            next(iter(self._open)).close()
        self._open[state] = None

    def forget(self, state: SqliteState) -> None:
        """Forget a state that is closed."""
        self._open.pop(state, None)


def _insert(database: sqlite3.Connection, table: str, rows: Iterable[Row]) -> None:
    given = list(rows)
    if given:
        names, marks = ", ".join(given[0]), ", ".join(f":{name}" for name in given[0])
        database.executemany(f"insert into {table} ({names}) values ({marks})", given)  # noqa: S608


def _write(database: sqlite3.Connection, batch: StateBatch) -> None:
    withdraw = "delete from sds_log where message_id = ?"
    database.executemany(withdraw, [(name.encode(),) for name in batch.gone])
    _insert(database, "sds_log", batch.log)
    for name, changed in batch.updates.items():
        columns = ", ".join(f"{column} = :{column}" for column in changed)
        update = f"update sds_log set {columns} where message_id = :name"  # noqa: S608
        database.execute(update, {**changed, "name": name.encode()})
    for name, rows in batch.rows.items():
        gone = f"delete from sds_{name} where {TABLES[name]} = ?"  # noqa: S608
        database.executemany(gone, [(key,) for key in rows])
        _insert(database, f"sds_{name}", (row for row in rows.values() if row is not None))
