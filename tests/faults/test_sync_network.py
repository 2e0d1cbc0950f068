"""Sessions on a network that falls silent in one direction, or for good without a word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.faults.syncing import (
    Two,
    asked,
    two_nodes,
)
from tests.support.peer_proxy import Way
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[Two]:
    with two_nodes(tmp_path_factory.mktemp("network"), postgres, mutual=True) as two:
        yield two


@pytest.fixture
async def two(running: Two) -> AsyncIterator[Two]:
    """Two nodes that know each other and are equal, before the test and after it."""
    await running.check_equal()
    yield running
    running.network.heal()
    running.back.heal()
    await running.check_equal()


async def test_one_direction_that_is_silent(two: Two) -> None:
    """Of one session nothing comes back, of the other nothing even arrives."""
    await two.sync()
    await asked(two.callee)
    await two.differ(30)
    two.network.silence(Way.UP)
    two.back.silence(Way.DOWN)
    reports = await asyncio.gather(asked(two.caller), asked(two.callee))
    assert not any(report.in_sync for report in reports)
    # The session that arrives may go before the other one of the two.
    assert {report.outcome for report in reports} in ({"failed"}, {"failed", "aborted"})
    for report in reports:
        if report.outcome == "failed":
            assert "did not answer within 20 s" in report.error
    two.network.heal()
    two.back.heal()
    assert (await two.sync()).in_sync
    assert (await asked(two.callee)).in_sync


async def test_a_connection_that_is_dead_without_a_word(two: Two) -> None:
    await two.sync()
    await two.differ(30)
    two.network.lose()
    connections = two.network.connections
    report = await two.sync()
    assert "did not answer within 20 s" in report.error
    assert (await two.sync()).in_sync, "it does not try the dead connection again"
    assert two.network.connections == connections + 1
