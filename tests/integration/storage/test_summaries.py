"""Summaries and lattice sums: true in every snapshot, whatever happens in whatever order."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
import pytest

from reconcile.lattice import LatticeSum
from store.db import buckets as buckets_module
from store.db import maintainer as maintainer_module
from store.db import partitions, reconciliation
from store.db.buckets import fold, fold_until, is_pending, resummarize, seal
from store.db.condition import MAX_SLOTS, TIMELINE_DAYS, read_timeline
from store.db.connection import Connection
from store.db.insert import join
from store.db.maintainer import Maintainer
from store.db.reconciliation import DatabaseIds
from store.db.retention import ArchiveState, PruneReport, prune, read_archive_state
from store.domain.partitioning import COMMITS_PER_PARTITION
from store.domain.ports import Source
from store.domain.retention import RetentionPolicy
from store.messages.record import RecordBatch
from tests.integration.storage.followers import LongTransaction
from tests.integration.storage.node import Node
from tests.integration.storage.summaries import (
    LENGTHS,
    MINUTE,
    assert_folded,
    assert_true,
    known,
    stored_sums,
    unknown,
)
from tests.integration.storage.world import DAY, NOW, TOPICS, batch_of, random_batch
from tests.support.polling import until

SEED = 20261120
PATIENCE_S = 90.0
HOUR = LENGTHS[1]
TODAY = NOW // DAY * DAY
LATER = NOW + 2 * DAY
"""A time after everything that these tests store."""

SPREAD = [NOW - number * DAY // 7 for number in range(40)]
# Edges of minutes, hours and days, of the timeline, and the first moment of all.
FIRST_HOUR = TODAY - (TIMELINE_DAYS - 1) * DAY
EDGES = [
    *(TODAY + step for step in (-1, 0, MINUTE - 1, MINUTE)),
    *(FIRST_HOUR, FIRST_HOUR - 1, NOW - 800 * DAY, 5),
]
TWO_DAYS = RetentionPolicy(age_ns=2 * DAY)
ALL_TIME = [(0, 2**63 - 1)]
SUM = """
select string_agg(int8send(ts) || hash || content_digest, ''::bytea)
from storenode.messages where ts >= %s and ts < %s
"""
FOLDED = """
select ts from storenode.messages join storenode.commits using (batch)
where position <= (select folded_position from storenode.store)
"""
HOURS = len({each // HOUR for each in SPREAD})


def some(rng: random.Random, stored: Sequence[RecordBatch]) -> RecordBatch:
    """Return new messages, and perhaps some that were published before, or twice in this batch."""
    parts = [random_batch(rng, rng.choice((1, 2, 9, 60)), [*SPREAD, *EDGES])]
    for _ in range(rng.randrange(3)):
        other = rng.choice([*parts, *stored])
        parts.append(other.select([rng.randrange(len(other)) for _ in range(8)]))
    return join(parts)


async def sums_of(node: Node, spans: list[tuple[int, int]]) -> list[LatticeSum]:
    """Return the sums of ranges of time, from the messages."""
    found: list[Any] = [await node.rows(SUM, low, high) for low, high in spans]
    return [LatticeSum.of(joined or b"") for ((joined,),) in found]


async def assert_readable(node: Node, rng: random.Random) -> None:
    """Check the sums of any ranges, folded or not, known or not, of whole hours or not."""
    unit = rng.choice((1, HOUR, DAY))
    first = min(SPREAD) - DAY
    edges = sorted(
        {(first + rng.randrange(10 * DAY)) // unit * unit for _ in range(2 * rng.randint(1, 9))}
    )
    spans = list(zip(edges[::2], edges[1::2], strict=False))
    async with DatabaseIds(node.database).open_cold() as view:
        for asked in (spans, ALL_TIME):
            assert await view.lattices(asked) == await sums_of(node, asked)


async def assert_timeline(node: Node, connection: Connection) -> None:
    """Compare the timeline of the status page with a count of every message that is folded."""
    rows: list[Any] = await node.rows(FOLDED)
    times = [ts for (ts,) in rows]
    found = await read_timeline(connection, NOW)
    assert found.complete == (not await is_pending(connection))
    by_hour = Counter(ts - ts % HOUR for ts in times)
    assert found.hours_start_ns == FIRST_HOUR
    assert found.hours == [by_hour[FIRST_HOUR + hour * HOUR] for hour in range(24 * TIMELINE_DAYS)]
    first, length = min(times, default=TODAY) // DAY * DAY, found.slot_days * DAY
    by_slot = Counter((ts - first) // length for ts in times)
    days = Counter((day * DAY - first) // length for day in {ts // DAY for ts in times})
    slots = range(len(found.slots))
    assert found.slots_start_ns == first
    assert found.slots == [(by_slot[slot], days[slot]) for slot in slots]
    assert sum(by_slot.values()) == len(times)
    assert len(slots) <= MAX_SLOTS
    assert first + len(slots) * length > TODAY or not times


async def killed(
    node: Node, rng: random.Random, work: Callable[[Connection], Awaitable[object]]
) -> None:
    """Run work on a connection that the server ends before some statement."""
    async with await node.database.connect() as own:
        left = rng.randint(1, 12)
        execute = psycopg.AsyncCursor.execute

        async def counted(self: psycopg.AsyncCursor, *given: object, **options: object) -> object:
            nonlocal left
            if self.connection is own:
                left -= 1
                if left == 0:
                    await node.rows("select pg_terminate_backend(%s, 5000)", own.info.backend_pid)
            return await execute(self, *given, **options)  # type: ignore[call-overload]

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(psycopg.AsyncCursor, "execute", counted)
            try:
                await work(own)
            except psycopg.OperationalError:
                assert own.closed


@pytest.mark.parametrize("seed", range(2))
async def test_they_are_true_whatever_happens(
    node: Node,
    other_node: Node,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Publish, restore, fold, seal, drop and rebuild, some of it cut short."""
    monkeypatch.setattr(buckets_module, "MAX_FOLD_COMMITS", 2)
    monkeypatch.setattr(buckets_module, "MAX_FOLD_BYTES", 3 * 48)
    monkeypatch.setattr(buckets_module, "MAX_SEALED_MESSAGES", 40)
    monkeypatch.setattr(buckets_module, "PAGE_MESSAGES", 7)
    rng, stored = random.Random(seed), list[RecordBatch]()
    await assert_timeline(node, connection)

    async def publish() -> None:
        batches = [some(rng, stored) for _ in range(rng.choice((1, 3)))]
        source = rng.choice((Source.CLIENT, Source.RESTORE))
        work: list[Awaitable[object]] = []
        work += [rng.choice((node, other_node)).store(each, source) for each in batches]
        if rng.random() < 0.2:
            work.append(prune(connection, TWO_DAYS, NOW))
        await asyncio.gather(*work)
        stored.extend(batches)

    async def sealing(own: Connection) -> None:
        await seal(own, rng.choice((NOW, LATER)))

    for _ in range(14):
        match rng.randrange(10):
            case 0 | 1 | 2:
                await publish()
            case 3 | 4:
                await fold(connection)
            case 5 | 6:
                await sealing(connection)
            case 7 | 8:
                await killed(node, rng, rng.choice((fold, sealing)))
            case _:
                if rng.random() < 0.5:
                    await prune(connection, TWO_DAYS, NOW)
                else:
                    await resummarize(connection)
        await assert_true(connection)
        await assert_readable(node, rng)
        if not rng.randrange(3):
            await assert_timeline(node, connection)
    summary = await node.reader.summary()
    kept = {digest for (digest,) in await node.rows("select hash from storenode.messages")}
    for batch in stored:
        for ts, digest in zip(batch.timestamps, batch.hashes, strict=True):
            assert digest in kept or ts < summary.horizon_ns, "what is kept is not lost"
    assert summary.messages == len(kept)
    await fold_until(connection)
    await assert_folded(connection)
    while await seal(connection, LATER):
        pass
    assert await unknown(connection) == set()
    assert await known(connection) == await stored_sums(connection, folded=False)


