"""The schedule of reconciliations: when, with which peer, and over what time.

`Schedule` is a state machine without a clock: ``step(now_ns, input) -> effects``. Its time is
monotonic, so that a clock which is set back stops nothing; what a session is about follows
from the clock when it begins (`Schedule.window`).

====================  =========================================  =================================
input                 in which state                             what follows
====================  =========================================  =================================
`Started`             once, at first                             the first session is due at once
`ScheduleTick`        any                                        what is due begins; the next time
`Asked`               any; too many waiting: refused             begins when its peer is free
`RequestWithdrawn`    any                                        what waits is forgotten
`SessionFinished`     the peer's session is under way            the peer is free, or backs off
====================  =========================================  =================================

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
   about less. One of any kind that left differences over is followed by the next at once.
6. Where all differences that a session may report are such as policy keeps
   (`SessionFinished.parts`), they would fill the next one too, and hide all others. So its window
   is done again in two parts, with the same peer, and a part that is as full in two parts.
7. An interval of 0 switches periodic and wide sessions off. What an operator asks for is done all
   the same, and does not wait for a backoff.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, TypeAlias

from store.domain.environment import Random
from store.domain.ports import PeerAddress, Window
from store.sync.limits import MAX_SESSIONS
from storenode.message.limits import NS_PER_S

MAX_WAITING: Final = 64
MAX_PARTS: Final = 64
"""Parts of windows that wait; they are halved one after the other, so that few of them do."""

FIRST_BACKOFF_NS: Final = 5 * NS_PER_S
LONGEST_BACKOFF_NS: Final = 300 * NS_PER_S
RETRY_NS: Final = 2 * NS_PER_S
"""After a failure another peer is tried this soon."""

FIRST_WIDE_NS: Final = 30 * NS_PER_S
"""The first wide session follows the start by about this much: a new node fetches its history."""

_JITTER: Final = 0.1


class Kind(StrEnum):
    """The reason for a session."""

    PERIODIC = "periodic"
    WIDE = "wide"
    ASKED = "asked"


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


@dataclass(frozen=True, slots=True)
class Started:
    """The node serves, and a resume, if there was one, is over."""


@dataclass(frozen=True, slots=True)
class ScheduleTick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An operator wants a session now: ``peer`` None is a random one, a bound of None the usual."""

    number: int
    peer: PeerAddress | None
    time_start_ns: int | None = None
    time_end_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RequestWithdrawn:
    """The end of a request: the operator has gone away."""

    number: int


@dataclass(frozen=True, slots=True)
class SessionFinished:
    """A session that was begun has ended.

    ``aborted``: it gave way to another. ``left_over``: it moved messages, and there are more
    differences than one session may report. ``parts``: there are, and it moved nothing; its window
    in two parts (`halves`).
    """

    peer: PeerAddress
    failed: bool
    aborted: bool = False
    left_over: bool = False
    parts: tuple[Window, ...] = ()


Input: TypeAlias = Started | ScheduleTick | Asked | RequestWithdrawn | SessionFinished


