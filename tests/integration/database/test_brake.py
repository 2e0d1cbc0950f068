"""The brake on retention, on a store of forty days in a real database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from store.db.partitions import ensure_ahead, ensure_for, read_catalog
from store.db.retention import (
    RetentionBrake,
    agree,
    prune,
    read_agreed,
    reopen,
    review,
)
from store.domain.partitioning import DAY_NS
from store.domain.retention import RetentionPolicy
from tests.integration.database.rows import (
    NOW,
    TODAY,
    Connection,
    filled_database,
    horizon,
    insert,
)
from tests.support.postgres import PostgresServer

STORED_DAYS = 40
KEEP_ALL = RetentionPolicy()


def days(number: float) -> RetentionPolicy:
    return RetentionPolicy(age_ns=int(number * DAY_NS))


async def fill(connection: Connection) -> None:
    times = [NOW - day * DAY_NS for day in range(STORED_DAYS)]
    await ensure_for(connection, times, NOW, None)
    await insert(connection, times)


@pytest.fixture(scope="module")
def filled(postgres: PostgresServer, template_database: str) -> Iterator[str]:
    yield from filled_database(postgres, template_database, fill)


async def start(
    connection: Connection,
    policy: RetentionPolicy,
    *,
    confirmed: bool = False,
    now_ns: int = NOW,
) -> RetentionBrake:
    """Start a node and let it maintain the database once."""
    brake = RetentionBrake(policy, confirmed=confirmed)
    await settle(connection, brake, now_ns)
    return brake


async def settle(connection: Connection, brake: RetentionBrake, now_ns: int = NOW) -> None:
    await brake.settle(connection, now_ns)
    await prune(connection, brake.policy, now_ns)


def applies(node: RetentionBrake, policy: RetentionPolicy) -> bool:
    return node.excess is None and node.policy == policy


async def stored_days(connection: Connection) -> int:
    return sum(
        each.bounds.high <= TODAY + DAY_NS
        for each in (await read_catalog(connection, with_sizes=True)).of("messages")
    )


STARTS: dict[str, tuple[RetentionPolicy | None, RetentionPolicy, bool]] = {
    "a first start that drops nothing": (None, days(60), False),
    "a first start that drops a day": (None, days(STORED_DAYS - 2), False),
    "a first start that drops nine days": (None, days(30), True),
    "a first start without limits": (None, KEEP_ALL, False),
    "30m for 30d": (days(60), days(1 / 48), True),
    "more than a tenth": (days(60), days(34), True),
    "a tenth": (days(60), days(35), False),
    "a longer retention": (days(60), days(90), False),
    "a size for an age": (days(60), RetentionPolicy(size_bytes=1), True),
    "an age for a size": (RetentionPolicy(size_bytes=1 << 40), days(60), False),
    "a limit that drops nothing yet": (KEEP_ALL, days(60), False),
    "a limit for none": (KEEP_ALL, days(1), True),
}
"""The agreed limits, those of the node that starts, and whether these are held."""


async def test_a_start_holds_what_would_drop_much(connection: Connection) -> None:
    for name, (agreed, wanted, waits) in STARTS.items():
        async with connection.transaction(force_rollback=True):
            if agreed is not None:
                await agree(connection, agreed)
            node = RetentionBrake(wanted)
            await node.settle(connection, NOW)
            assert (node.excess is not None) == waits, name
            assert node.policy == ((agreed or KEEP_ALL) if waits else wanted), name
            assert await read_agreed(connection) == (agreed if waits else wanted), name


async def test_a_node_drops_when_an_operator_agrees(connection: Connection) -> None:
    await agree(connection, days(60))
    slip = await start(connection, days(2))
    assert slip.excess is not None
    assert len(slip.excess.partitions) == STORED_DAYS - 3
    assert slip.excess.share > 0.9
    assert slip.excess.span_ns == (STORED_DAYS - 3) * DAY_NS
    await settle(connection, slip)
    assert slip.excess is not None
    assert await stored_days(connection) == STORED_DAYS
    await agree(connection, days(2))
    await settle(connection, slip)
    assert applies(slip, days(2))
    assert await stored_days(connection) == 3


async def test_a_confirmed_start_drops_at_once(connection: Connection) -> None:
    await agree(connection, days(60))
    node = await start(connection, days(2), confirmed=True)
    assert applies(node, days(2))
    assert await stored_days(connection) == 3
    # The next start has nothing to confirm.
    assert (await start(connection, days(2))).excess is None


async def test_what_falls_due_day_by_day_never_waits(connection: Connection) -> None:
    await start(connection, days(2), confirmed=True)
    for day in range(1, 4):
        now_ns = NOW + day * DAY_NS
        await ensure_ahead(connection, now_ns, None)
        await insert(connection, [now_ns])
        # A third of the store is due.
        node = await start(connection, days(2), now_ns=now_ns)
        assert node.excess is None
    assert await horizon(connection) == TODAY + DAY_NS


async def test_more_than_a_week_due_at_a_start_waits(connection: Connection) -> None:
    await agree(connection, days(30))
    node = await start(connection, days(30))
    assert node.excess is not None
    assert (node.policy, await stored_days(connection)) == (KEEP_ALL, STORED_DAYS)
    await settle(connection, node)
    assert node.excess is not None
    await prune(connection, days(30), NOW)
    await settle(connection, node)
    assert applies(node, days(30))


async def test_an_archive_vouches_for_a_backlog(connection: Connection) -> None:
    archived = RetentionPolicy(age_ns=30 * DAY_NS, requires_archive=True)
    await agree(connection, archived)
    node = await start(connection, archived)
    assert applies(node, archived)


async def test_a_backlog_of_a_running_node_is_dropped(connection: Connection) -> None:
    await agree(connection, days(60))
    node = await start(connection, days(60))
    # A lock has kept eight days from being dropped.
    await settle(connection, node, NOW + 30 * DAY_NS)
    assert applies(node, days(60))
    assert await stored_days(connection) == 31


async def test_two_nodes_with_different_retention_keep_the_longer_one(
    connection: Connection,
) -> None:
    long = await start(connection, days(60))
    short = await start(connection, days(20))
    assert short.excess is not None
    assert short.policy == days(60)
    # An operator confirms the shorter one; the other node must not undo that before its restart.
    await agree(connection, days(20))
    await long.settle(connection, NOW)
    assert await read_agreed(connection) == days(20)
    await settle(connection, short)
    assert applies(short, days(20))
    assert await stored_days(connection) == 21
    assert long.policy == days(60)
    await start(connection, days(60))
    assert await read_agreed(connection) == days(60)


async def test_the_horizon_can_be_lowered_again(connection: Connection) -> None:
    await start(connection, days(2), confirmed=True)
    assert await horizon(connection) == TODAY - 2 * DAY_NS
    await reopen(connection, NOW - 30 * DAY_NS)
    assert await horizon(connection) == NOW - 30 * DAY_NS
    await reopen(connection, NOW)
    assert (await review(connection, days(30), NOW)).horizon_ns == NOW - 30 * DAY_NS
