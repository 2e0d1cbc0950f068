"""A session that a node begins: as `store.sync.session.initiator`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from reconcile.errors import SessionLimitExceeded
from reconcile.ids import SyncId
from reconcile.session import Begin, Result, Role, Session, SessionConfig
from sim.calls import Closed, End, Status
from sim.database import Unavailable
from sim.exchange import Account, Broken, Ending, Exchange, Frame, GaveWay, Reconciling
from sim.judge import Side
from sim.marks import Mark
from sim.tasks import Steps, Task
from sim.transferring import Driver
from store.domain.ports import PeerAddress, Window
from store.sync.session.registry import Accepted, Refusal, Refused, State
from store.sync.session.registry import Session as Entry
from store.sync.transfer.events import Fault
from storenode.message.limits import MAX_TIMESTAMP_NS

CLUSTER: Final = 7
SHARDS: Final = ()

RECONCILE: Final = "Reconcile"
TRANSFER: Final = "Transfer"

_NO_HASH: Final = bytes(32)


class _Declined(Exception):
    """There is no session."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.sentence)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a session came to, as the node sees it that began it."""

    ending: Ending
    account: Account
    error: str = ""

    @property
    def in_sync(self) -> bool:
        """Does the node take the two for equal?"""
        return self.ending is Ending.DONE and self.account.in_sync

    @property
    def differences(self) -> int:
        """How many were found."""
        result = self.account.result
        return 0 if result is None else len(result.to_send) + len(result.to_receive)

    @property
    def middle_ns(self) -> int:
        """The median of the timestamps of what was found."""
        result = self.account.result
        assert result is not None
        ids = sorted([*result.to_send.pairs(), *result.to_receive.pairs()])
        return ids[len(ids) // 2][0]

    def __str__(self) -> str:
        result, report = self.account.result, self.account.report
        if result is None:
            return f"{self.ending} {self.error}"
        return (
            f"{self.ending} {self.error} rounds {result.rounds}, to send {len(result.to_send)}, "
            f"to receive {len(result.to_receive)}, stored {report.stored} here and "
            f"{report.stored_by_peer} there" + (", truncated" if result.truncated else "")
        )


class Attempt:
    """One session with one peer."""

    def __init__(
        self, exchange: Exchange, names: dict[PeerAddress, str], peer: PeerAddress, window: Window
    ) -> None:
        """``names``: the IDs that peers gave when they last answered."""
        self._exchange = exchange
        self._process = exchange.process
        self._names = names
        self._peer = peer
        self._bounds = _bounds(window)
        self._account = Account(Role.INITIATOR)

    def run(self, task: Task) -> Steps[Outcome]:
        """To its end; raises only when the task is cancelled, or for a fault of a machine."""
        account = self._account
        try:
            yield from self._session(task)
        except _Declined as error:
            aborted = error.refusal.kind is Refused.ABORTED
            return Outcome(Ending.ABORTED if aborted else Ending.REFUSED, account, str(error))
        except GaveWay:
            return Outcome(Ending.ABORTED, account)
        except Closed as error:
            aborted = error.status is Status.ABORTED
            return Outcome(Ending.ABORTED if aborted else Ending.FAILED, account, str(error))
        except (Unavailable, SessionLimitExceeded) as error:
            return Outcome(Ending.FAILED, account, f"{type(error).__name__}: {error}")
        if account.report.fault in (Fault.PROTOCOL, Fault.LIMIT):
            self._process.judge.accused(self._process.name, account.report.error)
        ending = Ending.FAILED if account.report.error else Ending.DONE
        outcome = Outcome(ending, account, account.report.error)
        if outcome.in_sync:
            refused = account.report.refused_by_policy
            self._process.judge.in_sync(account.session_id, refused)
        return outcome

    def _session(self, task: Task) -> Steps[None]:
        process, sessions = self._process, self._exchange.sessions
        known = self._names.get(self._peer, self._peer.node_id)
        opened = sessions.begin(process.clock.steady_ns(), self._peer.target, known)
        if isinstance(opened, Refusal):
            raise _Declined(opened)
        entry = opened.session
        with self._exchange.driving(entry, task):
            yield from self._reconcile(entry)
            if entry.state is State.READY:
                yield from self._transfer(entry)

    def _reconcile(self, entry: Entry) -> Steps[None]:
        process, account = self._process, self._account
        end = yield from self._call(RECONCILE)
        try:
            self._identify(entry, end)
            result = yield from self._exchange_frames(end)
            if result.rounds:
                yield from self._end_of_frames(end)
        finally:
            end.cancel()
        account.result = result
        if result.refusal:
            raise _Declined(Refusal(Refused.BUSY, result.refusal))
        process.judge.found(account.session_id, Role.INITIATOR, result)
        steady_ns = process.clock.steady_ns()
        self._exchange.sessions.reconciled(steady_ns, entry, result.to_send, result.to_receive)

    def _call(self, method: str) -> Steps[End]:
        process = self._process
        return (
            yield from process.network.call(process.name, self._peer.host, method, process.identity)
        )

    def _identify(self, entry: Entry, end: End) -> None:
        there = end.there
        self._account.node_id = there.node_id
        self._names[self._peer] = there.node_id
        known = self._exchange.sessions.identify(
            self._process.clock.steady_ns(), entry, there.node_id, there.store_id
        )
        if not isinstance(known, Accepted):
            if known.kind is Refused.SAME_STORE:
                self._process.mark(Mark.SAME_STORE)
            raise _Declined(known)
        self._exchange.stop(known.ended)

    def _exchange_frames(self, end: End) -> Steps[Result]:
        process, account = self._process, self._account
        view = yield from self._exchange.views.open_view(*self._bounds)
        try:
            config = SessionConfig(
                cluster=CLUSTER,
                shards=SHARDS,
                window=self._bounds,
                horizon=view.horizon,
                limits=process.scenario.limits,
                tuning=process.scenario.tuning,
            )
            session: Session = process.cores.session(Role.INITIATOR, config)
            reconciling = Reconciling(self._exchange, session, view, end, account)
            result = yield from reconciling.run(Begin())
        finally:
            view.close()
        side = Side(process.database, view.shown, view.horizon)
        process.judge.meet(account.session_id, Role.INITIATOR, side)
        return result

    def _end_of_frames(self, end: End) -> Steps[None]:
        end.half_close()
        if isinstance((yield from self._exchange.in_time(end.read())), Frame):
            raise Broken("the peer goes on after the end of the reconciliation")

    def _transfer(self, entry: Entry) -> Steps[None]:
        process, account = self._process, self._account
        end = yield from self._call(TRANSFER)
        try:
            if end.there.node_id != entry.node_id:
                raise Closed(Status.FAILED_PRECONDITION, "another node is there now")
            steady_ns = process.clock.steady_ns()
            self._exchange.sessions.transferring(steady_ns, entry, account.session_id)
            machine = self._exchange.machine(entry, account)
            account.report = machine.report
            account.report = yield from Driver(process, machine, end, calls=True).run()
        finally:
            end.cancel()


def _bounds(window: Window) -> tuple[SyncId, SyncId]:
    """A window of time as bounds of SyncIDs."""
    start_ns = max(0, window.time_start_ns)
    return (start_ns, _NO_HASH), (min(window.time_end_ns, MAX_TIMESTAMP_NS), _NO_HASH)
