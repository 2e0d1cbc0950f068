"""The sessions of a node with its peers: what both roles share.

Every session is driven by one task at a time: that of the caller, or that of the call it serves.
`Exchange.driving` knows the task, so that a session that gives way to another is ended at once, and
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
    SyncEnding,
    SyncObserver,
    SyncOutcome,
    SyncRole,
)
from store.domain.view import OpenView, Reconcilable
from store.sync.errors import GaveWay, PlaceLost
from store.sync.index.reading import in_thread_if
from store.sync.limits import (
    COMPACT_FROM_IDS,
    LARGE_PAYLOAD_BYTES,
    MAX_HORIZON_STEP_NS,
    MAX_SESSIONS,
    MIN_KEPT_STEPS,
    RANDOM_CUTS,
    THREADED_ROWS,
    TransferLimits,
)
from store.sync.session.agreement import Agreement
from store.sync.session.outcome import Account
from store.sync.session.reconciling import Driving, Frames
from store.sync.session.registry import Refusal, Session, Sessions, State
from store.sync.session.stating import compare, statements_of
from store.sync.session.verifying import Verifying
from store.sync.transfer.core import DEFAULT_LIMITS, Transfer
from store.sync.transfer.driver import TransferWork
from store.sync.transfer.policy_memory import PolicyMemory
from storenode.message.limits import NS_PER_S

_DISPLACED: Final = "the session only waited for the peer, and its place went to another peer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeWork:
    """What sessions work on.

    ``node_id`` and ``store_id`` are this node's; ``cluster`` and ``shards`` must be the peer's.
    The silence of ``transfer_limits`` holds for every frame of a session. ``sums``: conclude
    equality from lattice sums where the peer can. ``compact_from``: offer the compact mode for so
    many IDs or more; None: not at all.
    ``statements``: where what sessions find out is kept for ``GetCoverage``; None: nowhere.
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
        """Below it nothing is compared: it is not held, or would be refused as too old."""
        now_ns = self.transfer.environment.now_ns()
        refused_below_ns = self.transfer.policy().horizon_ns
        if refused_below_ns is None:
            return view.horizon
        return max(view.horizon, (common_horizon(now_ns, refused_below_ns), LOWEST[1]))

    @property
    def silence_s(self) -> float:
        """A peer that neither sends nor takes a frame for so many seconds has left the session."""
        return self.transfer_limits.silence_ns / NS_PER_S


