"""A session that this node begins.

The initiator names itself, reconciles over one fixed view, gives the view back, and transfers. It
learns who answers with the first answer at the latest, before it uses or transfers anything.
Whatever the peer does becomes a `SyncOutcome`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

from reconcile.errors import MalformedPayloadError as MalformedPayload
from reconcile.errors import PayloadLimitError as LimitExceeded
from reconcile.ids import LOWEST
from reconcile.session import Bounds, Role
from store.domain.ports import (
    CallFailed,
    Connector,
    FrameStream,
    Named,
    PeerAddress,
    PeerFailed,
    StoreBusy,
    StoreUnavailable,
    SyncEnding,
    SyncOutcome,
    SyncRole,
    Window,
)
from store.sync.errors import (
    FrameTooLargeError,
    GaveWayError,
    MalformedFrameError,
    ProtocolBrokenError,
)
from store.sync.session.exchange import Exchange
from store.sync.session.reconciliation import end_of_frames, time_limit
from store.sync.session.registry import PeerSession, RefusalKind, SessionRefusal, SessionState
from store.sync.session.report import SessionReport
from storenode.message.limits import MAX_TIMESTAMP_NS
from storenode.wire.storenode.v1 import peer_pb2

_PEER: Final = peer_pb2.DESCRIPTOR.services_by_name["Peer"].full_name
RECONCILE: Final = f"/{_PEER}/Reconcile"
TRANSFER: Final = f"/{_PEER}/Transfer"


class _DeclinedError(Exception):
    """The registry of this node, or the peer, refuses the session."""

    def __init__(self, refusal: SessionRefusal) -> None:
        super().__init__(refusal.sentence)
        self.refusal = refusal


_Call = Callable[[str, Callable[[Named], None]], AbstractAsyncContextManager[FrameStream]]


async def initiate(
    connector: Connector, exchange: Exchange, peer: PeerAddress, window: Window
) -> SyncOutcome:
    """Run one session with a peer; raise only for the cancellation of this task."""
    end_ns = min(window.time_end_ns, MAX_TIMESTAMP_NS)
    bounds = (max(0, window.time_start_ns), LOWEST[1]), (end_ns, LOWEST[1])
    report = SessionReport(
        SyncRole.INITIATOR,
        exchange.environment.steady_ns(),
        peer=str(peer),
        node_id=connector.node_id(peer),
        asked_from=bounds[0],
    )
    try:
        await _run(exchange, partial(connector.call, peer), report, peer.target, bounds)
    except asyncio.CancelledError:
        report.error = "the node stopped the session"
        exchange.ended(report)
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the operator is told
        report.ending, report.error = _failure(exchange, report.peer, error)
    outcome = exchange.ended(report)
    await exchange.state(report)
    return outcome


async def _run(
    exchange: Exchange, call: _Call, report: SessionReport, target: str, bounds: Bounds
) -> None:
    opened = exchange.sessions.begin(exchange.environment.steady_ns(), target, report.node_id)
    if isinstance(opened, SessionRefusal):
        raise _DeclinedError(opened)
    exchange.stop(opened.ended)
    session = opened.session
    with exchange.driving(session):
        session_id = await _reconcile(exchange, call, report, session, bounds)
        if session.state is SessionState.READY:
            await _transfer(exchange, call, report, session, session_id)


async def _reconcile(
    exchange: Exchange, call: _Call, report: SessionReport, session: PeerSession, bounds: Bounds
) -> str:
    """Find the differences; return the responder's name of the session."""

    def identify(callee: Named) -> None:
        report.node_id, report.store_id = callee.node_id, callee.store_id
        now_ns = exchange.environment.steady_ns()
        known = exchange.sessions.identify(now_ns, session, callee.node_id, callee.store_id)
        if isinstance(known, SessionRefusal):
            raise _DeclinedError(known)
        exchange.stop(known.ended)

    work = exchange.work
    async with time_limit(), call(RECONCILE, identify) as stream:
        report.opened_ns = exchange.environment.now_ns()
        async with work.reconcilable.open_view(*bounds, recent=True) as view:
            report.horizon = work.horizon(view)
            reconciliation = exchange.reconciliation(
                Role.INITIATOR, stream, view, report, window=bounds
            )
            result = await reconciliation.initiate()
            exchange.concluded(report, reconciliation, result)
            await exchange.measure(report, view)
        # The view is given back by now: the peer may take its time to end the call.
        if result.rounds:
            await end_of_frames(stream, work.silence_s)
    if result.refusal:
        sentence = f"the peer at {report.peer} will not reconcile: {result.refusal}"
        raise _DeclinedError(SessionRefusal(RefusalKind.BUSY, sentence))
    session_id = reconciliation.session_id
    if (len(result.to_send) or len(result.to_receive)) and not session_id:
        raise ProtocolBrokenError("the peer has not named the session")
    now_ns = exchange.environment.steady_ns()
    exchange.sessions.reconciled(now_ns, session, result.to_send, result.to_receive)
    return session_id


async def _transfer(
    exchange: Exchange, call: _Call, report: SessionReport, session: PeerSession, session_id: str
) -> None:
    def require_same(callee: Named) -> None:
        if callee.node_id != session.node_id:
            raise ProtocolBrokenError(
                f"the node at {report.peer} was {session.node_id} and is {callee.node_id} now"
            )

    async with call(TRANSFER, require_same) as stream:
        now_ns = exchange.environment.steady_ns()
        exchange.sessions.transferring(now_ns, session, session_id)
        transfer = await exchange.transfer(session, report)
        await transfer.run(stream)


def _failure(exchange: Exchange, peer: str, error: Exception) -> tuple[SyncEnding, str]:
    """Return the ending and the sentence for an error; yielding to another session is none."""
    match error:
        case GaveWayError():
            return SyncEnding.ABORTED, ""
        case CallFailed() if error.aborted:
            return SyncEnding.ABORTED, ""
        case _DeclinedError() if error.refusal.kind is RefusalKind.ABORTED:
            return SyncEnding.ABORTED, ""
        case _DeclinedError():
            return SyncEnding.REFUSED, str(error)
        case CallFailed():
            sentence = str(error)
        case MalformedPayload() | LimitExceeded() | MalformedFrameError() | FrameTooLargeError():
            sentence = f"what the peer at {peer} sends is refused: {error}"
        case PeerFailed():
            sentence = f"the session with {peer} failed: {error}"
        case StoreUnavailable() | StoreBusy():
            sentence = f"the database of this node does not serve: {error}"
            return SyncEnding.UNAVAILABLE, sentence
        case _:
            exchange.environment.log.error("session_crashed", peer=peer, exc_info=error)
            sentence = "this node failed on the session: its log says where"
    return SyncEnding.FAILED, sentence
