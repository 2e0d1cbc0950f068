"""A small batch that is probably new, written and committed by one statement.

A transaction of several statements waits for the network between them, and keeps its place in the
commit order, which all writers want, while it does. One statement that is its own transaction waits
once. In exchange nothing can be decided on the way: either all messages are new, or nothing is
stored this way, and the transaction of `store.db.writing.insert` finds out which are.

The parts of the statement run in the order in which they refer to each other (PostgreSQL manual,
"WITH Queries", "Data-Modifying Statements in WITH"): the rows first, then the lock of the commit
order, then the position, so that commits come in the order of their positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from store.db import arrays
from store.db.locks import COMMIT_ORDER
from store.db.pool import Connection
from store.db.writing.insert import DESCRIBED, MESSAGES, Inserted, lay_out
from store.db.writing.unread import TRACK, Wanted, track_parameters
from store.domain.ports import Source
from store.messages.record import RecordBatch

_TRACKED: Final = f""", tracked as ({TRACK.format(stored=" join stored using (ts, hash)")}
    returning 1
)"""
# Where only some are new, the commit is refused, for it must have a summary.
_COMMITTED: Final = """, placed as materialized (
    select batch, added, pg_advisory_xact_lock(%(commit_order)b::bigint),
           pg_notify('storenode_feed', '')
    from numbered, (select count(*) as added from stored) as counted{written}
    where added > 0
)
insert into storenode.commits (position, batch, token, messages, min_ts, max_ts, topics, source,
                               summary, claims)
select nextval('storenode.position_seq'), batch, %(token)b::bigint, added, %(min_ts)b::bigint,
       %(max_ts)b::bigint, %(topics)b::uuid[], %(source)s,
       case added when %(given)b::bigint then %(summary)b::bytea end, %(claims)b::bytea
from placed
"""


class NotNew(Exception):
    """Every message of the batch is there already."""


async def write_at_once(
    connection: Connection,
    batch: RecordBatch,
    commit: tuple[int, Inserted, Source],
    wanted: Sequence[Wanted],
) -> None:
    """Write a batch and commit it; the caller has no transaction open.

    ``commit`` is its token, what it adds if all of it is new, and where it comes from; ``wanted``
    are the unread events that go with it.

    Raises:
        NotNew: nothing was written.
        psycopg.errors.NotNullViolation: some messages are there already, and nothing was written.
    """
    token, added, source = commit
    parameters = await lay_out(batch) | {
        "commit_order": COMMIT_ORDER,
        "token": token,
        "min_ts": added.min_ts,
        "max_ts": added.max_ts,
        "topics": None if added.topics is None else arrays.uuids(added.topics),
        "source": source.value,
        "summary": added.summary,
        "claims": added.claims,
    }
    if wanted:
        parameters |= track_parameters(wanted)
    statement = _STATEMENTS[bool(batch.sds), bool(wanted)]
    cursor = await connection.execute(statement, parameters, binary=True)
    if not cursor.rowcount:
        raise NotNew


def _statement(*, with_sds: bool, with_unread: bool) -> str:
    parts = {"described": DESCRIBED if with_sds else "", "tracked": _TRACKED if with_unread else ""}
    names = ["located", *(name for name, part in parts.items() if part)]
    written = "".join(f", (select count(*) from {name}) as {name}_rows" for name in names)
    return MESSAGES + "".join(parts.values()) + _COMMITTED.format(written=written)


_STATEMENTS: Final = {
    (with_sds, with_unread): _statement(with_sds=with_sds, with_unread=with_unread)
    for with_sds in (False, True)
    for with_unread in (False, True)
}
