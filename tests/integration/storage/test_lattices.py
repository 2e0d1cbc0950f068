"""Lattice sums in a database: always true or not known, whatever happens in whatever order."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import psycopg
import pytest

from reconcile.lattice import LatticeSum
from store.db import reconciliation
from store.db.checks.check import check
from store.db.checks.summaries import WRONG_LATTICE
from store.db.maintenance.retention import prune
from store.db.pool import Connection
from store.db.reconciliation import cold_view
from store.db.summaries import fold as fold_module
from store.db.summaries import lattices
from store.db.summaries.fold import fold, fold_until
from store.db.summaries.lattices import seal
from store.db.summaries.resummarize import resummarize
from store.domain.ports import Source
from store.domain.retention import RetentionPolicy
from store.messages.record import RecordBatch
from tests.integration.storage import summaries
from tests.integration.storage.lattices import assert_true, known, stored_sums, unknown
from tests.integration.storage.node import Node
from tests.integration.storage.summaries import LENGTHS
from tests.integration.storage.world import DAY, NOW, TOPICS, batch_of, random_batch

HOUR = LENGTHS[1]
LATER = NOW + 2 * DAY
"""When everything that these tests store is over."""

SPREAD = [NOW - number * DAY // 7 for number in range(40)]
TWO_DAYS = RetentionPolicy(age_ns=2 * DAY)


def everywhere(rng: random.Random) -> RecordBatch:
    """Return three messages in every hour of `SPREAD`."""
    moments = [moment + number for moment in SPREAD for number in range(3)]
    return batch_of([(moment, TOPICS[0], rng.randbytes(9)) for moment in moments])


async def sealed(node: Node, connection: Connection, rng: random.Random) -> None:
    """Store messages, and know the sums of all hours and days."""
    await node.store(everywhere(rng))
    await fold_until(connection)
    assert await seal(connection, LATER) == len({each // HOUR for each in SPREAD})
    assert await unknown(connection) == set()


async def test_what_is_over_is_summed_up_once(node: Node, connection: Connection) -> None:
    await node.store(everywhere(random.Random(1)))
    await fold_until(connection)
    assert await known(connection) == {}
    begun = NOW // HOUR * HOUR
    settled = begun + HOUR + lattices.SETTLING_NS
    hours = len({each // HOUR for each in SPREAD})
    assert await seal(connection, settled - 1) == hours - 1
    assert {start for level, start in await unknown(connection) if level == 1} == {begun}
    assert {start for level, start in await unknown(connection) if level == 2} == {NOW // DAY * DAY}
    assert await seal(connection, settled) == 1
    assert await seal(connection, LATER) == 0
    assert await unknown(connection) == set()
    assert await assert_true(connection) == await stored_sums(connection, folded=False)


async def test_late_messages_are_added_when_they_are_folded(
    node: Node, connection: Connection
) -> None:
    rng = random.Random(2)
    await sealed(node, connection, rng)
    before = await known(connection)
    # In hours that are known, and in one that had none.
    late = [SPREAD[3], SPREAD[3] + 1, SPREAD[8], SPREAD[8] + HOUR]
    await node.store(random_batch(rng, 30, late))
    assert await known(connection) == before
    await fold_until(connection)
    found = await assert_true(connection)
    assert len(found) == len(before)
    assert await unknown(connection) == {(1, late[3] // HOUR * HOUR)}
    assert sum(found[key] != before[key] for key in found) >= 3
    assert await seal(connection, LATER) == 1
    assert await assert_true(connection) == await stored_sums(connection, folded=False)


async def test_very_many_late_messages_make_a_sum_unknown_until_it_is_made_anew(
    node: Node, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lattices, "MAX_LATE_MESSAGES", 9)
    rng = random.Random(3)
    await sealed(node, connection, rng)
    await node.store(random_batch(rng, 10, SPREAD[:1]))
    await fold_until(connection)
    assert await unknown(connection) == {(1, NOW // HOUR * HOUR), (2, NOW // DAY * DAY)}
    await node.store(random_batch(rng, 9, SPREAD[:1]))
    await fold_until(connection)
    assert len(await unknown(connection)) == 2
    assert await seal(connection, LATER) == 1
    assert await unknown(connection) == set()
    await assert_true(connection)


@pytest.mark.parametrize("seed", range(2))
async def test_sums_are_true_whatever_happens(
    node: Node, connection: Connection, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Publish, restore, fold, seal, drop and rebuild, some of it cut short."""
    monkeypatch.setattr(fold_module, "MAX_FOLD_COMMITS", 2)
    monkeypatch.setattr(lattices, "MAX_SEALED_MESSAGES", 40)
    monkeypatch.setattr(lattices, "PAGE_MESSAGES", 7)
    rng = random.Random(seed)
    for _ in range(40):
        match rng.randrange(10):
            case 0 | 1 | 2:
                moments = rng.sample(SPREAD, rng.randint(1, len(SPREAD)))
                source = rng.choice((Source.CLIENT, Source.RESTORE))
                await node.store(random_batch(rng, rng.randint(1, 40), moments), source)
            case 3 | 4:
                await fold(connection)
            case 5 | 6:
                await seal(connection, rng.choice((NOW, LATER)))
            case 7:
                await killed(node, rng, "fold")
            case 8:
                await killed(node, rng, "seal")
            case _:
                if rng.random() < 0.5:
                    await prune(connection, TWO_DAYS, NOW)
                else:
                    await resummarize(connection)
        await assert_true(connection)
        await summaries.assert_true(connection)
        await assert_readable(node, rng)
    await fold_until(connection)
    await summaries.assert_folded(connection)
    while await seal(connection, LATER):
        pass
    assert await unknown(connection) == set()
    assert await assert_true(connection) == await stored_sums(connection, folded=False)


