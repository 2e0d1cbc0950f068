"""Schedules on virtual time: what begins when, with whom, and how failures are met."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from reconcile.session import Role
from store.domain.environment import Environment
from store.domain.ports import PeerAddress, StoreBusyError
from store.sync.fetch import Fetcher
from store.sync.limits import MAX_SESSIONS
from store.sync.schedule import (
    FIRST_BACKOFF_NS,
    FIRST_WIDE_NS,
    MAX_WAITING,
    RETRY_NS,
    NoPeersError,
    ScheduleConfig,
    Synchronizer,
    SyncRequestError,
)
from store.sync.session.report import SessionReport, SyncEnding, Window
from storenode.message.limits import NS_PER_S
from tests.support.virtual_time import virtual_time

MINUTE = 60.0
HOUR = 60 * MINUTE
OFFSET_NS = 20 * NS_PER_S
RANGE_NS = int(HOUR) * NS_PER_S
NOW_NS = 1_800_000_000 * NS_PER_S
PEERS = tuple(PeerAddress("127.0.0.1", port) for port in (1, 2, 3, 4, 5, 6))
PERIODIC, WIDE = False, True


def ended(ending: SyncEnding = SyncEnding.DONE, error: str = "") -> SessionReport:
    """Return the report of a session that ended so."""
    return SessionReport(Role.INITIATOR, 0, ending=ending, error=error, compared=True)


WELL = ended()
FAILED = ended(ending=SyncEnding.FAILED, error="it broke")
ABORTED = ended(ending=SyncEnding.ABORTED)
LEFT_OVER = replace(WELL, left_over=True, messages_sent=1)


@dataclass(frozen=True)
class Begun:
    """A session that began: when, with whom, and over what time."""

    at_s: float
    peer: PeerAddress
    window: Window

    @property
    def is_wide(self) -> bool:
        """True for a session over everything up to the offset."""
        return self.window.time_start_ns == 0 and self.window.time_end_ns > NOW_NS // 2


Ends = Callable[[Begun], SessionReport]


@dataclass
class World:
    """A schedule, and peers with which every session takes ``lasts_s`` and ends as ``ends`` has it.

    ``gate`` is cleared while no session ends.
    """

    synchronizer: Synchronizer = field(init=False)
    ends: Ends = lambda _: WELL
    seed: int = 1
    lasts_s: float = 0.0
    clock_ns: int = NOW_NS
    changes: dict[str, Any] = field(default_factory=dict)
    begun: list[Begun] = field(default_factory=list)
    running: list[PeerAddress] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.began_s = loop.time()
        self.gate = asyncio.Event()
        self.gate.set()
        values: dict[str, Any] = {
            "peers": PEERS[:1],
            "interval_ns": 300 * NS_PER_S,
            "range_ns": RANGE_NS,
            "offset_ns": OFFSET_NS,
            "wide_interval_ns": None,
        }
        environment = Environment(
            lambda: self.clock_ns + int(self.passed_s * NS_PER_S),
            lambda: int(loop.time() * NS_PER_S),
            random.Random(self.seed),
            cast("Any", None),
            cast("Any", None),
        )
        observer = SimpleNamespace(session_began=lambda _: None)
        exchange = SimpleNamespace(initiate=self._run, work=SimpleNamespace(observer=observer))
        self.synchronizer = Synchronizer(
            ScheduleConfig(**(values | self.changes)),
            cast("Any", SimpleNamespace(node_id=lambda _: "n")),
            cast("Any", exchange),
            cast("Fetcher", None),
            environment,
        )

    @property
    def passed_s(self) -> float:
        """The time since the beginning."""
        return asyncio.get_running_loop().time() - self.began_s

    async def _run(self, _connector: object, report: SessionReport) -> None:
        peer, window = report.peer, report.window
        assert peer is not None
        if peer in self.running:
            self.broken.append("two sessions with one peer")
        self.running.append(peer)
        try:
            self.synchronizer.check()
        except AssertionError as error:
            self.broken.append(str(error))
        begun = Begun(self.passed_s, peer, window)
        self.begun.append(begun)
        try:
            await asyncio.sleep(self.lasts_s)
            await self.gate.wait()
            end = replace(self.ends(begun), peer=peer, window=window)
            for each in fields(end):
                setattr(report, each.name, getattr(end, each.name))
        finally:
            self.running.remove(peer)

    async def pass_time(self, seconds: float) -> list[Begun]:
        """Run the schedule for a time; return what has begun since the start."""
        self.synchronizer.start()
        await asyncio.sleep(seconds)
        assert not self.broken
        return self.begun

    def ask(
        self, peer: str = "", start_ns: int | None = None, end_ns: int | None = None
    ) -> asyncio.Task[SessionReport]:
        """Ask for a session as an operator."""
        return asyncio.create_task(self.synchronizer.synchronize(peer, start_ns, end_ns))


def world(ends: Ends = lambda _: WELL, seed: int = 1, **changes: Any) -> World:  # noqa: ANN401
    """Return a world with changes to the options of its schedule."""
    return World(ends, seed, changes=changes)


def pauses(begun: list[Begun]) -> list[float]:
    """Return the times between sessions."""
    return [later.at_s - sooner.at_s for sooner, later in pairwise(begun)]


async def settle() -> None:
    """Let everything happen that is due."""
    await asyncio.sleep(0.001)


# The usual course


@virtual_time
async def test_sessions_follow_each_other_over_the_configured_window() -> None:
    found: set[PeerAddress] = set()
    for seed in range(10):
        each = world(seed=seed, peers=PEERS[:3])
        begun = await each.pass_time(HOUR)
        assert begun[0].at_s < 0.001, "the first begins at once"
        assert all(0.9 * 5 * MINUTE <= pause <= 1.1 * 5 * MINUTE for pause in pauses(begun))
        end_ns = NOW_NS - OFFSET_NS
        assert begun[0].window == Window(end_ns - RANGE_NS, end_ns)
        found |= {session.peer for session in begun}
        await each.synchronizer.stop()
    assert found == set(PEERS[:3])


@virtual_time
async def test_a_wide_session_covers_everything_on_a_schedule_of_its_own() -> None:
    each = world(peers=PEERS[:3], wide_interval_ns=RANGE_NS)
    begun = await each.pass_time(3 * HOUR)
    wide = [session for session in begun if session.is_wide]
    assert 3 <= len(wide) <= 4
    assert 30 <= len(begun) - len(wide) <= 42
    for session in wide:
        now_ns = NOW_NS + round(session.at_s * NS_PER_S)
        assert abs(session.window.time_end_ns - (now_ns - OFFSET_NS)) < 1_000


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"range_ns": None, "wide_interval_ns": RANGE_NS}, 1),
        ({"interval_ns": 0, "wide_interval_ns": RANGE_NS}, 0),
        ({"peers": ()}, 0),
    ],
)
@virtual_time
async def test_what_switches_wide_and_periodic_sessions_off(
    changes: dict[str, Any], count: int
) -> None:
    assert len(await world(**changes).pass_time(4 * MINUTE)) == count


@virtual_time
async def test_a_clock_near_the_epoch_gives_no_negative_window() -> None:
    each = World(clock_ns=NS_PER_S)
    (begun,) = await each.pass_time(MINUTE)
    assert begun.window == Window(0, 0)


# Failures


@virtual_time
async def test_a_wide_session_that_failed_is_tried_again_before_its_interval() -> None:
    results = [FAILED, FAILED, WELL]
    each = world(
        lambda session: results.pop(0) if session.is_wide and results else WELL,
        wide_interval_ns=24 * RANGE_NS,
    )
    wide = [session for session in await each.pass_time(12 * HOUR) if session.is_wide]
    assert len(wide) == 3
    assert wide[-1].at_s < 10 * MINUTE


@virtual_time
async def test_a_wide_session_that_gave_way_is_tried_again_soon() -> None:
    each = world(lambda session: ABORTED if session.is_wide else WELL, wide_interval_ns=RANGE_NS)
    wide = [session for session in await each.pass_time(4 * MINUTE) if session.is_wide]
    assert len(wide) >= 4
    assert len(set(pauses(wide))) > 1, "two nodes that began together do not do so again and again"
    first_s = FIRST_WIDE_NS / NS_PER_S
    assert all(0.9 * first_s <= pause <= 1.1 * first_s for pause in pauses(wide))


@virtual_time
async def test_a_failing_peer_rests_longer_each_time_and_the_others_go_on() -> None:
    bad = PEERS[0]
    each = world(lambda session: FAILED if session.peer == bad else WELL, peers=PEERS[:2])
    begun = await each.pass_time(2 * HOUR)
    rests = pauses([session for session in begun if session.peer == bad])
    assert rests[0] >= 0.9 * FIRST_BACKOFF_NS / NS_PER_S
    assert max(rests) >= 4 * MINUTE
    assert sum(session.peer != bad for session in begun) >= 15
    after = [later for sooner, later in pairwise(begun) if sooner.peer == bad]
    assert all(session.peer != bad for session in after), "another takes its turn"
    soon = [pause for pause in pauses(begun) if pause <= RETRY_NS / NS_PER_S + 0.01]
    assert len(soon) >= len(rests)


@virtual_time
async def test_a_success_ends_the_backoff() -> None:
    results = [FAILED] * 6 + [WELL, FAILED, WELL]
    each = world(lambda _: results.pop(0) if results else WELL)
    rests = pauses(await each.pass_time(2 * HOUR))
    assert rests[5] > MINUTE
    assert rests[7] <= 1.1 * FIRST_BACKOFF_NS / NS_PER_S
    assert not results


# What is left over


@pytest.mark.parametrize("kind", [PERIODIC, WIDE])
@virtual_time
async def test_what_a_session_left_over_is_fetched_at_once(kind: bool) -> None:
    results = [LEFT_OVER, LEFT_OVER]
    each = world(
        lambda session: results.pop() if session.is_wide is kind and results else WELL,
        wide_interval_ns=RANGE_NS,
    )
    begun = await each.pass_time(4 * MINUTE)
    assert len([session for session in begun if session.is_wide is kind]) == 3


# Operators


@virtual_time
async def test_a_request_names_its_peer_and_its_window() -> None:
    each = world(peers=PEERS[:3], interval_ns=0)
    done = await each.ask(str(PEERS[1]), 5, 9)
    assert (done.peer, done.window, done.ending) == (PEERS[1], Window(5, 9), SyncEnding.DONE)
    assert (await each.ask(start_ns=5)).window == Window(5, NOW_NS - OFFSET_NS)
    with pytest.raises(SyncRequestError, match="9 to 5 ns"):
        await each.ask("", 9, 5)
    with pytest.raises(SyncRequestError, match=r"127.0.0.1:5 is none of .*127.0.0.1:1"):
        await each.ask(str(PEERS[4]))
    with pytest.raises(NoPeersError, match="start it with --peer HOST:PORT"):
        await world(peers=()).ask()


@virtual_time
async def test_never_two_sessions_with_one_peer_and_few_in_all() -> None:
    each = world(peers=PEERS)
    each.gate.clear()
    asked = [each.ask(str(peer)) for peer in PEERS for _ in range(2)]
    await each.pass_time(HOUR)
    assert len(each.running) == MAX_SESSIONS
    each.gate.set()
    assert {done.peer for done in await asyncio.gather(*asked)} == set(PEERS)
    assert not each.broken
    for seed in range(8):
        slow = world(seed=seed, peers=PEERS[:2], wide_interval_ns=RANGE_NS)
        slow.lasts_s = 3 * HOUR
        assert len(await slow.pass_time(2 * HOUR)) == 2


@virtual_time
async def test_few_requests_wait_and_those_that_are_withdrawn_do_not_begin() -> None:
    each = world(interval_ns=0)
    each.gate.clear()
    asked = [each.ask() for _ in range(MAX_WAITING + 1)]
    await settle()
    with pytest.raises(StoreBusyError, match=f"{MAX_WAITING} sessions wait already"):
        await each.ask()
    for task in asked[1:]:
        task.cancel()
    await settle()
    each.gate.set()
    await settle()
    assert asked[0].result().ending is SyncEnding.DONE
    assert len(each.begun) == 1


@virtual_time
async def test_a_node_that_stops_answers_all_requests() -> None:
    each = world(interval_ns=0)
    each.gate.clear()
    running, waiting = each.ask(), each.ask()
    await settle()
    unborn = each.ask()
    await each.synchronizer.stop()
    assert (await running).ending is SyncEnding.FAILED
    for task in (waiting, unborn):
        with pytest.raises(StoreBusyError, match="the node is stopping"):
            await task
    assert not each.running
    each.synchronizer.start()
    await settle()
    assert not each.running, "nothing begins after the end"
