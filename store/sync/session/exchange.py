"""The sessions of a node with its peers: both roles, and what they share.

Source: the contract, "Peers", and the schema of the service.

- The initiator names itself, reconciles over one fixed view, gives the view back, and transfers. It
  learns who answers with the first answer at the latest, before it uses or transfers anything.
  Whatever the peer does is in the `SessionReport`.
- A session of a peer takes its place among the node's only when its first frame has come; a caller
  that sends nothing holds none. Between its two calls the session waits here.
- Every session is driven by one task at a time: that of the caller, or that of the call it serves.
  `Exchange.driving` notes the task, so that a session that gives way to another, or whose time is
  over, is ended at once, and frees and reports the session however it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from reconcile.algorithm.plan import Tuning
from reconcile.algorithm.questions import asked_about
from reconcile.codec import decode
from reconcile.errors import MalformedPayloadError, PayloadLimitError
from reconcile.ids import LOWEST, SyncId
from reconcile.limits import DEFAULT_SESSION_LIMITS, SessionLimits
from reconcile.session import Bounds, Result, Role
from store.domain.environment import Environment
from store.domain.places import Caller
from store.domain.ports import NotServingError, PeerAddress, PeerError
from store.sync.coverage import Measured, StatementBuffer, measure
from store.sync.errors import CallFailedError, Fault, ProtocolBrokenError, SessionFaultError
from store.sync.frames import parse_reconcile, pieces
from store.sync.index.hot import HotIndex
from store.sync.index.views import StoredView, at, in_thread_if
from store.sync.limits import (
    COMPACT_FROM_IDS,
    FIRST_FRAME_S,
    LARGE_PAYLOAD_BYTES,
    MAX_HORIZON_STEP_NS,
    MAX_NOTED_PEERS,
    MAX_SESSIONS,
    MIN_KEPT_STEPS,
    SESSION_ID_CHARS,
    THREADED_PAYLOAD_BYTES,
    THREADED_ROWS,
)
from store.sync.peers import Connector, FrameStream
from store.sync.session.reconciliation import GOES_ON, Reconciliation, in_time
from store.sync.session.registry import PeerSession, Sessions, SessionState
from store.sync.session.report import SessionReport, SyncEnding
from store.sync.session.sum_search import PeerNotes
from store.sync.transfer.policy_memory import PolicyMemory
from store.sync.transfer.transfer import Transfer, TransferWork
from storenode.common.bounded_dict import BoundedDict
from storenode.message.limits import MAX_TIMESTAMP_NS, NS_PER_S
from storenode.wire.storenode.v1 import peer_pb2
from storenode.wire.storenode.v1.peer_pb2 import ReconcileFrame

_PEER: Final = peer_pb2.DESCRIPTOR.services_by_name["Peer"].full_name
RECONCILE: Final = f"/{_PEER}/Reconcile"
TRANSFER: Final = f"/{_PEER}/Transfer"

_NOWHERE: Final = at(MAX_TIMESTAMP_NS), at(MAX_TIMESTAMP_NS)
_STOPPED: Final = "the node stopped the session"
_LEFT: Final = "the peer left in the middle of the session"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeWork(TransferWork):
    """The parts that sessions and their transfers work on.

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
    index: HotIndex
    limits: SessionLimits = DEFAULT_SESSION_LIMITS
    tuning: Tuning = field(default_factory=Tuning)
    max_sessions: int = MAX_SESSIONS
    sums: bool = True
    compact_from: int | None = COMPACT_FROM_IDS
    statements: StatementBuffer | None = None

    def horizon(self, view: StoredView) -> SyncId:
        """Return the bound below which nothing is held, or all would be refused as too old."""
        now_ns = self.environment.now_ns()
        refused_below_ns = self.policy().horizon_ns
        if refused_below_ns is None:
            return view.horizon
        return max(view.horizon, (common_horizon(now_ns, refused_below_ns), LOWEST[1]))


