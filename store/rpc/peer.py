"""``Peer``, as this node serves it: `Reconcile` and `Transfer` of sessions that peers begin.

Source: the contract, "Peers", and the schema of the service. A session takes its place among the
node's only when its first frame has come; a caller that says nothing holds none. Few first frames
are read at a time: what callers without a session make this node hold in memory is bounded too.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, TypeVar

import grpc

from reconcile.ids import LOWEST
from reconcile.session import Received, Result, Role
from store.domain.ports import SyncEnding, SyncRole
from store.rpc.call import Call, Context
from store.rpc.dial import shown
from store.rpc.failure import RpcFailure, translate
from store.rpc.identity import NODE_ID, STORE_ID, read_metadata
from store.rpc.limits import FIRST_FRAME_S, MAX_OPENING_CALLS, MAX_OPENING_CALLS_OF_PEER
from store.rpc.streams import CallerStream
from store.sync.errors import ProtocolBroken
from store.sync.frames import Reconcile, pieces
from store.sync.session.exchange import Account, Exchange, GaveWay
from store.sync.session.reconciling import (
    asked_range,
    first_frame,
    in_time,
    time_limit,
)
from store.sync.session.registry import Refusal, Refused, Session, State
from store.sync.transfer.driver import failure_of, transfer
from store.sync.transfer.limits import SESSION_ID_BYTES

_T = TypeVar("_T")

_GONE: Final = "the peer left in the middle of the session"


class PeerService:
    """The handlers of the two methods."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._opening = asyncio.Semaphore(MAX_OPENING_CALLS)
        self._openers: Counter[str] = Counter()

    async def reconcile(self, call: Call, context: Context) -> None:
        """Answer ``Reconcile``."""
        exchange, stream = self._exchange, CallerStream(context)
        account = self._account(context)
        async with self._place(account.node_id):
            frame = await first_frame(stream, exchange.work.observer)
            if frame is None:
                return
            opened = exchange.sessions.accept(
                account.began_ns,
                account.node_id,
                account.store_id,
                secrets.token_hex(SESSION_ID_BYTES),
            )
        if isinstance(opened, Refusal):
            del frame
            await self._refuse(opened, account, stream)
            return
        exchange.stop(opened.ended)
        await self._observed(call, account, self._reconcile(opened.session, account, stream, frame))

    async def transfer(self, call: Call, context: Context) -> None:
        """Answer ``Transfer``."""
        stream = CallerStream(context)
        node_id = self._account(context).node_id
        async with self._place(node_id):
            frame = await in_time(stream.read(), FIRST_FRAME_S)
            if frame is None:
                raise ProtocolBroken(
                    "a transfer begins with a frame that names its session: send it"
                )
            session_id = next(pieces(frame)).session_id
            found = self._exchange.claim(node_id, session_id)
            if isinstance(found, Refusal):
                raise RpcFailure(grpc.StatusCode.FAILED_PRECONDITION, found.sentence)
        session, account = found
        stream.put_back(frame)
        del frame
        failure = await self._observed(call, account, self._transfer(session, account, stream))
        if failure is not None:
            raise failure

    @asynccontextmanager
    async def _place(self, node_id: str) -> AsyncIterator[None]:
        """Around the wait for a first frame; one peer alone cannot keep all the others out."""
        if self._openers[node_id] >= MAX_OPENING_CALLS_OF_PEER:
            raise RpcFailure(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"limit of {MAX_OPENING_CALLS_OF_PEER} calls of one peer that wait for their first "
                "frame is reached: send the frames first",
                retry=True,
            )
        self._openers[node_id] += 1
        try:
            async with self._opening:
                yield
        finally:
            self._openers[node_id] -= 1
            self._openers += Counter()

    async def _refuse(self, refusal: Refusal, account: Account, stream: CallerStream) -> None:
        aborted = refusal.kind is Refused.ABORTED
        if aborted:
            self._end(account, ending=SyncEnding.ABORTED)
            raise _aborted(refusal.sentence)
        self._end(account, refusal.sentence, SyncEnding.REFUSED)
        refused = Reconcile(b"", refusal=refusal.sentence).encode()
        await in_time(stream.write(refused), self._exchange.work.silence_s)

    async def _reconcile(
        self, session: Session, account: Account, stream: CallerStream, frame: Reconcile
    ) -> None:
        exchange, work = self._exchange, self._exchange.work
        with exchange.driving(session):
            async with time_limit():
                result = await self._answer(session, account, stream, frame)
            account.result = result
            if result.refusal:
                self._end(account, result.refusal, SyncEnding.REFUSED)
                return
            now_ns = work.monotonic_ns()
            exchange.sessions.reconciled(now_ns, session, result.to_send, result.to_receive)
            if session.state is State.WAITING:
                exchange.keep(session, account)
            else:
                self._end(account)

    async def _answer(
        self, session: Session, account: Account, stream: CallerStream, frame: Reconcile
    ) -> Result:
        """Answer frames until one side is done."""
        work = self._exchange.work
        async with self._exchange.turn(len(frame.payload)):
            asked = await asked_range(frame.payload, work.limits.payload)
        async with AsyncExitStack() as stack:
            view, horizon = None, LOWEST
            if asked is not None:
                view = await stack.enter_async_context(work.reconcilable.open_view(*asked))
                horizon = work.horizon(view)
                account.asked_from, account.horizon = asked[0], horizon
            reconciling = self._exchange.reconciling(
                Role.RESPONDER, stream, view, horizon, session_id=session.session_id
            )
            first = Received(frame.payload, frame.count, shown(frame.refusal))
            del frame
            return await reconciling.run(first)

    async def _transfer(
        self, session: Session, account: Account, stream: CallerStream
    ) -> RpcFailure | None:
        exchange = self._exchange
        with exchange.driving(session):
            machine = await exchange.machine(session, account)
            account.report = machine.report
            report = await transfer(machine, stream, exchange.work.transfer)
            self._end(account)
            return failure_of(report)

    async def _observed(self, call: Call, account: Account, work: Awaitable[_T]) -> _T:
        """Do the work of a session, and tell of it when it fails."""
        try:
            return await work
        except asyncio.CancelledError:
            self._end(account, _GONE)
            raise
        except GaveWay:
            self._end(account, ending=SyncEnding.ABORTED)
            raise _aborted("a session that this node began with you goes first") from None
        except Exception as error:
            self._end(account, translate(error, call.request_id)[0].sentence)
            raise

    def _account(self, context: Context) -> Account:
        """A session of the caller; the call has been let in, so its metadata are there."""
        told = read_metadata(context)
        now_ns = self._exchange.work.monotonic_ns()
        return Account(SyncRole.RESPONDER, now_ns, told[NODE_ID], told[STORE_ID])

    def _end(self, account: Account, error: str = "", ending: SyncEnding | None = None) -> None:
        now_ns = self._exchange.work.monotonic_ns()
        self._exchange.observe(account, account.outcome(now_ns, error, ending))


def _aborted(sentence: str) -> RpcFailure:
    return RpcFailure(grpc.StatusCode.ABORTED, sentence, retry=True)
