"""A connection as every statement here expects it, and the rows that a statement selects."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, sql

from store.db.arrays import register

Connection = AsyncConnection[Any]
Statement = str | sql.SQL | sql.Composed

# Every statement here has an index to go by, and plans are kept: a plan that was made while a
# partition was new and empty must still be right when it is full.
_SETTINGS: Final = (
    "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set jit = off;"
    " set max_parallel_workers_per_gather = 0; set timezone = 'UTC';"
    " set idle_in_transaction_session_timeout = '60s';"
    " select pg_postmaster_start_time()::text"
)


async def prepare(connection: Connection) -> str:
    """Set up a session as every statement here expects it; return the start of its server."""
    await connection.set_autocommit(True)
    connection.prepare_threshold = 1
    connection.prepared_max = 200
    register(connection)
    cursor = await connection.execute(_SETTINGS)
    while cursor.nextset():
        pass
    ((started,),) = await cursor.fetchall()
    return str(started)


async def fetch_rows(
    connection: Connection,
    statement: Statement,
    parameters: Mapping[str, object] | Sequence[object] | None = None,
    *,
    prepare: bool | None = None,
) -> list[Any]:
    """Return the rows that a statement selects, read in the binary format."""
    cursor = await connection.execute(statement, parameters, prepare=prepare, binary=True)
    return await cursor.fetchall()


async def fetch_row(
    connection: Connection,
    statement: Statement,
    parameters: Mapping[str, object] | Sequence[object] | None = None,
) -> Any:  # noqa: ANN401 - the columns are those of the statement
    """Return the first row that a statement selects; None if there is none."""
    cursor = await connection.execute(statement, parameters, binary=True)
    return await cursor.fetchone()


def sever(connection: Connection) -> None:
    """Let whatever a connection waits for fail at once; its user closes it."""
    with (
        contextlib.suppress(psycopg.Error, OSError),
        socket.socket(fileno=os.dup(connection.fileno())) as shared,
    ):
        shared.shutdown(socket.SHUT_RDWR)
