"""The reason why commits of this database wait, as the statistics of its server show it.

A role without ``pg_read_all_stats`` sees what its own sessions wait for; of another role's session
that holds a lock it sees the process ID and the role.
"""

from __future__ import annotations

from typing import Final

from store.db.locks import COMMIT_ORDER
from store.db.pool import Connection

# The sessions of this role that wait, each with the session at the end of its chain of locks; the
# longest wait counts. Advisory locks other than the commit order do not hold up publishing.
_STALL: Final = """
with recursive blocked as (
    select a.pid as waiting, a.pid as pid, a.query_start, 0 as depth
    from pg_stat_activity a
    where a.datname = current_database() and a.usename = current_user
      and a.pid <> pg_backend_pid() and a.state = 'active'
      and (a.wait_event = 'SyncRep' or a.wait_event_type = 'IO' or a.wait_event like 'WAL%%'
           or exists (select from pg_locks l where l.pid = a.pid and not l.granted
                      and (l.locktype <> 'advisory' or
                           (l.classid::bigint << 32 | l.objid::bigint) = %s::bigint)))
    union all
    select b.waiting, blocker, b.query_start, b.depth + 1
    from blocked b cross join unnest(pg_blocking_pids(b.pid)) as blocker
    where b.depth < 8 and blocker <> 0
), ends as (
    select distinct on (waiting) pid, query_start, depth from blocked
    order by waiting, depth desc
)
select e.pid, e.depth > 0, coalesce(a.wait_event, ''), coalesce(a.application_name, ''),
       coalesce(a.usename::text, ''), coalesce(a.state, ''),
       current_setting('synchronous_standby_names'),
       (select count(*) from pg_stat_replication)
from ends e left join pg_stat_activity a on a.pid = e.pid
order by e.query_start nulls last limit 1
"""


async def read_stall(connection: Connection) -> str | None:
    """Return a sentence on what the longest waiting write waits for; None if none waits.

    Raises:
        psycopg.Error: the database refused.
    """
    row = await (await connection.execute(_STALL, (COMMIT_ORDER,))).fetchone()
    if row is None:
        return None
    pid, is_lock, wait, application, role, state, standbys, connected = map(str, row)
    if wait == "SyncRep":
        return (
            "commits wait for synchronous replication: synchronous_standby_names is"
            f" '{standbys}', and {connected} standbys are connected"
        )
    if is_lock == "True":
        holder = ", ".join(filter(None, (application, f"role {role}", state)))
        return (
            f"a lock is held by pid {pid} ({holder}): end its work, or pg_terminate_backend({pid})"
        )
    return f"commits wait for the database's disk ({wait})"
