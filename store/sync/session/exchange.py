"""The sessions of a node with its peers: what both roles share.

Every session is driven by one task at a time: that of the caller, or that of the call it serves.
`Exchange.driving` notes the task, so that a session that gives way to another is ended at once, and
frees what a session holds however it ends. Between its two calls a session of a peer waits here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from reconcile.algorithm.plan import Tuning
from reconcile.compact.keys import NONCE_BYTES
from reconcile.ids import LOWEST, SyncId, SyncIds
from reconcile.limits import DEFAULT_SESSION_LIMITS, SessionLimits
from reconcile.session import Bounds, Result, Role, SessionConfig
from store.domain.coverage import Statements
from store.domain.environment import Environment
from store.domain.ports import (
    FrameStream,
    StoreBusy,
    StoreUnavailable,
    SyncObserver,
    SyncOutcome,
    SyncRole,
)
from store.domain.view import OpenView, Reconcilable
from store.sync.coverage import measure, statements_of
from store.sync.errors import GaveWayError, SeatLostError
from store.sync.index.view_reads import in_thread_if
from store.sync.limits import (
    COMPACT_FROM_IDS,
    LARGE_PAYLOAD_BYTES,
    MAX_HORIZON_STEP_NS,
    MAX_NOTED_PEERS,
    MAX_SESSIONS,
    MIN_KEPT_STEPS,
    RANDOM_CUTS,
    THREADED_ROWS,
    TransferLimits,
)
from store.sync.session.agreement import Agreement
from store.sync.session.conflicts import ConflictMemory
from store.sync.session.reconciliation import Reconciliation
from store.sync.session.registry import PeerSession, SessionRefusal, Sessions, SessionState
from store.sync.session.report import SessionReport
from store.sync.transfer.policy_memory import PolicyMemory
from store.sync.transfer.transfer import DEFAULT_LIMITS, Transfer, TransferWork
from storenode.common.bounded import BoundedDict
from storenode.message.limits import NS_PER_S

_DISPLACED: Final = "the session only waited for the peer, and its place went to another peer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeWork:
    """The parts that sessions work on.

    ``node_id`` and ``store_id`` are this node's; ``cluster`` and ``shards`` must be the peer's.
    The silence of ``transfer_limits`` holds for every frame of a session. ``sums``: conclude
    equality from lattice sums where the peer can. ``compact_from``: offer the compact mode for so
    many IDs or more; None: not at all. ``statements``: where statements of coverage go; None:
    nowhere.
    """

    node_id: str
    store_id: str
    cluster: int
    shards: tuple[int, ...]
    reconcilable: Reconcilable
    transfer: TransferWork
    limits: SessionLimits = DEFAULT_SESSION_LIMITS
    transfer_limits: TransferLimits = DEFAULT_LIMITS
    tuning: Tuning = field(default_factory=Tuning)
    max_sessions: int = MAX_SESSIONS
    sums: bool = True
    compact_from: int | None = COMPACT_FROM_IDS
    statements: Statements | None = None

    def horizon(self, view: OpenView) -> SyncId:
        """Return the bound below which nothing is held, or all would be refused as too old."""
        now_ns = self.transfer.environment.now_ns()
        refused_below_ns = self.transfer.policy().horizon_ns
        if refused_below_ns is None:
            return view.horizon
        return max(view.horizon, (common_horizon(now_ns, refused_below_ns), LOWEST[1]))

    @property
    def silence_s(self) -> float:
        """The seconds after which a peer that neither sends nor takes a frame has left."""
        return self.transfer_limits.silence_ns / NS_PER_S


def common_horizon(now_ns: int, horizon_ns: int) -> int:
    """Return a horizon that moves with the clock, put off until the next full step.

    Nodes that keep messages for equally long then have the same horizon at almost any moment, and
    so the same range to compare; else none of their fingerprints would ever be equal. A step is a
    small part of the time that messages are kept, at most about a minute. All in nanoseconds.
    """
    kept_ns = max(now_ns - horizon_ns, MIN_KEPT_STEPS)
    step_ns = min(1 << (kept_ns // MIN_KEPT_STEPS).bit_length() - 1, MAX_HORIZON_STEP_NS)
    return -(-horizon_ns // step_ns) * step_ns


@dataclass(slots=True)
class _PeerNotes:
    """The findings of the last session with a peer: without sums, equal, not compact."""

    plain: bool = False
    equal: bool = False
    not_compact: bool = False


class Exchange:
    """The sessions of one node; all on the event loop's thread."""

    def __init__(self, work: ExchangeWork) -> None:
        self.work = work
        self.environment: Environment = work.transfer.environment
        self.observer: SyncObserver = work.transfer.observer
        silence_ns = work.transfer_limits.silence_ns
        self.sessions = Sessions(
            work.node_id, work.store_id, limit=work.max_sessions, silence_ns=silence_ns
        )
        self.memory = PolicyMemory()
        self.conflicts = ConflictMemory()
        self._notes = BoundedDict[str, _PeerNotes](MAX_NOTED_PEERS)
        self._large_turn = asyncio.Semaphore()
        self._tasks: dict[PeerSession, asyncio.Task[Any]] = {}
        self._gave_way: set[PeerSession] = set()
        self._waiting: dict[PeerSession, tuple[SessionReport, asyncio.TimerHandle]] = {}

    def close(self) -> None:
        """Forget the sessions that wait; those under way end with their tasks."""
        for session in list(self._waiting):
            self._forget(session, "this node is shutting down")

    # Reconciliation

    def reconciliation(
        self,
        role: Role,
        stream: FrameStream,
        view: OpenView | None,
        report: SessionReport,
        *,
        window: Bounds | None = None,
        session_id: str = "",
    ) -> Reconciliation:
        """Return a reconciliation: ``window`` as the initiator, ``session_id`` as the responder.

        ``view`` may be None where nothing is asked; below the horizon of the report nothing is
        compared.
        """
        work, is_responder = self.work, role is Role.RESPONDER
        notes = self._notes.get(report.node_id) or _PeerNotes()
        cuts = self._cuts(window, report) if notes.plain or not work.sums else ()
        config = SessionConfig(
            cluster=work.cluster,
            shards=work.shards,
            window=window,
            horizon=report.horizon or LOWEST,
            cuts=cuts,
            limits=work.limits,
            tuning=work.tuning,
        )
        return Reconciliation(
            role,
            config,
            stream,
            view,
            self.observer,
            work.silence_s,
            self.turn,
            self._agreement(role, view, report),
            compact_from=work.compact_from if is_responder or not notes.not_compact else None,
            # An offer costs more than a session that finds nothing: none after such a one. A peer
            # whose count or XOR is another one begins with the mode all the same.
            offers=not notes.equal,
            session_id=session_id,
            known=self.conflicts.known(report.node_id, self.environment.steady_ns()),
        )

    def concluded(self, report: SessionReport, work: Reconciliation, result: Result) -> None:
        """Note what a reconciliation came to."""
        report.result, report.summed_from_ns = result, work.summed_from_ns
        report.hidden, report.conflicts = work.hidden, work.conflicts
        report.compact = work.is_compact
        if work.compact is not None and not work.is_compact:
            report.compact_failed = work.compact.reason
        if result.refusal:
            return
        notes = self._notes.get(report.node_id) or _PeerNotes()
        if report.role is SyncRole.INITIATOR:
            notes.equal = not (len(result.to_send) or len(result.to_receive))
            notes.not_compact = work.compact_failed
        if work.agreement is not None and result.rounds:
            notes.plain = not work.agreement.peer_knows
        self._notes[report.node_id] = notes
        now_ns = self.environment.steady_ns()
        self.conflicts.update(report.node_id, now_ns, work.conflicts, work.settled)

    def _agreement(
        self, role: Role, view: OpenView | None, report: SessionReport
    ) -> Agreement | None:
        if view is None or not self.work.sums:
            return None
        asked, horizon = report.asked_from or LOWEST, report.horizon or LOWEST
        return Agreement(
            role,
            self.environment.random.getrandbits(8 * NONCE_BYTES).to_bytes(NONCE_BYTES, "big"),
            lower=max(asked, horizon),
            memory_start=view.memory_start,
        )

    def _cuts(self, window: Bounds | None, report: SessionReport) -> tuple[SyncId, ...]:
        """Return where a session that is concluded by XOR divides its window: at random."""
        if window is None:
            return ()
        start_ns, end_ns = max(window[0], report.horizon or LOWEST)[0], window[1][0]
        uniform = self.environment.random.uniform
        times = {int(uniform(start_ns, end_ns)) for _ in range(RANDOM_CUTS)}
        return tuple((time_ns, LOWEST[1]) for time_ns in sorted(times))

    @asynccontextmanager
    async def turn(self, payload_bytes: int) -> AsyncIterator[None]:
        """Wait for the turn of a payload: large ones are worked on one at a time."""
        if payload_bytes < LARGE_PAYLOAD_BYTES:
            yield
            return
        async with self._large_turn:
            yield

    # Statements of coverage

    async def measure(self, report: SessionReport, view: OpenView) -> None:
        """Measure what this session, which this node began, will make statements about."""
        if self.work.statements is None or not report.store_id:
            return
        try:
            report.measured = await measure(view, report, self.environment.now_ns())
        except (StoreUnavailable, StoreBusy) as error:
            self.environment.log.warning("coverage_not_measured", reason=str(error))

    async def state(self, report: SessionReport) -> None:
        """Keep the statements of a session that has ended."""
        statements, measured = self.work.statements, report.measured
        if statements is None or measured is None:
            return
        made = await statements_of(report, measured)
        try:
            await statements.note(report.store_id, made, self.environment.now_ns())
        except (StoreUnavailable, StoreBusy) as error:
            self.environment.log.warning(
                "coverage_not_kept", peer_store_id=report.store_id, reason=str(error)
            )

    # The lives of sessions

    @contextmanager
    def driving(self, session: PeerSession) -> Iterator[None]:
        """Run all that is done for a session inside; free it, unless it waits for its transfer.

        Raises:
            GaveWayError, SeatLostError: another session went before it.
        """
        task = asyncio.current_task()
        assert task is not None
        self._tasks[session] = task
        try:
            yield
        except asyncio.CancelledError:
            # The task's own cancellation may come at the same moment; then it counts.
            if session in self._gave_way and task.uncancel() == 0:
                if session.displaced:
                    raise SeatLostError(_DISPLACED) from None
                raise GaveWayError("another session with this peer goes first") from None
            raise
        finally:
            del self._tasks[session]
            self._gave_way.discard(session)
            if session.state is not SessionState.WAITING:
                self.sessions.end(session)

    def stop(self, sessions: Iterable[PeerSession]) -> None:
        """End the drivers of sessions that gave way to a new one."""
        for session in sessions:
            task = self._tasks.get(session)
            if task is not None:
                self._gave_way.add(session)
                task.cancel()
            else:
                reason = "the peer began a new session before it transferred"
                self._forget(session, _DISPLACED if session.displaced else reason)

    def keep(self, session: PeerSession, report: SessionReport) -> None:
        """Let a session wait for its transfer, and for no longer than that may take to begin."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self.work.silence_s, self._expire, session)
        self._waiting[session] = report, timer

    def claim(
        self, node_id: str, session_id: str
    ) -> tuple[PeerSession, SessionReport] | SessionRefusal:
        """Return the session that a peer transfers for, once."""
        found = self.sessions.claim(self.environment.steady_ns(), node_id, session_id)
        if isinstance(found, SessionRefusal):
            return found
        report, timer = self._waiting.pop(found)
        timer.cancel()
        return found, report

    def found_nothing(self, node_id: str, session_id: str) -> Transfer | None:
        """Return a transfer of nothing, once, for a session that found nothing.

        Source: the contract, "Transfer after a session without differences".
        """
        if not self.sessions.found_nothing(self.environment.steady_ns(), node_id, session_id):
            return None
        nothing, work = SyncIds.empty(), self.work
        return Transfer(
            session_id,
            nothing,
            nothing,
            work.transfer,
            memory=self.memory,
            peer=node_id,
            limits=work.transfer_limits,
        )

    def ended(self, report: SessionReport) -> SyncOutcome:
        """Report a session that has ended to the observer."""
        outcome = report.outcome(self.environment.steady_ns())
        self.observer.session_ended(report.role, report.node_id, report.store_id, outcome)
        return outcome

    async def transfer(self, session: PeerSession, report: SessionReport) -> Transfer:
        """Return the transfer of what a session has found, with its report."""
        limits, result = self.work.transfer_limits, report.result
        transfer = await in_thread_if(
            len(session.to_send) + len(session.to_receive) > THREADED_ROWS,
            Transfer,
            session.session_id,
            session.to_send,
            session.to_receive,
            self.work.transfer,
            memory=self.memory,
            peer=session.node_id,
            limits=limits.with_grace() if session.own else limits,
            partial=result is not None and result.truncated,
        )
        report.transfer = transfer.report
        return transfer

    def _expire(self, session: PeerSession) -> None:
        self._forget(session, f"the peer did not transfer within {self.work.silence_s:.0f} s")

    def _forget(self, session: PeerSession, reason: str) -> None:
        waited = self._waiting.pop(session, None)
        self.sessions.end(session)
        if waited is not None:
            report, timer = waited
            timer.cancel()
            report.error = reason
            self.ended(report)
