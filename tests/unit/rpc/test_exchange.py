"""The guard around the driver of a session, and the horizon that nodes have in common."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcile.ids import LOWEST, SyncIds
from reconcile.index import IndexView
from reconcile.session import Result, Role
from store.domain.places import Caller
from store.domain.ports import PeerAddress, StoreUnavailableError, Writer
from store.observe.metrics import Metrics
from store.runtime.node import system_environment
from store.sync.errors import Fault, ProtocolBrokenError, SessionFaultError
from store.sync.index.hot import HotIndex
from store.sync.index.views import StoredView, in_thread_if
from store.sync.limits import MAX_HORIZON_STEP_NS, SILENCE_NS
from store.sync.peers import FrameStream
from store.sync.session.exchange import Exchange, ExchangeWork, common_horizon
from store.sync.session.reconciliation import Reconciliation
from store.sync.session.registry import PeerSession
from store.sync.session.report import SessionReport, SyncEnding, SyncObserver
from store.sync.transfer.transfer import TransferReads
from storenode.message.limits import NS_PER_S
from storenode.message.rules import Policy
from tests.support.virtual_time import virtual_time

NONE = SyncIds.empty()
ONE = SyncIds.of([(1, bytes(32))])
DAY_NS = 86_400 * 10**9
END_NS = 30 * DAY_NS
"""The length of a window in which no two random times are the same."""


class World:
    """An exchange that no call of a database can reach."""

    def __init__(self, **changes: Any) -> None:  # noqa: ANN401 - of any part
        self.reports: list[SessionReport] = []
        work = ExchangeWork(
            node_id="m",
            store_id="sm",
            cluster=1,
            shards=(),
            index=cast("HotIndex", None),
            reads=cast("TransferReads", None),
            writer=cast("Writer", None),
            policy=lambda: Policy(max_drift_ns=None),
            observer=cast("SyncObserver", self),
            environment=replace(
                system_environment("test", Metrics("1")),
                steady_ns=lambda: round(asyncio.get_running_loop().time() * NS_PER_S),
            ),
        )
        self.exchange = Exchange(replace(work, **changes))
        self.sessions, self.now_ns = self.exchange.sessions, self.exchange.environment.steady_ns

    def session_ended(self, report: SessionReport) -> None:
        """Keep the report of a session that ended."""
        assert (report.node_id, report.store_id) == ("b", "sb")
        self.reports.append(report)

    def driving(self, session_id: str = "x") -> AbstractContextManager[PeerSession]:
        """Drive a session of peer b that reconciles."""
        report = SessionReport(Role.RESPONDER, 0, "b", "sb")
        accept = partial(self.sessions.accept, self.now_ns(), Caller("b", "sb"), session_id, report)
        return self.exchange.driving(report, accept)

    def waiting(self, session_id: str = "x") -> PeerSession:
        """Return a session of peer b that waits for its transfer."""
        with self.driving(session_id) as session:
            self.sessions.reconciled(self.now_ns(), session, ONE, ONE)
        return session


@pytest.fixture
async def world() -> World:
    return World()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_driver_that_gives_way_ends_and_its_own_cancellation_counts_for_more(
    world: World, is_cancelled: bool
) -> None:
    begun: asyncio.Future[PeerSession] = asyncio.get_running_loop().create_future()

    async def drive() -> str:
        try:
            with world.driving() as session:
                begun.set_result(session)
                await asyncio.Event().wait()
        except SessionFaultError as error:
            # The task itself was not cancelled, and works on.
            await asyncio.sleep(0)
            return error.fault.value
        return "ended"

    task = asyncio.create_task(drive())
    session = await begun
    world.exchange.stop(session, Fault.GAVE_WAY, "another goes first")
    if is_cancelled:
        task.cancel()
    (end,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(end, asyncio.CancelledError) if is_cancelled else end == "gave way"
    assert task.cancelling() == is_cancelled
    assert not len(world.sessions)


@virtual_time
@pytest.mark.parametrize(
    ("waits_s", "end_s", "sentence"),
    [
        ((), 130, "the peer has said nothing for 60 s: see what keeps it"),
        ((59.0, 1.0, 59.0), 249, "the peer has said nothing for 60 s: see what keeps it"),
        ((7.0,) * 100, 600, "the reconciliation was not done within 600 s"),
    ],
)
async def test_a_silent_peer_and_a_long_reconciliation_end_the_session(
    waits_s: tuple[float, ...], end_s: float, sentence: str
) -> None:
    world, loop, left_s = World(), asyncio.get_running_loop(), list(waits_s)

    async def take() -> None:
        await asyncio.sleep(left_s.pop(0) if left_s else 10**6)

    async def run() -> None:
        with world.driving() as session:
            await asyncio.sleep(70)  # this node may work for as long as it likes
            while True:
                await session.wait(world.now_ns, take())

    began_s = loop.time()
    with pytest.raises(SessionFaultError, match=sentence):
        await run()
    assert loop.time() - began_s == pytest.approx(end_s)


async def test_a_step_in_a_thread_has_ended_when_its_task_has() -> None:
    go_on = threading.Event()
    task = asyncio.create_task(in_thread_if(True, go_on.wait))
    for _ in range(9):  # it begins, and is cancelled again and again
        await asyncio.sleep(0)
        task.cancel()
    assert not task.done()
    go_on.set()
    await asyncio.wait({task})
    assert task.cancelled()


@pytest.mark.parametrize(
    ("error", "ending", "sentence"),
    [
        (StoreUnavailableError("away"), SyncEnding.UNAVAILABLE, "does not serve: away"),
        (ProtocolBrokenError("broken"), SyncEnding.FAILED, "broken"),
        (SessionFaultError(Fault.GAVE_WAY, "later"), SyncEnding.ABORTED, ""),
        (RuntimeError("a fault"), SyncEnding.FAILED, "its log says where"),
    ],
)
async def test_a_session_that_fails_is_freed_and_reported(
    world: World, error: Exception, ending: SyncEnding, sentence: str
) -> None:
    with pytest.raises(type(error)), world.driving():
        raise error
    [report] = world.reports
    assert (report.ending, report.error.endswith(sentence)) == (ending, True)
    assert bool(report.error) == bool(sentence)
    assert not len(world.sessions)


@virtual_time
async def test_a_session_that_waits_ends_and_is_reported() -> None:
    world = World()
    world.waiting("x")
    replacement = world.waiting("y")
    assert [session.session_id for session in world.sessions] == ["y"]
    world.exchange.close()
    world.sessions.end(replacement)
    world.waiting("z")
    await asyncio.sleep(SILENCE_NS / NS_PER_S + 1)
    assert not len(world.sessions)
    assert {report.ending for report in world.reports} == {SyncEnding.FAILED}
    sentences = "new session", "shutting down", "did not transfer within 60 s"
    assert all(each in report.error for each, report in zip(sentences, world.reports, strict=True))


@given(st.integers(0, 400 * DAY_NS), st.integers(1, 400 * DAY_NS))
def test_the_common_horizon_is_a_little_above_the_own(horizon_ns: int, kept_ns: int) -> None:
    common = common_horizon(horizon_ns + kept_ns, horizon_ns)
    assert 0 <= common - horizon_ns < MAX_HORIZON_STEP_NS
    assert (common - horizon_ns) * 64 < max(kept_ns, 64)


def empty_view() -> StoredView:
    """Return a view of nothing, all of it in memory."""
    return StoredView(cast("Any", None), 0, IndexView.of(NONE), LOWEST)


def result_of(to_receive: SyncIds = NONE) -> Result:
    """Return the result of a short reconciliation."""
    window = LOWEST, (END_NS, bytes(32))
    return Result(to_send=NONE, to_receive=to_receive, rounds=1, own_count=0, window=window)


def offering(exchange: Exchange, report: SessionReport) -> Reconciliation:
    bounds, stream = ((10, bytes(32)), (END_NS, bytes(32))), cast("FrameStream", None)
    session = PeerSession(report, "b:1", 0)
    return Reconciliation(exchange, session, stream, empty_view(), bounds)


class _Equal(Reconciliation):
    """A side of a session that finds two empty stores equal."""

    async def initiate(self) -> Result:
        self.report.peer_count = 0
        return result_of()


async def test_a_fault_of_coverage_changes_no_session(caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def open_view(*_: object, **__: object) -> AsyncIterator[StoredView]:
        yield empty_view()

    @asynccontextmanager
    async def call(_peer: object, _method: object, identify: Any) -> AsyncIterator[Any]:  # noqa: ANN401
        identify("b", "sb")
        yield SimpleNamespace(half_close=AsyncMock(), read=AsyncMock(return_value=None))

    index = SimpleNamespace(open_view=open_view)
    world = World(index=index, statements=SimpleNamespace(take=AsyncMock(side_effect=ValueError)))
    world.exchange.reconciliation = _Equal
    report = SessionReport(Role.INITIATOR, world.now_ns(), peer=PeerAddress("127.0.0.1", 1))
    connector = SimpleNamespace(node_id=lambda _: "", call=call)
    await world.exchange.initiate(cast("Any", connector), report)
    assert world.reports == [report]
    assert (report.ending, report.error) == (SyncEnding.DONE, "")
    assert caplog.messages == ["coverage_not_kept"]
