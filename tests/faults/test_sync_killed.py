"""``kill -9`` of either node of a session, in each of its phases."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator

import pytest

from storenode.client.types import SyncReport
from storenode.connection.errors import NodeError
from tests.faults.processes import until
from tests.faults.syncing import PAYLOAD_BYTES, Two, event, log_size, two_nodes, under_way
from tests.support.fleet import status
from tests.support.peer_proxy import Moment, Way
from tests.support.postgres import PostgresServer

MISSING = 2_000
"""On each side; they travel in frames of 1,000."""

MOMENTS = {
    "in Reconcile": Moment(Way.DOWN, 1),
    "before Transfer": Moment(Way.UP, 2, None),
    "in Transfer": Moment(Way.DOWN, 2, MISSING * PAYLOAD_BYTES // 2),
}
"""Before the first answer; before the second call; when half of the callee's messages have come."""

SAID = {
    ("caller", "in Reconcile"): "the peer (left|is gone|ended)",
    ("caller", "before Transfer"): "the peer began a new session before it transferred",
    ("caller", "in Transfer"): "the peer (left|is gone|ended)",
    # A break is noticed by whoever reads, or by whoever is writing a frame, which has no status.
    ("callee", "in Reconcile"): "ended the call( .UNAVAILABLE.:|, or its connection broke)",
    ("callee", "before Transfer"): "ended the call( .UNAVAILABLE.:|, or its connection broke)",
    ("callee", "in Transfer"): "ended the call",
}
"""What the node that lives says of the session (a pattern), by who was killed."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[Two]:
    with two_nodes(tmp_path_factory.mktemp("killed"), postgres) as two:
        yield two


@pytest.fixture
async def two(running: Two) -> AsyncIterator[Two]:
    """Two nodes that serve and are equal, before the test and after it."""
    await running.check_equal()
    yield running
    await running.check_equal()


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", ["caller", "callee"])
async def test_what_was_stored_stays_and_the_next_session_goes_on(
    two: Two, moment: str, victim: str
) -> None:
    dies, lives = (two.caller, two.callee) if victim == "caller" else (two.callee, two.caller)
    await two.differ(MISSING)
    holding = two.counts()
    told = log_size(lives)
    stop = two.network.stop_at(MOMENTS[moment])
    async with under_way(two.caller) as session:
        await stop.wait(session)
        if moment == "in Transfer":
            await until(lambda: two.counts()[0] > holding[0])
        dies.kill()
        two.network.reset()
        two.network.heal()
        check_report(await ending(session), victim)
    holding = two.counts()
    await asyncio.to_thread(dies.start)

    report = await two.sync()

    assert (report.error, report.outcome, report.in_sync) == ("", "done", True)
    role = "responder" if victim == "caller" else "initiator"
    broken = await event(lives, "session_ended", told, outcome="failed", role=role)
    assert re.search(SAID[victim, moment], broken["error"]), broken
    everything = len(two.maker.made)
    # What was stored before the break does not travel again.
    assert report.messages_received == everything - holding[0]
    assert report.messages_sent == everything - holding[1]
    # A resume makes a call of its own, which the moments of the next test must not count.
    await until(lambda: not status(two.caller).get("resume", {}).get("running", False))
    (peer,) = status(two.caller)["peers"]
    assert (peer["failures"], peer["last_error"], peer["lacks"], peer["has"]) == (0, "", 0, 0)


async def ending(session: asyncio.Task[SyncReport]) -> SyncReport | NodeError:
    """The report, or how the operator's call failed."""
    try:
        return await session
    except NodeError as error:
        return error


def check_report(broken: SyncReport | NodeError, victim: str) -> None:
    """What the operator who asked for the session was told."""
    if victim == "caller":
        assert isinstance(broken, NodeError)
        assert broken.unreachable
    else:
        assert isinstance(broken, SyncReport)
        assert (broken.outcome, broken.in_sync) == ("failed", False)
        assert broken.error
