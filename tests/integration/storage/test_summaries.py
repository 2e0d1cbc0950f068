"""Summaries and lattice sums: true in every snapshot, whatever happens in whatever order."""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import psycopg
import pytest

from reconcile.lattice import LatticeSum
from store.db import buckets as buckets_module
from store.db import maintainer as maintainer_module
from store.db import partitions, reconciliation
from store.db.buckets import fold, fold_until, is_pending, resummarize, seal
from store.db.check import WRONG_LATTICE, WRONG_LEVEL, WRONG_SUMMARY, Finding, check
from store.db.condition import TIMELINE_DAYS, read_condition, read_timeline
from store.db.connection import Connection
from store.db.insert import join
from store.db.maintainer import Maintainer
from store.db.reconciliation import DatabaseIds
from store.db.retention import PruneReport, prune
from store.domain.partitioning import COMMITS_PER_PARTITION, Bounds
from store.domain.ports import Source
from store.domain.retention import RetentionPolicy
from store.messages.record import RecordBatch
from tests.integration.storage.followers import LongTransaction
from tests.integration.storage.node import Node
from tests.integration.storage.world import DAY, NOW, TOPICS, batch_of, random_batch
from tests.support.polling import until

MINUTE = 60 * 10**9
LENGTHS = (MINUTE, 60 * MINUTE, 24 * 60 * MINUTE)
"""Nanoseconds of a bucket of each level."""

RECORD = struct.Struct("<qq32s")
Sums = dict[tuple[int, int], LatticeSum]
"""(level, start) -> sum; hours are level 1, days level 2."""

Summary = dict[tuple[int, int], tuple[int, int]]
"""(level, start) -> count and XOR of the hashes, as little-endian numbers."""

_UNFOLDED = """
select summary from storenode.commits
where position > (select folded_position from storenode.store) order by position
"""
_STORED = """
select m.ts, int8send(m.ts) || m.hash || m.content_digest,
       c.position <= (select folded_position from storenode.store)
from storenode.messages m join storenode.commits c using (batch)
"""
_KNOWN = """
select level, start_ns, lattice_count, lattice from storenode.buckets where lattice_count = count
"""
_UNKNOWN = """
select level, start_ns from storenode.buckets
where level > 0 and lattice_count is distinct from count
"""


def summed(stored: Iterable[tuple[int, bytes]]) -> Summary:
    """Return the summaries of (timestamp, hash) pairs, at every level."""
    found: Summary = {}
    for ts, digest in stored:
        for level, length in enumerate(LENGTHS):
            _add(found, (level, ts - ts % length), 1, int.from_bytes(digest, "little"))
    return found


async def stored_summaries(connection: Connection) -> Summary:
    """Return the summaries of the messages that are there."""
    cursor = connection.cursor(binary=True)
    await cursor.execute("select ts, hash from storenode.messages")
    return summed([(ts, bytes(digest)) for ts, digest in await cursor.fetchall()])


async def buckets(connection: Connection) -> Summary:
    """Return what the buckets say."""
    cursor = connection.cursor(binary=True)
    await cursor.execute("select level, start_ns, count, x0, x1, x2, x3 from storenode.buckets")
    return {
        (level, start): (count, int.from_bytes(struct.pack("<qqqq", *words), "little"))
        for level, start, count, *words in await cursor.fetchall()
    }


async def claimed(connection: Connection) -> Summary:
    """Return what buckets and unfolded deltas say together."""
    found = await buckets(connection)
    cursor = connection.cursor(binary=True)
    await cursor.execute(_UNFOLDED)
    for (summary,) in await cursor.fetchall():
        assert len(summary) > 0
        for start, count, xor in RECORD.iter_unpack(summary):
            for level, length in enumerate(LENGTHS):
                key = level, start - start % length
                _add(found, key, count, int.from_bytes(xor, "little"))
    return {key: value for key, value in found.items() if value != (0, 0)}


async def stored_sums(connection: Connection, *, folded: bool) -> Sums:
    """Return the sums of the messages that are there, or of those whose commits are folded."""
    cursor = connection.cursor(binary=True)
    await cursor.execute(_STORED)
    found: dict[tuple[int, int], list[bytes]] = defaultdict(list)
    for ts, element, is_folded in await cursor.fetchall():
        for level in (1, 2):
            if is_folded or not folded:
                found[level, ts - ts % LENGTHS[level]].append(bytes(element))
    return {key: LatticeSum.of(b"".join(each)) for key, each in found.items()}


