"""Is what ``missing_parents`` says missing, and nothing else?"""

from __future__ import annotations

from typing import Any, Final, LiteralString

from psycopg import Connection as PsycopgConnection

from store.db.checks.findings import Findings
from store.db.sds.missing import CLAIM_BYTES, HELD, MORE

Connection = PsycopgConnection[Any]

NOT_MISSING: Final = "missing parent that is not missing"
NOT_COUNTED: Final = "parent that is missing and is not counted"

_TABLE: Final = "missing_parents"

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
_NOT_MISSING: Final = f"""{_PENDING}
select named.channel_key::text, named.ts, named.key::text
from (select channel_key, ts, parent_key as key from storenode.missing_parents
      where parent_key <> {MORE}) as named
cross join store
where named.ts >= store.horizon_ns
  and named.key not in (select key from pending)
  and ({HELD} or not exists (
      select from storenode.sds s where s.channel_key = named.channel_key and s.ts = named.ts
      and named.key = any(s.parent_keys)))
"""
# Where retention has dropped something, it may have been such a parent. Not every parent that a
# message lacks has a row, but one of them has.
_NOT_COUNTED: Final = f"""{_PENDING}
select named.channel_key::text, named.ts, named.key::text
from (select s.key as child, s.channel_key, s.ts, p.key
      from storenode.sds s cross join unnest(s.parent_keys) as p(key)) as named
cross join store
where store.horizon_ns = 0
  and named.child not in (select key from pending)
  and not exists (select from storenode.missing_parents m
                  where m.channel_key = named.channel_key and m.ts = named.ts)
  and not {HELD}
"""
_COUNT: Final[LiteralString] = "select count(*) from storenode.missing_parents"


def check_missing(connection: Connection, findings: Findings) -> int:
    """Compare missing parents with the SDS messages; returns the number of rows."""
    for kind, statement in ((NOT_MISSING, _NOT_MISSING), (NOT_COUNTED, _NOT_COUNTED)):
        with connection.transaction(), connection.cursor(name="storenode_check") as cursor:
            for channel, ts, parent in cursor.execute(statement):
                findings.add(kind, _TABLE, f"{parent} of channel {channel} at {ts}")
    ((count,),) = connection.execute(_COUNT).fetchall()
    return int(count)
