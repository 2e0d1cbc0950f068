"""The simulated network as drivers see it: calls of peers, and streams of frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import Any, Final

from reconcile.errors import MalformedPayloadError, PayloadLimitError
from sim.calls import CallClosedError, End, Identity, Status
from sim.marks import Mark
from sim.process import Process
from store.domain.places import Caller
from store.domain.ports import CursorOutOfRangeError, NotServingError, PeerAddress, PeerError
from store.gossip.driver.streams import (
    FrameRejectedError,
    StreamClosedError,
    StreamSupersededError,
    TurnedAwayError,
)
from store.sync.errors import CallFailedError, Fault, SessionFaultError
from store.sync.frames import pieces
from store.sync.session.exchange import TRANSFER

GOSSIP: Final = "Gossip"
"""The call that is silent while there is nothing to say."""

NOTICE_NS: Final = 1_000_000_000
"""The time within which a session ends after its stream has failed."""

_PATIENCE_SILENCES: Final = 2
_PATIENCE_NS: Final = 20_000_000_000
"""The longest wait for a frame beyond the limits of silence: a transfer checks the clock at
intervals, and the side that began a session lets the other end it first."""

_STATUSES: Final[tuple[tuple[type[Exception], Status], ...]] = (
    (MalformedPayloadError, Status.INVALID_ARGUMENT),
    (CursorOutOfRangeError, Status.OUT_OF_RANGE),
    (PayloadLimitError, Status.UNAVAILABLE),
    (NotServingError, Status.UNAVAILABLE),
    (PeerError, Status.UNAVAILABLE),
    (StreamSupersededError, Status.ABORTED),
    (TurnedAwayError, Status.FAILED_PRECONDITION),
    (FrameRejectedError, Status.FAILED_PRECONDITION),
    (StreamClosedError, Status.UNAVAILABLE),
)
_FAULTS: Final = {Fault.PROTOCOL: Status.INVALID_ARGUMENT, Fault.GAVE_WAY: Status.ABORTED}
"""The status of a fault of a session; all others are `Status.UNAVAILABLE`."""

Handler = Callable[["EndStream"], Awaitable[None]]


class StatusReceivedError(CallFailedError):
    """A call ended with another status than OK."""

    def __init__(self, status: Status, sentence: str) -> None:
        super().__init__(f"{status}: {sentence}", aborted=status is Status.ABORTED)
        self.status = status


class EndStream:
    """An end of a call as a `store.sync.peers.FrameStream`.

    What frames of a transfer call acknowledge is noted by the judge.

    Attributes:
        failed_ns: when this end noticed that it failed; None: it has not.
    """

    def __init__(
        self,
        process: Process,
        end: End,
        method: str,
        *,
        calls: bool,
        identified: Callable[[str, str], None] | None = None,
    ) -> None:
        self.failed_ns: int | None = None
        self._process = process
        self._end = end
        self._transfers = method == TRANSFER
        self._calls = calls
        self._identified = identified
        silences_ns = _PATIENCE_SILENCES * process.scenario.silence_ns
        self._patience_ns = inf if method == GOSSIP else silences_ns + _PATIENCE_NS

    @property
    def callee(self) -> Identity:
        """The identity of the other end."""
        return self._end.there

    @property
    def caller(self) -> Caller:
        """The other end, as a peer that calls."""
        return Caller(self.callee.node_id, self.callee.store_id, self.callee.node_id)

    async def read(self) -> Any:  # noqa: ANN401 - bytes, or the pages of a scan
        """Return the next frame; None after the last."""
        if self._identified is not None:
            self._identified(self.callee.node_id, self.callee.store_id)
            self._identified = None
        began_ns = self._process.timeline.now_ns
        try:
            return await self._end.read()
        except CallClosedError as error:
            raise self._failed(error) from None
        finally:
            self._judge_patience(began_ns)

    async def write(self, frame: Any) -> None:  # noqa: ANN401 - bytes, or the pages of a scan
        """Send a frame; waits while the other side does not read."""
        if self._transfers:
            for piece, _ in pieces(frame):
                self._process.judge.acknowledge(self._process.database, piece.stored)
        try:
            await self._end.send(frame)
        except CallClosedError as error:
            raise self._failed(error) from None

    async def half_close(self) -> None:
        """End the frames of this side."""
        if self._calls:
            self._end.half_close()

    def _judge_patience(self, began_ns: int) -> None:
        process = self._process
        if not process.life.ended:
            waited_ns = process.timeline.now_ns - began_ns
            process.judge.demand(
                waited_ns <= self._patience_ns,
                f"{process.name} has waited {waited_ns} ns for a frame",
            )

    def _failed(self, error: CallClosedError) -> StatusReceivedError:
        if self.failed_ns is None:
            self.failed_ns = self._process.timeline.now_ns
        return StatusReceivedError(error.status, error.sentence)


class SimConnector:
    """Makes calls of peers: a `store.sync.peers.Connector`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._names: dict[PeerAddress, str] = {}

    def node_id(self, peer: PeerAddress) -> str:
        """Return the ID that a peer gave when it last answered, else the configured one, or ""."""
        return self._names.get(peer, peer.node_id)

    @asynccontextmanager
    async def call(
        self,
        peer: PeerAddress,
        method: str,
        identified: Callable[[str, str], None] | None = None,
    ) -> AsyncIterator[EndStream]:
        """Begin a call; it is cancelled at the end if it still continues."""
        process, who = self._process, self._process.identity
        try:
            async with process.network.call(process.name, peer.host, method, who) as end:
                self._names[peer] = end.there.node_id
                stream = EndStream(process, end, method, calls=True, identified=identified)
                yield stream
        except CallClosedError as error:
            raise StatusReceivedError(error.status, error.sentence) from None
        _demand_notice(process, stream)


async def served(process: Process, end: End, method: str, work: Handler) -> None:
    """Serve one call: its status is what the work returns or raises."""
    stream = EndStream(process, end, method, calls=False)
    try:
        await work(stream)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        status = next((code for kind, code in _STATUSES if isinstance(error, kind)), None)
        if isinstance(error, SessionFaultError):
            status = _FAULTS.get(error.fault, Status.UNAVAILABLE)
        if status is None:
            raise
        if status is Status.INVALID_ARGUMENT:
            process.judge.fail(f"{process.name} accuses an honest peer: {error}")
        if status is Status.ABORTED:
            process.mark(Mark.GAVE_WAY)
        end.finish(status, str(error))
    else:
        end.finish()
    _demand_notice(process, stream)


def _demand_notice(process: Process, stream: EndStream) -> None:
    if stream.failed_ns is not None and not process.life.ended:
        late_ns = process.timeline.now_ns - stream.failed_ns
        process.judge.demand(
            late_ns <= NOTICE_NS,
            f"{process.name} goes on for {late_ns} ns after its stream has failed",
        )