def common_horizon(now_ns: int, horizon_ns: int) -> int:
    """A horizon that moves with the clock, put off until the next full step.

    Nodes that keep messages for equally long then have the same horizon at almost any moment, and
    so the same range to compare; else none of their fingerprints would ever be equal. A step is a
    small part of the time that messages are kept, at most about a minute. All in nanoseconds.
    """
    kept_ns = max(now_ns - horizon_ns, MIN_KEPT_STEPS)
    step_ns = min(1 << (kept_ns // MIN_KEPT_STEPS).bit_length() - 1, MAX_HORIZON_STEP_NS)
    return -(-horizon_ns // step_ns) * step_ns


class Exchange:
    """One per node; all on the event loop's thread."""

    def __init__(self, work: ExchangeWork) -> None:
        self.work = work
        self.environment: Environment = work.transfer.environment
        self.observer: SyncObserver = work.transfer.observer
        silence_ns = work.transfer_limits.silence_ns
        self.sessions = Sessions(
            work.node_id, work.store_id, limit=work.max_sessions, silence_ns=silence_ns
        )
        self.memory = PolicyMemory()
        self._plain: set[str] = set()
        """Peers that did not know sums when they were last asked."""
        self._equal: set[str] = set()
        """Peers with whom the last session found nothing."""
        self._not_compact: set[str] = set()
        """Peers with whom the compact mode could not be used in the last session."""
        self._large_turn = asyncio.Semaphore()
        self._tasks: dict[Session, asyncio.Task[Any]] = {}
        self._gave_way: set[Session] = set()
        self._waiting: dict[Session, tuple[Account, asyncio.TimerHandle]] = {}

    def close(self) -> None:
        """Forget the sessions that wait; those under way end with their tasks."""
        for session in list(self._waiting):
            self._forget(session, "this node is shutting down")

    def reconciling(
        self,
        role: Role,
        stream: FrameStream,
        view: OpenView | None,
        account: Account,
        *,
        window: Bounds | None = None,
        session_id: str = "",
    ) -> Verifying:
        """A reconciliation: ``window`` where this node begins it, ``session_id`` where it answers.

        ``view`` may be None where nothing is asked; below the horizon of the account nothing is
        compared.
        """
        work = self.work
        agreement = self._agreement(role, view, account)
        uses_compact = role is Role.RESPONDER or account.node_id not in self._not_compact
        config = SessionConfig(
            cluster=work.cluster,
            shards=work.shards,
            window=window,
            horizon=account.horizon or LOWEST,
            cuts=self._cuts(window, account),
            limits=work.limits,
            tuning=work.tuning,
        )
        answers = role is Role.RESPONDER
        frames = Frames(stream, self.observer, answers, work.silence_s, session_id)
        return Verifying(
            role,
            config,
            view,
            Driving(frames, self.environment.steady_ns, self.turn, agreement),
            compact_from=work.compact_from if uses_compact else None,
            # An offer costs more than a session that finds nothing: none after such a one. A peer
            # whose count or XOR is another one begins with the mode all the same.
            offers=account.node_id not in self._equal,
        )

    def concluded(self, account: Account, work: Verifying, result: Result) -> None:
        """Note what a reconciliation came to, and whether the peer knows sums."""
        noted: list[tuple[set[str], bool]] = []
        account.result, account.proof = result, work.proof
        if work.compact is not None and not work.proof.compact:
            account.compact_failed = work.compact.reason
        if account.role is SyncRole.INITIATOR and not result.refusal:
            differ = bool(len(result.to_send) or len(result.to_receive))
            noted = [(self._equal, not differ), (self._not_compact, work.compact_failed)]
        if work.agreement is not None and result.rounds and not result.refusal:
            noted.append((self._plain, not work.agreement.peer_knows))
        for peers, is_in in noted:
            (peers.add if is_in else peers.discard)(account.node_id)

    async def compare(self, account: Account, view: OpenView, result: Result) -> None:
        """Measure what this session, which this node began, will make statements about."""
        if self.work.statements is None or not account.store_id:
            return
        try:
            account.compared = await compare(
                view, result, account.proof, account.opened_ns, self.environment.now_ns()
            )
        except (StoreUnavailable, StoreBusy) as error:
            self.environment.log.warning("coverage_not_measured", reason=str(error))

    async def state(self, account: Account, outcome: SyncOutcome) -> None:
        """Keep what the session found out."""
        statements, compared = self.work.statements, account.compared
        if statements is None or compared is None:
            return
        made = await statements_of(
            compared, account.report, equal=account.is_resolved and not outcome.error
        )
        try:
            await statements.note(account.store_id, made, self.environment.now_ns())
        except (StoreUnavailable, StoreBusy) as error:
            self.environment.log.warning(
                "coverage_not_kept", peer_store_id=account.store_id, reason=str(error)
            )

    def _agreement(self, role: Role, view: OpenView | None, account: Account) -> Agreement | None:
        """Return what both sides may agree on; None where nothing is asked."""
        if view is None or not self.work.sums:
            return None
        asked, horizon = account.asked_from or LOWEST, account.horizon or LOWEST
        return Agreement(
            role,
            self.environment.random.getrandbits(8 * NONCE_BYTES).to_bytes(NONCE_BYTES, "big"),
            lower=max(asked, horizon),
            memory_start=view.memory_start,
        )

    def _cuts(self, window: Bounds | None, account: Account) -> tuple[SyncId, ...]:
        """Where a session that will be concluded by XOR divides its window: at random."""
        if window is None or (self.work.sums and account.node_id not in self._plain):
            return ()
        start_ns, end_ns = max(window[0], account.horizon or LOWEST)[0], window[1][0]
        uniform = self.environment.random.uniform
        times = {int(uniform(start_ns, end_ns)) for _ in range(RANDOM_CUTS)}
        return tuple((time_ns, LOWEST[1]) for time_ns in sorted(times))

    @asynccontextmanager
    async def turn(self, payload_bytes: int) -> AsyncIterator[None]:
        """Around the work on a payload, up to its answer: of the large ones, one at a time."""
        if payload_bytes < LARGE_PAYLOAD_BYTES:
            yield
            return
        async with self._large_turn:
            yield

    @contextmanager
    def driving(self, session: Session) -> Iterator[None]:
        """Around all that is done for a session; frees it, unless it waits for its transfer.

        Raises:
            GaveWay, PlaceLost: another session went before it.
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
                    raise PlaceLost(_DISPLACED) from None
                raise GaveWay("another session with this peer goes first") from None
            raise
        finally:
            del self._tasks[session]
            self._gave_way.discard(session)
            if session.state is not State.WAITING:
                self.sessions.end(session)

    def stop(self, sessions: Iterable[Session]) -> None:
        """End the drivers of sessions that gave way to a new one."""
        for session in sessions:
            task = self._tasks.get(session)
            if task is not None:
                self._gave_way.add(session)
                task.cancel()
            else:
                reason = "the peer began a new session before it transferred"
                self._forget(session, _DISPLACED if session.displaced else reason)

    def keep(self, session: Session, account: Account) -> None:
        """Let a session wait for its transfer, and for no longer than that may take to begin."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self.work.silence_s, self._expire, session)
        self._waiting[session] = account, timer

    def claim(self, node_id: str, session_id: str) -> tuple[Session, Account] | Refusal:
        """A peer transfers: give it its session, once."""
        found = self.sessions.claim(self.environment.steady_ns(), node_id, session_id)
        if isinstance(found, Refusal):
            return found
        account, timer = self._waiting.pop(found)
        timer.cancel()
        return found, account

    def found_nothing(self, node_id: str, session_id: str) -> Transfer | None:
        """A peer transfers for a session that found nothing: give it a transfer of nothing, once.

        Source: the contract, "Transfer after a session without differences".
        """
        if not self.sessions.found_nothing(self.environment.steady_ns(), node_id, session_id):
            return None
        nothing, limits = SyncIds.empty(), self.work.transfer_limits
        return Transfer(
            session_id, nothing, nothing, memory=self.memory, peer=node_id, limits=limits
        )

    def ended(
        self, account: Account, error: str = "", ending: SyncEnding | None = None
    ) -> SyncOutcome:
        """Tell of a session that ended; ``error`` is what ended it before its end."""
        outcome = account.outcome(self.environment.steady_ns(), error, ending)
        self.observer.session_ended(account.role, account.node_id, account.store_id, outcome)
        return outcome

    async def machine(self, session: Session, account: Account) -> Transfer:
        """The transfer of what a session has found."""
        limits, result = self.work.transfer_limits, account.result
        if session.own:
            limits = limits.with_grace()

        return await in_thread_if(
            len(session.to_send) + len(session.to_receive) > THREADED_ROWS,
            Transfer,
            session.session_id,
            session.to_send,
            session.to_receive,
            memory=self.memory,
            peer=session.node_id,
            limits=limits,
            partial=result is not None and result.truncated,
        )

    def _expire(self, session: Session) -> None:
        self._forget(session, f"the peer did not transfer within {self.work.silence_s:.0f} s")

    def _forget(self, session: Session, sentence: str) -> None:
        waited = self._waiting.pop(session, None)
        self.sessions.end(session)
        if waited is not None:
            account, timer = waited
            timer.cancel()
            self.ended(account, sentence)
