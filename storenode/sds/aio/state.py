"""A participant's state in a database: opened by one process at a time, written by transactions.

Everything here blocks, and is called from one thread. A second process is kept out by a lock
where the database has one that ends with its holder (SQLite, Postgres), and by the owner's name
in the participant's row everywhere: whoever finds another name there has lost the state.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    and_,
    bindparam,
    create_engine,
    delete,
    event,
    func,
    insert,
    inspect,
    make_url,
    or_,
    select,
    update,
)
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from storenode.sds.aio.ledger import TABLES, Batch, Row
from storenode.sds.aio.schema import LAMPORT_OFFSET, LOG, METADATA, PARTICIPANT, VERSION
from storenode.sds.pages import Key

PRIVATE: Final = "sqlite://"
"""A state in memory, that ends with the process."""

_LOCK_WAIT_S: Final = 1
_POSTGRES_LOCK: Final = 0x5D5A10
_CHUNK: Final = 1_000


class StateError(Exception):
    """The state cannot be used, now or at all; the text is one sentence."""


class StateTaken(StateError):
    """Another process has the state."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose state it is."""

    channel_id: str
    sender_id: str


def state_url(state: str | Path | None) -> URL:
    """The URL of a state: as given, of a SQLite file, or of memory.

    Raises:
        StateError: It is no URL of a database that SQLAlchemy knows.
    """
    if state is None:
        return make_url(PRIVATE)
    try:
        if isinstance(state, Path) or "://" not in state:
            return URL.create("sqlite", database=str(state))
        return make_url(state)
    except ArgumentError as error:
        raise StateError(f"The state {str(state)!r} is neither a path nor a URL: {error}") from None


class State:
    """An open state. Every method may raise `StateError`."""

    def __init__(self, url: URL, identity: Identity) -> None:
        self.url = url
        self._shown = url.render_as_string(hide_password=True)
        self._identity = identity
        self._owner = uuid.uuid4().hex
        self._engine = self._make_engine()
        self._connection: Connection | None = None
        self._claimed = False

    @property
    def in_memory(self) -> bool:
        """Whether it ends with the process."""
        return self.url.get_backend_name() == "sqlite" and not self.url.database

    def open(self) -> Row:
        """Connect, lock, and make what is not there; the participant's row.

        Raises:
            StateTaken: Another process has it.
        """
        with self._translated():
            connection = self._connected()
            with connection.begin():
                row = self._claim(connection)
            self._claimed = True
            return row

    def close(self) -> None:
        """Let go of the database and its lock."""
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
        self._engine.dispose()

    def commit(self, batch: Batch) -> None:
        """Write a batch; nothing happens when it was written before.

        Raises:
            StateTaken: Another process took the state.
            StateError: The database failed; the same batch may be tried again.
        """
        try:
            with self._translated():
                connection = self._connected()
                with connection.begin():
                    if self._advance(connection, batch):
                        _write(connection, batch)
                        if batch.pruned is not None and self.in_memory:
                            _forget(connection, batch.pruned)
        except StateError:
            self._drop_connection()
            raise

    def rows(self, name: str) -> list[Row]:
        """All rows of a small table, in the order of their keys."""
        table = TABLES[name]
        with self._translated(), self._reading() as connection:
            found = connection.execute(select(table).order_by(*table.primary_key))
            return [dict(row) for row in found.mappings()]

    def log_length(self) -> int:
        """Messages of the log."""
        with self._translated(), self._reading() as connection:
            return int(connection.execute(select(func.count()).select_from(LOG)).scalar_one())

    def log_ids(self, limit: int) -> Iterator[str]:
        """The IDs of the oldest messages of the log."""
        chosen = select(LOG.c.message_id).order_by(LOG.c.lamport, LOG.c.message_id).limit(limit)
        with self._translated(), self._reading() as connection:
            for message_id in connection.execute(chosen).scalars():
                yield message_id.decode()

    def log_entries(self, skip: int) -> Iterator[tuple[int, str, str, bytes | None]]:
        """Lamport timestamp, ID, sender and hint of the log, without the oldest."""
        columns = (LOG.c.lamport, LOG.c.message_id, LOG.c.sender_id, LOG.c.hint)
        chosen = select(*columns).order_by(LOG.c.lamport, LOG.c.message_id).offset(skip)
        with self._translated(), self._reading() as connection:
            for lamport, message_id, sender_id, hint in connection.execute(chosen):
                yield lamport + LAMPORT_OFFSET, message_id.decode(), sender_id.decode(), hint

    def newest_ids(self, count: int) -> list[tuple[int, str]]:
        """The delivered messages that came last, with their serial numbers."""
        chosen = select(LOG.c.serial, LOG.c.message_id).order_by(LOG.c.serial.desc()).limit(count)
        with self._translated(), self._reading() as connection:
            return [(serial, name.decode()) for serial, name in connection.execute(chosen)]

    def page(
        self, limit: int, *, after: Key | None, before: Key | None, committed: int
    ) -> list[Row]:
        """Messages of the log in order, of transactions up to one: the first after a place, or
        the last before one, or with neither the last of all.
        """
        order = (LOG.c.lamport, LOG.c.message_id)
        chosen = select(LOG).where(LOG.c.committed <= committed).limit(limit)
        if after is not None:
            chosen = chosen.where(_beyond(after, later=True)).order_by(*order)
        else:
            chosen = chosen.order_by(*(column.desc() for column in order))
            if before is not None:
                chosen = chosen.where(_beyond(before, later=False))
        with self._translated(), self._reading() as connection:
            found = [dict(row) for row in connection.execute(chosen).mappings()]
        return found if after is not None else found[::-1]

    def _make_engine(self) -> Engine:
        backend = self.url.get_backend_name()
        options: dict[str, Any] = {"poolclass": StaticPool}
        if backend == "sqlite":
            options["connect_args"] = {"timeout": _LOCK_WAIT_S, "check_same_thread": False}
        try:
            engine = create_engine(self.url, **options)
        except (NoSuchModuleError, ModuleNotFoundError, ArgumentError) as error:
            raise StateError(
                f"The state {self._shown} needs a database driver that is not installed: {error}"
            ) from error
        if backend == "sqlite":
            event.listen(engine, "connect", _prepare_sqlite)
        return engine

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = self._engine.connect()
            if self.url.get_backend_name() == "postgresql":
                self._lock_postgres(connection)
            self._connection = connection
        return self._connection

    def _lock_postgres(self, connection: Connection) -> None:
        key = func.hashtext(func.current_schema())
        got = connection.execute(select(func.pg_try_advisory_lock(_POSTGRES_LOCK, key)))
        locked = got.scalar_one()
        connection.rollback()
        if not locked:
            connection.close()
            self._engine.dispose()
            if self._claimed:
                # Most likely our own connection that broke, and that the server still keeps.
                raise StateError(f"The state {self._shown} is still locked: trying again.")
            raise self._taken()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        connection = self._connected()
        with connection.begin():
            yield connection

    def _drop_connection(self) -> None:
        # A database in memory is its connection.
        if self._connection is not None and not self.in_memory:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None

    def _claim(self, connection: Connection) -> Row:
        found = None
        if inspect(connection).has_table(PARTICIPANT.name):
            found = connection.execute(select(PARTICIPANT)).mappings().one_or_none()
        if found is None:
            METADATA.create_all(connection)
            connection.execute(insert(PARTICIPANT), self._first_row())
            return self._first_row()
        row = dict(found)
        self._check(row)
        connection.execute(update(PARTICIPANT).values(owner=self._owner))
        return row

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
                f"The state {self._shown} has version {row['version']}, and this program reads "
                f"{VERSION}: use the program that wrote it, or begin a new state."
            )
        found = Identity(row["channel_id"], row["sender_id"])
        if found != self._identity:
            raise StateError(
                f"The state {self._shown} is of channel {found.channel_id!r} and sender "
                f"{found.sender_id!r}: each participant needs one of its own."
            )

    def _advance(self, connection: Connection, batch: Batch) -> bool:
        """Take the participant's row a step on; False when this step was made before."""
        mine = and_(PARTICIPANT.c.id == 1, PARTICIPANT.c.owner == self._owner)
        step = and_(mine, PARTICIPANT.c.commits == batch.number - 1)
        if connection.execute(update(PARTICIPANT).where(step).values(**batch.small)).rowcount == 1:
            return True
        commits = connection.execute(select(PARTICIPANT.c.commits).where(mine)).scalar_one_or_none()
        if commits == batch.number:
            return False
        raise self._taken()

    def _taken(self) -> StateTaken:
        return StateTaken(
            f"The state {self._shown} is in use by another process: end that one, or give this "
            "one a state of its own."
        )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            cause = " ".join(str(getattr(error, "orig", None) or error).split())
            if "database is locked" in cause:
                raise self._taken() from error
            raise StateError(f"The state {self._shown} cannot be used ({cause}).") from error


