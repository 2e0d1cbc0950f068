"""Sessions that this node begins: when, with which peer, and over what time.

Times are of a monotonic clock, so that a clock which is set back stops nothing; what a session is
about follows from the clock when it begins.

Rules (WAKU-SYNC "Sync Interval", "Peer Choice"; the node's contract, "Schedule"):

1. A *periodic* session, with a random peer, every ``interval_ns`` and a random tenth of it more or
   less: a fleet that was started together does not call together.
2. A *wide* session over the whole history on a slower schedule of its own. Without it, what is
   older than the window and was lost once would stay lost.
3. Never two sessions with one peer, and at most ``max_sessions`` in all.
4. A peer that fails is left alone for a time that doubles up to the longer of the interval and
   `LONGEST_BACKOFF_NS`; another takes its turn soon. A session that gave way to another with the
   same peer (ABORTED) counts as done.
5. A wide session that fails is tried again after `FIRST_WIDE_NS`, then after twice as long each
   time, up to its interval; one that gave way after `FIRST_WIDE_NS`, since the other may have been
   about less. One of any kind that left differences over is followed by the next at once: over a
   random part of its window, with the same peer, if it moved nothing, since all that it may report
   is then such as policy keeps, and hides the others.
6. An interval of 0 switches periodic and wide sessions off. What an operator asks for is done all
   the same, and does not wait for a backoff.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from reconcile.session import Role
from store.domain.environment import Environment
from store.domain.ports import PeerAddress, SdsLookup, StoreBusyError
from store.sync.fetch import FetchDone, Fetcher
from store.sync.limits import MAX_SESSIONS
from store.sync.peers import Connector
from store.sync.session.exchange import Exchange
from store.sync.session.report import SessionReport, SyncEnding, Window
from storenode.message.limits import NS_PER_S

MAX_WAITING: Final = 64
FIRST_BACKOFF_NS: Final = 5 * NS_PER_S
LONGEST_BACKOFF_NS: Final = 300 * NS_PER_S
RETRY_NS: Final = 2 * NS_PER_S
"""The pause after a failure before another peer is tried."""

FIRST_WIDE_NS: Final = 30 * NS_PER_S
"""The first wide session follows the start by about this much: a new node fetches its history."""

_JITTER: Final = 0.1
_STOPPING: Final = "the node is stopping; retry later"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """The options of the schedule; durations in nanoseconds.

    ``range_ns`` None: every session is about the whole history. ``wide_interval_ns`` None: no wide
    sessions of their own.
    """

    peers: tuple[PeerAddress, ...]
    interval_ns: int
    range_ns: int | None
    offset_ns: int
    wide_interval_ns: int | None
    max_sessions: int = MAX_SESSIONS


class SyncRequestError(Exception):
    """A request that names no configured peer, or a window without time."""


class NoPeersError(Exception):
    """A node without peers; the sentence says how to configure some."""


@dataclass(slots=True)
class PeerState:
    """The state of a configured peer; times in Unix nanoseconds, 0: never.

    ``lacks`` and ``has``: messages that the peer, and this node, were left without by the last
    session that found out, as far as either is known.
    """

    address: str
    node_id: str
    store_id: str = ""
    connected: bool = False
    in_session: bool = False
    last_sync_ns: int = 0
    last: SessionReport | None = None
    last_error: str = ""
    failures: int = 0
    lacks: int = 0
    has: int = 0


@dataclass(slots=True, eq=False)
class _Peer:
    address: PeerAddress
    busy: bool = False
    failures: int = 0
    rests_until_ns: int = 0


@dataclass(slots=True, eq=False)
class _Due:
    """A kind of session that comes round again; ``part``: of a window, and with whom (rule 5)."""

    is_wide: bool
    interval_ns: int
    next_ns: int | None = None
    failures: int = 0
    part: tuple[_Peer, Window] | None = None


@dataclass(slots=True, eq=False)
class _Request:
    """A session that an operator wants.

    ``peer`` None is a random one, a bound of None the usual.
    """

    peer: _Peer | None
    start_ns: int | None
    end_ns: int | None
    done: asyncio.Future[SessionReport]


class Synchronizer:
    """The sessions that this node begins, by its schedule or for operators.

    All on the event loop's thread; the environment's randomness is the only source of chance.
    """

    def __init__(
        self,
        config: ScheduleConfig,
        connector: Connector,
        exchange: Exchange,
        fetcher: Fetcher,
        environment: Environment,
    ) -> None:
        self._config = config
        self._rng = environment.random
        self._peers = {peer: _Peer(peer) for peer in config.peers}
        self._connector = connector
        self._exchange = exchange
        self._observer = exchange.work.observer
        self._fetcher = fetcher
        self._environment = environment
        self._waiting: list[_Request] = []
        self._sessions: dict[asyncio.Task[None], _Due | _Request] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._due: list[_Due] = []
        if config.interval_ns and config.peers:
            self._due.append(_Due(is_wide=False, interval_ns=config.interval_ns))
            if config.wide_interval_ns is not None and config.range_ns is not None:
                self._due.append(_Due(is_wide=True, interval_ns=config.wide_interval_ns))

    def start(self) -> None:
        """Begin with the schedule, once; what an operator asks for is done before that too."""
        for due in self._due:
            first_ns = min(FIRST_WIDE_NS, due.interval_ns) if due.is_wide else 0
            due.next_ns = self._environment.steady_ns() + self._jittered(first_ns)
        self._go_on()

    async def stop(self) -> None:
        """End all sessions; those who wait get an error."""
        self._stopped = True
        causes = [*self._waiting, *self._sessions.values()]
        if self._timer is not None:
            self._timer.cancel()
        for task in self._sessions:
            task.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)
        for cause in causes:
            if isinstance(cause, _Request) and not cause.done.done():
                cause.done.set_exception(StoreBusyError(_STOPPING))
        self._waiting.clear()

    async def synchronize(
        self, peer_name: str, time_start_ns: int | None, time_end_ns: int | None
    ) -> SessionReport:
        """Run one session now; waits while another with this peer is under way.

        ``peer_name`` empty is one at random, a time of None the usual.

        Raises:
            SyncRequestError: The peer is not configured, or the window would contain no time.
            NoPeersError: None is.
            StoreBusyError: Too many wait already, or the node is stopping.
        """
        if self._stopped:
            raise StoreBusyError(_STOPPING)
        peer = self._find(peer_name)
        future: asyncio.Future[SessionReport] = asyncio.get_running_loop().create_future()
        found = None if peer is None else self._peers[peer]
        request = _Request(found, time_start_ns, time_end_ns, future)
        window = self._window(request=request)
        if window.time_end_ns <= window.time_start_ns:
            raise SyncRequestError(
                f"the window would be {window.time_start_ns} to {window.time_end_ns} ns, which "
                "is empty: give both time_start and time_end, the first before the second"
            )
        if len(self._waiting) >= MAX_WAITING:
            raise StoreBusyError(f"{MAX_WAITING} sessions wait already; retry later")
        self._waiting.append(request)
        try:
            self._go_on()
            return await future
        finally:
            if request in self._waiting:
                self._waiting.remove(request)

    async def fetch(self, peer_name: str, request: SdsLookup) -> FetchDone:
        """Ask a peer for some SDS messages, and store what comes.

        Raises:
            SyncRequestError: The peer is not configured.
            NoPeersError: None is.
            NotServingError: The database takes nothing now.
        """
        if self._stopped:
            raise StoreBusyError(_STOPPING)
        peer = self._find(peer_name)
        if peer is None:
            raise SyncRequestError(f"name the peer to ask: one of {self._known()}")
        return await self._fetcher.fetch(peer, request)

    def _find(self, name: str) -> PeerAddress | None:
        if not self._peers:
            raise NoPeersError("this node has no peers: start it with --peer HOST:PORT")
        if not name:
            return None
        for peer in self._peers:
            node_id = self._connector.node_id(peer)
            if name in (peer.target, str(peer), f"{node_id}@{peer.target}"):
                return peer
        raise SyncRequestError(f"{name} is none of this node's peers: name one of {self._known()}")

    def _known(self) -> str:
        return ", ".join(str(peer) for peer in self._peers)

    def check(self) -> None:
        """Verify the invariants.

        Raises:
            AssertionError: one is broken.
        """
        assert sum(peer.busy for peer in self._peers.values()) <= self._config.max_sessions
        assert len(self._waiting) <= MAX_WAITING

    @property
    def _is_full(self) -> bool:
        return sum(peer.busy for peer in self._peers.values()) >= self._config.max_sessions

    def _window(self, due: _Due | None = None, request: _Request | None = None) -> Window:
        """Return the window of a session that begins now."""
        end_ns = max(0, self._environment.now_ns() - self._config.offset_ns)
        start_ns = 0
        if self._config.range_ns is not None and not (due is not None and due.is_wide):
            start_ns = max(0, end_ns - self._config.range_ns)
        if request is not None and request.start_ns is not None:
            start_ns = request.start_ns
        if request is not None and request.end_ns is not None:
            end_ns = request.end_ns
        return Window(start_ns, end_ns)

    # What begins

    def _go_on(self) -> None:
        """Begin what is asked for, then what is due, and set the timer for what comes next."""
        if self._stopped:
            return
        for request in list(self._waiting):
            peer = self._free_for(request)
            if peer is not None:
                self._waiting.remove(request)
                self._begin(peer, self._window(request=request), request)
        now_ns = self._environment.steady_ns()
        for due in self._due:
            ready = [] if due.next_ns is None or due.next_ns > now_ns else self._rested(now_ns)
            if ready:
                due.next_ns = now_ns + self._jittered(due.interval_ns)
                part, due.part = due.part, None
                whole = self._rng.choice(ready), self._window(due)
                self._begin(*(part if part and part[0] in ready else whole), due)
        self._set_timer(now_ns)

    def _free_for(self, request: _Request) -> _Peer | None:
        if self._is_full:
            return None
        if request.peer is not None:
            return None if request.peer.busy else request.peer
        free = [peer for peer in self._peers.values() if not peer.busy]
        # One that fails is chosen only when there is no other.
        healthy = [peer for peer in free if not peer.failures]
        return self._rng.choice(healthy or free) if free else None

    def _rested(self, now_ns: int) -> list[_Peer]:
        if self._is_full:
            return []
        peers = self._peers.values()
        return [peer for peer in peers if not peer.busy and peer.rests_until_ns <= now_ns]

    def _set_timer(self, now_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = [due.next_ns for due in self._due if due.next_ns is not None]
        free = [peer.rests_until_ns for peer in self._peers.values() if not peer.busy]
        if times and free and not self._is_full:
            delay_s = max(0, min(times) - now_ns, min(free) - now_ns) / NS_PER_S
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._go_on)

    # A session

    def _begin(self, peer: _Peer, window: Window, cause: _Due | _Request) -> None:
        peer.busy = True
        session = self._run(peer, window, cause)
        task = asyncio.create_task(session, name=f"sync with {peer.address}")
        self._sessions[task] = cause
        task.add_done_callback(self._sessions.pop)

    async def _run(self, peer: _Peer, window: Window, cause: _Due | _Request) -> None:
        self._observer.session_began(peer.address)
        began_ns = self._environment.steady_ns()
        report = SessionReport(Role.INITIATOR, began_ns, peer=peer.address, window=window)
        try:
            await self._exchange.initiate(self._connector, report)
        finally:
            report.ending = report.ending or SyncEnding.FAILED
            peer.busy = False
            if isinstance(cause, _Due):
                self._come_round(cause, peer, report)
            elif not cause.done.done():
                cause.done.set_result(report)
            self._rest(peer, report.ending)
            self._go_on()

    def _rest(self, peer: _Peer, ending: SyncEnding) -> None:
        """Let a peer rest that has failed, and try another one soon (rule 4)."""
        if ending in (SyncEnding.DONE, SyncEnding.ABORTED):
            peer.failures = peer.rests_until_ns = 0
            return
        now_ns = self._environment.steady_ns()
        longest_ns = max(self._config.interval_ns, LONGEST_BACKOFF_NS)
        rest_ns = min(FIRST_BACKOFF_NS << min(peer.failures, 32), longest_ns)
        peer.failures += 1
        peer.rests_until_ns = now_ns + self._jittered(rest_ns)
        for other in self._due:
            if not other.is_wide and other.next_ns is not None:
                other.next_ns = min(other.next_ns, now_ns + RETRY_NS)

    def _come_round(self, due: _Due, peer: _Peer, report: SessionReport) -> None:
        """Set when a session of this kind is due again, and over what (rule 5)."""
        is_done, aborted = report.ending is SyncEnding.DONE, report.ending is SyncEnding.ABORTED
        failed = not aborted and not is_done
        moved = report.messages_sent + report.messages_received > 0
        wait_ns, middle_ns = due.interval_ns, report.middle_ns
        start_ns, end_ns = report.window.time_start_ns, report.window.time_end_ns
        if is_done and report.left_over and not moved and start_ns < middle_ns < end_ns:
            halves = Window(start_ns, middle_ns), Window(middle_ns, end_ns)
            due.part = peer, self._rng.choice(halves)
        if failed and due.is_wide:
            wait_ns = self._jittered(FIRST_WIDE_NS << min(due.failures, 32))
        elif aborted and due.is_wide:
            wait_ns = self._jittered(FIRST_WIDE_NS)
        elif report.left_over and (moved or due.part):
            wait_ns = RETRY_NS
        due.failures = due.failures + 1 if failed else 0
        if due.next_ns is not None and wait_ns < due.interval_ns:
            due.next_ns = min(due.next_ns, self._environment.steady_ns() + wait_ns)

    def _jittered(self, duration_ns: int) -> int:
        return round(duration_ns * self._rng.uniform(1 - _JITTER, 1 + _JITTER))
