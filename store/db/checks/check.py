"""The check of a database: whether it holds what it says it holds.

Reads everything, or a random share of it, and changes nothing. It can run beside nodes that serve.
What is looked for: a schema as migrations leave it; partitions, indexes and sequences that are
sane; every message's hash computed anew from its bytes, its rows in the look-up tables, and those
rows' messages; SDS rows that are what the payload says, for every payload that is a readable SDS
message and for no other; commits that account for what is stored, and summaries that agree with it;
unread events whose messages are stored; missing parents that are missing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

import psycopg
from psycopg import Connection as PsycopgConnection

from store.db.checks.findings import Finding, Findings
from store.db.checks.rows import Progress, RowCheck, StoredTimes
from store.db.checks.summaries import check_summaries
from store.db.locks import MAINTENANCE
from store.db.schema.description import differences
from store.db.schema.migrate import connect, require_served
from store.db.schema.names import (
    BUCKETS_TABLE,
    COARSE_TABLES,
    COMMITS_TABLE,
    FINE_TABLE,
)
from store.db.schema.partitions import Catalog, read_partitions
from store.db.statements import SQL
from store.domain.partitioning import (
    COMMITS_PER_PARTITION,
    DAY_NS,
    MAX_COARSE,
    UNBOUNDED_HIGH,
    UNBOUNDED_LOW,
    Bounds,
    Cover,
    parse_bounds,
)
from store.domain.retention import Partition

Connection = PsycopgConnection[Any]

_ROW_BYTES: Final = 256
"""Size of a row where nothing better is known, to guess how many there are."""

_ROW_TABLES: Final = ("messages", "hashes", "sds")

CatalogRow = tuple[str, str, int, str | None, bool, int, int]

_FETCH_ROWS: Final = 1_000

NOT_MISSING: Final = "missing parent that is not missing"
NOT_COUNTED: Final = "parent that is missing and is not counted"

_MISSING: Final[LiteralString] = """
select '{}', 'missing_parents', format('%s of channel %s at %s', parent, channel, ts)
from ({}) as found(channel, ts, parent)
"""

_FAULTS: Final[tuple[LiteralString, ...]] = (
    SQL.partitions.check_tables,
    SQL.partitions.check_indexes,
    SQL.stores.check_count,
    SQL.commits.check_sequences,
    SQL.stores.check_unread,
)
"""Statements that find faults: the kind, the table and an example of each."""

_FAULTS_OF_ALL: Final = (
    SQL.commits.check_batches,
    _MISSING.format(NOT_MISSING, SQL.sds.check_not_missing),
    _MISSING.format(NOT_COUNTED, SQL.sds.check_not_counted),
)
"""Those that read everything, which a check of a sample leaves out."""


@dataclass(frozen=True)
class CheckReport:
    """The findings, and how many rows of each table were looked at; ``full``: all of them."""

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
    require_served(url)
    findings = Findings()
    checked: dict[str, int] = {}
    try:
        with connect(url) as connection:
            for difference in differences(connection):
                findings.add("wrong schema", "storenode", difference)
            _check_partitions(connection, findings, now_ns())
            _check_rows(connection, findings, sample, progress, checked)
            for statement in (*_FAULTS, *(_FAULTS_OF_ALL if sample is None else ())):
                _find(connection, findings, statement)
            checked["unread"] = _count(connection, SQL.stores.count_unread)
            if sample is None:
                checked["commits"] = _count(connection, SQL.commits.count)
                checked["missing_parents"] = _count(connection, SQL.sds.count_missing_rows)
            partitions = [(each.name, each.bounds) for each in _catalog(connection).of(FINE_TABLE)]
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
    catalog = _catalog(connection)
    rows = RowCheck(
        connection,
        findings,
        stored=lambda: _stored_times(connection),
        topics=Cover(catalog.bounds("topics")),
        progress=progress,
    )
    for table in _ROW_TABLES:
        share = None if sample is None else _share(catalog, table, sample)
        checked[table] = rows.run(table, catalog.bounds(table), share)


def _stored_times(connection: Connection) -> StoredTimes:
    # The horizon last: a partition that goes in between is behind it then.
    fine = Cover(_catalog(connection).bounds(FINE_TABLE))
    ((horizon_ns,),) = connection.execute(SQL.stores.check_horizon).fetchall()
    return StoredTimes(fine, horizon_ns or 0)


def _catalog(connection: Connection) -> Catalog:
    rows = connection.execute(
        SQL.partitions.read_catalog.format(size=SQL.partitions.sizes)
    ).fetchall()
    return Catalog(tuple(_readable(rows)), 0)


def _readable(rows: Sequence[CatalogRow]) -> list[Partition]:
    # Odd ones are found by `_check_partitions`.
    found = []
    for row in rows:
        try:
            found += read_partitions([row])
        except ValueError:
            continue
    return found


def _share(catalog: Catalog, table: str, sample: int) -> float:
    estimate = sum(
        each.rows if each.rows >= 0 else each.size_bytes // _ROW_BYTES for each in catalog.of(table)
    )
    return min(1.0, sample / estimate) if estimate else 1.0


def _find(connection: Connection, findings: Findings, statement: LiteralString) -> None:
    with connection.transaction(), connection.cursor(name="storenode_check") as cursor:
        cursor.itersize = _FETCH_ROWS
        for kind, where, example in cursor.execute(statement):
            findings.add(kind, where, example)


def _count(connection: Connection, statement: LiteralString) -> int:
    ((count,),) = connection.execute(statement).fetchall()
    return int(count)


def _check_partitions(connection: Connection, findings: Findings, now_ns: int) -> None:
    """Check that partitions are complete, sane and of one mind; ``now_ns`` is the node's clock."""
    rows: list[CatalogRow] = connection.execute(
        SQL.partitions.read_catalog.format(size=SQL.partitions.no_sizes)
    ).fetchall()
    bounds = _bounds_by_table(rows, findings)
    fine = Cover(bounds[FINE_TABLE])
    _check_alignment(bounds, findings)
    _check_coarse(bounds, fine, now_ns + DAY_NS, findings)
    maintained = connection.execute(SQL.partitions.is_maintained, (MAINTENANCE,)).fetchone() == (
        True,
    )
    if maintained:
        for table in (FINE_TABLE, *COARSE_TABLES):
            if not Cover(bounds[table]).spans(now_ns, now_ns + DAY_NS):
                findings.add("missing partition", table, "for now and the next 24 hours")


