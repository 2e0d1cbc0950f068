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
    UNREAD_TABLE,
)
from store.db.schema.partitions import CATALOG, NO_SIZES, SIZES, Catalog, read_partitions
from store.db.sds.missing_parents import CLAIM_BYTES, MORE, PARENT_STORED
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

_STRAYS: Final[LiteralString] = """
select relname::text from pg_class c
where relnamespace = 'storenode'::regnamespace and relkind in ('r', 'p', 'f', 'm')
  and not relispartition
  and relname <> all(array['store', 'alembic_version', 'messages', 'hashes', 'sds', 'topics',
                           'commits', 'buckets', 'archived', 'unread', 'coverage', 'online',
                           'missing_parents'])
order by 1
"""
# Not what is being rebuilt, or was when a node stopped: the one in charge drops it.
_INVALID_INDEXES: Final[LiteralString] = """
select t.relname::text, x.relname::text
from pg_index i join pg_class x on x.oid = i.indexrelid join pg_class t on t.oid = i.indrelid
where t.relnamespace = 'storenode'::regnamespace and not (i.indisvalid and i.indisready)
  and not (x.relname ~ '_cc(new|old)[0-9]*$' and not x.relispartition)
order by 1, 2
"""
_STORE_ROWS: Final[LiteralString] = "select count(*) from storenode.store"
_MAINTAINED: Final[LiteralString] = """
select exists (select from pg_locks where locktype = 'advisory' and granted and objsubid = 1
               and database = (select oid from pg_database where datname = current_database())
               and (classid::bigint << 32) | objid::bigint = %s)
"""
_SEQUENCES: Final[LiteralString] = """
select 'position_seq', (select max(position) from storenode.commits), last_value
from storenode.position_seq
union all
select 'batch_seq', (select max(batch) from storenode.messages), last_value
from storenode.batch_seq
"""
_BATCHES: Final[LiteralString] = """
select counted.batch, counted.messages, committed.messages
from (select batch, count(*) as messages, max(ts) as newest from storenode.messages
      group by batch) counted
left join storenode.commits committed on committed.batch = counted.batch
where committed.messages < counted.messages
   or committed.batch is null
      and counted.newest >= (select horizon_ns from storenode.store)
"""
_HORIZON: Final = "select max(horizon_ns) from storenode.store"
_ROW_BYTES: Final = 256
"""Size of a row where nothing better is known, to guess how many there are."""

_ROW_TABLES: Final = ("messages", "hashes", "sds")

CatalogRow = tuple[str, str, int, str | None, bool, int, int]

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

NOT_MISSING: Final = "missing parent that is not missing"
NOT_COUNTED: Final = "parent that is missing and is not counted"

_MISSING_TABLE: Final = "missing_parents"

# One statement sees one snapshot. What is not followed yet says nothing about the table.
_PENDING: Final = f"""
with store as (select horizon_ns, claimed_position from storenode.store),
pending as (
    select encode(substr(c.claims, {CLAIM_BYTES} * n + 1, 16), 'hex')::uuid as key
    from storenode.commits c cross join store
    cross join generate_series(0, octet_length(c.claims) / {CLAIM_BYTES} - 1) as n
    where c.position > store.claimed_position
)
"""
_NOT_MISSING_ROWS: Final = f"""{_PENDING}
select named.channel_key::text, named.ts, named.key::text
from (select channel_key, ts, parent_key as key from storenode.missing_parents
      where parent_key <> {MORE}) as named
cross join store
where named.ts >= store.horizon_ns
  and named.key not in (select key from pending)
  and ({PARENT_STORED} or not exists (
      select from storenode.sds s where s.channel_key = named.channel_key and s.ts = named.ts
      and named.key = any(s.parent_keys)))
"""
# Where retention has dropped something, it may have been such a parent. Not every parent that a
# message lacks has a row, but one of them has.
_NOT_COUNTED_ROWS: Final = f"""{_PENDING}
select named.channel_key::text, named.ts, named.key::text
from (select s.key as child, s.channel_key, s.ts, p.key
      from storenode.sds s cross join unnest(s.parent_keys) as p(key)) as named
cross join store
where store.horizon_ns = 0
  and named.child not in (select key from pending)
  and not exists (select from storenode.missing_parents m
                  where m.channel_key = named.channel_key and m.ts = named.ts)
  and not {PARENT_STORED}
"""
_MISSING_COUNT: Final[LiteralString] = "select count(*) from storenode.missing_parents"


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
            _check_objects(connection, findings)
            _check_rows(connection, findings, sample, progress, checked)
            checked[UNREAD_TABLE] = _check_unread(connection, findings)
            if sample is None:
                checked["commits"] = _check_batches(connection, findings)
                checked["missing_parents"] = _check_missing(connection, findings)
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
    ((horizon_ns,),) = connection.execute(_HORIZON).fetchall()
    return StoredTimes(fine, horizon_ns or 0)


