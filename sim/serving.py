"""Sessions that peers begin: see `store.rpc.peer`, which does the same on the edge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from reconcile.algorithm.questions import asked_about
from reconcile.codec import decode
from reconcile.errors import SessionLimitExceeded
from reconcile.ids import LOWEST
from reconcile.session import Received, Result, Role, Session, SessionConfig
from sim.calling import CLUSTER, RECONCILE, SHARDS, TRANSFER
from sim.calls import End, Ended, Status
from sim.database import Unavailable
from sim.exchange import Account, Exchange, Frame, GaveWay, Reconciling
from sim.judge import Side
from sim.marks import Mark
from sim.process import Handler
from sim.tasks import Steps, Task
from sim.transferring import Driver
from sim.views import OpenView
from store.domain.sessions import Refusal, Refused, State
from store.domain.sessions import Session as Entry
from store.domain.transfer_events import Fault
from store.domain.transfer_limits import SESSION_ID_BYTES

_CODES = {
    Fault.NONE: Status.OK,
    Fault.PROTOCOL: Status.INVALID_ARGUMENT,
    Fault.LIMIT: Status.RESOURCE_EXHAUSTED,
    Fault.SILENCE: Status.DEADLINE_EXCEEDED,
    Fault.SLOW: Status.DEADLINE_EXCEEDED,
    Fault.LOST: Status.UNAVAILABLE,
}


class PeerService:
    """Serves `Reconcile` and `Transfer`; a `sim.process.Service`."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._process = exchange.process

    def methods(self) -> Mapping[str, Handler]:
        """The two."""
        return {RECONCILE: self._serve_reconcile, TRANSFER: self._serve_transfer}

    def letters(self) -> Mapping[type, Callable[[str, Any], None]]:
        """None."""
        return {}

    def start(self) -> None:
        """Nothing to begin with."""

    def check(self) -> None:
        """Verify the exchange."""
        self._exchange.check()

    def _serve_reconcile(self, end: End, task: Task) -> Steps[None]:
        exchange = self._exchange
        frame = yield from exchange.in_time(end.read())
        if isinstance(frame, Ended):
            end.finish()
            return
        session_id = self._process.dice.randbytes(SESSION_ID_BYTES).hex()
        account = Account(Role.RESPONDER, end.there.node_id, session_id)
        opened = exchange.sessions.accept(
            self._process.clock.steady_ns(), end.there.node_id, end.there.store_id, session_id
        )
        if isinstance(opened, Refusal):
            yield from self._refuse(opened, end)
            return
        exchange.stop(opened.ended)
        with exchange.driving(opened.session, task):
            yield from self._guarded(end, self._reconcile(opened.session, account, end, frame))

    def _refuse(self, refusal: Refusal, end: End) -> Steps[None]:
        self._process.note(f"refuses {end.there.node_id}: {refusal.kind}")
        if refusal.kind is Refused.BUSY:
            self._process.mark(Mark.BUSY)
        if refusal.kind is Refused.ABORTED:
            end.finish(Status.ABORTED, refusal.sentence)
            return
        yield from self._exchange.in_time(end.send(Frame(b"", refusal=refusal.sentence)))
        end.finish()

    def _guarded(self, end: End, work: Steps[None]) -> Steps[None]:
        """Do the work of a call, and tell the caller how it failed."""
        try:
            yield from work
        except SessionLimitExceeded as error:
            end.finish(Status.RESOURCE_EXHAUSTED, str(error))
        except Unavailable as error:
            end.finish(Status.UNAVAILABLE, str(error))
        except GaveWay:
            end.finish(Status.ABORTED, "another session goes first")

    def _reconcile(self, entry: Entry, account: Account, end: End, frame: Frame) -> Steps[None]:
        exchange, process = self._exchange, self._process
        result = account.result = yield from self._answer(account, end, frame)
        if not result.refusal:
            process.judge.found(account.session_id, Role.RESPONDER, result)
            steady_ns = process.clock.steady_ns()
            exchange.sessions.reconciled(steady_ns, entry, result.to_send, result.to_receive)
            if entry.state is State.WAITING:
                exchange.keep(entry, account)
        end.finish()

    def _answer(self, account: Account, end: End, frame: Frame) -> Steps[Result]:
        process = self._process
        asked = asked_about(decode(frame.payload, process.scenario.limits.payload).ranges)
        view: OpenView | None = None
        try:
            horizon = LOWEST
            if asked is not None:
                view = yield from self._exchange.views.open_view(*asked)
                horizon = view.horizon
                side = Side(process.database, view.shown, horizon)
                process.judge.meet(account.session_id, Role.RESPONDER, side)
            config = SessionConfig(
                cluster=CLUSTER,
                shards=SHARDS,
                horizon=horizon,
                limits=process.scenario.limits,
                tuning=process.scenario.tuning,
            )
            session: Session = process.cores.session(Role.RESPONDER, config)
            reconciling = Reconciling(self._exchange, session, view, end, account)
            first = Received(frame.payload, frame.count, frame.refusal)
            return (yield from reconciling.run(first))
        finally:
            if view is not None:
                view.close()

    def _serve_transfer(self, end: End, task: Task) -> Steps[None]:
        exchange = self._exchange
        frame = yield from exchange.in_time(end.read())
        session_id = getattr(frame, "session_id", "")
        found = exchange.claim(end.there.node_id, session_id)
        if isinstance(found, Refusal):
            end.finish(Status.FAILED_PRECONDITION, found.sentence)
            return
        entry, account = found
        end.put_back(frame)
        with exchange.driving(entry, task):
            yield from self._guarded(end, self._transfer(entry, account, end))

    def _transfer(self, entry: Entry, account: Account, end: End) -> Steps[None]:
        machine = self._exchange.machine(entry, account)
        account.report = yield from Driver(self._process, machine, end, calls=False).run()
        if account.report.fault in (Fault.PROTOCOL, Fault.LIMIT):
            self._process.judge.accused(self._process.name, account.report.error)
        end.finish(_CODES[account.report.fault], account.report.error)