def _beyond(key: Key, *, later: bool) -> Any:  # noqa: ANN401 - a clause of SQLAlchemy
    lamport, message_id = key[0] - LAMPORT_OFFSET, key[1].encode()
    if later:
        return or_(
            LOG.c.lamport > lamport, and_(LOG.c.lamport == lamport, LOG.c.message_id > message_id)
        )
    return or_(
        LOG.c.lamport < lamport, and_(LOG.c.lamport == lamport, LOG.c.message_id < message_id)
    )


def _prepare_sqlite(connection: Any, _record: object) -> None:  # noqa: ANN401 - a DBAPI connection
    # The lock is the kernel's and ends with the process; a commit is on the disk.
    for pragma in ("locking_mode = exclusive", "journal_mode = wal", "synchronous = full"):
        connection.execute(f"pragma {pragma}")


def _write(connection: Connection, batch: Batch) -> None:
    if batch.log:
        connection.execute(insert(LOG), batch.log)
    if batch.hints:
        hinted = (
            update(LOG)
            .where(LOG.c.message_id == bindparam("named"))
            .values(hint=bindparam("given"))
        )
        found = [{"named": name.encode(), "given": hint} for name, hint in batch.hints.items()]
        connection.execute(hinted, found)
    for name, rows in batch.rows.items():
        table = TABLES[name]
        (key,) = table.primary_key
        for chunk in _chunks(list(rows)):
            connection.execute(delete(table).where(key.in_(chunk)))
        kept = [row for row in rows.values() if row is not None]
        if kept:
            connection.execute(insert(table), kept)


def _forget(connection: Connection, last: Key) -> None:
    """What left memory stays in a file, and is gone where there is none."""
    upto = _beyond((last[0], last[1] + "\0"), later=False)
    connection.execute(delete(LOG).where(upto))


def _chunks(keys: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (keys[start : start + _CHUNK] for start in range(0, len(keys), _CHUNK))
