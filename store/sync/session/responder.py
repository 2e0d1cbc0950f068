"""Sessions that peers begin: the callee's side of ``Reconcile`` and ``Transfer``.

Source: the contract, "Peers", and the schema of the service. A session takes its place among the
node's only when its first frame has come; a caller that says nothing holds none. Few first frames
are read at a time: what callers without a session make this node hold in memory is bounded too.
Trusted callers wait for their turn; of the others the one that is silent for longest loses it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Final, TypeVar

from reconcile.session import Result, Role
from store.domain.places import Caller
from store.domain.ports import FrameStream, SyncEnding, SyncRole
from store.sync.errors import (
    EXPECTED,
    GaveWay,
    ProtocolBroken,
    SessionUnknown,
    TooManyCalls,
    TransferFailed,
)
from store.sync.frames import Reconcile, pieces
from store.sync.limits import (
    FIRST_FRAME_S,
    MAX_OPENING_CALLS,
    MAX_OPENING_CALLS_OF_PEER,
    MAX_STRANGE_OPENING_CALLS,
    SESSION_ID_BYTES,
)
from store.sync.session.exchange import Exchange
from store.sync.session.outcome import Account
from store.sync.session.reconciling import asked_range, first_frame, in_time, time_limit
from store.sync.session.registry import Refusal, Refused, Session, State
from store.sync.transfer.core import Transfer
from store.sync.transfer.driver import transfer
from store.sync.transfer.events import Report

_T = TypeVar("_T")

_GONE: Final = "the peer left in the middle of the session"
_CRASHED: Final = "this node failed on the session: its log says where"
_OUTRANKED: Final = "a session that this node began with you goes first"


class Responder:
    """One per node. Its methods return when the call may end, and raise what ends it early."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._opening = asyncio.Semaphore(MAX_OPENING_CALLS)
        self._strangers: dict[asyncio.Timeout, None] = {}
        self._openers: Counter[str] = Counter()

    async def reconcile(self, caller: Caller, stream: FrameStream) -> None:
        """Answer ``Reconcile`` of this caller.

        Raises:
            PeerFailed: the peer failed, or must wait; `GaveWay`: another session goes first.
            MalformedPayload, LimitExceeded: what it sent is refused.
            StoreUnavailable, StoreBusy: the database does not serve.
        """
        exchange, account = self._exchange, self._account(caller)
        async with self._slot(caller):
            frame = await first_frame(stream, exchange.observer)
            if frame is None:
                return
            name = f"{exchange.environment.random.getrandbits(8 * SESSION_ID_BYTES):032x}"
            opened = exchange.sessions.accept(exchange.environment.steady_ns(), caller, name)
        if isinstance(opened, Refusal):
            del frame
            await self._refuse(opened, account, stream)
            return
        exchange.stop(opened.ended)
        watched = _Watched(stream, opened.session, exchange)
        await self._observed(account, self._reconcile(opened.session, account, watched, frame))

    async def transfer(self, caller: Caller, stream: FrameStream) -> None:
        """Answer ``Transfer``; raises as `reconcile`, and `TransferFailed`."""
        node_id = caller.node_id
        async with self._slot(caller):
            frame = await in_time(stream.read(), FIRST_FRAME_S)
            if frame is None:
                raise ProtocolBroken(
                    "a transfer begins with a frame that names its session: send it"
                )
            session_id = next(pieces(frame)).session_id
            nothing = self._exchange.found_nothing(node_id, session_id)
            found = nothing or self._exchange.claim(node_id, session_id)
            if isinstance(found, Refusal):
                raise SessionUnknown(found.sentence)
        resumed = _Resumed(stream, frame)
        del frame
        if isinstance(found, Transfer):
            await transfer(found, resumed, self._exchange.work.transfer)
            return
        session, account = found
        watched = _Watched(resumed, session, self._exchange)
        report = await self._observed(account, self._transfer(session, account, watched))
        if report.fault:
            raise TransferFailed(report.fault, report.error)
        if report.stored or report.stored_by_peer:
            self._exchange.sessions.useful(session)

    @asynccontextmanager
    async def _slot(self, caller: Caller) -> AsyncIterator[None]:
        """Around the wait for a first frame; one peer alone cannot keep all the others out."""
        if not caller.trusted:  # its name may be another's, who must not be refused for it
            async with self._strange():
                yield
            return
        node_id = caller.node_id
        if self._openers[node_id] >= MAX_OPENING_CALLS_OF_PEER:
            raise TooManyCalls(
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
        """Around the wait of an untrusted caller, which newer ones may end."""
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
            raise TooManyCalls(
                f"limit of {MAX_STRANGE_OPENING_CALLS} calls that wait for their first frame is "
                "reached, and newer ones came: send the frame with the call, or retry"
            ) from None
        finally:
            self._strangers.pop(wait, None)

    async def _refuse(self, refusal: Refusal, account: Account, stream: FrameStream) -> None:
        exchange = self._exchange
        if refusal.kind is Refused.ABORTED:
            exchange.ended(account, ending=SyncEnding.ABORTED)
            raise GaveWay(refusal.sentence)
        exchange.ended(account, refusal.sentence, SyncEnding.REFUSED)
        refused = Reconcile(b"", refusal=refusal.sentence).encode()
        await in_time(stream.write(refused), exchange.work.silence_s)

    async def _reconcile(
        self, session: Session, account: Account, stream: FrameStream, frame: Reconcile
    ) -> None:
        exchange = self._exchange
        with exchange.driving(session):
            async with time_limit():
                result = await self._answer(session, account, stream, frame)
            if result.refusal:
                exchange.ended(account, result.refusal, SyncEnding.REFUSED)
                return
            now_ns = exchange.environment.steady_ns()
            exchange.sessions.reconciled(now_ns, session, result.to_send, result.to_receive)
            if session.state is State.WAITING:
                exchange.keep(session, account)
            else:
                exchange.ended(account)

    async def _answer(
        self, session: Session, account: Account, stream: FrameStream, frame: Reconcile
    ) -> Result:
        """Answer frames until one side is done."""
        work = self._exchange.work
        async with self._exchange.turn(len(frame.payload)):
            asked = await asked_range(frame.payload, work.limits.payload)
        async with AsyncExitStack() as stack:
            view = None
            if asked is not None:
                opening = work.reconcilable.open_view(*asked, recent=True)
                view = await stack.enter_async_context(opening)
                account.asked_from, account.horizon = asked[0], work.horizon(view)
            reconciling = self._exchange.reconciling(
                Role.RESPONDER, stream, view, account, session_id=session.session_id
            )
            result = await reconciling.answer(frame)
            self._exchange.concluded(account, reconciling, result)
            return result

    async def _transfer(self, session: Session, account: Account, stream: FrameStream) -> Report:
        exchange = self._exchange
        with exchange.driving(session):
            machine = await exchange.machine(session, account)
            account.report = machine.report
            report = await transfer(machine, stream, exchange.work.transfer)
            exchange.ended(account)
            return report

    async def _observed(self, account: Account, work: Awaitable[_T]) -> _T:
        """Do the work of a session, and report it when it fails."""
        exchange = self._exchange
        try:
            return await work
        except asyncio.CancelledError:
            exchange.ended(account, _GONE)
            raise
        except GaveWay:
            exchange.ended(account, ending=SyncEnding.ABORTED)
            raise GaveWay(_OUTRANKED) from None
        except EXPECTED as error:
            exchange.ended(account, str(error))
            raise
        except Exception:
            exchange.ended(account, _CRASHED)
            raise

    def _account(self, caller: Caller) -> Account:
        now_ns = self._exchange.environment.steady_ns()
        return Account(SyncRole.RESPONDER, now_ns, caller.node_id, caller.store_id)


class _Resumed:
    """A stream whose first frame was read already, and comes again."""

    def __init__(self, stream: FrameStream, first: bytes) -> None:
        self._first: bytes | None = first
        self._stream = stream
        self.write = stream.write
        self.half_close = stream.half_close

    async def read(self) -> bytes | None:
        """The next frame; None after the last."""
        if self._first is not None:
            frame, self._first = self._first, None
            return frame
        return await self._stream.read()


class _Watched:
    """The stream of a session, which is told since when it waits for its peer."""

    def __init__(self, stream: FrameStream, session: Session, exchange: Exchange) -> None:
        self._stream = stream
        self._session = session
        self._exchange = exchange
        self._waits = 0
        self.half_close = stream.half_close

    async def read(self) -> bytes | None:
        """The next frame; None after the last."""
        with self._waiting():
            return await self._stream.read()

    async def write(self, frame: bytes) -> None:
        """Send a frame."""
        with self._waiting():
            await self._stream.write(frame)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._waits += 1
        if self._waits == 1:
            self._await()
        try:
            yield
        finally:
            self._waits -= 1
            if self._waits:
                self._await()
            else:
                self._exchange.sessions.works(self._session)

    def _await(self) -> None:
        self._exchange.sessions.awaits(self._exchange.environment.steady_ns(), self._session)
