"""The two ways to read a statement of a database as Arrow batches: ADBC's driver, and psycopg.

ADBC is the quick one. Where its driver cannot be imported psycopg serves, which every installation
has; both give the same columns. Either holds one batch at a time, however long the answer is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg
import pyarrow as pa

from store.pipeline.copied import batches_of
from store.pipeline.errors import UNREACHABLE, USAGE, PipelineError, of_database

if TYPE_CHECKING:
    from adbc_driver_manager import AdbcConnection, AdbcDatabase, AdbcStatement

BATCH_BYTES: Final = 4 * 1024 * 1024
"""About so many bytes of rows are in one batch."""

AUTO: Final = "auto"
ADBC: Final = "adbc"
PSYCOPG: Final = "psycopg"
READERS: Final = (AUTO, ADBC, PSYCOPG)
"""What may be asked for: `AUTO` is ADBC where it is installed."""

_SETTINGS: Final = (
    "set jit = off",
    # Whoever reads takes time between two statements, but a worker whose machine is gone holds
    # snapshot and locks no longer than that.
    "set idle_in_transaction_session_timeout = '15min'",
)
_DRIVER: Final = "adbc_driver_postgresql"


class Connection(Protocol):
    """An open connection; it reads one statement at a time."""

    def run(self, statement: str) -> None:
        """Have a statement done that gives no rows."""

    def batches(self, statement: str, schema: pa.Schema) -> Generator[pa.RecordBatch]:
        """The rows of a query, whose columns have the names and types of ``schema``.

        No batch is empty. Binary values may come with wider offsets than ``schema`` says. Who does
        not read all of them has no further use of the connection.
        """


@contextmanager
def connection(url: str, reader: str = AUTO) -> Iterator[Connection]:
    """A connection by one of `READERS`.

    Raises:
        PipelineError: the database cannot be reached or refuses, also inside of the block, or the
            reader is not installed.
    """
    installed = find_spec(_DRIVER) is not None
    if reader == ADBC and not installed:
        raise PipelineError(
            f"The reader `{ADBC}` needs {_DRIVER}, which is not installed: install it, or use the"
            f" reader `{PSYCOPG}`.",
            USAGE,
        )
    opened = _by_adbc if installed and reader != PSYCOPG else _by_psycopg
    with opened(url) as found:
        yield found


def _set(opened: Connection) -> Connection:
    for each in _SETTINGS:
        opened.run(each)
    return opened


class _Adbc:
    def __init__(self, held: AdbcConnection, size_hint: str) -> None:
        self._held = held
        self._options = {size_hint: str(BATCH_BYTES)}

    def run(self, statement: str) -> None:
        with _statement(self._held, statement) as opened:
            opened.execute_update()

    def batches(self, statement: str, schema: pa.Schema) -> Generator[pa.RecordBatch]:  # noqa: ARG002
        with _statement(self._held, statement, self._options) as opened:
            answer, _ = opened.execute_query()
            for batch in pa.RecordBatchReader.from_stream(answer):
                if batch.num_rows:
                    yield batch


@contextmanager
def _statement(
    held: AdbcConnection, statement: str, options: Mapping[str, str] | None = None
) -> Iterator[AdbcStatement]:
    # Not every installation has it.
    from adbc_driver_manager import AdbcStatement, Error  # noqa: PLC0415

    try:
        with AdbcStatement(held) as opened:
            opened.set_options(**options or {})
            opened.set_sql_query(statement)
            yield opened
    except (Error, pa.ArrowException, OSError) as error:
        raise PipelineError(f"The database refused ({_said(error)}).") from error


def _said(error: Exception) -> str:
    lines = str(error).split("[libpq] ", 1)[-1].splitlines()
    return lines[0].strip() if lines else type(error).__name__


@lru_cache(maxsize=2)
def _database(url: str) -> AdbcDatabase:
    """What the driver knows of a server's types, for one task of a worker after the other.

    To learn it takes ten times as long as to connect. No connection is held.
    """
    import adbc_driver_postgresql  # noqa: PLC0415

    database: AdbcDatabase = adbc_driver_postgresql.connect(url)
    return database


@contextmanager
def _by_adbc(url: str) -> Iterator[Connection]:
    from adbc_driver_manager import AdbcConnection, Error  # noqa: PLC0415
    from adbc_driver_postgresql import StatementOptions  # noqa: PLC0415

    try:
        held = AdbcConnection(_database(url))
    except Error as error:
        raise PipelineError(
            f"The database could not be reached ({_said(error)}): check that Postgres runs, and the"
            " URL.",
            UNREACHABLE,
        ) from error
    with held:
        opened = _Adbc(held, StatementOptions.BATCH_SIZE_HINT_BYTES.value)
        yield _set(opened)


class _Psycopg:
    def __init__(self, held: psycopg.Connection[Any]) -> None:
        self._held = held

    def run(self, statement: str) -> None:
        self._held.execute(statement.encode())

    def batches(self, statement: str, schema: pa.Schema) -> Generator[pa.RecordBatch]:
        copying = f"copy ({statement}) to stdout (format binary)"
        with self._held.cursor() as cursor, cursor.copy(copying.encode()) as rows:
            yield from batches_of(rows, schema, BATCH_BYTES)


@contextmanager
def _by_psycopg(url: str) -> Iterator[Connection]:
    try:
        with psycopg.connect(url, autocommit=True) as held:
            yield _set(_Psycopg(held))
    except psycopg.Error as error:
        raise of_database(error, "The database") from error
