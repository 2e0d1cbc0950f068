"""The condition of a database, against what was done to it."""

from __future__ import annotations

from store.db.buckets import fold_until
from store.db.condition import read_condition
from store.db.partitions import ensure_ahead
from store.domain.partitioning import DAY_NS
from tests.integration.database.rows import (
    MONTH_NS,
    NOW,
    TODAY,
    Connection,
    counted,
    values,
)
from tests.integration.database.sample_messages import admitted, plain, write

HOUR_NS = DAY_NS // 24


async def test_partitions_ahead_are_seen_to_run_out(connection: Connection) -> None:
    assert (await read_condition(connection, NOW)).covered_until_ns == NOW
    await ensure_ahead(connection, NOW, MONTH_NS)
    assert (await read_condition(connection, NOW)).covered_until_ns == TODAY + 3 * DAY_NS
    late = TODAY + 4 * DAY_NS
    assert (await read_condition(connection, late)).covered_until_ns == late


async def test_dead_rows_and_sizes_are_those_of_all_partitions(
    connection: Connection, database_url: str
) -> None:
    await write(database_url, [admitted([plain(n, NOW - n * DAY_NS) for n in range(3)])])
    await connection.execute("delete from storenode.messages where ts < %s", (NOW,))
    # Who wrote tells of it by and by; what is told after the analysis would be added to it.
    await counted(connection, "n_tup_ins", "messages_", 3)
    await counted(connection, "n_tup_del", "messages_", 2)
    await connection.execute("analyze storenode.messages")
    condition = await read_condition(connection, NOW)
    messages = condition.tables["messages"]
    assert (messages.live_rows, messages.dead_rows) == (1, 2)
    assert condition.tables["store"].live_rows <= 1
    assert (condition.standbys, condition.standby_lag_bytes) == (0, {})
    assert (condition.slots_in_use, condition.slots_unused) == (0, 0)
    (size,) = await values(connection, "select pg_database_size(current_database())")
    assert size / 2 < condition.size_bytes < size * 2
    assert condition.host.endswith(f":{connection.info.port}")
    assert not condition.standby


async def test_an_hour_is_unarchived_until_it_is_noted_as_it_is(
    connection: Connection, database_url: str
) -> None:
    begins = TODAY - DAY_NS
    await write(database_url, [admitted([plain(1, begins + 1), plain(2, NOW)])])
    await fold_until(connection)
    archive = (await read_condition(connection, NOW)).archive
    assert (archive.unarchived_hours, archive.oldest_unarchived_ns) == (1, begins), "one is over"
    assert archive.archived_until_ns == 0
    await connection.execute(
        "insert into storenode.archived (start_ns, count, x0, x1, x2, x3, position, archive)"
        " select start_ns, count, x0, x1, x2, x3, 1, 'here' from storenode.buckets"
        " where level = 1 and start_ns = %s",
        (begins,),
    )
    archive = (await read_condition(connection, NOW)).archive
    assert (archive.unarchived_hours, archive.oldest_unarchived_ns) == (0, 0)
    assert archive.archived_until_ns == begins + HOUR_NS
    await write(database_url, [admitted([plain(3, begins + 2)])])
    await fold_until(connection)
    archive = (await read_condition(connection, NOW)).archive
    assert archive.oldest_unarchived_ns == begins, "what came late is not archived"
