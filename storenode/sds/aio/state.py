"""A participant's state in SQLite: opened by one process at a time, written atomically.

Everything here blocks and is called from one thread. The database's own lock keeps a second process
out, and so does the owner's name in the participant's row: a process that finds another name there
has lost the state.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from storenode.common.errors import StorenodeError
from storenode.sds.aio.ledger import TABLES, Row, StateBatch
from storenode.sds.aio.schema import (
    ALL,
    LAMPORT_OFFSET,
    LOG,
    LOG_ID,
    LOG_ORDER,
    PARTICIPANT,
    VERSION,
    StateTable,
)
from storenode.sds.pages import Key

_LOCK_WAIT_S: Final = 1
_EXISTS: Final = "select 1 from sqlite_master where name = ?"
_CLAIM: Final = "update sds_participant set owner = ?"
_COMMITS: Final = "select commits from sds_participant where id = 1 and owner = ?"
_HINT: Final = "update sds_log set hint = ? where message_id = ?"
_WITHDRAW: Final = "delete from sds_log where message_id = ?"
_ACKNOWLEDGED: Final = "select sender_id from sds_acknowledged where message_id = ?"
_UNKNOWN: Final = (
    "delete from sds_acknowledged where message_id not in (select message_id from sds_log)"
)
_ALL: Final = 2**63 - 1
_LATER: Final = "(lamport > ? or (lamport = ? and message_id > ?))"
_EARLIER: Final = "(lamport < ? or (lamport = ? and message_id < ?))"


class StateError(StorenodeError):
    """The state cannot be used, now or at all; the text is one sentence."""


class StateTaken(StateError):
    """An error for a state that another process uses."""


@dataclass(frozen=True, slots=True)
class StateIdentity:
    """The channel and the sender of a state."""

    channel_id: str
    sender_id: str


class DurableState(Protocol):
    """The interface of a participant's state; `State` is one in a database.

    Every method blocks, is called from one thread, and may raise `StateError`.
    """

    @property
    def in_memory(self) -> bool:
        """A flag: it ends with the process, so a failed transaction is not tried again."""

    @property
    def shown(self) -> str:
        """The place, for messages."""

    def open(self) -> Row:
        """Open the state, and return the participant's row."""

    def close(self) -> None:
        """Close the state."""

    def commit(self, batch: StateBatch) -> None:
        """Write a batch whole or not at all; nothing happens when it was written before."""

    def rows(self, name: str) -> list[Row]:
        """Return all rows of a small table, in the order of their keys."""

    def log_length(self) -> int:
        """Return the number of messages of the log."""

    def log_ids(self, limit: int) -> Iterator[str]:
        """Yield the IDs of the oldest messages of the log."""

    def log_entries(self, skip: int) -> Iterator[tuple[int, str, str, bytes | None]]:
        """Yield Lamport timestamp, ID, sender and hint of the log in order, but the oldest."""

    def newest_ids(self, count: int) -> list[tuple[int, str]]:
        """Return the delivered messages that came last, with their serial numbers."""

    def unproven(self, limit: int) -> Iterator[tuple[str, int, str, bytes, str]]:
        """Yield ID, clock, sender, content and proof of the newest messages without proof."""

    def unproven_ids(self) -> Iterator[str]:
        """Yield the IDs of all messages of the log of which nothing is proven."""

    def page(
        self, limit: int, *, after: Key | None, before: Key | None, committed: int
    ) -> list[Row]:
        """Return messages of the log in order, of transactions up to ``committed``.

        They are the first after a key, or the last before one, or with neither the last of all.
        Rows have ``acknowledged_by`` too: None for those without acknowledgement.
        """

    def messages(self, message_ids: Sequence[str]) -> list[Row]:
        """Return messages of the log by their IDs."""


