"""The table ``coverage``: statements of sessions about other stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final, LiteralString

from store.db.locks import COVERAGE
from store.db.pool import Connection, Database
from store.domain.coverage import Statement, updated

MAX_STORES: Final = 64
"""Stores about which statements are kept: the last ones that were compared."""
MAX_ROWS: Final = 100_000
"""Statements kept about one store: the newest ones."""
MAX_READ: Final = 100_000
"""Statements that one read returns."""

_COLUMNS: Final[LiteralString] = (
    "start_ns, end_ns, compared_ns, keyed, missing_here, missing_there, count, fingerprint"
)
_LOCK: Final = "select pg_advisory_xact_lock(%s)"
_OLD: Final[LiteralString] = f"""
select {_COLUMNS} from storenode.coverage
where store_id = %s and end_ns > %s::bigint and start_ns < %s::bigint
"""
_DELETE: Final = """
delete from storenode.coverage using unnest(%s::bigint[], %s::bigint[]) as gone(start_ns, end_ns)
where store_id = %s and coverage.start_ns = gone.start_ns and coverage.end_ns = gone.end_ns
"""
_INSERT: Final[LiteralString] = f"""
insert into storenode.coverage (store_id, {_COLUMNS})
select %s, * from unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bool[], %s::bigint[],
                         %s::bigint[], %s::bigint[], %s::bytea[])
on conflict do nothing
"""
_PRUNE: Final = """
delete from storenode.coverage
where end_ns <= (select horizon_ns from storenode.store)
   or store_id = %(store)s and start_ns < (
      select start_ns from storenode.coverage where store_id = %(store)s
      order by start_ns desc offset %(rows)s limit 1)
"""
_FORGET: Final = """
delete from storenode.coverage where store_id in (
    select store_id from storenode.coverage group by store_id
    order by max(compared_ns) desc offset %s)
"""
_BETWEEN: Final[LiteralString] = f"""
select store_id, {_COLUMNS} from storenode.coverage
where end_ns > %s::bigint and start_ns < %s::bigint
order by store_id, start_ns, end_ns desc limit %s
"""


class DatabaseStatements:
    """The statements, which all nodes of the store share."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def note(self, store_id: str, statements: Sequence[Statement], now_ns: int) -> None:
        """Keep statements, ascending, in place of older ones about the same time.

        Raises:
            StoreUnavailable: the database does not serve.
        """
        if statements:
            await self._database.write(_note, store_id, statements, now_ns)

    async def between(self, start_ns: int, end_ns: int) -> Mapping[str, Sequence[Statement]]:
        """Return those that overlap a range, by store, ascending; at most `MAX_READ`.

        Raises:
            StoreUnavailable: the database does not serve.
        """
        rows = await self._database.rows(_BETWEEN, (start_ns, end_ns, MAX_READ))
        by_store = groupby(rows, lambda row: str(row[0]))
        return {store: [_statement(row[1:]) for row in found] for store, found in by_store}


async def _note(
    connection: Connection, store_id: str, statements: Sequence[Statement], now_ns: int
) -> None:
    await connection.execute(_LOCK, (COVERAGE,))
    await _replace(connection, store_id, statements, now_ns)
    await connection.execute(_PRUNE, {"store": store_id, "rows": MAX_ROWS})
    await connection.execute(_FORGET, (MAX_STORES,))


async def _replace(
    connection: Connection, store_id: str, statements: Sequence[Statement], now_ns: int
) -> None:
    given = store_id, statements[0].start_ns, statements[-1].end_ns
    cursor = await connection.execute(_OLD, given, binary=True)
    old = [_statement(row) for row in await cursor.fetchall()]
    gone, made = updated(old, statements, now_ns)
    starts, ends = [each.start_ns for each in gone], [each.end_ns for each in gone]
    await connection.execute(_DELETE, (starts, ends, store_id))
    if made:
        await connection.execute(_INSERT, (store_id, *_columns(made)))


def _statement(row: Sequence[Any]) -> Statement:
    start_ns, end_ns, compared_ns, keyed, here, there, count, fingerprint = row
    return Statement(start_ns, end_ns, compared_ns, keyed, here, there, count, bytes(fingerprint))


def _columns(statements: Sequence[Statement]) -> list[list[Any]]:
    names = _COLUMNS.split(", ")
    return [[getattr(each, name) for each in statements] for name in names]
