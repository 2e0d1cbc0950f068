"""What the catalog says about tables, partitions, indexes and sequences, and the commits' sums."""

from collections.abc import Sequence
from typing import Any, Final, LiteralString

from psycopg import Connection as PsycopgConnection

from store.db.checks.findings import Findings
from store.db.locks import MAINTENANCE
from store.db.schema.names import COARSE_TABLES, COMMITS_TABLE, FINE_TABLE
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

Connection = PsycopgConnection[Any]

_PARTITIONS: Final[LiteralString] = """
select p.relname::text, c.relname::text, pg_get_expr(c.relpartbound, c.oid), i.inhdetachpending
from pg_inherits i
join pg_class p on p.oid = i.inhparent
join pg_class c on c.oid = i.inhrelid
where p.relnamespace = 'storenode'::regnamespace and p.relkind = 'p'
order by 1, 2
"""
_STRAYS: Final[LiteralString] = """
select relname::text from pg_class c
where relnamespace = 'storenode'::regnamespace and relkind in ('r', 'p', 'f', 'm')
  and not relispartition
  and relname <> all(array['store', 'alembic_version', 'messages', 'hashes', 'sds', 'topics',
                           'commits', 'buckets', 'archived', 'unread', 'coverage', 'online',
                           'missing_parents'])
order by 1
"""
# Not what is being built, or was when a node stopped: the one in charge drops it.
_INVALID_INDEXES: Final[LiteralString] = """
select t.relname::text, x.relname::text
from pg_index i join pg_class x on x.oid = i.indexrelid join pg_class t on t.oid = i.indrelid
where t.relnamespace = 'storenode'::regnamespace and not (i.indisvalid and i.indisready)
  and not (x.relname ~ '(_cc(new|old)[0-9]*|_topic_key_idx|_proven_idx)$'
           and not x.relispartition)
  and not (x.relname = 'messages_topic_idx'
           and to_regclass('storenode.messages_topic_hash_idx') is not null)
  and not (x.relname = 'sds_proven_idx' and x.relkind = 'I')
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
select held.batch, held.messages, committed.messages
from (select batch, count(*) as messages, max(ts) as newest from storenode.messages
      group by batch) held
left join storenode.commits committed on committed.batch = held.batch
where committed.messages < held.messages
   or committed.batch is null
      and held.newest >= (select horizon_ns from storenode.store)
"""
_TOTALS: Final[LiteralString] = """
select folded_messages + (select coalesce(sum(messages), 0)::bigint from storenode.commits)
       - pruned_messages, (select count(*) from storenode.messages)
from storenode.store
"""
_FETCH_ROWS: Final = 1_000

PartitionRow = tuple[str, str, str | None, bool]


def check_partitions(connection: Connection, findings: Findings, now_ns: int) -> None:
    """Check that partitions are complete, sane and of one mind; ``now_ns`` is the node's clock."""
    rows: list[PartitionRow] = connection.execute(_PARTITIONS).fetchall()
    bounds = _bounds_by_table(rows, findings)
    fine = Cover(bounds[FINE_TABLE])
    _check_alignment(bounds, findings)
    _check_coarse(bounds, fine, now_ns + DAY_NS, findings)
    maintained = connection.execute(_MAINTAINED, (MAINTENANCE,)).fetchone() == (True,)
    if maintained:
        for table in (FINE_TABLE, *COARSE_TABLES):
            if not Cover(bounds[table]).spans(now_ns, now_ns + DAY_NS):
                findings.add("missing partition", table, "for now and the next 24 hours")


def check_objects(connection: Connection, findings: Findings) -> None:
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


def check_batches(connection: Connection, findings: Findings) -> int:
    """Compare each batch's messages with its commit; returns the number of commits.

    A commit counts what its transaction stored, so no batch may hold more; fewer are left when
    some were pruned. A batch whose messages all lie behind the horizon may have lost its commit.
    """
    with connection.transaction(), connection.cursor(name="storenode_check") as cursor:
        cursor.itersize = _FETCH_ROWS
        for batch, held, committed in cursor.execute(_BATCHES):
            if committed is None:
                findings.add("batch without a commit", COMMITS_TABLE, f"batch {batch}")
            else:
                findings.add(
                    "commit of fewer messages than are held",
                    COMMITS_TABLE,
                    f"batch {batch}: {held} held, {committed} committed",
                )
    ((count,),) = connection.execute("select count(*) from storenode.commits").fetchall()
    return int(count)


def check_totals(connection: Connection, findings: Findings) -> None:
    """Compare the number of messages that nodes report with those that are held."""
    for reported, held in connection.execute(_TOTALS):
        if reported != held:
            findings.add("wrong totals", "store", f"{reported} messages reported, {held} held")


def _bounds_by_table(rows: Sequence[PartitionRow], findings: Findings) -> dict[str, list[Bounds]]:
    found: dict[str, list[Bounds]] = {
        table: [] for table in (FINE_TABLE, *COARSE_TABLES, COMMITS_TABLE)
    }
    for table, name, text, detaching in rows:
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
    for table, held in bounds.items():
        unit = units.get(table, DAY_NS)
        for each in held:
            ends = [
                end for end in (each.low, each.high) if end not in (UNBOUNDED_LOW, UNBOUNDED_HIGH)
            ]
            if any(end % unit for end in ends):
                findings.add("odd bounds", table, each.clause)


def _check_coarse(
    bounds: dict[str, list[Bounds]], fine: Cover, last_ns: int, findings: Findings
) -> None:
    for table in COARSE_TABLES:
        held = Cover(bounds[table])
        if len(held.bounds) > MAX_COARSE:
            findings.add("too many partitions", table, f"{len(held.bounds)} of {MAX_COARSE}")
        for each in fine.bounds:
            if each.low <= last_ns and not held.spans(each.low, min(each.high - 1, last_ns)):
                findings.add("uncovered messages", table, each.clause)
    if len({tuple(bounds[table]) for table in COARSE_TABLES}) > 1:
        findings.add("odd bounds", "sds", "hashes, sds and topics differ")
