"""Does a database hold what it says it holds?

Reads everything, or a random share of it, and changes nothing. It can run beside nodes that serve.
What is looked for: a schema as migrations leave it; partitions, indexes and sequences that are
sane; every message's hash computed anew from its bytes, its rows in the look-up tables, and those
rows' messages; SDS rows that are what the payload says, for every payload that is a readable SDS
message and for no other; commits that account for what is held, and summaries that say it; unread
events that are held.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

import psycopg
from psycopg import Connection as PsycopgConnection

from store.db.checks.catalog import (
    check_batches,
    check_objects,
    check_partitions,
    check_totals,
)
from store.db.checks.findings import Finding, Findings
from store.db.checks.missing import check_missing
from store.db.checks.rows import Held, Progress, RowCheck
from store.db.checks.summaries import check_summaries
from store.db.schema.migrate import connect, require_served
from store.db.schema.names import BUCKETS_TABLE, FINE_TABLE, UNREAD_TABLE
from store.domain.partitioning import Bounds, Cover, parse_bounds

Connection = PsycopgConnection[Any]

_PARTITIONS: Final = """
select c.relname::text, pg_get_expr(c.relpartbound, c.oid)
from pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhparent = to_regclass('storenode.' || %s) and not i.inhdetachpending
"""
_HORIZON: Final = "select max(horizon_ns) from storenode.store"
_ESTIMATE: Final = """
select coalesce(sum(case when c.reltuples >= 0 then c.reltuples
                         else pg_relation_size(c.oid) / %s end), 0)::bigint
from pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhparent = to_regclass('storenode.' || %s)
"""
_ROW_BYTES: Final = 256
"""Size of a row where nothing better is known, to guess how many there are."""

_ROW_TABLES: Final = ("messages", "hashes", "sds")

_LOST: Final = "unread event without its message"
_COUNTED_TWICE: Final = "store that has confirmed twice"

_FETCH_ROWS: Final = 1_000

# One statement sees one snapshot: a message and its unread event come and go together.
_UNREAD_FAULTS: Final[LiteralString] = """
select u.ts, encode(u.hash, 'hex'), m.hash is null
from storenode.unread u left join storenode.messages m
  on m.ts = u.ts and m.hash = u.hash and m.content_digest = u.content_digest
where m.hash is null
   or cardinality(u.stores) > (select count(distinct store) from unnest(u.stores) as s(store))
order by u.hash
"""
_UNREAD_COUNT: Final[LiteralString] = "select count(*) from storenode.unread"


@dataclass(frozen=True)
class CheckReport:
    """What was found, and how many rows of each table were looked at; ``full``: all of them."""

    findings: list[Finding]
    checked: dict[str, int] = field(default_factory=dict)
    full: bool = True


def check(
    url: str,
    *,
    now_ns: Callable[[], int],
    sample: int | None = None,
    progress: Progress = lambda _table, _rows: None,
) -> CheckReport:
    """Check a database; ``sample`` asks for about so many rows of each table instead of all.

    Raises:
        SchemaError: the schema is missing, too old or too new to be checked.
        psycopg.OperationalError: the database cannot be reached.
    """
    # It brings Alembic along, which no other command of `storenode db` needs.
    from store.db.checks.drift import differences  # noqa: PLC0415

    require_served(url)
    findings = Findings()
    for difference in differences(url):
        findings.add("wrong schema", "storenode", difference)
    checked: dict[str, int] = {}
    try:
        with connect(url) as connection:
            check_partitions(connection, findings, now_ns())
            check_objects(connection, findings)
            _check_rows(connection, findings, sample, progress, checked)
            checked[UNREAD_TABLE] = _check_unread(connection, findings)
            if sample is None:
                checked["commits"] = check_batches(connection, findings)
                checked["missing_parents"] = check_missing(connection, findings)
                if not findings.all():
                    # Whatever else is wrong would show in the totals too.
                    check_totals(connection, findings)
            partitions = _partitions(connection, FINE_TABLE)
            checked[BUCKETS_TABLE] = check_summaries(
                connection, findings, partitions, sample, progress
            )
    except psycopg.ProgrammingError:
        if not findings.all():
            raise
        # A table or column is missing, which the findings say: the rest cannot be looked at.
        return CheckReport(findings.all(), checked, full=False)
    return CheckReport(findings.all(), checked, full=sample is None)


def _check_rows(
    connection: Connection,
    findings: Findings,
    sample: int | None,
    progress: Progress,
    checked: dict[str, int],
) -> None:
    rows = RowCheck(
        connection,
        findings,
        held=lambda: _held(connection),
        topics=Cover(_bounds(connection, "topics")),
        progress=progress,
    )
    for table in _ROW_TABLES:
        share = None if sample is None else _share(connection, table, sample)
        checked[table] = rows.run(table, _bounds(connection, table), share)


def _held(connection: Connection) -> Held:
    # The horizon last: a partition that goes in between is behind it then.
    fine = Cover(_bounds(connection, FINE_TABLE))
    ((horizon_ns,),) = connection.execute(_HORIZON).fetchall()
    return Held(fine, horizon_ns or 0)


def _bounds(connection: Connection, table: str) -> list[Bounds]:
    return [bounds for _, bounds in _partitions(connection, table)]


def _partitions(connection: Connection, table: str) -> list[tuple[str, Bounds]]:
    found = []
    for name, text in connection.execute(_PARTITIONS, (table,)):
        bounds = None if text is None else parse_bounds(text)
        if bounds is not None:
            found.append((name, bounds))
    return sorted(found, key=lambda each: each[1])


def _share(connection: Connection, table: str, sample: int) -> float:
    ((estimate,),) = connection.execute(_ESTIMATE, (_ROW_BYTES, table)).fetchall()
    return min(1.0, sample / estimate) if estimate else 1.0


def _check_unread(connection: Connection, findings: Findings) -> int:
    """Check that unread events have their messages and count each store once; their number."""
    with connection.transaction(), connection.cursor(name="storenode_check") as cursor:
        cursor.itersize = _FETCH_ROWS
        for ts, digest, is_lost in cursor.execute(_UNREAD_FAULTS):
            kind = _LOST if is_lost else _COUNTED_TWICE
            findings.add(kind, UNREAD_TABLE, f"{digest} at {ts}")
    ((count,),) = connection.execute(_UNREAD_COUNT).fetchall()
    return int(count)
