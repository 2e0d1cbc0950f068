"""Sessions that peers begin: the callee's side of ``Reconcile`` and ``Transfer``.

Source: the contract, "Peers", and the schema of the service. A session takes its place among the
node's only when its first frame has come; a caller that sends nothing holds none. Few first frames
are read at a time: what callers without a session make this node hold in memory is bounded too.
Trusted callers wait for their turn; of the others the one that is silent for longest loses it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Final

from reconcile.session import Result, Role
from store.domain.places import Caller
from store.domain.ports import FrameStream, SyncEnding, SyncRole
from store.sync.errors import (
    EXPECTED,
    GaveWayError,
    ProtocolBrokenError,
    SessionUnknownError,
    TooManyCallsError,
    TransferFailedError,
)
from store.sync.frames import pieces
from store.sync.limits import (
    FIRST_FRAME_S,
    MAX_OPENING_CALLS,
    MAX_OPENING_CALLS_OF_PEER,
    MAX_STRANGE_OPENING_CALLS,
    SESSION_ID_BYTES,
)
from store.sync.session.exchange import Exchange
from store.sync.session.reconciliation import asked_range, first_frame, in_time, time_limit
from store.sync.session.registry import PeerSession, RefusalKind, SessionRefusal, SessionState
from store.sync.session.report import SessionReport
from storenode.wire.storenode.v1.peer_pb2 import ReconcileFrame

_GONE: Final = "the peer left in the middle of the session"
_CRASHED: Final = "this node failed on the session: its log says where"
_OUTRANKED: Final = "a session that this node began with you goes first"


class Responder:
    """The callee of one node. Its methods return when the call may end."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._opening = asyncio.Semaphore(MAX_OPENING_CALLS)
        self._strangers: dict[asyncio.Timeout, None] = {}
        self._openers: Counter[str] = Counter()

    async def reconcile(self, caller: Caller, stream: FrameStream) -> None:
        """Serve ``Reconcile`` of this caller.

        Raises:
            PeerFailed: the peer failed, or must wait; `GaveWayError`: another session goes first.
            MalformedPayload, LimitExceeded: what it sent is refused.
            StoreUnavailable, StoreBusy: the database does not serve.
        """
        exchange, steady_ns = self._exchange, self._exchange.environment.steady_ns
        report = SessionReport(
            SyncRole.RESPONDER, steady_ns(), node_id=caller.node_id, store_id=caller.store_id
        )
        async with self._slot(caller):
            frame = await first_frame(stream, exchange.observer)
            if frame is None:
                return
            name = f"{exchange.environment.random.getrandbits(8 * SESSION_ID_BYTES):032x}"
            opened = exchange.sessions.accept(steady_ns(), caller, name)
        if isinstance(opened, SessionRefusal):
            del frame
            await self._refuse(opened, report, stream)
            return
        exchange.stop(opened.ended)
        session = opened.session
        with self._reporting(report), exchange.driving(session):
            watched = SessionStream(stream, session, exchange)
            async with time_limit():
                result = await self._answer(session, report, watched, frame)
            if result.refusal:
                report.ending, report.error = SyncEnding.REFUSED, result.refusal
                exchange.ended(report)
                return
            exchange.sessions.reconciled(steady_ns(), session, result.to_send, result.to_receive)
            if session.state is SessionState.WAITING:
                exchange.keep(session, report)
            else:
                exchange.ended(report)

    async def transfer(self, caller: Caller, stream: FrameStream) -> None:
        """Serve ``Transfer``; raises as `reconcile`, and `TransferFailedError`."""
        exchange, node_id = self._exchange, caller.node_id
        async with self._slot(caller):
            frame = await in_time(stream.read(), FIRST_FRAME_S)
            if frame is None:
                raise ProtocolBrokenError(
                    "a transfer begins with a frame that names its session: send it"
                )
            session_id = next(pieces(frame)).session_id
            nothing = exchange.found_nothing(node_id, session_id)
            found = None if nothing is not None else exchange.claim(node_id, session_id)
            if isinstance(found, SessionRefusal):
                raise SessionUnknownError(found.sentence)
        session, report = found or (None, None)
        resumed = SessionStream(stream, session, exchange, first=frame)
        del frame
        if nothing is not None:
            await nothing.run(resumed)
        if session is None or report is None:
            return
        with self._reporting(report), exchange.driving(session):
            transfer = await exchange.transfer(session, report)
            await transfer.run(resumed)
            exchange.ended(report)
        if report.transfer.fault:
            raise TransferFailedError(report.transfer.fault, report.transfer.error)
        if report.transfer.stored or report.transfer.stored_by_peer:
            exchange.sessions.useful(session)

    @asynccontextmanager
    async def _slot(self, caller: Caller) -> AsyncIterator[None]:
        if not caller.trusted:  # its name may be another's, who must not be refused for it
            async with self._strange():
                yield
            return
        node_id = caller.node_id
        if self._openers[node_id] >= MAX_OPENING_CALLS_OF_PEER:
            raise TooManyCallsError(
                f"limit of {MAX_OPENING_CALLS_OF_PEER} calls of one peer that wait for their first "
                "frame is reached: send the frames first"
            )
        self._openers[node_id] += 1
        try:
            async with self._opening:
                yield
        finally:
            self._openers[node_id] -= 1
            self._openers += Counter()

    @asynccontextmanager
    async def _strange(self) -> AsyncIterator[None]:
        wait = asyncio.timeout(None)
        try:
            async with wait:
                self._strangers[wait] = None
                if len(self._strangers) > MAX_STRANGE_OPENING_CALLS:
                    longest = next(iter(self._strangers))
                    del self._strangers[longest]
                    longest.reschedule(asyncio.get_running_loop().time())
                yield
        except TimeoutError:
            if not wait.expired():
                raise
            raise TooManyCallsError(
                f"limit of {MAX_STRANGE_OPENING_CALLS} calls that wait for their first frame is "
                "reached, and newer ones came: send the frame with the call, or retry"
            ) from None
        finally:
            self._strangers.pop(wait, None)

    async def _refuse(
        self, refusal: SessionRefusal, report: SessionReport, stream: FrameStream
    ) -> None:
        exchange = self._exchange
        if refusal.kind is RefusalKind.ABORTED:
            report.ending = SyncEnding.ABORTED
            exchange.ended(report)
            raise GaveWayError(refusal.sentence)
        report.ending, report.error = SyncEnding.REFUSED, refusal.sentence
        exchange.ended(report)
        refused = ReconcileFrame(refusal=refusal.sentence).SerializeToString()
        await in_time(stream.write(refused), exchange.work.silence_s)

    async def _answer(
        self,
        session: PeerSession,
        report: SessionReport,
        stream: FrameStream,
        frame: ReconcileFrame,
    ) -> Result:
        exchange, work = self._exchange, self._exchange.work
        async with exchange.turn(len(frame.ranges_data)):
            asked = await asked_range(frame.ranges_data, work.limits.payload)
        async with AsyncExitStack() as stack:
            view = None
            if asked is not None:
                opening = work.reconcilable.open_view(*asked, recent=True)
                view = await stack.enter_async_context(opening)
                report.asked_from, report.horizon = asked[0], work.horizon(view)
            reconciliation = exchange.reconciliation(
                Role.RESPONDER, stream, view, report, session_id=session.session_id
            )
            result = await reconciliation.respond(frame)
            exchange.concluded(report, reconciliation, result)
            return result

    @contextmanager
    def _reporting(self, report: SessionReport) -> Iterator[None]:
        """Report a session that fails."""
        exchange = self._exchange
        try:
            yield
        except asyncio.CancelledError:
            report.error = _GONE
            exchange.ended(report)
            raise
        except GaveWayError:
            report.ending = SyncEnding.ABORTED
            exchange.ended(report)
            raise GaveWayError(_OUTRANKED) from None
        except Exception as error:
            report.error = str(error) if isinstance(error, EXPECTED) else _CRASHED
            exchange.ended(report)
            raise


class SessionStream:
    """The stream of a session; it records since when the session waits for its peer.

    ``first``: a frame that was read already, and comes again.
    """

    def __init__(
        self,
        stream: FrameStream,
        session: PeerSession | None,
        exchange: Exchange,
        first: bytes | None = None,
    ) -> None:
        self._stream = stream
        self._session = session
        self._sessions = exchange.sessions
        self._steady_ns = exchange.environment.steady_ns
        self._first = first
        self._waits = 0
        self.half_close = stream.half_close

    async def read(self) -> bytes | None:
        """Return the next frame; None after the last."""
        if self._first is not None:
            frame, self._first = self._first, None
            return frame
        with self._waiting():
            return await self._stream.read()

    async def write(self, frame: bytes) -> None:
        """Send a frame."""
        with self._waiting():
            await self._stream.write(frame)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._change_waits(1)
        try:
            yield
        finally:
            self._change_waits(-1)

    def _change_waits(self, by: int) -> None:
        self._waits += by
        if self._session is None:
            return
        if not self._waits:
            self._sessions.works(self._session)
        elif by < 0 or self._waits == 1:
            self._sessions.awaits(self._steady_ns(), self._session)
