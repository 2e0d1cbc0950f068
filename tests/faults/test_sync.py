"""Sessions of two nodes under faults of the network and of the processes: one pair for all."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from chaos.network import Direction, WireState
from storenode.client.types import SyncReport
from storenode.connection.errors import NodeError
from tests.faults.processes import event, log_size, metrics, until
from tests.faults.two_nodes import PAYLOAD_BYTES, Two, request_sync, two_nodes
from tests.support.fleet import status
from tests.support.ledger import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

MISSING = 2_000
"""Messages that each side lacks; they travel in frames of 1,000."""

LOST_AFTER_BYTES = {"in Reconcile": 0, "in Transfer": MISSING * PAYLOAD_BYTES * 3 // 4}
"""Bytes of the callee until the session stands still: none, or those of the first frame."""

ERRORS = {
    "caller": "the peer (left|is gone|ended)",
    # A break is noticed by a read, which has a status, or by a write, which has none.
    "callee": "ended the call",
}
"""What the other node logs of the session (a pattern), by who is killed."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
) -> AsyncIterator[Two]:
    async with two_nodes(tmp_path_factory.mktemp("sync"), new_store) as two:
        yield two


@pytest_asyncio.fixture(loop_scope="module")
async def two(running: Two) -> AsyncIterator[Two]:
    """Check that the nodes are equal and connected before the test, and equal after it."""
    assert (await running.sync()).in_sync
    assert (await request_sync(running.callee)).in_sync
    await running.check_equal()
    yield running
    running.heal()
    await running.check_equal()


async def test_one_direction_is_lost(two: Two) -> None:
    # Of one session nothing arrives, of the other no answer comes back.
    await two.differ(30)
    two.network.lose(Direction.UP)
    two.back.lose(Direction.DOWN)
    reports = await asyncio.gather(two.sync(), request_sync(two.callee))
    assert not any(report.in_sync for report in reports)
    # The session that arrives may go before the other one of the two.
    assert {report.outcome for report in reports} in ({"failed"}, {"failed", "aborted"})
    for report in reports:
        if report.outcome == "failed":
            assert "did not answer within 20 s" in report.error
    two.heal()
    assert (await two.sync()).in_sync
    assert (await request_sync(two.callee)).in_sync


@pytest.mark.parametrize(
    ("moment", "victim"), [("in Reconcile", "callee"), ("in Transfer", "caller")]
)
async def test_a_session_with_a_killed_node_keeps_what_was_stored(
    two: Two, moment: str, victim: str
) -> None:
    dies, lives = (two.caller, two.callee) if victim == "caller" else (two.callee, two.caller)
    await two.differ(MISSING)
    stored, logged = two.counts(), log_size(lives)
    received = "storenode_sync_bytes_total", "received"
    asked = metrics(two.callee)[received]
    stands_still = two.network.lose(Direction.DOWN, LOST_AFTER_BYTES[moment])
    session = asyncio.create_task(two.sync())
    async with asyncio.timeout(PATIENCE_S):
        await stands_still.wait()
        if moment == "in Transfer":
            await until(lambda: two.counts()[0] > stored[0])
        # What stands still first may be another call, while this one has not come yet.
        await until(lambda: metrics(two.callee)[received] > asked)
        assert not session.done()
        dies.kill()
        two.network.set(WireState.CLOSED)
        two.network.set(WireState.OPEN)
        (ended,) = await asyncio.gather(session, return_exceptions=True)
    check_report(ended, victim)
    stored = two.counts()
    await asyncio.to_thread(dies.start)
    report = await two.sync()
    assert (report.error, report.outcome, report.in_sync) == ("", "done", True)
    role = "responder" if victim == "caller" else "initiator"
    broken = await event(lives, "session_ended", logged, outcome="failed", role=role)
    assert re.search(ERRORS[victim], broken["error"]), broken
    # What was stored before the break does not travel again.
    assert report.messages_received == len(two.maker.made) - stored[0]
    assert report.messages_sent == len(two.maker.made) - stored[1]
    (peer,) = (await asyncio.to_thread(status, two.caller))["peers"]
    assert (peer["failures"], peer["last_error"], peer["lacks"], peer["has"]) == (0, "", 0, 0)


def check_report(ended: SyncReport | BaseException, victim: str) -> None:
    """Check what the operator who started the session got."""
    if victim == "caller":
        assert isinstance(ended, NodeError)
        assert ended.unreachable
    else:
        assert isinstance(ended, SyncReport)
        assert (ended.outcome, ended.in_sync, ended.error == "") == ("failed", False, False)
