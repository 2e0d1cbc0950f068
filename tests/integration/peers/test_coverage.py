"""Statements about other stores: kept, reported by ``GetCoverage``, and withdrawn."""

from __future__ import annotations

import time
from typing import Final

import psycopg

from store.domain.coverage import AnswerState
from storenode.client import AsyncClient
from storenode.client.types import AnswerCoverage
from storenode.message.rules import Policy
from storenode.wire.storenode.v1.store_pb2 import (
    CoverageStep,
    StoreCoverage,
)
from tests.integration.peers.harness import PeerNode, item

HOUR_NS: Final = 3_600_000_000_000
HOUR: Final = (time.time_ns() // HOUR_NS - 5) * HOUR_NS
END: Final = HOUR + 2 * HOUR_NS

Reported = tuple[int, int, AnswerCoverage.State.ValueType]


async def coverage(node: PeerNode) -> list[CoverageStep]:
    async with AsyncClient(node.listener.address) as client:
        return [step async for step in client.coverage(start=HOUR, end=HOUR + 2 * HOUR_NS)]


async def states(node: PeerNode) -> list[list[tuple[str, StoreCoverage.State.ValueType]]]:
    return [[(each.store_id, each.state) for each in step.stores] for step in await coverage(node)]


async def test_a_session_confirms_hours_and_a_late_message_withdraws_its_own(
    first: PeerNode, second: PeerNode
) -> None:
    await first.hold([item(1, timestamp=HOUR + 1), item(2, timestamp=HOUR + HOUR_NS)])
    await second.hold([item(3, timestamp=HOUR + 2)])
    assert await states(first) == [[], []]
    began_ns = time.time_ns()
    assert (await first.synchronize(second)).in_sync

    equal = [(second.context.identity.store_id, StoreCoverage.EQUAL)]
    assert await states(first) == [equal, equal]
    steps = await coverage(first)
    assert [step.messages for step in steps] == [2, 1]
    assert [step.time_start for step in steps] == [HOUR, HOUR + HOUR_NS]
    assert all(began_ns <= step.stores[0].compared_at <= time.time_ns() for step in steps)
    # Who was asked does not know when the other's view was opened, and says nothing.
    assert await states(second) == [[], []]

    await first.hold([item(4, timestamp=HOUR + 3)])
    unconfirmed = [(second.context.identity.store_id, StoreCoverage.UNCONFIRMED)]
    assert await states(first) == [unconfirmed, equal]
    (withdrawn,) = (await coverage(first))[0].stores
    assert (withdrawn.compared_at, withdrawn.last_equal) == (0, steps[0].stores[0].compared_at)
    assert (await first.synchronize(second)).in_sync
    assert await states(first) == [equal, equal]


async def test_a_difference_that_stays_is_reported(first: PeerNode, second: PeerNode) -> None:
    await second.hold([item(3, timestamp=HOUR + 2)])
    first.rules.policy = Policy(max_drift_ns=None, horizon_ns=0, max_message_bytes=4)
    outcome = await first.synchronize(second)
    assert outcome.refused_by_policy == 1
    (differs,), (equal,) = ([*step.stores] for step in await coverage(first))
    assert (differs.state, differs.missing_here, differs.missing_there) == (
        StoreCoverage.DIFFERS,
        1,
        0,
    )
    assert equal.state == StoreCoverage.EQUAL


async def test_answers_say_how_complete_they_are(first: PeerNode, second: PeerNode) -> None:
    old, new = item(1, timestamp=HOUR + 1), item(2, timestamp=HOUR + HOUR_NS)
    await first.hold([old, new])
    await second.hold([item(3, timestamp=HOUR + 2)])
    async with AsyncClient(first.listener.address) as client:
        page = await client.query(coverage=True, start=HOUR, end=END)
        assert page.coverage is not None
        assert page.coverage.state == AnswerCoverage.UNCONFIRMED
        assert (await client.query(start=HOUR, end=END)).coverage is None
        assert (await first.synchronize(second)).in_sync

        page = await client.query(coverage=True, start=HOUR, end=END)
        complete = page.coverage
        assert complete is not None
        assert complete.state == AnswerCoverage.COMPLETE
        assert [*complete.store_ids] == [second.context.identity.store_id]
        assert (complete.time_start, complete.time_end) == (HOUR, END)
        scan = client.scan("/other", coverage=True, start=HOUR, end=END)
        assert [message async for message in scan] == []
        assert scan.coverage == complete
        result = await client.get_sds("channel", ["nobody"], coverage=True)
        assert result.missing == [("nobody", None)]
        assert result.coverage is not None
        walked = await client.causal_history("channel", ["nobody"], coverage=True)
        assert walked.coverage is not None
        assert walked.coverage.state == AnswerCoverage.PARTIAL
        assert walked.coverage.complete_until > END

        await first.hold([item(4, timestamp=HOUR + 3)])
        assert await pages_reported(client, limit=1, start=HOUR, end=END) == [
            (HOUR + HOUR_NS, END, AnswerCoverage.COMPLETE),
            (HOUR + 3, HOUR + HOUR_NS + 1, AnswerCoverage.PARTIAL),
            (HOUR + 2, HOUR + 4, AnswerCoverage.UNCONFIRMED),
            (HOUR, HOUR + 3, AnswerCoverage.UNCONFIRMED),
        ]
        scan = client.scan(coverage=True, start=HOUR, end=END)
        assert len([message async for message in scan]) == 4
        assert scan.coverage is not None
        assert scan.coverage.complete_from == HOUR + HOUR_NS
        assert "rest of this time" in scan.coverage.reason


async def pages_reported(
    client: AsyncClient, *, start: int, end: int, limit: int
) -> list[Reported]:
    """Return the time that each page of a query is about, and its state."""
    reported: list[Reported] = []
    cursor = None
    while not reported or cursor is not None:
        page = await client.query(start=start, end=end, limit=limit, cursor=cursor, coverage=True)
        assert page.coverage is not None
        reported.append((page.coverage.time_start, page.coverage.time_end, page.coverage.state))
        cursor = page.cursor
    return reported


async def test_an_answer_is_not_complete_if_its_commits_are_lost_meanwhile(
    first: PeerNode, second: PeerNode
) -> None:
    await first.hold([item(1, timestamp=HOUR + 1)])
    assert (await first.synchronize(second)).in_sync
    coverage = first.context.coverage
    assert coverage is not None
    known = await coverage.known(HOUR, END)
    async with await psycopg.AsyncConnection.connect(first.url) as connection:
        cursor = await connection.execute("select position, token from storenode.commits")
        ((position, token),) = await cursor.fetchall()
        place = position, token % 2**64
        assert await coverage.lost_since([place]) == (False, 0)
        # As in a standby that was promoted, whose next commits have the numbers of those lost.
        await connection.execute("update storenode.commits set token = token + 1")
        await connection.execute("update storenode.store set horizon_ns = %s", (HOUR + 5,))
    lost, horizon_ns = await coverage.lost_since([place])
    assert (lost, horizon_ns) == (True, HOUR + 5)
    assert known.answer((HOUR, END), 0, lost=False).state is AnswerState.COMPLETE
    assert known.answer((HOUR, END), 0, lost=lost).state is AnswerState.UNCONFIRMED
    assert known.answer((HOUR, END), horizon_ns, lost=False).from_ns == horizon_ns
