"""Messages of a database as Arrow batches, in ascending order of (timestamp, hash).

Rows never change, so a slice is a range of time up to a commit position: no snapshot is held, and
neither vacuum nor the drop of a partition waits. What was committed later is told by its batch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

import adbc_driver_manager as adbc
import pyarrow as pa
from adbc_driver_postgresql import StatementOptions, dbapi

from pipeline.columns import SDS_COLUMNS
from pipeline.decode import DamagedRows, damaged, decoded, needed, rows_of
from pipeline.errors import UNREACHABLE, PipelineError
from pipeline.slices import Slice

BATCH_BYTES: Final = 4 * 1024 * 1024
"""About so many bytes of rows are in one batch."""

_SETTINGS: Final = "set jit = off"
_UP_TO: Final = """
 and batch not in (select batch from storenode.export_commits where position > {position})"""
_BEHIND: Final = """
 and batch in (select batch from storenode.export_commits
               where position > {start} and position <= {position})"""
_MESSAGES: Final = """
select {columns} from storenode.export_messages
where ts >= {low} and ts < {high}{committed} order by ts, hash"""
_SDS: Final = """
select ts, hash, channel, message_id, sender, lamport, parent_ids, parent_hints
from storenode.export_sds where ts >= {low} and ts < {high} order by ts, hash"""


@dataclass(frozen=True, slots=True)
class Cut:
    """Which messages of a range of time: committed behind ``start`` (None: at any time before)
    and up to ``position``.
    """

    position: int
    start: int | None = None

    @property
    def condition(self) -> str:
        """The same in SQL."""
        if self.start is None:
            return _UP_TO.format(position=self.position)
        return _BEHIND.format(start=self.start, position=self.position)


def read_slices(
    url: str, slices: list[Slice], cut: Cut, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """The wanted columns of the messages of some slices, one slice after the other.

    Raises:
        PipelineError: the database cannot be reached, refuses, or holds what cannot be read.
    """
    if not slices:
        return
    with _connection(url) as connection:
        if set(names) & SDS_COLUMNS:
            with _connection(url) as second:
                for each in slices:
                    yield from _with_sds(connection, second, each, cut, names)
        else:
            for each in slices:
                for batch in _messages(connection, each, cut, names):
                    yield _decoded(batch, None, names)


def read_statement(url: str, statement: str) -> Iterator[pa.RecordBatch]:
    """What a statement selects.

    Raises:
        PipelineError: the database cannot be reached, or refuses.
    """
    with _connection(url) as connection:
        yield from _batches(connection, statement)


def _with_sds(
    connection: dbapi.Connection,
    second: dbapi.Connection,
    each: Slice,
    cut: Cut,
    names: tuple[str, ...],
) -> Iterator[pa.RecordBatch]:
    statement = _SDS.format(low=each.low_ns, high=each.high_ns)
    with closing(_batches(second, statement)) as batches:
        following = _Following(batches)
        for batch in _messages(connection, each, cut, names):
            yield _decoded(batch, following.up_to(batch["ts"][-1].as_py()), names)


class _Following:
    """Rows in the order of their timestamps, given out as far as another stream has come."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._held: list[pa.RecordBatch] = []
        self._ended = False

    def up_to(self, ts: int) -> pa.Table | None:
        """Rows up to a timestamp that were not left behind yet; None: there are none at all."""
        while not self._ended and (not self._held or self._held[-1]["ts"][-1].as_py() <= ts):
            batch = next(self._batches, None)
            if batch is None:
                self._ended = True
            else:
                self._held.append(batch)
        found = rows_of(iter(self._held))
        # Another message with the same timestamp may come in the next batch.
        self._held = [each for each in self._held if each["ts"][-1].as_py() >= ts]
        return found


def _messages(
    connection: dbapi.Connection, each: Slice, cut: Cut, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    statement = _MESSAGES.format(
        columns=", ".join(needed(names)),
        low=each.low_ns,
        high=each.high_ns,
        committed=cut.condition,
    )
    return _batches(connection, statement)


def _decoded(batch: pa.RecordBatch, sds: pa.Table | None, names: tuple[str, ...]) -> pa.RecordBatch:
    try:
        return decoded(batch, sds, names)
    except DamagedRows as error:
        raise damaged(error, batch["ts"]) from error


def _batches(connection: dbapi.Connection, statement: str) -> Generator[pa.RecordBatch]:
    options = {StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(BATCH_BYTES)}
    with connection.cursor(adbc_stmt_kwargs=options) as cursor:
        cursor.execute(statement)
        for batch in cursor.fetch_record_batch():
            if batch.num_rows:
                yield batch


@contextmanager
def _connection(url: str) -> Iterator[dbapi.Connection]:
    try:
        connection = dbapi.connect(url, autocommit=True)
    except adbc.Error as error:
        raise PipelineError(
            f"The database could not be reached ({_said(error)}): check that Postgres runs, and the"
            " URL.",
            UNREACHABLE,
        ) from error
    try:
        with connection.cursor() as cursor:
            cursor.execute(_SETTINGS)
        yield connection
    except adbc.Error as error:
        raise PipelineError(f"The database refused ({_said(error)}).") from error
    finally:
        connection.close()


def _said(error: adbc.Error) -> str:
    text = str(error).split("[libpq] ", 1)[-1]
    return text.splitlines()[0].strip()
