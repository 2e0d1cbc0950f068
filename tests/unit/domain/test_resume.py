"""Store resume: the gap, its pages, peers that fail, and what a restart continues from."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import cast

import pytest

from store.domain.coverage import Interval
from store.domain.environment import Environment
from store.domain.ports import CursorOutOfRangeError, PeerAddress, PeerError, Source, Writer
from store.messages.conflicts import StoreResult
from store.messages.record import RecordBatch
from store.observe.logging import get_logger
from store.observe.metrics import Metrics
from store.sync.fetch import LONGEST_FETCH_NS, SHORTEST_GAP_NS, FetchWork, OnlineRecorder, Resumer
from store.sync.peers import PeerCaller, ScannedPage
from storenode.message.limits import NS_PER_S
from storenode.message.rules import Policy
from tests.unit.builders import entry

NOW = 1_800_000_000 * NS_PER_S
GAP = 3_600 * NS_PER_S
SLACK = 20 * NS_PER_S
MIDDLE = NOW - GAP // 2
PEERS = tuple(PeerAddress("127.0.0.1", port) for port in (1, 2, 3))

Step = int | ScannedPage | Exception
"""The time that an empty page reaches, a page, or the error that ends a scan."""


@dataclass
class World:
    """The surroundings of a resumer; ``scans`` are consumed: the pages of each, or its end."""

    scans: list[list[Step]] = field(default_factory=list)
    peers: tuple[PeerAddress, ...] = PEERS
    last_ns: int = NOW - GAP
    shortest_ns: int = SHORTEST_GAP_NS
    horizon_ns: int | None = None
    page_ns: int = 2 * NS_PER_S
    steady_ns: int = 0
    asked: list[tuple[PeerAddress, int, bytes]] = field(default_factory=list)
    noted: list[int] = field(default_factory=list)
    resumed: list[Interval] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    proceeded: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    async def scan(
        self, peer: PeerAddress, start_ns: int, end_ns: int, cursor: bytes
    ) -> AsyncGenerator[ScannedPage, None]:
        """Yield the next scan."""
        assert end_ns == NOW
        self.asked.append((peer, start_ns, cursor))
        for step in self.scans.pop(0) if self.scans else [PeerError("down")]:
            if isinstance(step, Exception):
                raise step
            self.steady_ns += self.page_ns
            yield step if isinstance(step, ScannedPage) else ScannedPage([], [], b"cursor", step)

    async def store(self, batch: RecordBatch, source: Source) -> StoreResult:
        """Store nothing."""
        assert (len(batch), source) == (0, Source.RESUME)
        return StoreResult()

    async def last(self) -> int:
        """Return when the store was last online."""
        return self.last_ns

    async def note(self, online_ns: int, now_ns: int, interval: Interval | None = None) -> None:
        """Keep the time and the interval."""
        assert now_ns == NOW
        self.noted.append(online_ns)
        if interval is not None and interval.resumed:
            self.resumed.append(interval)

    async def sleep(self, seconds: float) -> None:
        """Let the time pass at once."""
        if seconds:
            self.pauses.append(seconds)
            self.steady_ns += int(seconds * NS_PER_S)

    async def run(self, monkeypatch: pytest.MonkeyPatch) -> Resumer:
        """Resume until the gap is filled."""
        monkeypatch.setattr(asyncio, "sleep", self.sleep)
        log, counts = get_logger("test"), Metrics("1")
        environment = Environment(
            lambda: NOW, lambda: self.steady_ns, random.Random(1), log, counts.count_intake
        )
        recorder = OnlineRecorder(self, environment)

        def failed(_: PeerAddress, error: str) -> None:
            resumer.check()
            self.errors.append(error)

        resumer = Resumer(
            self.peers,
            FetchWork(
                cast("PeerCaller", self),
                cast("Writer", self),
                lambda: Policy(max_drift_ns=None, horizon_ns=self.horizon_ns),
                environment,
            ),
            recorder,
            slack_ns=SLACK,
            shortest_ns=self.shortest_ns,
            proceed=lambda: self.proceeded.append(len(self.asked)),
            failed=failed,
        )
        await resumer.resume()
        resumer.check()
        await recorder.note()
        return resumer


async def test_a_gap_is_fetched_from_one_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([[MIDDLE]])
    resumer = await world.run(monkeypatch)
    assert [(start_ns, cursor) for _, start_ns, cursor in world.asked] == [(NOW - GAP - SLACK, b"")]
    assert world.noted == [MIDDLE, NOW, NOW]
    assert world.resumed[-1] == Interval(NOW - GAP, NOW, resumed=True)
    assert world.proceeded == [1]
    state = resumer.state()
    assert state is not None
    assert (state.running, state.error, state.reached_ns) == (False, "", NOW)


@pytest.mark.parametrize("last_ns", [0, NOW - SHORTEST_GAP_NS + 1, NOW + GAP])
async def test_without_a_gap_reconciliation_begins_at_once(
    last_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(last_ns=last_ns)
    assert (await world.run(monkeypatch)).state() is None
    assert (world.asked, world.proceeded) == ([], [0])


async def test_nothing_behind_the_horizon_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([[NOW]], horizon_ns=MIDDLE)
    await world.run(monkeypatch)
    assert world.asked[0][1] == MIDDLE


async def test_a_broken_scan_goes_on_at_the_next_peer_by_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World([[MIDDLE, PeerError("gone")], [NOW]])
    await world.run(monkeypatch)
    (first, *_), (second, start_ns, cursor) = world.asked
    assert (first != second, start_ns, cursor) == (True, MIDDLE, b""), "a cursor is its peer's"
    assert not world.pauses


@pytest.mark.parametrize("served", [True, False])
async def test_the_only_peer_goes_on_after_the_last_page(
    served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = PeerError("gone") if served else CursorOutOfRangeError("unknown")
    world = World([[MIDDLE, error], [NOW]], peers=PEERS[:1])
    await world.run(monkeypatch)
    _, start_ns, cursor = world.asked[1]
    expected = (NOW - GAP - SLACK, b"cursor") if served else (MIDDLE, b"")
    assert (start_ns, cursor) == expected
    assert len(world.pauses) == 1


async def test_peers_that_fail_hold_up_nothing_and_are_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    down: list[list[Step]] = [[PeerError("down")] for _ in range(30)]
    world = World([*down, [NOW]])
    await world.run(monkeypatch)
    assert world.proceeded == [3], "once each has failed"
    assert len(world.pauses) == 10
    assert world.pauses[0] <= 2
    assert 30 <= world.pauses[-1] <= 60


async def test_a_peer_whose_pages_never_end_holds_up_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endless: list[Step] = [NOW - GAP] * 100
    world = World([list(endless), [NOW]], page_ns=LONGEST_FETCH_NS // 50)
    await world.run(monkeypatch)
    assert world.proceeded == [1]
    assert len({peer for peer, *_ in world.asked}) == 2


async def test_a_page_whose_messages_have_other_hashes_ends_the_scan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lie = ScannedPage([entry(b"one").SerializeToString()], [bytes(32)], b"cursor", MIDDLE)
    world = World([[lie], [NOW]])
    await world.run(monkeypatch)
    assert "do not have the hashes" in world.errors[0]
    assert world.asked[1][1:] == (NOW - GAP - SLACK, b""), "nothing of it counts"


@pytest.mark.parametrize("error", [True, False])
async def test_after_a_peer_that_was_off_each_other_is_asked_once(
    error: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = NOW - GAP + NS_PER_S
    rest: list[list[Step]] = [[PeerError("down")] if error else [] for _ in range(9)]
    world = World([[early], *rest])
    await world.run(monkeypatch)
    assert sorted((peer for peer, *_ in world.asked), key=str) == sorted(PEERS, key=str)
    assert [each[1:] for each in world.asked[1:]] == [(early, b""), (early, b"")]
    late = World([[early], [MIDDLE + 1], [NOW]])
    await late.run(monkeypatch)
    assert len(late.asked) == 2, "the second one has shown enough"