def common_horizon(now_ns: int, horizon_ns: int) -> int:
    """Return a horizon that moves with the clock, put off until the next full step.

    Nodes that keep messages for equally long then have the same horizon at almost any moment, and
    so the same range to compare; else none of their fingerprints would ever be equal. A step is a
    small part of the time that messages are kept, at most about a minute. All in nanoseconds.
    """
    kept_ns = max(now_ns - horizon_ns, MIN_KEPT_STEPS)
    step_ns = min(1 << (kept_ns // MIN_KEPT_STEPS).bit_length() - 1, MAX_HORIZON_STEP_NS)
    return -(-horizon_ns // step_ns) * step_ns


class Exchange:
    """The sessions of one node; all on the event loop's thread."""

    reconciliation: type[Reconciliation] = Reconciliation

    def __init__(self, work: ExchangeWork) -> None:
        self.work = work
        self.environment: Environment = work.environment
        self._silence_ns = silence_ns = work.transfer_limits.silence_ns
        self.sessions = Sessions(
            work.node_id, work.store_id, self.stop, limit=work.max_sessions, silence_ns=silence_ns
        )
        self.memory = PolicyMemory()
        self.notes = BoundedDict[str, PeerNotes](MAX_NOTED_PEERS)
        self._large_turn = asyncio.Semaphore()

    def close(self) -> None:
        """End the sessions that wait; those under way end with their tasks."""
        for session in self.sessions:
            if session.state is SessionState.WAITING:
                self.stop(session, Fault.LOST, "this node is shutting down")

    # Sessions that this node begins

    async def initiate(self, connector: Connector, report: SessionReport) -> None:
        """Run one session as its report wants it; raise only for the cancellation of this task."""
        peer = report.peer
        assert peer is not None
        report.node_id = connector.node_id(peer)
        measured: Measured | None = None

        def require_same(node_id: str, _store_id: str) -> None:
            if node_id != report.node_id:
                raise ProtocolBrokenError(
                    f"the node at {peer} was {report.node_id} and is {node_id} now"
                )

        begin = partial(self.sessions.begin, report.began_ns, peer.target, report)
        # The report shows the operator any failure.
        with suppress(Exception), self.driving(report, begin) as session:
            measured = await self._find_differences(connector, peer, session)
            if session.state is SessionState.TRANSFERRING:
                async with connector.call(peer, TRANSFER, require_same) as stream:
                    await (await self.transfer(session)).run(stream)
        if measured is not None and self.work.statements is not None:
            with self._going_on("coverage_not_kept", peer_store_id=report.store_id):
                await self.work.statements.take(report, measured, self.environment.now_ns())

    async def _find_differences(
        self, connector: Connector, peer: PeerAddress, session: PeerSession
    ) -> Measured | None:
        """Reconcile as the initiator; return what statements of coverage may be about."""
        work, report = self.work, session.report
        start_ns, end_ns = report.window.time_start_ns, report.window.time_end_ns
        window: Bounds = at(max(0, start_ns)), at(min(end_ns, MAX_TIMESTAMP_NS))

        def identify(node_id: str, store_id: str) -> None:
            self.sessions.identify(self.environment.steady_ns(), session, node_id, store_id)

        async with connector.call(peer, RECONCILE, identify) as stream:
            report.opened_ns = self.environment.now_ns()
            async with work.index.open_view(*window, recent=True) as view:
                report.asked_from, report.horizon = window[0], work.horizon(view)
                side = self.reconciliation(self, session, stream, view, window)
                result = await side.initiate()
                side.conclude(result)
                measured = None
                if work.statements is not None and report.store_id:
                    with self._going_on("coverage_not_measured"):
                        now_ns = self.environment.now_ns()
                        measured = await measure(view, report, result, side, now_ns)
            # The view is given back by now: the peer may take its time to end the call.
            if result.rounds:
                if not side.equal_sum:
                    await stream.half_close()
                if await session.wait(self.environment.steady_ns, stream.read()) is not None:
                    raise ProtocolBrokenError(GOES_ON)
        if result.refusal:
            sentence = f"the peer at {peer} will not reconcile: {result.refusal}"
            raise SessionFaultError(Fault.REFUSED, sentence)
        if report.differences and not session.session_id:
            raise ProtocolBrokenError("the peer has not named the session")
        now_ns = self.environment.steady_ns()
        self.sessions.reconciled(now_ns, session, result.to_send, result.to_receive)
        return measured

    @contextmanager
    def _going_on(self, event: str, **fields: object) -> Iterator[None]:
        """Log a failure of what is beside the session, which continues."""
        try:
            yield
        except NotServingError as error:
            self.environment.log.warning(event, **fields, reason=str(error))
        except Exception as error:
            self.environment.log.error(event, **fields, exc_info=error)

    # Sessions that peers begin

    async def serve_reconcile(self, caller: Caller, stream: FrameStream) -> None:
        """Serve ``Reconcile`` of this caller.

        Raises:
            PeerError: the peer failed, or must wait, or another session goes first.
            MalformedPayloadError, PayloadLimitError: what it sent is refused.
            NotServingError: the database does not serve.
        """
        steady_ns = self.environment.steady_ns
        report = SessionReport(
            Role.RESPONDER, steady_ns(), node_id=caller.node_id, store_id=caller.store_id
        )
        data = await in_time(stream.read(), FIRST_FRAME_S)
        if data is None:
            return
        frame = parse_reconcile(data)
        del data
        name = f"{self.environment.random.getrandbits(4 * SESSION_ID_CHARS):032x}"
        accept = partial(self.sessions.accept, steady_ns(), caller, name, report)
        try:
            with self.driving(report, accept) as session:
                result = await self._answer(session, stream, frame)
                if result.refusal:
                    report.ending, report.error = SyncEnding.REFUSED, result.refusal
                else:
                    found = result.to_send, result.to_receive
                    self.sessions.reconciled(steady_ns(), session, *found)
        except SessionFaultError as error:
            if error.fault is not Fault.REFUSED:
                raise
            del frame
            refused = ReconcileFrame(refusal=str(error)).SerializeToString()
            await in_time(stream.write(refused), self._silence_ns / NS_PER_S)

    async def serve_transfer(self, caller: Caller, stream: FrameStream) -> None:
        """Serve ``Transfer``; raises as `serve_reconcile`."""
        steady_ns = self.environment.steady_ns
        frame = await in_time(stream.read(), FIRST_FRAME_S)
        if frame is None:
            raise ProtocolBrokenError(
                "a transfer begins with a frame that names its session: send it"
            )
        name = next(pieces(frame))[0].session_id
        session = self.sessions.claim(steady_ns(), caller.node_id, name)
        report = session.report
        first = [frame]
        del frame  # which the transfer alone is to keep, while it reads it
        # Source: the contract, "Transfer after a session without differences".
        is_over = session.state is SessionState.ENDED
        with nullcontext() if is_over else self.driving(report, lambda: session):
            await (await self.transfer(session)).run(stream, first.pop())
        if report.fault and not is_over:
            raise SessionFaultError(report.fault, report.error)
        if report.stored or report.messages_sent:
            self.sessions.useful(session)

    async def _answer(
        self, session: PeerSession, stream: FrameStream, frame: ReconcileFrame
    ) -> Result:
        work, report = self.work, session.report
        data, large = frame.ranges_data, len(frame.ranges_data) > THREADED_PAYLOAD_BYTES
        async with self.turn(len(data)):
            ranges = (await in_thread_if(large, decode, data, work.limits.payload)).ranges
            asked = asked_about(ranges)
            del ranges
        async with work.index.open_view(*(asked or _NOWHERE), recent=True) as view:
            report.horizon = work.horizon(view)
            report.asked_from = None if asked is None else asked[0]
            side = self.reconciliation(self, session, stream, view, asked)
            result = await side.respond(frame)
            side.conclude(result)
            return result

    def turn(self, payload_bytes: int) -> AbstractAsyncContextManager[None]:
        """Return the turn of a payload, to wait for: large ones are worked on one at a time."""
        return self._large_turn if payload_bytes >= LARGE_PAYLOAD_BYTES else nullcontext()

    # The lives of sessions

    @contextmanager
    def driving(
        self, report: SessionReport, begin: Callable[[], PeerSession]
    ) -> Iterator[PeerSession]:
        """Run all that is done for a session inside; free and report it at its end.

        One that is to wait for its transfer is kept.

        Raises:
            SessionFaultError: it was stopped.
        """
        session: PeerSession | None = None
        try:
            session = begin()
            task = session.task = asyncio.current_task()
            assert task is not None
            if session.timer is None:
                self._watch(session)
            try:
                yield session
            except asyncio.CancelledError:
                # The task's own cancellation may come at the same moment; then it counts.
                if session.stopped is None or task.uncancel():
                    raise
                raise SessionFaultError(*session.stopped) from None
        except BaseException as error:
            self._note_failure(report, error)
            raise
        finally:
            if session is not None:
                session.task = None
            if session is None or session.state is not SessionState.WAITING:
                self._end(report, session)

    def _watch(self, session: PeerSession) -> None:
        """End a session whose time is over, or look again when it will be."""
        session.timer = None
        now_ns = self.environment.steady_ns()
        if (deadline := session.deadline(now_ns, self._silence_ns)) is None:
            return
        end_ns, fault, sentence = deadline
        if end_ns <= now_ns:
            self.stop(session, fault, sentence)
        else:
            call_later = asyncio.get_running_loop().call_later
            session.timer = call_later((end_ns - now_ns) / NS_PER_S, self._watch, session)

    def stop(self, session: PeerSession, fault: Fault, sentence: str) -> None:
        """End a session before its end, and for one that waits say why in its report."""
        if session.stopped is not None:
            return
        session.stopped = fault, sentence
        if session.task is not None:
            session.task.cancel()
        else:
            session.report.error = sentence
            self._end(session.report, session)

    def _end(self, report: SessionReport, session: PeerSession | None) -> None:
        """Free a session, if it has begun, and report it to the observer."""
        if session is not None:
            if session.timer is not None:
                session.timer.cancel()
            self.sessions.end(session)
        report.finish(self.environment.steady_ns())
        self.work.observer.session_ended(report)

    def _note_failure(self, report: SessionReport, error: BaseException) -> None:
        """Note how a session failed; one that gives way to another has no error."""
        peer, report.error = report.peer, str(error)
        match error:
            case asyncio.CancelledError():
                report.error = _LEFT if peer is None else _STOPPED
            case SessionFaultError(fault=Fault.GAVE_WAY):
                report.ending, report.error = SyncEnding.ABORTED, ""
            case SessionFaultError(fault=Fault.REFUSED):
                report.ending = SyncEnding.REFUSED
            case NotServingError():
                report.ending = SyncEnding.UNAVAILABLE
                report.error = f"the database of this node does not serve: {error}"
            case CallFailedError():
                pass
            case (
                MalformedPayloadError() | PayloadLimitError() | SessionFaultError(fault=Fault.LIMIT)
            ):
                if peer is not None:
                    report.error = f"what the peer at {peer} sends is refused: {error}"
            case PeerError():
                if peer is not None:
                    report.error = f"the session with {peer} failed: {error}"
            case _:
                if peer is not None:  # that of a peer is logged with its call
                    log = self.environment.log
                    log.error("session_crashed", peer=str(peer), exc_info=error)
                report.error = "this node failed on the session: its log says where"

    async def transfer(self, session: PeerSession) -> Transfer:
        """Return the transfer of what a session has found."""
        large = len(session.to_send) + len(session.to_receive) > THREADED_ROWS
        return await in_thread_if(large, Transfer, session, self.work, self.memory)