@dataclass(frozen=True, slots=True)
class BeginSession:
    """Begin a session; ``asked`` is what wanted it, if an operator did.

    ``part``: the window, where it is a part of one.
    """

    peer: PeerAddress
    kind: Kind
    asked: Asked | None = None
    part: Window | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """An `Asked` that cannot be served; one sentence."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """The time before which nothing is due (None: never by itself)."""

    time_ns: int | None


Effect: TypeAlias = BeginSession | Refuse | WakeAt


class ScheduleError(Exception):
    """An input that is not allowed in this state; nothing was changed."""


@dataclass(slots=True)
class _Peer:
    address: PeerAddress
    busy: bool = False
    kind: Kind | None = None
    part: Window | None = None
    failures: int = 0
    rests_until_ns: int = 0


@dataclass(slots=True)
class _Due:
    """A kind of session that comes round again."""

    kind: Kind
    interval_ns: int
    next_ns: int | None = field(default=None)
    failures: int = 0
    parts: deque[tuple[PeerAddress, Window]] = field(default_factory=deque)


class Schedule:
    """See the module. ``rng`` is the only source of chance."""

    def __init__(self, config: ScheduleConfig, rng: Random) -> None:
        self._config = config
        self._rng = rng
        self._peers = {peer: _Peer(peer) for peer in config.peers}
        self._waiting: deque[Asked] = deque()
        self._started = False
        self._due: list[_Due] = []
        if config.interval_ns and config.peers:
            self._due.append(_Due(Kind.PERIODIC, config.interval_ns))
            if config.wide_interval_ns is not None and config.range_ns is not None:
                self._due.append(_Due(Kind.WIDE, config.wide_interval_ns))

    @property
    def running(self) -> int:
        """Sessions under way that this node began."""
        return sum(peer.busy for peer in self._peers.values())

    def window(self, clock_ns: int, begin: BeginSession) -> Window:
        """Return the window of a session that begins when the clock shows ``clock_ns``."""
        if begin.part is not None:
            return begin.part
        asked = begin.asked
        end_ns = max(0, clock_ns - self._config.offset_ns)
        start_ns = 0
        if begin.kind is not Kind.WIDE and self._config.range_ns is not None:
            start_ns = max(0, end_ns - self._config.range_ns)
        if asked is not None and asked.time_start_ns is not None:
            start_ns = asked.time_start_ns
        if asked is not None and asked.time_end_ns is not None:
            end_ns = asked.time_end_ns
        return Window(start_ns, end_ns)

    def step(self, now_ns: int, given: Input) -> list[Effect]:
        """Take one input.

        Raises:
            ScheduleError: It is not allowed now, and nothing was changed.
        """
        effects: list[Effect] = []
        match given:
            case Started():
                self._start(now_ns)
            case Asked():
                effects += self._ask(given)
            case RequestWithdrawn():
                self._waiting = deque(
                    asked for asked in self._waiting if asked.number != given.number
                )
            case SessionFinished():
                self._end(now_ns, given)
            case ScheduleTick():
                pass
        effects += self._begin_asked()
        effects += self._begin_due(now_ns)
        return [*effects, WakeAt(self._next_ns(now_ns))]

    def check(self) -> None:
        """Verify the invariants.

        Raises:
            AssertionError: one is broken.
        """
        assert self.running <= self._config.max_sessions
        assert len(self._waiting) <= MAX_WAITING
        assert all(len(due.parts) <= MAX_PARTS for due in self._due)

    def _start(self, now_ns: int) -> None:
        if self._started:
            raise ScheduleError("the schedule has been started already")
        self._started = True
        for due in self._due:
            first_ns = 0 if due.kind is Kind.PERIODIC else min(FIRST_WIDE_NS, due.interval_ns)
            due.next_ns = now_ns + self._jittered(first_ns)

    def _ask(self, asked: Asked) -> Iterable[Effect]:
        if not self._peers:
            yield Refuse(asked.number, "this node has no peers: start it with --peer HOST:PORT")
        elif asked.peer is not None and asked.peer not in self._peers:
            known = ", ".join(str(peer) for peer in self._peers)
            yield Refuse(asked.number, f"{asked.peer} is none of this node's peers: name {known}")
        elif len(self._waiting) >= MAX_WAITING:
            yield Refuse(asked.number, f"{MAX_WAITING} sessions wait already; retry later")
        else:
            self._waiting.append(asked)

    def _end(self, now_ns: int, ended: SessionFinished) -> None:
        peer = self._peers.get(ended.peer)
        if peer is None or not peer.busy:
            raise ScheduleError(f"no session with {ended.peer} is under way")
        peer.busy = False
        kind, part = peer.kind, peer.part
        peer.kind = peer.part = None
        if part is not None and (ended.failed or ended.aborted):
            ended = replace(ended, parts=(part,))
        for due in self._due:
            if due.kind is kind:
                self._come_round(now_ns, due, ended)
        if not ended.failed:
            peer.failures = 0
            peer.rests_until_ns = 0
            return
        longest_ns = max(self._config.interval_ns, LONGEST_BACKOFF_NS)
        rest_ns = min(FIRST_BACKOFF_NS << min(peer.failures, 32), longest_ns)
        peer.failures += 1
        peer.rests_until_ns = now_ns + self._jittered(rest_ns)
        for due in self._due:
            if due.kind is Kind.PERIODIC and due.next_ns is not None:
                due.next_ns = min(due.next_ns, now_ns + RETRY_NS)

    def _come_round(self, now_ns: int, due: _Due, ended: SessionFinished) -> None:
        due.parts.extendleft((ended.peer, part) for part in reversed(ended.parts))
        while len(due.parts) > MAX_PARTS:
            due.parts.pop()
        wait_ns = due.interval_ns
        if ended.failed and due.kind is Kind.WIDE:
            wait_ns = self._jittered(FIRST_WIDE_NS << min(due.failures, 32))
        elif ended.aborted and due.kind is Kind.WIDE:
            wait_ns = self._jittered(FIRST_WIDE_NS)
        elif ended.left_over or (due.parts and not ended.failed):
            wait_ns = RETRY_NS
        due.failures = due.failures + 1 if ended.failed else 0
        if due.next_ns is not None and wait_ns < due.interval_ns:
            due.next_ns = min(due.next_ns, now_ns + wait_ns)

    def _begin_asked(self) -> Iterable[Effect]:
        left: deque[Asked] = deque()
        for asked in self._waiting:
            peer = self._free_for(asked)
            if peer is None:
                left.append(asked)
                continue
            peer.busy = True
            yield BeginSession(peer.address, Kind.ASKED, asked)
        self._waiting = left

    def _free_for(self, asked: Asked) -> _Peer | None:
        if self.running >= self._config.max_sessions:
            return None
        if asked.peer is not None:
            peer = self._peers[asked.peer]
            return None if peer.busy else peer
        free = [peer for peer in self._peers.values() if not peer.busy]
        # One that fails is chosen only when there is no other.
        healthy = [peer for peer in free if not peer.failures]
        return self._rng.choice(healthy or free) if free else None

    def _begin_due(self, now_ns: int) -> Iterable[Effect]:
        for due in self._due:
            if due.next_ns is None or due.next_ns > now_ns:
                continue
            ready = self._rested(now_ns)
            if not ready:
                continue
            peer, part = self._next_part(due, ready) or (self._rng.choice(ready), None)
            peer.busy, peer.kind, peer.part = True, due.kind, part
            due.next_ns = now_ns + self._jittered(due.interval_ns)
            yield BeginSession(peer.address, due.kind, part=part)

    @staticmethod
    def _next_part(due: _Due, ready: list[_Peer]) -> tuple[_Peer, Window] | None:
        by_address = {peer.address: peer for peer in ready}
        for address, part in due.parts:
            if address in by_address:
                due.parts.remove((address, part))
                return by_address[address], part
        return None

    def _rested(self, now_ns: int) -> list[_Peer]:
        if self.running >= self._config.max_sessions:
            return []
        peers = self._peers.values()
        return [peer for peer in peers if not peer.busy and peer.rests_until_ns <= now_ns]

    def _next_ns(self, now_ns: int) -> int | None:
        times = [due.next_ns for due in self._due if due.next_ns is not None]
        if not times or self.running >= self._config.max_sessions:
            return None
        free = [peer.rests_until_ns for peer in self._peers.values() if not peer.busy]
        if not free:
            return None
        return max(now_ns, min(times), min(free))

    def _jittered(self, duration_ns: int) -> int:
        return round(duration_ns * self._rng.uniform(1 - _JITTER, 1 + _JITTER))


def halves(window: Window, middle_ns: int) -> tuple[Window, ...]:
    """Return a window in two parts, cut at ``middle_ns``; none where one would be empty."""
    start_ns, end_ns = window.time_start_ns, window.time_end_ns
    if not start_ns < middle_ns < end_ns:
        return ()
    return Window(start_ns, middle_ns), Window(middle_ns, end_ns)