class _Transaction:
    """The statements of one transaction."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor

    def run(self, text: str, *values: Any) -> sqlite3.Cursor:  # noqa: ANN401 - of any column
        return self._cursor.execute(text, values)

    def many(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        self._cursor.executemany(text, rows)

    def insert(self, table: StateTable, rows: Iterable[Row]) -> None:
        self.many(table.insert(), [[row[name] for name in table.names] for row in rows])

    def one(self, text: str, *values: Any) -> Any:  # noqa: ANN401 - of any column
        """Return the only column of the only row; None where there is no row."""
        found = self.run(text, *values).fetchone()
        return None if found is None else found[0]

    def rows(self, table: StateTable, rest: str, *values: Any) -> list[Row]:  # noqa: ANN401 - as above
        """Return whole rows of a table."""
        found = self.run(f"select {', '.join(table.names)} from {table.name} {rest}", *values)  # noqa: S608
        return [dict(zip(table.names, row, strict=True)) for row in found.fetchall()]


class SqliteState:
    """An open state. Every method may raise `StateError`."""

    def __init__(self, path: str | Path | None, identity: StateIdentity) -> None:
        self._path = "" if path is None else str(path)
        scheme, mark, _ = self._path.partition("://")
        if mark:
            raise StateError(f"The state is a URL of {scheme!r}: name a file.")
        self._identity = identity
        self._owner = uuid.uuid4().hex
        self._connection: sqlite3.Connection | None = None

    @property
    def in_memory(self) -> bool:
        """A flag: it ends with the process."""
        return not self._path

    @property
    def shown(self) -> str:
        """The place, for messages."""
        return self._path or "in memory"

    def open(self) -> Row:
        """Connect, lock, and make what is not there; the participant's row.

        Raises:
            StateTaken: Another process has it.
        """
        with self._transaction() as transaction:
            return self._claim(transaction)

    def close(self) -> None:
        """Close the database and give up its lock."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def commit(self, batch: StateBatch) -> None:
        """Write a batch; nothing happens when it was written before.

        Raises:
            StateTaken: Another process took the state.
            StateError: The database failed; the same batch may be tried again.
        """
        try:
            with self._transaction() as transaction:
                if self._advance(transaction, batch):
                    _write(transaction, batch)
                    if batch.pruned is not None and self.in_memory:
                        _forget(transaction, batch.pruned)
        except StateError:
            self._drop_connection()
            raise

    def rows(self, name: str) -> list[Row]:
        """Return all rows of a small table, in the order of their keys."""
        table = TABLES[name]
        with self._transaction() as transaction:
            return transaction.rows(table, f"order by {table.key}")

    def log_length(self) -> int:
        """Return the number of messages of the log."""
        with self._transaction() as transaction:
            return int(transaction.one("select count(*) from sds_log"))

    def log_ids(self, limit: int) -> Iterator[str]:
        """Yield the IDs of the oldest messages of the log."""
        chosen = "select message_id from sds_log order by lamport, message_id limit ?"
        with self._transaction() as transaction:
            for (message_id,) in transaction.run(chosen, limit):
                yield message_id.decode()

    def log_entries(self, skip: int) -> Iterator[tuple[int, str, str, bytes | None]]:
        """Yield Lamport timestamp, ID, sender and hint of the log, without the oldest."""
        chosen = (
            "select lamport, message_id, sender_id, hint from sds_log "
            "order by lamport, message_id limit ? offset ?"
        )
        with self._transaction() as transaction:
            for lamport, message_id, sender_id, hint in transaction.run(chosen, _ALL, skip):
                yield lamport + LAMPORT_OFFSET, message_id.decode(), sender_id.decode(), hint

    def newest_ids(self, count: int) -> list[tuple[int, str]]:
        """Return the delivered messages that came last, with their serial numbers."""
        chosen = "select serial, message_id from sds_log order by serial desc limit ?"
        with self._transaction() as transaction:
            return [(serial, name.decode()) for serial, name in transaction.run(chosen, count)]

    def unproven(self, limit: int) -> Iterator[tuple[str, int, str, bytes, str]]:
        """Yield as `DurableState.unproven`."""
        chosen = (
            "select message_id, lamport, sender_id, content, proof from sds_log "
            "where proof in ('', 'own') order by serial desc limit ?"
        )
        with self._transaction() as transaction:
            for name, lamport, sender_id, content, proof in transaction.run(chosen, limit):
                yield name.decode(), lamport + LAMPORT_OFFSET, sender_id.decode(), content, proof

    def unproven_ids(self) -> Iterator[str]:
        """Yield the IDs of all messages of the log of which nothing is proven."""
        chosen = "select message_id from sds_log where proof in ('', 'own')"
        with self._transaction() as transaction:
            for (message_id,) in transaction.run(chosen):
                yield message_id.decode()

    def page(
        self, limit: int, *, after: Key | None, before: Key | None, committed: int
    ) -> list[Row]:
        """Return as `DurableState.page`."""
        where, order = "committed <= ?", "lamport desc, message_id desc"
        bounds: tuple[object, ...] = ()
        if after is not None:
            order, bounds = "lamport, message_id", _values(after)
            where += f" and {_LATER}"
        elif before is not None:
            bounds = _values(before)
            where += f" and {_EARLIER}"
        rest = f"where {where} order by {order} limit ?"
        with self._transaction() as transaction:
            found = transaction.rows(LOG, rest, committed, *bounds, limit)
            own = self._identity.sender_id.encode()
            for row in found:
                mine = row["sender_id"] == own
                by = transaction.one(_ACKNOWLEDGED, row["message_id"]) if mine else None
                row["acknowledged_by"] = by
        return found if after is not None else found[::-1]

    def messages(self, message_ids: Sequence[str]) -> list[Row]:
        """Return as `DurableState.messages`."""
        found: list[Row] = []
        with self._transaction() as transaction:
            for name in message_ids:
                found += transaction.rows(LOG, "where message_id = ?", name.encode())
        return found

    @contextmanager
    def _transaction(self) -> Iterator[_Transaction]:
        try:
            connection = self._connected()
            try:
                # Nobody else can come before this transaction.
                connection.execute("begin immediate")
                yield _Transaction(connection.cursor())
                connection.execute("commit")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.rollback()
                raise
        except sqlite3.Error as error:
            raise self._fault(error) from error

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(
                self._path or ":memory:",
                timeout=_LOCK_WAIT_S,
                check_same_thread=False,
                isolation_level=None,
            )
            self._connection = connection
            for pragma in ("locking_mode = exclusive", "journal_mode = wal", "synchronous = full"):
                connection.execute(f"pragma {pragma}")
        return self._connection

    def _drop_connection(self) -> None:
        # A database in memory is its connection.
        if not self.in_memory:
            self.close()

    def _claim(self, transaction: _Transaction) -> Row:
        found = []
        if transaction.one(_EXISTS, PARTICIPANT.name):
            found = transaction.rows(PARTICIPANT, "")
        if not found:
            for table in ALL:
                transaction.run(table.create())
            transaction.run(LOG_ORDER)
            transaction.run(LOG_ID)
            transaction.insert(PARTICIPANT, [self._first_row()])
            return self._first_row()
        self._check(found[0])
        transaction.run(_CLAIM, self._owner)
        return found[0]

    def _first_row(self) -> Row:
        return {
            "id": 1,
            "version": VERSION,
            "channel_id": self._identity.channel_id,
            "sender_id": self._identity.sender_id,
            "owner": self._owner,
            "commits": 0,
            "clock": 0,
            "sends": 0,
            "serial": 0,
            "counts": "",
            "gap_from_ns": 0,
            "online_ns": 0,
        }

    def _check(self, row: Row) -> None:
        if row["version"] != VERSION:
            raise StateError(
                f"The state {self.shown} has version {row['version']}, and this program reads "
                f"{VERSION}: begin a new state, and the past of the channel is read from its nodes."
            )
        found = StateIdentity(row["channel_id"], row["sender_id"])
        if found != self._identity:
            raise StateError(
                f"The state {self.shown} is of channel {found.channel_id!r} and sender "
                f"{found.sender_id!r}: each participant needs one of its own."
            )

    def _advance(self, transaction: _Transaction, batch: StateBatch) -> bool:
        """Take the participant's row a step on; False when this step was made before."""
        names = ", ".join(f"{name} = ?" for name in batch.small)
        step = f"update sds_participant set {names} where id = 1 and owner = ? and commits = ?"  # noqa: S608
        values = (*batch.small.values(), self._owner, batch.number - 1)
        if transaction.run(step, *values).rowcount == 1:
            return True
        if transaction.one(_COMMITS, self._owner) == batch.number:
            return False
        raise self._taken()

    def _taken(self) -> StateTaken:
        return StateTaken(
            f"The state {self.shown} is in use by another process: end that one, or give "
            "this one a state of its own."
        )

    def _fault(self, error: Exception) -> StateError:
        cause = _cause(error)
        if "database is locked" in cause:
            return self._taken()
        return StateError(f"The state {self.shown} cannot be used ({cause}).")


def _cause(error: Exception) -> str:
    return " ".join(str(error).split())


def _values(key: Key) -> tuple[int, int, bytes]:
    """Return the values of `_LATER` and `_EARLIER`."""
    lamport = key[0] - LAMPORT_OFFSET
    return lamport, lamport, key[1].encode()


def _write(transaction: _Transaction, batch: StateBatch) -> None:
    transaction.many(_WITHDRAW, [(name.encode(),) for name in batch.gone])
    transaction.insert(LOG, batch.log)
    transaction.many(_HINT, [(hint, name.encode()) for name, hint in batch.hints.items()])
    for name, rows in batch.rows.items():
        table = TABLES[name]
        gone = f"delete from {table.name} where {table.key} = ?"  # noqa: S608
        transaction.many(gone, [(key,) for key in rows])
        transaction.insert(table, (row for row in rows.values() if row is not None))


def _forget(transaction: _Transaction, last: Key) -> None:
    """Delete what left memory from a state in memory; a file keeps it."""
    transaction.run(f"delete from sds_log where {_EARLIER}", *_values((last[0], last[1] + "\0")))  # noqa: S608
    transaction.run(_UNKNOWN)
