"""Calls peers when the schedule says so, or an operator asks.

The rules are in `store.sync.schedule.core`; here are the clock, the tasks and who waits for them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Protocol

from store.domain.environment import Environment
from store.domain.ports import (
    EmptyWindow,
    FetchDone,
    NoPeers,
    PeerAddress,
    PeerCaller,
    PeerState,
    ResumeState,
    SdsLookup,
    StoreBusy,
    SyncDone,
    SyncEnding,
    SyncOutcome,
    UnknownPeer,
    Window,
)
from store.sync.lookup import Fetcher
from store.sync.schedule.core import (
    Asked,
    BeginSession,
    Input,
    Kind,
    Refuse,
    RequestWithdrawn,
    Schedule,
    ScheduleConfig,
    ScheduleTick,
    SessionFinished,
    Started,
    WakeAt,
    halves,
)
from store.sync.session.report import unsuccessful
from storenode.message.limits import NS_PER_S

_STOPPING = "the node is stopping; retry later"


class PeerBook(Protocol):
    """The state of the configured peers."""

    def begun(self, peer: PeerAddress) -> None:
        """Note that this node begins a session with a peer."""

    def ended(self, done: SyncDone) -> None:
        """Note that a session that this node began has ended."""

    def states(self) -> list[PeerState]:
        """Return the state of every configured peer."""


class Synchronizer:
    """The exchange with peers, as operators see it; all on the event loop's thread."""

    def __init__(
        self,
        config: ScheduleConfig,
        caller: PeerCaller,
        book: PeerBook,
        fetcher: Fetcher,
        environment: Environment,
    ) -> None:
        self._peers = config.peers
        self._schedule = Schedule(config, environment.random)
        self._caller = caller
        self._book = book
        self._fetcher = fetcher
        self._environment = environment
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[SyncDone]] = {}
        self._sessions: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._resume: Callable[[], ResumeState | None] = lambda: None

    def start(self) -> None:
        """Begin with the schedule; what an operator asks for is done before that too."""
        self._step(Started())

    async def stop(self) -> None:
        """End all sessions; those who wait get an error."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._sessions:
            task.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(StoreBusy(_STOPPING))
        self._waiting.clear()

    def show_resume(self, resume: Callable[[], ResumeState | None]) -> None:
        """Take the progress of the resume from here."""
        self._resume = resume

    async def synchronize(
        self, peer_name: str, time_start_ns: int | None, time_end_ns: int | None
    ) -> SyncDone:
        """Run one session now; waits while another with this peer is under way.

        ``peer_name`` empty is one at random, a time of None the usual.

        Raises:
            UnknownPeer: The peer is not configured.
            NoPeers: None is.
            EmptyWindow: It would end where it begins, or before.
            StoreBusy: Too many wait already, or the node is stopping.
        """
        if self._stopped:
            raise StoreBusy(_STOPPING)
        peer = self._find(peer_name)
        number = next(self._numbers)
        asked = Asked(number, peer, time_start_ns, time_end_ns)
        self._demand_time(asked)
        future: asyncio.Future[SyncDone] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self._step(asked)
            return await future
        finally:
            self._waiting.pop(number, None)
            if not self._stopped:
                self._step(RequestWithdrawn(number))

    async def fetch(self, peer_name: str, request: SdsLookup) -> FetchDone:
        """Ask a peer for some SDS messages, and store what comes.

        Raises:
            UnknownPeer: The peer is not configured.
            NoPeers: None is.
            StoreBusy, StoreUnavailable: The database takes nothing now.
        """
        if self._stopped:
            raise StoreBusy(_STOPPING)
        peer = self._find(peer_name)
        if peer is None:
            raise UnknownPeer(f"name the peer to ask: one of {self._known()}")
        return await self._fetcher.fetch(peer, request)

    def peers(self) -> list[PeerState]:
        """Return the state of the configured peers."""
        return self._book.states()

    def resume(self) -> ResumeState | None:
        """Return the state of the resume; None when there was no gap."""
        return self._resume()

    def _find(self, name: str) -> PeerAddress | None:
        if not self._peers:
            raise NoPeers("this node has no peers: start it with --peer HOST:PORT")
        if not name:
            return None
        for peer in self._peers:
            node_id = self._caller.node_id(peer)
            if name in (peer.target, str(peer), f"{node_id}@{peer.target}"):
                return peer
        raise UnknownPeer(f"{name} is none of this node's peers: name one of {self._known()}")

    def _known(self) -> str:
        return ", ".join(str(peer) for peer in self._peers)

    def _demand_time(self, asked: Asked) -> None:
        begin = BeginSession(asked.peer or self._peers[0], Kind.ASKED, asked)
        window = self._schedule.window(self._environment.now_ns(), begin)
        if window.time_end_ns <= window.time_start_ns:
            raise EmptyWindow(
                f"the window would be {window.time_start_ns} to {window.time_end_ns} ns, which "
                "is empty: give both time_start and time_end, the first before the second"
            )

    def _step(self, given: Input) -> None:
        for effect in self._schedule.step(self._environment.steady_ns(), given):
            match effect:
                case BeginSession():
                    name = f"sync with {effect.peer}"
                    task = asyncio.create_task(self._session(effect), name=name)
                    self._sessions.add(task)
                    task.add_done_callback(self._sessions.discard)
                case Refuse():
                    future = self._waiting.get(effect.number)
                    if future is not None and not future.done():
                        future.set_exception(StoreBusy(effect.reason))
                case WakeAt():
                    self._wake_at(effect.time_ns)

    def _wake_at(self, time_ns: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if time_ns is not None:
            delay_s = max(0, time_ns - self._environment.steady_ns()) / NS_PER_S
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._step, ScheduleTick())

    async def _session(self, begin: BeginSession) -> None:
        window = self._schedule.window(self._environment.now_ns(), begin)
        self._book.begun(begin.peer)
        outcome: SyncOutcome | None = None
        try:
            outcome = await self._caller.synchronize(begin.peer, window)
        except Exception as error:
            log = self._environment.log
            log.error("session_failed", peer=str(begin.peer), exc_info=error)
            sentence = f"this node failed ({type(error).__name__}): see its log"
            outcome = unsuccessful(SyncEnding.FAILED, sentence, 0.0)
        finally:
            if outcome is None:
                outcome = unsuccessful(SyncEnding.FAILED, _STOPPING, 0.0)
            done = SyncDone(begin.peer, window, outcome)
            self._book.ended(done)
            if begin.asked is not None:
                self._answer(begin.asked.number, done)
            if not self._stopped:
                self._step(_ended(begin, window, outcome))

    def _answer(self, number: int, done: SyncDone) -> None:
        future = self._waiting.get(number)
        if future is not None and not future.done():
            future.set_result(done)


def _ended(begin: BeginSession, window: Window, outcome: SyncOutcome) -> SessionFinished:
    moved = outcome.messages_sent + outcome.messages_received > 0
    stuck = outcome.left_over and not moved and outcome.ending is SyncEnding.DONE
    return SessionFinished(
        begin.peer,
        failed=outcome.ending not in (SyncEnding.DONE, SyncEnding.ABORTED),
        aborted=outcome.ending is SyncEnding.ABORTED,
        left_over=outcome.left_over and moved,
        parts=halves(window, outcome.middle_ns) if stuck else (),
    )