def _bounds_by_table(rows: Sequence[CatalogRow], findings: Findings) -> dict[str, list[Bounds]]:
    found: dict[str, list[Bounds]] = {
        table: [] for table in (FINE_TABLE, *COARSE_TABLES, COMMITS_TABLE)
    }
    for table, name, _, text, detaching, *_ in rows:
        if table not in found or text is None:
            continue
        if detaching:
            findings.add("partition being detached", table, name)
            continue
        try:
            bounds = parse_bounds(text)
        except ValueError:
            findings.add("odd bounds", table, f"{name} {text}")
            continue
        if bounds is None:
            findings.add("default partition", table, name)
        else:
            found[table].append(bounds)
    return {table: sorted(bounds) for table, bounds in found.items()}


def _check_alignment(bounds: dict[str, list[Bounds]], findings: Findings) -> None:
    units = {COMMITS_TABLE: COMMITS_PER_PARTITION}
    for table, found in bounds.items():
        unit = units.get(table, DAY_NS)
        for each in found:
            ends = [
                end for end in (each.low, each.high) if end not in (UNBOUNDED_LOW, UNBOUNDED_HIGH)
            ]
            if any(end % unit for end in ends):
                findings.add("odd bounds", table, each.clause)


def _check_coarse(
    bounds: dict[str, list[Bounds]], fine: Cover, last_ns: int, findings: Findings
) -> None:
    for table in COARSE_TABLES:
        cover = Cover(bounds[table])
        if len(cover.bounds) > MAX_COARSE:
            findings.add("too many partitions", table, f"{len(cover.bounds)} of {MAX_COARSE}")
        for each in fine.bounds:
            if each.low <= last_ns and not cover.spans(each.low, min(each.high - 1, last_ns)):
                findings.add("uncovered messages", table, each.clause)
    if len({tuple(bounds[table]) for table in COARSE_TABLES}) > 1:
        findings.add("odd bounds", "sds", "hashes, sds and topics differ")
