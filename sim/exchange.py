"""The sessions of a node with its peers: what both roles share.

This is what the edge does around the machines, step for step. A session has one task at a time;
that of one which gives way to another is ended at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from reconcile.session import (
    Answered,
    Ended,
    Input,
    ReadEffect,
    Received,
    Result,
    Role,
    Send,
    Session,
)
from sim.calls import Closed, End, Status
from sim.calls import Ended as Finished
from sim.marks import Mark
from sim.process import Process
from sim.tasks import Promise, Steps, Task, within
from sim.timeline import Timer
from sim.views import OpenView, Views
from store.messages.validate import Reason
from store.sync.session.registry import Refusal, Sessions, State
from store.sync.session.registry import Session as Entry
from store.sync.transfer.core import Transfer
from store.sync.transfer.events import Report
from store.sync.transfer.policy_memory import PolicyMemory, Side
from storenode.message.limits import NS_PER_S

_MAX_RECONCILE_NS: Final = 600 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Frame:
    """A ``ReconcileFrame``."""

    payload: bytes
    session_id: str = ""
    refusal: str = ""
    count: int | None = None


class Ending(StrEnum):
    """How a session ended, as one side saw it."""

    DONE = "done"
    ABORTED = "aborted"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(slots=True)
class Account:
    """What is known of a session."""

    role: Role
    node_id: str = ""
    session_id: str = ""
    result: Result | None = None
    report: Report = field(default_factory=Report)

    @property
    def in_sync(self) -> bool:
        """May this side say that both hold the same now?"""
        result = self.result
        if result is None or result.refusal or result.truncated:
            return False
        return self.report.equal or not (len(result.to_send) or len(result.to_receive))

    def marks(self) -> Iterator[Mark]:
        """What the session has met."""
        result, report = self.result, self.report
        happened = (
            (Mark.TRUNCATED, result is not None and result.truncated),
            (Mark.MANY_ROUNDS, result is not None and result.rounds > 4),
            (Mark.REFUSED_HERE, bool(report.refused)),
            (Mark.REFUSED_THERE, bool(report.refused_by_peer)),
            (Mark.DUPLICATE, report.duplicates > 0),
            (Mark.ANOTHER_WAY, report.held > 0),
            (Mark.PRUNED, report.pruned > 0),
            (Mark.INTERRUPTED, bool(report.error)),
        )
        return (mark for mark, whether in happened if whether)


class GaveWay(Exception):
    """Another session with the same peer goes before this one."""


class Broken(Exception):
    """The peer does not keep to the protocol."""


class Exchange:
    """The registry, the memory, and who works on which session; of one process."""

    def __init__(self, process: Process, views: Views) -> None:
        scenario = process.scenario
        self.process = process
        self.views = views
        self.sessions: Sessions = process.cores.sessions(
            process.identity.node_id,
            process.identity.store_id,
            limit=scenario.sessions,
            silence_ns=scenario.silence_ns,
        )
        self.memory: PolicyMemory = process.cores.memory()
        self._tasks: dict[Entry, Task] = {}
        self._waiting: dict[Entry, tuple[Account, Timer]] = {}

    def check(self) -> None:
        """Verify the registry, the memory and that nothing is kept of what is over."""
        self.sessions.check()
        self.memory.check()
        entries = list(self.sessions)
        assert all(entry in entries for entry in self._waiting)
        assert len(self._tasks) <= len(entries) + 1
        self.views.check()

    @contextmanager
    def driving(self, entry: Entry, task: Task) -> Iterator[None]:
        """Around all that is done for a session; frees it, unless it waits for its transfer."""
        self._tasks[entry] = task
        try:
            yield
        finally:
            del self._tasks[entry]
            if entry.state is not State.WAITING:
                self.sessions.end(entry)

    def stop(self, entries: Iterable[Entry]) -> None:
        """End the tasks of sessions that gave way to a new one."""
        for entry in entries:
            self.process.mark(Mark.GAVE_WAY)
            task = self._tasks.get(entry)
            if task is not None:
                task.cancel(GaveWay())
            else:
                self._forget(entry)

    def keep(self, entry: Entry, account: Account) -> None:
        """Let a session wait for its transfer."""
        process = self.process
        timer = process.timeline.after(
            process.clock.true_delay_ns(process.scenario.silence_ns), lambda: self._expire(entry)
        )
        self._waiting[entry] = account, timer

    def claim(self, node_id: str, session_id: str) -> tuple[Entry, Account] | Refusal:
        """A peer transfers: give it its session, once."""
        found = self.sessions.claim(self.process.clock.steady_ns(), node_id, session_id)
        if isinstance(found, Refusal):
            return found
        account, timer = self._waiting.pop(found)
        timer.cancel()
        return found, account

    def _expire(self, entry: Entry) -> None:
        if self.process.alive:
            self.process.mark(Mark.EXPIRED)
            self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        waited = self._waiting.pop(entry, None)
        self.sessions.end(entry)
        if waited is not None:
            waited[1].cancel()

    def machine(self, entry: Entry, account: Account) -> Transfer:
        """The transfer of what a session has found."""
        self._judge_memory(entry.node_id)
        limits = self.process.scenario.transfer
        machine: Transfer = self.process.cores.transfer(
            entry.session_id,
            entry.to_send,
            entry.to_receive,
            memory=self.memory,
            peer=entry.node_id,
            limits=limits.with_grace() if entry.own else limits,
            partial=account.result is not None and account.result.truncated,
        )
        return machine

    def _judge_memory(self, node_id: str) -> None:
        process = self.process
        now_ns = process.clock.unix_ns()
        hashes, labels = self.memory.book(node_id, Side.OURS).known(now_ns)
        too_new = [
            digest.tobytes()
            for digest, label in zip(hashes, labels, strict=True)
            if label == Reason.TOO_NEW
        ]
        process.judge.remembered(process.name, now_ns, too_new)

    def in_time(self, promise: Promise[Any]) -> Steps[Any]:
        """Wait for a frame to come, or to be taken.

        Raises:
            Closed: the call ended with an error, or nothing has come for too long.
        """
        silence_ns = self.process.clock.true_delay_ns(self.process.scenario.silence_ns)
        late = Closed(Status.DEADLINE_EXCEEDED, "the peer has said nothing for too long")
        item = yield from within(self.process.timeline, promise, silence_ns, late)
        if isinstance(item, Finished) and item.status is not Status.OK:
            raise Closed(item.status, item.sentence)
        return item


class Reconciling:
    """Drives one side of a reconciliation between a call and a view."""

    def __init__(
        self,
        exchange: Exchange,
        session: Session,
        view: OpenView | None,
        end: End,
        account: Account,
    ) -> None:
        self._exchange = exchange
        self._process = exchange.process
        self._session = session
        self._view = view
        self._end = end
        self._account = account
        self._named = False
        self._ends_ns = self._process.timeline.now_ns + _MAX_RECONCILE_NS

    def run(self, first: Input) -> Steps[Result]:
        """Go on to the end.

        Raises:
            MalformedPayload: the peer sent what is none.
            LimitExceeded: the peer sent too much, or it takes too long.
            Closed: the call ended, or the peer is silent.
            Broken: the peer does not keep to the protocol.
            Unavailable: the database does not answer.
        """
        given = first
        while True:
            answer: Answered | None = None
            for effect in self._step(given):
                match effect:
                    case ReadEffect(read):
                        assert self._view is not None, "a question about nothing"
                        answer = Answered((yield from self._view.answer(read)))
                    case Send():
                        yield from self._send(effect)
                    case Ended(result):
                        return result
            given = (yield from self._receive()) if answer is None else answer

    def _step(self, given: Input) -> list[Any]:
        assert self._process.timeline.now_ns < self._ends_ns, "a reconciliation does not end"
        effects = self._session.step(self._process.clock.steady_ns(), given)
        self._session.check()
        return list(effects)

    def _send(self, effect: Send) -> Steps[None]:
        responds = self._account.role is Role.RESPONDER
        named = "" if self._named or not responds or effect.refusal else self._account.session_id
        self._named = True
        frame = Frame(effect.payload, named, effect.refusal, effect.count)
        yield from self._exchange.in_time(self._end.send(frame))

    def _receive(self) -> Steps[Received]:
        frame = yield from self._exchange.in_time(self._end.read())
        if not isinstance(frame, Frame):
            raise Broken("the peer ended the reconciliation when it was its turn to answer")
        if self._account.role is Role.INITIATOR:
            self._learn(frame)
        return Received(frame.payload, frame.count, frame.refusal)

    def _learn(self, frame: Frame) -> None:
        account = self._account
        if account.session_id and frame.session_id not in ("", account.session_id):
            raise Broken("the peer gives the session another name in the middle of it")
        if not account.session_id and not frame.refusal and not frame.session_id:
            raise Broken("the peer's first frame does not name the session")
        account.session_id = account.session_id or frame.session_id
