"""Is what waits for confirmations held, and does each confirmation count once?"""

from __future__ import annotations

from typing import Any, Final, LiteralString

from psycopg import Connection as PsycopgConnection

from store.db.checks.findings import Findings
from store.db.schema.tables import UNREAD_TABLE

Connection = PsycopgConnection[Any]

LOST: Final = "unread event without its message"
COUNTED_TWICE: Final = "store that has confirmed twice"

_FETCH_ROWS: Final = 1_000

# One statement sees one snapshot: a message and its unread event come and go together.
_FAULTS: Final[LiteralString] = """
select u.ts, encode(u.hash, 'hex'), m.hash is null
from storenode.unread u left join storenode.messages m on m.ts = u.ts and m.hash = u.hash
where m.hash is null
   or cardinality(u.stores) > (select count(distinct store) from unnest(u.stores) as s(store))
order by u.hash
"""
_COUNT: Final[LiteralString] = "select count(*) from storenode.unread"


def check_unread(connection: Connection, findings: Findings) -> int:
    """Check all unread events; returns their number."""
    with connection.transaction(), connection.cursor(name="storenode_check") as cursor:
        cursor.itersize = _FETCH_ROWS
        for ts, digest, is_lost in cursor.execute(_FAULTS):
            kind = LOST if is_lost else COUNTED_TWICE
            findings.add(kind, UNREAD_TABLE, f"{digest} at {ts}")
    ((count,),) = connection.execute(_COUNT).fetchall()
    return int(count)
