"""The reason why commits of this database wait, as the statistics of its server show it.

A role without ``pg_read_all_stats`` sees what its own sessions wait for; of another role's session
that holds a lock it sees the process ID and the role.
"""

from __future__ import annotations

from store.db.connection import Connection
from store.db.locks import COMMIT_ORDER
from store.db.statements import SQL


async def read_stall(connection: Connection) -> str | None:
    """Return a sentence on what the longest waiting write waits for; None if none waits.

    Raises:
        psycopg.Error: the database refused.
    """
    row = await (await connection.execute(SQL.partitions.find_stall, (COMMIT_ORDER,))).fetchone()
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
