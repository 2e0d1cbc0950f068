"""Store resume: what was missed while the store was off, fetched from a peer at the start.

The store keeps the time at which it was last online. At its next start the gap from then to now is
read from a peer by ``Scan``, in order of time, and passes the admission that everything passes. As
the scan advances so does the "last online" time, which therefore always says: up to here nothing
of the gap is missing. A restart in mid-resume goes on from there (WAKU-STORE-SYNC, "Store resume").

`Resume` is a state machine without a clock: ``step(now_ns, input) -> effects``. The time of its
steps is one that nobody sets; what the clock showed at the start comes with `Begun`.

=============  ======================  =====================================================
input          in which state          what follows
=============  ======================  =====================================================
`Begun`        once, at first          `Fetch` from a random peer; without a gap `Finished`
`PageStored`   a fetch is under way    `Advance` to the page's last timestamp; from a fetch that
                                       takes too long `Proceed` and `Leave`
`FetchEnded`   a fetch is under way    complete: `Advance`, `Finished`; else the next peer:
                                       `Fetch`, at once or after a pause when all have failed
                                       (then `Proceed`: reconciliation need not wait longer)
`Tick`         any                     a pause that is over ends with `Fetch`
=============  ======================  =====================================================

A peer that lies can go on for ever, with messages that are worth nothing. So no fetch is longer
than `LONGEST_FETCH_NS`, reconciliation waits no longer for the resume either, and there is a pause
after as many failures as there are peers, whatever came between them.

A cursor is the peer's that gave it: where another one goes on, it begins by the time reached.

A peer may have been off as well. Where it comes to the end of the gap and has shown nothing of its
second half, the others are asked for the rest too, each once, until one has some. What they all
lack, or only others than those asked hold, is left to reconciliation: the wide session finds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from store.domain.environment import Random
from store.domain.ports import PeerAddress, ResumeState
from store.sync.limits import ONLINE_INTERVAL_S
from storenode.message.limits import NS_PER_S

SHORTEST_GAP_NS: Final = 15 * NS_PER_S
"""A shorter time off the first reconciliation repairs by itself, where there is one."""

FIRST_PAUSE_NS: Final = 2 * NS_PER_S
LONGEST_PAUSE_NS: Final = 60 * NS_PER_S

LONGEST_FETCH_NS: Final = 600 * NS_PER_S
"""A fetch that takes longer goes on at the next peer; the only one is asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeConfig:
    """``slack_ns``: how far before "last online" the gap begins, for clocks that differ.

    ``shortest_ns``: a shorter time off is no gap. ``online_interval_s``: how often it is noted
    that the store is online.
    """

    peers: tuple[PeerAddress, ...]
    slack_ns: int
    shortest_ns: int = SHORTEST_GAP_NS
    online_interval_s: float = ONLINE_INTERVAL_S


@dataclass(frozen=True, slots=True)
class Begun:
    """The node starts at ``clock_ns``; ``last_online_ns`` 0: it was never online before.

    ``horizon_ns``: nothing older is kept.
    """

    clock_ns: int
    last_online_ns: int
    horizon_ns: int = 0


@dataclass(frozen=True, slots=True)
class PageStored:
    """A page is durable: everything of the gap up to ``timestamp_ns`` has come."""

    cursor: bytes
    timestamp_ns: int
    messages: int
    new: int


@dataclass(frozen=True, slots=True)
class FetchEnded:
    """The scan ended: ``error`` empty when it reached the end of the gap.

    ``lost_place``: the peer could not serve the cursor, so the next fetch begins by time.
    """

    error: str = ""
    lost_place: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Input: TypeAlias = Begun | PageStored | FetchEnded | Tick


@dataclass(frozen=True, slots=True)
class Fetch:
    """Scan the peer over the half-open range, after the cursor when it is not empty."""

    peer: PeerAddress
    time_start_ns: int
    time_end_ns: int
    cursor: bytes


@dataclass(frozen=True, slots=True)
class Leave:
    """Give up the fetch that is under way: it has taken too long."""


@dataclass(frozen=True, slots=True)
class Advance:
    """Persist this "last online" time."""

    last_online_ns: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Give a `Tick` at this time."""

    time_ns: int


@dataclass(frozen=True, slots=True)
class Proceed:
    """Reconciliation may begin; given once."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Nothing of the gap is left: "last online" follows the clock from now on."""


Effect: TypeAlias = Fetch | Leave | Advance | WakeAt | Proceed | Finished


class ResumeError(Exception):
    """An input that is not allowed in this state; nothing was changed."""


