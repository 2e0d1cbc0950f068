"""The brake on retention, on a store of forty days in a real database."""

from __future__ import annotations

from dataclasses import replace

from store.db.partitions import ensure_ahead, ensure_for, read_catalog
from store.db.retention import RetentionBrake, agree, prune, read_agreed, reopen, review
from store.domain.partitioning import DAY_NS
from store.domain.retention import RetentionPolicy
from tests.integration.database.rows import NOW, TODAY, Connection, horizon, insert, opened

STORED_DAYS = 40
KEEP_ALL = RetentionPolicy()
ARCHIVED = RetentionPolicy(age_ns=30 * DAY_NS, requires_archive=True)


def days(number: float) -> RetentionPolicy:
    return RetentionPolicy(age_ns=int(number * DAY_NS))


async def fill_database(url: str) -> None:
    async with await opened(url) as connection:
        times = [NOW - day * DAY_NS for day in range(STORED_DAYS)]
        await ensure_for(connection, times, NOW, None)
        await insert(connection, times)


async def start(
    connection: Connection, policy: RetentionPolicy, *, confirmed: bool = False, now_ns: int = NOW
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


STARTS: dict[str, tuple[RetentionPolicy | None, RetentionPolicy, RetentionPolicy | None]] = {
    "a first start that drops nothing": (None, days(60), None),
    "a first start that drops a day": (None, days(STORED_DAYS - 2), None),
    "a first start that drops nine days": (None, days(30), KEEP_ALL),
    "a first start without limits": (None, KEEP_ALL, None),
    "30m for 30d": (days(60), days(1 / 48), days(60)),
    "more than a tenth": (days(60), days(34), days(60)),
    "a tenth": (days(60), days(35), None),
    "a longer retention": (days(60), days(90), None),
    "a size for an age": (days(60), RetentionPolicy(size_bytes=1), days(60)),
    "an age for a size": (RetentionPolicy(size_bytes=1 << 40), days(60), None),
    "a limit that drops nothing yet": (KEEP_ALL, days(60), None),
    "a limit for none": (KEEP_ALL, days(1), KEEP_ALL),
    "more than a week due": (days(30), days(30), KEEP_ALL),
    "a backlog that an archive vouches for": (ARCHIVED, ARCHIVED, None),
}
"""The agreed limits, those of the node that starts, and what applies while these are held."""


async def test_a_start_holds_what_would_drop_much(connection: Connection) -> None:
    for name, (agreed, wanted, instead) in STARTS.items():
        async with connection.transaction(force_rollback=True):
            if agreed is not None:
                await agree(connection, agreed)
            node = RetentionBrake(wanted)
            await node.settle(connection, NOW)
            assert (node.excess is not None) == (instead is not None), name
            assert node.policy == (instead or wanted), name
            agrees = replace(wanted, requires_archive=False)
            assert await read_agreed(connection) == (agreed if instead else agrees), name


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


async def test_a_confirmed_start_drops_at_once_and_then_what_falls_due_day_by_day(
    connection: Connection,
) -> None:
    await agree(connection, days(60))
    node = await start(connection, days(2), confirmed=True)
    assert applies(node, days(2))
    assert await stored_days(connection) == 3
    for day in range(4):
        now_ns = NOW + day * DAY_NS
        await ensure_ahead(connection, now_ns, None)
        await insert(connection, [now_ns + 1])
        # From the second day on a third of the store is due, and there is nothing to confirm.
        assert (await start(connection, days(2), now_ns=now_ns)).excess is None
    assert await horizon(connection) == TODAY + DAY_NS
    for lower, lowered in ((NOW - 30 * DAY_NS, NOW - 30 * DAY_NS), (NOW, NOW - 30 * DAY_NS)):
        await reopen(connection, lower)
        assert (await review(connection, days(30), NOW)).horizon_ns == lowered


async def test_a_backlog_waits_at_a_start_alone(connection: Connection) -> None:
    await agree(connection, days(60))
    running = await start(connection, days(60))
    # A lock has kept eight days from being dropped.
    await settle(connection, running, NOW + 30 * DAY_NS)
    assert applies(running, days(60))
    assert await stored_days(connection) == 31
    await agree(connection, days(20))
    node = await start(connection, days(20))
    await settle(connection, node)
    assert node.excess is not None
    assert (node.policy, await stored_days(connection)) == (KEEP_ALL, 31)
    await prune(connection, days(20), NOW)
    await settle(connection, node)
    assert applies(node, days(20))


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