async def known(connection: Connection) -> Sums:
    """Return the sums that buckets say are known."""
    cursor = connection.cursor(binary=True)
    await cursor.execute(_KNOWN)
    return {
        (level, start): LatticeSum.stored(count, bytes(state))
        for level, start, count, state in await cursor.fetchall()
    }


async def unknown(connection: Connection) -> set[tuple[int, int]]:
    """Return the hours and days whose sums are not known."""
    return set(await (await connection.execute(_UNKNOWN)).fetchall())


async def assert_true(connection: Connection) -> Summary:
    """Compare what is claimed, and known sums, with what is held, in one snapshot; returns it."""
    async with connection.transaction():
        await connection.execute("set transaction isolation level repeatable read")
        right = await stored_summaries(connection)
        assert await claimed(connection) == right
        found, sums = await known(connection), await stored_sums(connection, folded=True)
        assert {key: sums.get(key) for key in found} == found
    return right


async def assert_folded(connection: Connection) -> Summary:
    """Check `assert_true`, and that buckets alone account for everything."""
    right = await assert_true(connection)
    assert await buckets(connection) == right
    return right


def _add(found: Summary, key: tuple[int, int], count: int, xor: int) -> None:
    before = found.get(key, (0, 0))
    found[key] = before[0] + count, before[1] ^ xor


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
    found = await read_timeline(connection, NOW)
    assert found.complete == (not await is_pending(connection))
    by_hour = Counter(ts - ts % HOUR for (ts,) in rows)
    assert found.hours_start_ns == FIRST_HOUR
    assert found.hours == [by_hour[FIRST_HOUR + hour * HOUR] for hour in range(24 * TIMELINE_DAYS)]


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
    node: Node, other_node: Node, connection: Connection, monkeypatch: pytest.MonkeyPatch, seed: int
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


async def archived(connection: Connection, now_ns: int) -> tuple[int, int, int]:
    found = await read_condition(connection, now_ns)
    return found.unarchived_hours, found.oldest_unarchived_ns, found.archived_until_ns


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
    found = await archived(connection, NOW)
    assert found == (9, TODAY - 4 * DAY + nine, TODAY - 4 * DAY + 2 * HOUR)
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
    assert await archived(connection, NOW) == (0, 0, TODAY + nine + HOUR)
    # What comes late is not archived, and an hour counts once it is over.
    await node.store(random_batch(rng, 2, [TODAY - DAY + nine]))
    await node.store(random_batch(rng, 1, [NOW]))
    await fold_until(connection)
    for now_ns, hours in ((NOW, 1), (NOW + HOUR, 2)):
        found = await archived(connection, now_ns)
        assert found == (hours, TODAY - DAY + nine, TODAY + nine + HOUR)


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
    made = Maintainer(
        node.database.connect,
        RetentionPolicy,
        on_event=lambda _, /, **fields: failures.append(str(fields.get("error", ""))),
        now_ns=lambda: NOW,
        steady_ns=lambda: 0,
        interval_s=3_600.0,
        max_lead_ns=3_660 * DAY,
        last_online_ns=0,
        commits=commits,
    )
    task = asyncio.create_task(made.run())
    for _ in range(2):
        await node.store(random_batch(rng, 20, SPREAD))
        commits.set()
        await until(folded)
        await assert_folded(connection)
    assert (made.rounds, made.in_charge) == (1, True)
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


# Wrong summaries are found by a check, and rebuilt while nodes continue

BURST = 10
"""Commits of a publisher between two times that all is folded."""