class Resume:
    """See the module. ``rng`` is the only source of chance."""

    def __init__(self, config: ResumeConfig, rng: Random) -> None:
        self._config = config
        self._rng = rng
        self._order: list[PeerAddress] = []
        self._others: list[PeerAddress] | None = None  # still to be asked, after one that was short
        self._sources: dict[PeerAddress, None] = {}
        self._state = "new"
        self._start_ns = self._end_ns = self._reached_ns = 0
        self._messages = self._new = 0
        self._cursor = b""
        self._failures = 0
        self._pauses = 0
        self._wake_ns = 0
        self._fetch_ns = 0
        self._error = ""
        self._proceeded = False

    @property
    def progress(self) -> ResumeState:
        """For the node's status; all times are 0 when there was no gap."""
        return ResumeState(
            running=self._state in ("fetching", "pausing"),
            time_start_ns=self._start_ns,
            time_end_ns=self._end_ns,
            reached_ns=self._reached_ns,
            messages=self._messages,
            stored=self._new,
            error=self._error,
            peers=tuple(map(str, self._sources)),
        )

    def step(self, now_ns: int, given: Input) -> list[Effect]:
        """Take one input.

        Raises:
            ResumeError: It is not allowed now, and nothing was changed.
        """
        match given:
            case Begun() if self._state == "new":
                return self._begin(now_ns, given)
            case PageStored() if self._state == "fetching":
                return self._page(now_ns, given)
            case FetchEnded() if self._state == "fetching":
                return self._ended(now_ns, given)
            case Tick():
                return self._tick(now_ns)
            case _:
                raise ResumeError(f"{type(given).__name__} is not allowed in state {self._state!r}")

    def check(self) -> None:
        """Verify the invariants.

        Raises:
            AssertionError: one is broken.
        """
        assert self._state in ("new", "fetching", "pausing", "finished")
        assert self._start_ns <= self._reached_ns <= max(self._start_ns, self._end_ns)
        assert sorted(map(str, self._order)) in ([], sorted(map(str, self._config.peers)))
        assert self._new <= self._messages
        assert self._proceeded or self._state in ("new", "fetching")
        assert self._others is None or self._state in ("fetching", "finished")
        assert bool(self._sources) == bool(self._messages)

    def _begin(self, now_ns: int, begun: Begun) -> list[Effect]:
        gap_ns = begun.clock_ns - begun.last_online_ns
        if not self._config.peers or not begun.last_online_ns or gap_ns < self._config.shortest_ns:
            return self._finish()
        self._start_ns = max(0, begun.horizon_ns, begun.last_online_ns - self._config.slack_ns)
        self._reached_ns = self._start_ns
        self._end_ns = begun.clock_ns
        self._order = list(self._config.peers)
        self._rng.shuffle(self._order)
        return self._fetch(now_ns)

    def _page(self, now_ns: int, page: PageStored) -> list[Effect]:
        self._cursor = page.cursor
        self._messages += page.messages
        self._new += page.new
        if page.messages:
            self._sources[self._order[0]] = None
        self._pauses = 0
        self._error = ""
        effects: list[Effect] = []
        if page.timestamp_ns > self._reached_ns:
            self._reached_ns = page.timestamp_ns
            effects.append(Advance(self._reached_ns))
        if now_ns - self._fetch_ns >= LONGEST_FETCH_NS:
            effects += [*self._proceed(), Leave()]
        return effects

    def _ended(self, now_ns: int, ended: FetchEnded) -> list[Effect]:
        if ended.lost_place:
            self._cursor = b""
        if not ended.error and self._others is None:
            self._others = list(self._order[1:])
        if self._others is not None:
            return self._complete(now_ns, ended)
        self._error = ended.error
        self._turn_to(self._order[1 % len(self._order)])
        self._failures += 1
        if self._failures % len(self._order):
            return self._fetch(now_ns)
        pause_ns = min(FIRST_PAUSE_NS << min(self._pauses, 16), LONGEST_PAUSE_NS)
        self._pauses += 1
        self._state = "pausing"
        self._wake_ns = now_ns + round(pause_ns * self._rng.uniform(0.5, 1.0))
        return [*self._proceed(), WakeAt(self._wake_ns)]

    def _complete(self, now_ns: int, ended: FetchEnded) -> list[Effect]:
        """One peer has come to the end; ask another where that was plainly not all."""
        short = bool(ended.error) or 2 * self._reached_ns < self._start_ns + self._end_ns
        if short and self._others:
            self._turn_to(self._others.pop(0))
            return self._fetch(now_ns)
        self._error = ""
        self._reached_ns = self._end_ns
        return [Advance(self._end_ns), *self._finish()]

    def _turn_to(self, peer: PeerAddress) -> None:
        """This one is asked next; the one that was asked last."""
        if peer == self._order[0]:
            return
        self._cursor = b""
        self._order.append(self._order.pop(0))
        self._order.remove(peer)
        self._order.insert(0, peer)

    def _tick(self, now_ns: int) -> list[Effect]:
        if self._state != "pausing":
            return []
        return self._fetch(now_ns) if now_ns >= self._wake_ns else [WakeAt(self._wake_ns)]

    def _fetch(self, now_ns: int) -> list[Effect]:
        self._state = "fetching"
        self._fetch_ns = now_ns
        start_ns = self._start_ns if self._cursor else max(self._start_ns, self._reached_ns)
        return [Fetch(self._order[0], start_ns, self._end_ns, self._cursor)]

    def _finish(self) -> list[Effect]:
        self._state = "finished"
        return [*self._proceed(), Finished()]

    def _proceed(self) -> list[Effect]:
        if self._proceeded:
            return []
        self._proceeded = True
        return [Proceed()]
