"""A session that this node begins, from its beginning to its end.

The initiator names itself, reconciles over one fixed view, gives the view back, and transfers. It
learns who answers with the first answer at the latest, before it believes or transfers anything.
Whatever the peer does becomes a `SyncOutcome`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from reconcile.errors import LimitExceeded, MalformedPayload
from reconcile.ids import LOWEST
from reconcile.session import Result, Role
from store.domain.ports import (
    CallFailed,
    Connector,
    FrameStream,
    Named,
    NameLearned,
    PeerAddress,
    PeerFailed,
    StoreBusy,
    StoreUnavailable,
    SyncEnding,
    SyncOutcome,
    SyncRole,
    Window,
)
from store.sync.errors import FrameTooLarge, GaveWay, MalformedFrame, ProtocolBroken
from store.sync.session.exchange import Exchange
from store.sync.session.outcome import Account
from store.sync.session.reconciling import end_of_frames, time_limit
from store.sync.session.registry import Accepted, Refusal, Refused, Session, State
from store.sync.transfer.driver import transfer
from storenode.message.limits import MAX_TIMESTAMP_NS
from storenode.wire.storenode.v1 import peer_pb2

_PEER: Final = peer_pb2.DESCRIPTOR.services_by_name["Peer"].full_name
RECONCILE: Final = f"/{_PEER}/Reconcile"
TRANSFER: Final = f"/{_PEER}/Transfer"


class _Declined(Exception):
    """The registry of this node lets the session not go on."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.sentence)
        self.refusal = refusal


class Initiator:
    """One session that this node begins: made for one `run`."""

    def __init__(
        self, connector: Connector, exchange: Exchange, peer: PeerAddress, window: Window
    ) -> None:
        self._connector = connector
        self._exchange = exchange
        self._work = exchange.work
        self._peer = peer
        start_ns, end_ns = max(0, window.time_start_ns), window.time_end_ns
        self._bounds = (start_ns, LOWEST[1]), (min(end_ns, MAX_TIMESTAMP_NS), LOWEST[1])
        now_ns = self._exchange.environment.steady_ns()
        self._account = Account(SyncRole.INITIATOR, now_ns, asked_from=self._bounds[0])

    async def run(self) -> SyncOutcome:
        """Never raises but for the cancellation of this task."""
        exchange, account = self._exchange, self._account
        account.node_id = self._connector.node_id(self._peer)
        ending, sentence = None, ""
        try:
            await self._session()
        except asyncio.CancelledError:
            exchange.ended(account, "the node stopped the session")
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the operator is told
            ending, sentence = self._failure(error)
        outcome = exchange.ended(account, sentence, ending)
        await exchange.state(account, outcome)
        return outcome

    async def _session(self) -> None:
        opened = self._exchange.sessions.begin(
            self._exchange.environment.steady_ns(), self._peer.target, self._account.node_id
        )
        if isinstance(opened, Refusal):
            raise _Declined(opened)
        self._exchange.stop(opened.ended)
        session = opened.session
        with self._exchange.driving(session):
            try:
                session_id = await self._reconcile(session)
            except NameLearned:
                session_id = await self._reconcile(session)
            if session.state is State.READY:
                await self._transfer(session, session_id)

    async def _reconcile(self, session: Session) -> str:
        """Find the differences; returns what the responder calls the session."""
        identify = partial(self._identify, session)
        async with time_limit(), self._connector.call(self._peer, RECONCILE, identify) as call:
            result, session_id = await self._exchange_frames(call)
            # The view is given back by now: the peer may take its time to end the call.
            if result.rounds:
                await end_of_frames(call, self._work.silence_s)
        if result.refusal:
            sentence = f"the peer at {self._peer} will not reconcile: {result.refusal}"
            raise _Declined(Refusal(Refused.BUSY, sentence))
        if (len(result.to_send) or len(result.to_receive)) and not session_id:
            raise ProtocolBroken("the peer has not named the session")
        now_ns = self._exchange.environment.steady_ns()
        self._exchange.sessions.reconciled(now_ns, session, result.to_send, result.to_receive)
        return session_id

    def _identify(self, session: Session, callee: Named) -> None:
        account = self._account
        account.node_id, account.store_id = callee.node_id, callee.store_id
        known = self._exchange.sessions.identify(
            self._exchange.environment.steady_ns(), session, callee.node_id, callee.store_id
        )
        if isinstance(known, Accepted):
            self._exchange.stop(known.ended)
        else:
            raise _Declined(known)

    async def _exchange_frames(self, call: FrameStream) -> tuple[Result, str]:
        work = self._work
        self._account.opened_ns = self._exchange.environment.now_ns()
        async with work.reconcilable.open_view(*self._bounds, recent=True) as view:
            self._account.horizon = work.horizon(view)
            reconciling = self._exchange.reconciling(
                Role.INITIATOR, call, view, self._account, window=self._bounds
            )
            result = await reconciling.begin()
            self._exchange.concluded(self._account, reconciling, result)
            await self._exchange.compare(self._account, view, result)
            return result, reconciling.frames.session_id

    async def _transfer(self, session: Session, session_id: str) -> None:
        def demand_the_same(callee: Named) -> None:
            if callee.node_id != session.node_id:
                raise ProtocolBroken(
                    f"the node at {self._peer} was {session.node_id} and is {callee.node_id} now"
                )

        async with self._connector.call(self._peer, TRANSFER, demand_the_same) as call:
            now_ns = self._exchange.environment.steady_ns()
            self._exchange.sessions.transferring(now_ns, session, session_id)
            machine = await self._exchange.machine(session, self._account)
            self._account.report = machine.report
            self._account.report = await transfer(machine, call, self._work.transfer)

    def _failure(self, error: Exception) -> tuple[SyncEnding, str]:
        """What goes wrong, as the outcome has it; lost to another session it is no failure."""
        match error:
            case GaveWay():
                return SyncEnding.ABORTED, ""
            case CallFailed() if error.aborted:
                return SyncEnding.ABORTED, ""
            case _Declined() if error.refusal.kind is Refused.ABORTED:
                return SyncEnding.ABORTED, ""
            case _Declined():
                return SyncEnding.REFUSED, str(error)
            case CallFailed():
                sentence = str(error)
            case MalformedPayload() | LimitExceeded() | MalformedFrame() | FrameTooLarge():
                sentence = f"what the peer at {self._peer} sends is refused: {error}"
            case PeerFailed():
                sentence = f"the session with {self._peer} failed: {error}"
            case StoreUnavailable() | StoreBusy():
                sentence = f"the database of this node does not serve: {error}"
            case _:
                log = self._exchange.environment.log
                log.error("session_crashed", peer=str(self._peer), exc_info=error)
                sentence = "this node failed on the session: its log says where"
        return SyncEnding.FAILED, sentence
