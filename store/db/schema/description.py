"""The schema that the migrations leave, as lines of text, for comparison with a database.

``schema.txt`` has a line for each column, index, check, partition key, sequence and view.
Partitions are not listed: Postgres's own catalog is the truth about them.
"""

from pathlib import Path
from typing import Any, Final

import psycopg

EXPECTED: Final = Path(__file__).with_name("schema.txt")

# Everything in the schema but partitions: the relation, its kind, and a line of text.
_DESCRIBE: Final = """
with relation as (
    select oid, relname::text as name, relkind from pg_class
    where relnamespace = 'storenode'::regnamespace and not relispartition
      and relkind in ('r', 'p', 'v', 'S') and relname <> 'alembic_version'
)
select r.name, r.relkind::text, format('column %s.%s %s', r.name, a.attname,
           format_type(a.atttypid, a.atttypmod))
       || coalesce(' collate ' || l.collname, '')
       || case when a.attnotnull then ' not null' else '' end
       || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
       || case when a.attstorage <> t.typstorage then ' storage ' || a.attstorage::text else '' end
from relation r join pg_attribute a on a.attrelid = r.oid
join pg_type t on t.oid = a.atttypid
left join pg_collation l on l.oid = a.attcollation and l.collname <> 'default'
left join pg_attrdef d on d.adrelid = r.oid and d.adnum = a.attnum
where a.attnum > 0 and not a.attisdropped and r.relkind <> 'S'
union all
select r.name, r.relkind::text, format('index %s', pg_get_indexdef(i.indexrelid))
from relation r join pg_index i on i.indrelid = r.oid
union all
select r.name, r.relkind::text,
       format('check %s.%s %s', r.name, c.conname, pg_get_constraintdef(c.oid))
from relation r join pg_constraint c on c.conrelid = r.oid and c.contype = 'c'
union all
select r.name, r.relkind::text, format('partitions of %s by %s', r.name, pg_get_partkeydef(r.oid))
from relation r where r.relkind = 'p'
union all
select r.name, r.relkind::text, case r.relkind when 'v' then 'view ' else 'sequence ' end || r.name
from relation r where r.relkind in ('v', 'S')
"""


def describe(connection: psycopg.Connection[Any]) -> list[tuple[str, str, str]]:
    """Return the relation, its kind (``pg_class.relkind``) and the line of each object."""
    return connection.execute(_DESCRIBE).fetchall()


def differences(connection: psycopg.Connection[Any]) -> list[str]:
    """Return what a database's schema has otherwise than the newest revision, in any order.

    Tables that are not the store's, and checks that were added, are left out.
    """
    expected = set(EXPECTED.read_text().splitlines())
    rows = describe(connection)
    found = {line for _, _, line in rows}
    tables = {line.split()[1].split(".")[0] for line in expected if line.startswith("column ")}
    unexpected = {
        line
        for name, kind, line in rows
        if line not in expected
        and (kind in {"v", "S"} or name in tables)
        and not line.startswith("check ")
    }
    return [
        *(f"missing: {line}" for line in sorted(expected - found)),
        *(f"unexpected: {line}" for line in sorted(unexpected)),
    ]
