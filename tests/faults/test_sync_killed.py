"""``kill -9`` of either node of a session."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from chaos.network import Direction, WireState
from storenode.client.types import SyncReport
from storenode.connection.errors import NodeError
from tests.faults.processes import event, log_size, until
from tests.faults.two_nodes import PAYLOAD_BYTES, Two, request_sync, two_nodes
from tests.support.acknowledged import PATIENCE_S
from tests.support.fleet import status
from tests.support.postgres import PostgresServer

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
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer
) -> AsyncIterator[Two]:
    async with two_nodes(tmp_path_factory.mktemp("killed"), postgres) as two:
        yield two


@pytest_asyncio.fixture(loop_scope="module")
async def two(running: Two) -> AsyncIterator[Two]:
    """Check that the nodes are equal and connected before the test, and equal after it."""
    await running.check_equal()
    await running.sync()
    yield running
    await running.check_equal()


@pytest.mark.parametrize("moment", LOST_AFTER_BYTES)
@pytest.mark.parametrize("victim", ["caller", "callee"])
async def test_stored_messages_stay_and_the_next_session_sends_the_rest(
    two: Two, moment: str, victim: str
) -> None:
    dies, lives = (two.caller, two.callee) if victim == "caller" else (two.callee, two.caller)
    await two.differ(MISSING)
    stored, logged = two.counts(), log_size(lives)
    stands_still = two.network.lose(Direction.DOWN, LOST_AFTER_BYTES[moment])
    session = asyncio.create_task(request_sync(two.caller))
    async with asyncio.timeout(PATIENCE_S):
        await stands_still.wait()
        if moment == "in Transfer":
            await until(lambda: two.counts()[0] > stored[0])
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
        assert (ended.outcome, ended.in_sync) == ("failed", False)
        assert ended.error
