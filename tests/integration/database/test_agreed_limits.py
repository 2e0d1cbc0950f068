"""Agreed limits of retention, on a store of forty days in a real database."""

from __future__ import annotations

from store.db.partitions import ensure_for, read_catalog
from store.db.retention import agree, prune, read_agreed, reopen, review
from store.domain.partitioning import DAY_NS
from store.domain.retention import RetentionPolicy
from tests.integration.database.rows import NOW, TODAY, Connection, horizon, insert, opened

STORED_DAYS = 40
KEEP_ALL = RetentionPolicy()


def days(number: float) -> RetentionPolicy:
    return RetentionPolicy(age_ns=int(number * DAY_NS))


async def fill_database(url: str) -> None:
    async with await opened(url) as connection:
        times = [NOW - day * DAY_NS for day in range(STORED_DAYS)]
        await ensure_for(connection, times, NOW, None)
        await insert(connection, times)


LIMITS: dict[str, tuple[RetentionPolicy | None, RetentionPolicy, int]] = {
    "first limits that drop nothing": (None, days(60), 0),
    "first limits that drop two days": (None, days(STORED_DAYS - 3), 0),
    "first limits that drop nine days": (None, days(30), 9),
    "no limits": (None, KEEP_ALL, 0),
    "30m for 30d": (days(60), days(1 / 48), 39),
    "more than a tenth": (days(60), days(34), 5),
    "a tenth": (days(60), days(35), 0),
    "a longer retention": (days(60), days(90), 0),
    "a size for an age": (days(60), RetentionPolicy(size_bytes=1), 39),
    "an age for a size": (RetentionPolicy(size_bytes=1 << 40), days(60), 0),
    "a limit that drops nothing yet": (KEEP_ALL, days(60), 0),
    "a limit for none": (KEEP_ALL, days(1), 38),
    "nine days due under both": (days(30), days(30), 0),
}
"""The agreed limits, those in question, and how many days of these must be confirmed."""


async def test_limits_that_would_drop_much_must_be_confirmed(connection: Connection) -> None:
    for name, (agreed, wanted, to_confirm) in LIMITS.items():
        async with connection.transaction(force_rollback=True):
            if agreed is not None:
                await agree(connection, agreed)
            found = await review(connection, wanted, NOW)
            excess = 0 if found.excess is None else len(found.excess.partitions)
            assert (found.agreed, excess) == (agreed, to_confirm), name


async def test_agreed_limits_drop_at_once_and_their_horizon_can_be_lowered(
    connection: Connection,
) -> None:
    await agree(connection, days(2))
    assert await read_agreed(connection) == days(2)
    due = (await review(connection, days(2), NOW)).due
    assert due is not None
    assert due.span_ns == (STORED_DAYS - 3) * DAY_NS
    assert due.share > 0.9
    await prune(connection, days(2), NOW)
    left = (await read_catalog(connection)).of("messages")
    assert sum(each.bounds.high <= TODAY + DAY_NS for each in left) == 3
    assert await horizon(connection) == TODAY - 2 * DAY_NS
    for lower, lowered in ((NOW - 30 * DAY_NS, NOW - 30 * DAY_NS), (NOW, NOW - 30 * DAY_NS)):
        await reopen(connection, lower)
        assert (await review(connection, days(30), NOW)).horizon_ns == lowered
