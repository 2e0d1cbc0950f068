"""Calls peers when the schedule says so: see `store.sync.schedule.driver`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from reconcile.session import Role
from sim.calling import Attempt, Outcome
from sim.exchange import Account, Ending, Exchange
from sim.process import Handler, Process
from sim.tasks import Promise, Steps, Task
from sim.timeline import Timer
from store.domain.ports import PeerAddress, Window
from store.sync.schedule.core import (
    Asked,
    Begin,
    Ended,
    Input,
    Refuse,
    Schedule,
    ScheduleConfig,
    Started,
    Tick,
    WakeAt,
    Withdrawn,
    halves,
)


class Synchronizer:
    """The schedule of one process; a `sim.process.Service`.

    Attributes:
        outcomes: how many sessions ended in which way.
    """

    def __init__(
        self, process: Process, exchange: Exchange, peers: tuple[PeerAddress, ...]
    ) -> None:
        scenario = process.scenario
        config = ScheduleConfig(
            peers=peers,
            interval_ns=scenario.interval_ns,
            range_ns=scenario.range_ns,
            offset_ns=scenario.offset_ns,
            wide_interval_ns=scenario.wide_ns,
            max_sessions=scenario.sessions,
        )
        self._process = process
        self._exchange = exchange
        self._schedule: Schedule = process.cores.schedule(config, process.dice)
        self._names: dict[PeerAddress, str] = {}
        self._timer: Timer | None = None
        self._numbers = count(1)
        self._asked: dict[int, Promise[Outcome]] = {}

    def methods(self) -> Mapping[str, Handler]:
        """None."""
        return {}

    def letters(self) -> Mapping[type, Callable[[str, Any], None]]:
        """None."""
        return {}

    def start(self) -> None:
        """The schedule begins when the resume says so."""

    def check(self) -> None:
        """Verify the schedule."""
        self._schedule.check()

    def proceed(self) -> None:
        """Begin with the schedule."""
        self._step(Started())

    def ask(
        self, peer: PeerAddress | None, start_ns: int | None = None, end_ns: int | None = None
    ) -> tuple[int, Promise[Outcome]]:
        """An operator wants a session; the number is for `withdraw`."""
        number = next(self._numbers)
        promise = self._asked[number] = Promise()
        self._step(Asked(number, peer, start_ns, end_ns))
        return number, promise

    def withdraw(self, number: int) -> None:
        """The operator has gone away."""
        self._asked.pop(number, None)
        self._step(Withdrawn(number))

    def _step(self, given: Input) -> None:
        steady_ns = self._process.clock.steady_ns()
        for effect in self._schedule.step(steady_ns, given):
            match effect:
                case Begin():
                    self._begin(effect)
                case Refuse():
                    self._answer(effect.number, _refused(effect.reason))
                case WakeAt():
                    self._wake_at(steady_ns, effect.time_ns)
        self._schedule.check()

    def _wake_at(self, steady_ns: int, time_ns: int | None) -> None:
        process = self._process
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if time_ns is not None:
            delay_ns = process.clock.true_delay_ns(time_ns - steady_ns)
            self._timer = process.timeline.after(delay_ns, self._tick)

    def _tick(self) -> None:
        if self._process.alive:
            self._step(Tick())

    def _begin(self, begin: Begin) -> None:
        self._process.begin("session", lambda task: self._session(begin, task))

    def _session(self, begin: Begin, task: Task) -> Steps[None]:
        process, peer = self._process, begin.peer
        window = self._schedule.window(process.clock.unix_ns(), begin)
        process.note(f"{begin.kind} session with {peer.host}")
        attempt = Attempt(self._exchange, self._names, peer, window)
        outcome = yield from attempt.run(task)
        process.note(f"session with {peer.host}: {outcome}")
        process.node.world.ended(outcome)
        if begin.asked is not None:
            self._answer(begin.asked.number, outcome)
        self._step(_ended(peer, window, outcome))

    def _answer(self, number: int, outcome: Outcome) -> None:
        promise = self._asked.pop(number, None)
        if promise is not None:
            promise.keep(outcome)


def _ended(peer: PeerAddress, window: Window, outcome: Outcome) -> Ended:
    """What the schedule is to know of a session."""
    result, report = outcome.account.result, outcome.account.report
    truncated = result is not None and result.truncated
    moved = report.stored_by_peer + report.stored + report.duplicates > 0
    stuck = truncated and not moved and outcome.ending is Ending.DONE
    return Ended(
        peer,
        failed=outcome.ending in (Ending.FAILED, Ending.REFUSED),
        aborted=outcome.ending is Ending.ABORTED,
        left_over=truncated and moved,
        parts=halves(window, outcome.middle_ns) if stuck else (),
    )


def _refused(reason: str) -> Outcome:
    return Outcome(Ending.REFUSED, Account(Role.INITIATOR), reason)