async def sums_of(node: Node, spans: list[tuple[int, int]]) -> list[LatticeSum]:
    """Return the sums of ranges of time, from the messages."""
    select = """
        select string_agg(int8send(ts) || hash || content_digest, ''::bytea)
        from storenode.messages where ts >= %s and ts < %s
    """
    found: list[Any] = [await node.rows(select, low, high) for low, high in spans]
    return [LatticeSum.of(joined or b"") for ((joined,),) in found]


async def assert_readable(node: Node, rng: random.Random) -> None:
    """Check the sums of any ranges, folded or not, known or not, of whole hours or not."""
    unit = rng.choice((1, HOUR, DAY))
    first = min(SPREAD) - DAY
    edges = sorted(
        {(first + rng.randrange(10 * DAY)) // unit * unit for _ in range(2 * rng.randint(1, 9))}
    )
    spans = list(zip(edges[::2], edges[1::2], strict=False))
    async with cold_view(node.database) as view:
        for asked in (spans, [(0, 2**63 - 1)]):
            assert await view.lattices(asked) == await sums_of(node, asked)


async def test_a_view_does_not_say_what_would_take_too_long(
    node: Node, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciliation, "most_summed", lambda: 9)
    everything = [(0, LATER)]
    rng = random.Random(5)
    await sealed(node, connection, rng)
    await node.store(random_batch(rng, 9, SPREAD))
    async with cold_view(node.database) as view:
        right = await view.lattices(everything)
        assert right == await sums_of(node, everything)
        await node.store(random_batch(rng, 1, SPREAD))
        await fold_until(connection)
        assert await view.lattices(everything) == right
    await node.store(random_batch(rng, 10, SPREAD))
    async with cold_view(node.database) as view:
        assert await view.lattices(everything) is None
        # Ends of ranges in the middle of hours are expanded, too.
        assert await view.lattices([(each, each + 2) for each in SPREAD]) is None
        assert await view.lattices([(SPREAD[2], SPREAD[2] + 2)]) is not None
    await connection.execute("update storenode.buckets set lattice = null, lattice_count = null")
    async with cold_view(node.database) as view:
        assert await view.lattices(everything) is None


async def test_a_view_says_nothing_where_summaries_contradict_what_is_stored(
    node: Node, connection: Connection
) -> None:
    await sealed(node, connection, random.Random(8))
    hour = SPREAD[4] // HOUR * HOUR
    span = (hour - DAY, hour + HOUR)
    for count, right in ((3, await sums_of(node, [span])), (4, None)):
        await connection.execute(
            "update storenode.buckets set count = %s, lattice = null, lattice_count = null"
            " where level = 1 and start_ns = %s",
            (count, hour),
        )
        async with cold_view(node.database) as view:
            assert await view.lattices([span]) == right


async def killed(node: Node, rng: random.Random, work: str) -> None:
    """Fold or seal on a connection that the server ends before some statement."""
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
                await (fold(own) if work == "fold" else seal(own, LATER))
            except psycopg.OperationalError:
                assert own.closed


async def test_a_wrong_sum_is_named_and_made_anew(
    node: Node, connection: Connection, database_url: str
) -> None:
    rng = random.Random(6)
    await sealed(node, connection, rng)
    await node.store(random_batch(rng, 20, SPREAD))
    report = await asyncio.to_thread(check, database_url, now_ns=lambda: NOW, sample=None)
    assert report.findings == []
    hour, day = NOW // HOUR * HOUR, NOW // DAY * DAY
    for level, start, names in ((1, hour, ["hour", "day"]), (2, day, ["day"])):
        await connection.execute(
            "update storenode.buckets set lattice ="
            " set_byte(lattice, 77, 255 # get_byte(lattice, 77))"
            " where level = %s and start_ns = %s",
            (level, start),
        )
        report = await asyncio.to_thread(check, database_url, now_ns=lambda: NOW, sample=None)
        (finding,) = report.findings
        assert (finding.kind, finding.where) == (WRONG_LATTICE, "buckets")
        assert [each.split()[0] for each in finding.examples] == names
        assert "resummarize" in finding.advice
        await resummarize(connection)
        report = await asyncio.to_thread(check, database_url, now_ns=lambda: NOW, sample=None)
        assert report.findings == []
    await assert_true(connection)
    assert await unknown(connection) == set()
