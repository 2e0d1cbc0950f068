"""Sessions on a network that loses one direction, or everything, without an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from chaos.network import Direction
from tests.faults.two_nodes import Two, request_sync, two_nodes
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer
) -> AsyncIterator[Two]:
    async with two_nodes(tmp_path_factory.mktemp("network"), postgres, mutual=True) as two:
        yield two


@pytest_asyncio.fixture(loop_scope="module")
async def two(running: Two) -> AsyncIterator[Two]:
    """Check that the nodes are equal before the test and after it."""
    await running.check_equal()
    yield running
    running.heal()
    await running.check_equal()


async def test_one_direction_is_lost(two: Two) -> None:
    # Of one session nothing arrives, of the other no answer comes back.
    await two.sync()
    await request_sync(two.callee)
    await two.differ(30)
    two.network.lose(Direction.UP)
    two.back.lose(Direction.DOWN)
    reports = await asyncio.gather(request_sync(two.caller), request_sync(two.callee))
    assert not any(report.in_sync for report in reports)
    # The session that arrives may go before the other one of the two.
    assert {report.outcome for report in reports} in ({"failed"}, {"failed", "aborted"})
    for report in reports:
        if report.outcome == "failed":
            assert "did not answer within 20 s" in report.error
    two.heal()
    assert (await two.sync()).in_sync
    assert (await request_sync(two.callee)).in_sync


async def test_a_connection_that_loses_everything_is_not_used_again(two: Two) -> None:
    await two.sync()
    await two.differ(30)
    for direction in Direction:
        two.network.lose(direction)
    connections = two.network.connections
    report = await two.sync()
    assert "did not answer within 20 s" in report.error
    assert (await two.sync()).in_sync
    assert two.network.connections == connections + 1