def _catalog(connection: Connection) -> Catalog:
    rows = connection.execute(CATALOG.format(size=SIZES)).fetchall()
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


def _check_unread(connection: Connection, findings: Findings) -> int:
    """Check that unread events have their messages and count each store once; their number."""
    with connection.transaction(), connection.cursor(name="storenode_check") as cursor:
        cursor.itersize = _FETCH_ROWS
        for ts, digest, is_lost in cursor.execute(_UNREAD_FAULTS):
            kind = _LOST if is_lost else _COUNTED_TWICE
            findings.add(kind, UNREAD_TABLE, f"{digest} at {ts}")
    ((count,),) = connection.execute(_UNREAD_COUNT).fetchall()
    return int(count)


def _check_missing(connection: Connection, findings: Findings) -> int:
    """Compare missing parents with the SDS messages; returns the number of rows."""
    for kind, statement in ((NOT_MISSING, _NOT_MISSING_ROWS), (NOT_COUNTED, _NOT_COUNTED_ROWS)):
        with connection.transaction(), connection.cursor(name="storenode_check") as cursor:
            for channel, ts, parent in cursor.execute(statement):
                findings.add(kind, _MISSING_TABLE, f"{parent} of channel {channel} at {ts}")
    ((count,),) = connection.execute(_MISSING_COUNT).fetchall()
    return int(count)


def _check_partitions(connection: Connection, findings: Findings, now_ns: int) -> None:
    """Check that partitions are complete, sane and of one mind; ``now_ns`` is the node's clock."""
    rows: list[CatalogRow] = connection.execute(CATALOG.format(size=NO_SIZES)).fetchall()
    bounds = _bounds_by_table(rows, findings)
    fine = Cover(bounds[FINE_TABLE])
    _check_alignment(bounds, findings)
    _check_coarse(bounds, fine, now_ns + DAY_NS, findings)
    maintained = connection.execute(_MAINTAINED, (MAINTENANCE,)).fetchone() == (True,)
    if maintained:
        for table in (FINE_TABLE, *COARSE_TABLES):
            if not Cover(bounds[table]).spans(now_ns, now_ns + DAY_NS):
                findings.add("missing partition", table, "for now and the next 24 hours")


def _check_objects(connection: Connection, findings: Findings) -> None:
    """Check tables that are not ours, indexes that are not valid, and the row of the store."""
    for (name,) in connection.execute(_STRAYS):
        findings.add("stray table", name, name)
    for table, index in connection.execute(_INVALID_INDEXES):
        findings.add("invalid index", table, index)
    ((count,),) = connection.execute(_STORE_ROWS).fetchall()
    if count != 1:
        findings.add("wrong store", "store", f"{count} rows instead of one")
    for name, largest, last in connection.execute(_SEQUENCES):
        if largest is not None and largest > last:
            findings.add(
                "sequence behind its table", name, f"it stands at {last}, the table at {largest}"
            )


def _check_batches(connection: Connection, findings: Findings) -> int:
    """Compare each batch's messages with its commit; returns the number of commits.

    A commit counts what its transaction stored, so no batch may hold more; fewer are left when
    some were pruned. A batch whose messages all lie behind the horizon may have lost its commit.
    """
    with connection.transaction(), connection.cursor(name="storenode_check") as cursor:
        cursor.itersize = _FETCH_ROWS
        for batch, stored, committed in cursor.execute(_BATCHES):
            if committed is None:
                findings.add("batch without a commit", COMMITS_TABLE, f"batch {batch}")
            else:
                findings.add(
                    "commit of fewer messages than are held",
                    COMMITS_TABLE,
                    f"batch {batch}: {stored} held, {committed} committed",
                )
    ((count,),) = connection.execute("select count(*) from storenode.commits").fetchall()
    return int(count)


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
