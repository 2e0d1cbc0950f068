"""Sessions on a network that breaks, falls silent, loses, delays and heals; and two at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from tests.faults.processes import until
from tests.faults.syncing import (
    PAYLOAD_BYTES,
    Two,
    asked,
    event,
    log_size,
    memory_bytes,
    sessions,
    two_nodes,
    under_way,
)
from tests.support.fleet import held, publish, status
from tests.support.node import NodeProcess
from tests.support.peer_proxy import Moment, Way
from tests.support.postgres import PostgresServer

MISSING = 2_000
TIES = 4
RACES = 8
BREAKS = 12
MAX_GROWTH_BYTES = 64 * 1024 * 1024
"""Of the memory of either node over many sessions that moved some MiB each."""


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


async def test_of_two_sessions_that_begin_together_one_does_the_work(two: Two) -> None:
    """Both have been let in, and both first frames are on their way."""
    for _ in range(TIES):
        await two.differ(50)
        stops = [proxy.stop_at(Moment(Way.UP, 1)) for proxy in (two.network, two.back)]
        async with under_way(two.caller) as one, under_way(two.callee) as other:
            await stops[0].wait(one)
            await stops[1].wait(other)
            two.network.heal()
            two.back.heal()
            reports = await asyncio.gather(one, other)
        done = sorted(report.outcome for report in reports)
        assert done == ["aborted", "done"], reports
        await two.check_equal()


async def test_two_nodes_that_begin_at_the_same_moment(two: Two) -> None:
    for _ in range(RACES):
        await two.differ(20)
        reports = await asyncio.gather(asked(two.caller), asked(two.callee))
        done = {report.outcome for report in reports}
        assert "done" in done <= {"done", "aborted"}, reports
        await two.check_equal()
    for node in (two.caller, two.callee):
        (peer,) = status(node)["peers"]
        assert (peer["failures"], peer["last_error"], peer["lacks"], peer["has"]) == (0, "", 0, 0)


async def test_a_silence_that_ends_in_time_breaks_nothing(two: Two) -> None:
    moments = [Moment(Way.DOWN, 1), Moment(Way.UP, 2, None), Moment(Way.UP, 2, 500_000)]
    for moment in moments:
        await two.differ(MISSING)
        stop = two.network.stop_at(moment)
        async with under_way(two.caller) as session:
            await stop.wait(session)
            await publish(two.callee, two.maker.some(10))
            two.network.heal()
            report = await session
        assert (report.outcome, report.in_sync, report.error) == ("done", True, "")
        assert (report.messages_sent, report.missing_there) == (MISSING, MISSING)
        await two.sync()
        await two.check_equal()


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


async def test_a_slow_network_costs_few_round_trips(two: Two) -> None:
    await two.differ(MISSING)
    two.network.delay(0.1)
    report = await two.sync()
    assert report.in_sync
    assert report.messages_sent == report.messages_received == MISSING
    assert report.seconds < 100, "some dozen round trips of 0.2 s, not one for each message"


async def test_sessions_that_break_anywhere(two: Two, dice: Random) -> None:
    """Each goes on where the last one broke, and nothing piles up."""
    await two.sync()
    await two.differ(MISSING)
    before = [memory_bytes(node) for node in (two.caller, two.callee)]
    broken = 0
    for _ in range(BREAKS):
        call = dice.choice([1, 2, 2])
        size = MISSING * PAYLOAD_BYTES if call == 2 else 50_000
        moment = Moment(dice.choice(list(Way)), call, dice.randrange(size))
        stop = two.network.stop_at(moment)
        async with under_way(two.caller) as session:
            over = asyncio.create_task(stop.wait(session))
            await asyncio.wait({over, session}, return_when=asyncio.FIRST_COMPLETED)
            two.network.reset()
            two.network.heal()
            report = await session
            await asyncio.gather(over, return_exceptions=True)
        assert report.outcome in ("failed", "done"), report
        assert bool(report.error) == (report.outcome == "failed")
        broken += report.outcome == "failed"
        if report.in_sync:
            await two.check_equal()
            await two.differ(MISSING)
    assert (await two.sync()).in_sync
    assert broken >= BREAKS // 3, "the network hardly broke anything"
    after = [memory_bytes(node) for node in (two.caller, two.callee)]
    growth = [now - then for now, then in zip(after, before, strict=True)]
    print(f"{broken} sessions broke, and the nodes grew by {growth} bytes")  # noqa: T201
    assert max(growth) < MAX_GROWTH_BYTES


@asynccontextmanager
async def calling_by_itself(node: NodeProcess) -> AsyncIterator[None]:
    """A node with a schedule, for the length of the block."""
    without = node.args
    await restarted(node, *without, "--sync-interval", "1s", "--sync-offset", "0s")
    yield
    await restarted(node, *without)


async def restarted(node: NodeProcess, *args: str) -> None:
    """Kill a node, and start it with other options."""
    node.kill()
    node.args = args
    await asyncio.to_thread(node.start)


async def test_nodes_that_were_apart_find_together_by_themselves(two: Two) -> None:
    async with calling_by_itself(two.caller):
        await apart(two)


async def apart(two: Two) -> None:
    """Cut them off from each other until both know, and wait until they are equal again."""
    await event(two.caller, "session_ended", log_size(two.caller), outcome="done")
    counted = sessions(two.callee)
    two.network.cut()
    await event(two.caller, "session_ended", log_size(two.caller), outcome="failed")
    await two.differ(100)
    (peer,) = status(two.caller)["peers"]
    assert peer["failures"] >= 1
    assert not peer["connected"]
    assert peer["last_error"]
    two.network.heal()
    await until(lambda: held(two.caller) == held(two.callee) == two.maker.made)
    await event(two.caller, "session_ended", log_size(two.caller), outcome="done")
    (peer,) = status(two.caller)["peers"]
    assert (peer["failures"], peer["last_error"]) == (0, "")
    # Who is called counts a session after who has called.
    await until(
        lambda: sessions(two.callee)["responder", "done"] > counted.get(("responder", "done"), 0)
    )
