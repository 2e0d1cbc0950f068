"""The maintenance of one database by several nodes, and what its condition shows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import psycopg
import pytest

from store.db import maintainer as maintainer_module
from store.db import partitions
from store.db.condition import read_condition
from store.db.maintainer import Maintainer
from store.db.partitions import ensure_ahead
from store.domain.partitioning import DAY_NS
from store.domain.retention import RetentionPolicy
from tests.integration.database.rows import (
    MONTH_NS,
    NOW,
    TODAY,
    Connection,
    counted,
    names,
    opened,
    values,
)
from tests.integration.database.sample_messages import admitted, plain, write
from tests.support.polling import until

NEVER_S = 3_600.0


class Events:
    """The events of a maintainer, and a way to wait for them."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, object]]] = []
        self._changed = asyncio.Event()

    def __call__(self, name: str, /, **fields: object) -> None:
        self.seen.append((name, fields))
        self._changed.set()

    def names(self) -> list[str]:
        return [name for name, _ in self.seen]

    async def wait_for(self, name: str) -> dict[str, object]:
        while name not in self.names():
            self._changed.clear()
            await self._changed.wait()
        return next(fields for found, fields in self.seen if found == name)


@asynccontextmanager
async def running(maintainer: Maintainer) -> AsyncIterator[None]:
    task = asyncio.create_task(maintainer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def maintainer(
    connect: Callable[[], Awaitable[Connection]],
    events: Events,
    policy: RetentionPolicy | None = None,
    now_ns: Callable[[], int] = lambda: NOW,
    interval_s: float = NEVER_S,
    *,
    max_lead_ns: int = 36_600 * DAY_NS,
) -> Maintainer:
    """Make a maintainer, whose clock is not compared with the database's by default."""
    return Maintainer(
        connect,
        lambda: policy or RetentionPolicy(),
        now_ns=now_ns,
        steady_ns=now_ns,
        on_event=events,
        interval_s=interval_s,
        max_lead_ns=max_lead_ns,
        last_online_ns=0,
        commits=asyncio.Event(),
    )


async def test_it_makes_partitions_ahead_and_drops_old_ones(database_url: str) -> None:
    events, now = Events(), [NOW]
    policy = RetentionPolicy(age_ns=DAY_NS)
    node = maintainer(lambda: opened(database_url), events, policy, lambda: now[0], 0.01)
    async with await opened(database_url) as watcher, running(node):
        await events.wait_for("maintenance_taken")
        await rounds(watcher, node, 1)
        assert node.in_charge
        assert "messages_20261122" in await names(watcher, "messages")
        now[0] += 3 * DAY_NS
        await rounds(watcher, node, 2)
        reported = [
            fields["partition"] for name, fields in events.seen if name == "partition_dropped"
        ]
        assert reported == ["messages_20261120", "messages_20261121"]
        assert await names(watcher, "messages") == [
            "messages_20261122",
            "messages_20261123",
            "messages_20261124",
            "messages_20261125",
        ]
    assert not node.in_charge


async def test_a_node_whose_clock_runs_ahead_goes_by_the_database(database_url: str) -> None:
    now, events = [time.time_ns()], Events()
    node = maintainer(
        lambda: opened(database_url),
        events,
        RetentionPolicy(age_ns=30 * DAY_NS),
        lambda: now[0],
        0.01,
        max_lead_ns=DAY_NS,
    )
    async with await opened(database_url) as watcher, running(node):
        await events.wait_for("maintenance_taken")
        await rounds(watcher, node, 1)
        stored = await names(watcher, "messages")
        now[0] += 400 * DAY_NS
        await rounds(watcher, node, 2)
        assert stored != []
        assert await names(watcher, "messages") == stored
    assert events.names() == ["maintenance_taken"]


async def rounds(watcher: Connection, node: Maintainer, count: int) -> None:
    """Wait for ``count`` further rounds of a maintainer."""
    most = node.rounds + count

    async def reached() -> bool:
        await values(watcher, "select 1")  # gives it time
        return node.rounds >= most

    await until(reached)


async def test_one_node_at_a_time_and_then_the_other(database_url: str) -> None:
    first, second = Events(), Events()
    one = maintainer(lambda: opened(database_url), first, interval_s=0.01)  # a round notices a loss
    other = maintainer(lambda: opened(database_url), second, interval_s=0.01)
    async with running(one):
        await first.wait_for("maintenance_taken")
        async with running(other):
            async with await opened(database_url) as watcher:

                async def asked() -> bool:
                    return await values(
                        watcher,
                        "select count(*)::int from pg_stat_activity where"
                        " query like '%pg_try_advisory_lock%' and pid <> pg_backend_pid()"
                        " and datname = current_database()",
                    ) == [1]

                await until(asked)
            assert [one.in_charge, other.in_charge] == [True, False]
            assert second.names() == []
            await stop_in_charge(database_url)
            await second.wait_for("maintenance_taken")
            await first.wait_for("maintenance_disconnected")


async def stop_in_charge(url: str) -> None:
    async with await opened(url) as own:
        await own.execute(
            "select pg_terminate_backend(pid) from pg_locks"
            " where locktype = 'advisory' and granted and pid <> pg_backend_pid()"
        )


async def test_it_goes_on_when_the_database_cannot_be_reached(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintainer_module, "FIRST_BACKOFF_S", 0.01)
    events, failures = Events(), [2]

    async def connect() -> Connection:
        if failures[0]:
            failures[0] -= 1
            return await psycopg.AsyncConnection.connect("postgresql://127.0.0.1:1/none")
        return await opened(database_url)

    node = maintainer(connect, events)
    async with running(node):
        await events.wait_for("maintenance_taken")
    pauses = [
        fields["retry_in_s"] for name, fields in events.seen if name == "maintenance_disconnected"
    ]
    assert pauses == [0.01, 0.02]


async def test_what_fails_keeps_nothing_else_from_being_done(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "CREATE_LOCK_TIMEOUT_MS", 20)
    events = Events()
    node = maintainer(lambda: opened(database_url), events)
    async with await opened(database_url) as own, await opened(database_url) as blocker:
        async with blocker.transaction():
            await blocker.execute("lock table storenode.messages in share update exclusive mode")
            await node.round(own)
        assert events.names() == ["maintenance_failed"]
        assert events.seen[0][1]["task"] == "ensure_ahead"
        await node.round(own)
        assert "messages_20261120" in await names(own, "messages")


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
    # Writers report their changes later; reports after the analysis would be added to it.
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