A_MINUTE = f"level = 0 and start_ns = {NOW - NOW % MINUTE}"
FLIP = "update storenode.buckets set lattice = set_byte(lattice, 77, 255 # get_byte(lattice, 77))"
LAST = "(select max(position) from storenode.commits)"
HOUR_START = NOW // LENGTHS[1] * LENGTHS[1]
BOTH = {WRONG_SUMMARY, WRONG_LEVEL}
DAMAGES = (
    (f"update storenode.commits set summary = '' where position = {LAST}", {WRONG_SUMMARY}),
    (f"update storenode.buckets set count = count + 1 where {A_MINUTE}", BOTH),
    (f"update storenode.buckets set x2 = x2 # 1 where {A_MINUTE}", BOTH),
    (f"insert into storenode.buckets values (0, {-MINUTE}, 1, 1, 1, 1, 1)", BOTH),
    (
        f"update storenode.buckets set count = 7 where level = 2 and start_ns = {TODAY}",
        {WRONG_LEVEL},
    ),
    ("delete from storenode.buckets", {WRONG_SUMMARY}),
    (f"{FLIP} where level = 1 and start_ns = {HOUR_START}", {WRONG_LATTICE}),
    (f"{FLIP} where level = 2 and start_ns = {TODAY}", {WRONG_LATTICE}),
    ("update storenode.store set folded_position = 0", {WRONG_SUMMARY, WRONG_LATTICE}),
)


@pytest.fixture
async def filled(node: Node, connection: Connection) -> None:
    """Store folded and unfolded messages."""
    rng = random.Random(SEED)
    await node.store(random_batch(rng, 100, SPREAD))
    await fold_until(connection)
    await seal(connection, NOW + 2 * DAY)
    await node.store(random_batch(rng, 100, SPREAD))


async def findings(node: Node) -> dict[str, Finding]:
    report = await asyncio.to_thread(check, node.database.url)
    return {each.kind: each for each in report.findings}


def days_of(found: Summary) -> int:
    return sum(level == 2 for level, _ in found)


@pytest.mark.usefixtures("filled")
async def test_what_is_wrong_is_found_and_made_anew(node: Node, connection: Connection) -> None:
    assert await findings(node) == {}
    right = await assert_true(connection)
    for damage, kinds in DAMAGES:
        await connection.execute(damage.encode())
        found = await findings(node)
        assert found.keys() == kinds, damage
        assert {each.where for each in found.values()} == {"buckets"}
        assert all("resummarize" in each.advice for each in found.values())
        assert await resummarize(connection) == (days_of(right), 200)
        assert await assert_true(connection) == right
    await fold_until(connection)
    assert await assert_folded(connection) == right
    await connection.execute("update storenode.store set folded_position = 1000000")
    assert "folded beyond the newest commit" in await findings(node)
    await connection.execute(f"update storenode.store set folded_position = {LAST}".encode())
    await resummarize(connection)
    assert await findings(node) == {}


@pytest.mark.usefixtures("filled")
async def test_only_the_days_that_are_asked_for_are_made_anew(connection: Connection) -> None:
    await fold_until(connection)
    right = await assert_folded(connection)
    await connection.execute("delete from storenode.buckets")
    low, high = TODAY - 3 * DAY, TODAY - DAY
    found, _ = await resummarize(connection, Bounds(low + 5, high - 5))
    assert found == 2
    within = {key: value for key, value in right.items() if low <= key[1] < high}
    assert await buckets(connection) == within
    rest = [Bounds(-(2**63), low), Bounds(high, 2**63)]
    assert sum([(await resummarize(connection, each))[0] for each in rest]) == days_of(right) - 2
    assert await buckets(connection) == right


@pytest.mark.usefixtures("filled")
async def test_nodes_go_on_while_summaries_are_made_anew(
    node: Node, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets_module, "MAX_FOLD_COMMITS", 16)  # publishers are faster than 1
    rng = random.Random(SEED)
    done, folded = asyncio.Event(), asyncio.Event()

    async def publish() -> None:
        while not done.is_set():
            for _ in range(BURST):
                await node.store(random_batch(rng, 5, SPREAD))
            if not done.is_set():  # without a pause, what is not folded grows without end
                folded.clear()
                await folded.wait()

    async def keep_folding() -> None:
        async with await node.database.connect() as own:
            while not done.is_set():
                await fold_until(own)
                await assert_true(own)
                folded.set()
            folded.set()

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as others:
        for work in (publish, publish, keep_folding, keep_folding):
            others.create_task(work())
        await resummarize(connection)
        assert await findings(node) == {}
        done.set()
    await fold_until(connection)
    await assert_folded(connection)