# Lattice sums


async def sealed(node: Node, connection: Connection, rng: random.Random) -> None:
    """Store three messages in every hour of `SPREAD`, and know the sums of all hours and days."""
    moments = [moment + number for moment in SPREAD for number in range(3)]
    await node.store(batch_of([(moment, TOPICS[0], rng.randbytes(9)) for moment in moments]))
    await fold_until(connection)
    assert await seal(connection, LATER) == HOURS
    assert await unknown(connection) == set()


async def test_late_messages_are_added_when_they_are_folded_unless_they_are_very_many(
    node: Node, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(2)
    await sealed(node, connection, rng)
    before = await known(connection)
    # In hours that are known, and in one that had none.
    late = [SPREAD[3], SPREAD[3] + 1, SPREAD[8], SPREAD[8] + HOUR]
    await node.store(random_batch(rng, 30, late))
    assert await known(connection) == before
    await fold_until(connection)
    await assert_true(connection)
    found = await known(connection)
    assert len(found) == len(before)
    assert await unknown(connection) == {(1, late[3] // HOUR * HOUR)}
    assert sum(found[key] != before[key] for key in found) >= 3
    assert await seal(connection, LATER) == 1
    monkeypatch.setattr(buckets_module, "MAX_LATE_MESSAGES", 9)
    for count in (10, 9):
        await node.store(random_batch(rng, count, SPREAD[:1]))
        await fold_until(connection)
        assert await unknown(connection) == {(1, NOW // HOUR * HOUR), (2, TODAY)}
    assert await seal(connection, LATER) == 1
    assert await unknown(connection) == set()
    assert await known(connection) == await stored_sums(connection, folded=False)


async def test_a_view_does_not_say_what_would_take_too_long_or_is_contradicted(
    node: Node, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(5)
    await sealed(node, connection, rng)
    hour = SPREAD[4] // HOUR * HOUR
    span = [(hour - DAY, hour + HOUR)]
    forget = "update storenode.buckets set lattice = null, lattice_count = null"
    for count, right in ((4, None), (3, await sums_of(node, span))):
        damage = f"{forget}, count = %s where level = 1 and start_ns = %s"
        await connection.execute(damage.encode(), (count, hour))
        async with DatabaseIds(node.database).open_cold() as view:
            assert await view.lattices(span) == right
    assert await seal(connection, LATER) == 1
    monkeypatch.setattr(reconciliation, "most_summed", lambda: 9)
    await node.store(random_batch(rng, 9, SPREAD))
    async with DatabaseIds(node.database).open_cold() as view:
        sums = await view.lattices(ALL_TIME)
        assert sums == await sums_of(node, ALL_TIME)
        await node.store(random_batch(rng, 1, SPREAD))
        await fold_until(connection)
        assert await view.lattices(ALL_TIME) == sums
    await node.store(random_batch(rng, 10, SPREAD))
    async with DatabaseIds(node.database).open_cold() as view:
        assert await view.lattices(ALL_TIME) is None
        # Ends of ranges in the middle of hours are expanded, too.
        assert await view.lattices([(each, each + 2) for each in SPREAD[::-1]]) is None
        assert await view.lattices([(SPREAD[2], SPREAD[2] + 2)]) is not None
    await connection.execute(forget.encode())
    async with DatabaseIds(node.database).open_cold() as view:
        assert await view.lattices(ALL_TIME) is None


# Retention


async def test_commits_are_folded_before_they_go(node: Node, connection: Connection) -> None:
    rng = random.Random(SEED)
    old = [TODAY - 5 * DAY, TODAY - 5 * DAY + 1]
    position = COMMITS_PER_PARTITION - 3
    await connection.execute("select setval('storenode.position_seq', %s)", (position,))
    for moments in (old, old, old, [NOW], [NOW, *old], [NOW]):
        await node.store(random_batch(rng, 5, moments))
    report = await prune(connection, TWO_DAYS, NOW)
    gone = {each.partition.name for each in report.dropped}
    assert {"commits_0", "messages_20261115"} <= gone
    assert len(await assert_folded(connection)) == len(LENGTHS)
    assert (await node.reader.summary()).messages == await node.value(
        "select count(*) from storenode.messages"
    )


ARCHIVED_ONLY = RetentionPolicy(age_ns=2 * DAY, requires_archive=True)
NOTE_ALL = """
insert into storenode.archived (start_ns, count, x0, x1, x2, x3, position, archive)
select start_ns, count, x0, x1, x2, x3, 1, 'somewhere' from storenode.buckets
where level = 1 and start_ns < %s
on conflict (start_ns) do update
set count = excluded.count, x0 = excluded.x0, x1 = excluded.x1, x2 = excluded.x2,
    x3 = excluded.x3
"""
TWICE_A_DAY = [TODAY - days * DAY + hour * HOUR for days in range(6) for hour in (1, 9)]
STAYS = "partition messages_20261115 stays, since "


async def note(connection: Connection, before_ns: int = NOW) -> None:
    """Note hours as a job does that has archived them."""
    await fold_until(connection)
    await connection.execute(NOTE_ALL, (before_ns,))


def gone(report: PruneReport) -> list[str]:
    return [each.partition.name for each in report.dropped if each.partition.table == "messages"]


async def test_only_what_is_archived_goes(node: Node, connection: Connection) -> None:
    rng = random.Random(SEED)
    await node.store(random_batch(rng, 60, TWICE_A_DAY))
    for dry_run in (True, False):
        report = await prune(connection, ARCHIVED_ONLY, NOW, dry_run=dry_run)
        assert gone(report) == []
        (problem,) = report.problems
        assert problem.startswith(STAYS)
        assert "storenode pipeline archive" in problem
    await note(connection, TODAY - 4 * DAY + HOUR + 1)
    nine = 9 * HOUR
    found = await read_archive_state(connection, NOW)
    assert found == ArchiveState(9, TODAY - 4 * DAY + nine, TODAY - 4 * DAY + 2 * HOUR)
    for dry_run in (True, False):
        report = await prune(connection, ARCHIVED_ONLY, NOW, dry_run=dry_run)
        assert gone(report) == ["messages_20261115"]
        (problem,) = report.problems
        assert problem.startswith("partition messages_20261116 stays, since it is not archived in")
        assert "(hours not archived: 1, the first 2026-11-16T09:00Z)" in problem
    await note(connection)
    report = await prune(connection, ARCHIVED_ONLY, NOW)
    assert (gone(report), report.problems) == (["messages_20261116", "messages_20261117"], ())
    await assert_folded(connection)
    assert await read_archive_state(connection, NOW) == ArchiveState(0, 0, TODAY + nine + HOUR)
    # What comes late is not archived, and an hour counts once it is over.
    await node.store(random_batch(rng, 2, [TODAY - DAY + nine]))
    await node.store(random_batch(rng, 1, [NOW]))
    await fold_until(connection)
    for now_ns, hours in ((NOW, 1), (NOW + HOUR, 2)):
        found = await read_archive_state(connection, now_ns)
        assert found == ArchiveState(hours, TODAY - DAY + nine, TODAY + nine + HOUR)


@pytest.mark.parametrize("arrival", ["not folded", "folded", "while the drop waits"])
async def test_a_late_arrival_takes_the_mark_away(
    node: Node, connection: Connection, arrival: str
) -> None:
    rng = random.Random(SEED + 1)
    await node.store(random_batch(rng, 60, TWICE_A_DAY))
    await note(connection)
    late = random_batch(rng, 3, TWICE_A_DAY[-2:])
    if arrival == "while the drop waits":
        report = await pruned_beside(node, connection, late, ARCHIVED_ONLY)
    else:
        await node.store(late, Source.TRANSFER)
        if arrival == "folded":
            await fold_until(connection)
        report = await prune(connection, ARCHIVED_ONLY, NOW)
    assert gone(report) == []
    assert report.problems[0].startswith(STAYS)
    assert await node.value("select count(*) from storenode.messages") == 63
    await assert_true(connection)
    await note(connection)
    assert gone(await prune(connection, ARCHIVED_ONLY, NOW)) != []
    # Without an archive it goes too: the last delta becomes visible when its buckets are gone.
    await node.store(random_batch(rng, 100, SPREAD))
    report = await pruned_beside(node, connection, random_batch(rng, 10, SPREAD), TWO_DAYS)
    assert (gone(report) != [], report.problems) == (True, ())
    assert min(start for _, start in await assert_true(connection)) >= report.horizon_ns
    assert (await node.reader.summary()).messages == await node.value(
        "select count(*) from storenode.messages"
    )


async def pruned_beside(
    node: Node, connection: Connection, batch: RecordBatch, policy: RetentionPolicy
) -> PruneReport:
    """Drop partitions while a transaction with a batch is open, which commits then."""
    slow = LongTransaction(node)
    await slow.open([batch])
    async with asyncio.timeout(PATIENCE_S):
        pruning = asyncio.create_task(prune(connection, policy, NOW, lock_timeout_ms=60_000))
        await node.until_blocked("relation")
        await slow.commit()
        return await pruning


# The maintainer


async def test_a_maintainer_folds_between_its_rounds_and_after_a_failure(
    node: Node, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a slow machine the writer makes its first partitions for longer than a round would wait.
    monkeypatch.setattr(partitions, "CREATE_LOCK_TIMEOUT_MS", 60_000)
    monkeypatch.setattr(maintainer_module, "FOLD_INTERVAL_S", 0.01)
    failures: list[str] = []
    commits = asyncio.Event()

    async def folded() -> bool:
        return not await is_pending(connection)

    async def has_failed() -> bool:
        return len(failures) > 1

    rng = random.Random(SEED)
    # With a wrong clock it does no round, and folds.
    for lead_ns, rounds in ((-3_660 * DAY, 0), (3_660 * DAY, 1)):
        made = Maintainer(
            node.database.connect,
            RetentionPolicy,
            on_event=lambda _, /, **fields: failures.append(str(fields.get("error", ""))),
            now_ns=lambda: NOW,
            steady_ns=lambda: 0,
            interval_s=3_600.0,
            max_lead_ns=lead_ns,
            last_online_ns=0,
            commits=commits,
        )
        task = asyncio.create_task(made.run())
        for _ in range(2):
            await node.store(random_batch(rng, 20, SPREAD))
            commits.set()
            await until(folded)
            await assert_folded(connection)
        assert (made.rounds, made.in_charge) == (rounds, bool(rounds))
        if rounds:
            failures.clear()
            await node.rows("alter table storenode.commits drop constraint commits_summary_check")
            await node.rows(
                "insert into storenode.commits (position, batch, token, messages, min_ts, max_ts,"
                " source, summary, claims) values (nextval('storenode.position_seq'), 0, 0, 1, 1,"
                " 1, 'client', '\\x00', '')"
            )
            commits.set()
            await until(has_failed)
            assert "multiple of 48 bytes" in failures[-1]
            await node.rows("update storenode.commits set summary = '' where batch = 0")
            await until(folded)
            assert made.in_charge
        task.cancel()
        await asyncio.wait([task])


async def test_publishers_do_not_wait_for_who_folds(node: Node, connection: Connection) -> None:
    rng = random.Random(SEED)
    await node.store(random_batch(rng, 20, SPREAD))
    await fold_until(connection)
    await node.store(random_batch(rng, 20, SPREAD))
    async with await node.database.connect() as holder, holder.transaction():
        await holder.execute("select * from storenode.buckets where level = 2 for update")
        folding = asyncio.create_task(fold(connection))
        await node.until_blocked("transactionid")
        async with asyncio.timeout(PATIENCE_S):
            await node.store(random_batch(rng, 20, SPREAD))
        assert not folding.done()
    assert await folding is None
    assert await is_pending(connection), "what came meanwhile was not waited for"
    assert await fold(connection) is None
    await assert_folded(connection)
