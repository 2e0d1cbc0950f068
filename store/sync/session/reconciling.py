"""Drives a `reconcile.session.Session`: between a stream of frames and a view of what is held.

The sides alternate, one frame each; nothing is read ahead of the own answer. A peer that neither
sends nor takes a frame for a minute (`silence_s`) has left, and a reconciliation ends after
`MAX_RECONCILE_S` in any case. Large payloads are worked on beside the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from reconcile.algorithm.questions import asked_about
from reconcile.codec import decode
from reconcile.ids import SyncId
from reconcile.limits import CodecLimits
from reconcile.session import Input, ReadEffect, Result
from reconcile.session import PayloadReceived as Received
from reconcile.session import ReadAnswered as Answered
from reconcile.session import ReconcileSession as Session
from reconcile.session import SendPayload as Send
from reconcile.session import SessionEnded as Ended
from reconcile.view import ViewAnswer as Answer
from reconcile.view import ViewRead as Read
from store.domain.ports import FrameStream, SyncObserver
from store.sync.errors import PeerSilent, ProtocolBroken, shown
from store.sync.frames import Extension, Reconcile, is_session_id
from store.sync.index.reading import in_thread_if
from store.sync.limits import (
    FIRST_FRAME_S,
    MAX_RECONCILE_S,
    THREADED_PAYLOAD_BYTES,
    THREADED_ROWS,
)
from store.sync.session.agreement import Agreement

_T = TypeVar("_T")


@dataclass(slots=True)
class Frames:
    """The frames of one session, in the driver's terms.

    ``session_id``: what this responder tells the initiator; of an initiator, what it was told.
    Bytes are those of payloads, and of what takes their place in the compact mode.
    """

    stream: FrameStream
    observer: SyncObserver
    responder: bool
    silence_s: float
    session_id: str = ""
    sent_bytes: int = 0
    received_bytes: int = 0
    _first: bool = field(default=True, init=False)

    async def send(self, effect: Send, extension: Extension | None = None) -> None:
        """Send what a session says, with an extension."""
        first, self._first = self._first, False
        session_id = self.session_id if first and self.responder and not effect.refusal else ""
        count = effect.count if first else None
        frame = Reconcile(effect.payload, session_id, effect.refusal, count, extension)
        await in_time(self.stream.write(frame.encode()), self.silence_s)
        self.sent_bytes += frame.size_bytes
        self.observer.sync_bytes("sent", frame.size_bytes)

    async def receive(self) -> Reconcile:
        """The next frame.

        Raises:
            PeerFailed: there is none, or it breaks the protocol.
        """
        data = await in_time(self.stream.read(), self.silence_s)
        if data is None:
            raise ProtocolBroken("the peer left when it was its turn to answer")
        frame = Reconcile.parse(data)
        if not self.responder:
            self._learn(frame)
        self.received_bytes += frame.size_bytes
        self.observer.sync_bytes("received", frame.size_bytes)
        return frame

    def _learn(self, frame: Reconcile) -> None:
        """Take the name of the session from the responder's first frame."""
        if self.session_id and frame.session_id not in ("", self.session_id):
            raise ProtocolBroken("the peer gives the session another name in the middle of it")
        if not self.session_id and not frame.refusal and not is_session_id(frame.session_id):
            raise ProtocolBroken("the peer's first frame does not name the session")
        self.session_id = self.session_id or frame.session_id


Answerer = Callable[[Read], Awaitable[Answer]]
Turns = Callable[[int], AbstractAsyncContextManager[None]]
Extending = Callable[[Result | None], Awaitable[Extension | None]]


@dataclass(slots=True)
class Driving:
    """Drives sessions to their ends, over the frames of one reconciliation.

    ``turn``: around the work on a payload of so many bytes. ``agreement``: hears every frame of the
    peer; None in clear text.
    """

    frames: Frames
    now_ns: Callable[[], int]
    turn: Turns
    agreement: Agreement | None

    async def run(
        self, session: Session, answer: Answerer | None, extending: Extending, first: Input
    ) -> tuple[Result, bool]:
        """Go on to the end; True: the peer said the last word.

        ``answer``: what is held; None where nothing is asked. ``extending``: the extension of the
        own next frame, told the result where it is the last one.

        Raises:
            MalformedPayload: the peer sent what is none.
            LimitExceeded: the peer sent too much.
            PeerFailed: the peer left, or broke the protocol.
        """
        given = first
        while True:
            result, said = await self.say(session, answer, extending, given)
            if result is not None:
                return result, not said
            given = received(await self.next())

    async def say(
        self, session: Session, answer: Answerer | None, extending: Extending, given: Input
    ) -> tuple[Result | None, bool]:
        """Answer an input; the result, where that is all, and whether something was sent."""
        size_bytes = len(given.payload) if isinstance(given, Received) else 0
        async with self.turn(size_bytes):
            effects = await in_thread_if(_is_large(given), session.step, self.now_ns(), given)
            while isinstance(read := effects[0], ReadEffect):
                # A first payload of Skips only opens no view, and needs no answer.
                given = Answered(Answer() if answer is None else await answer(read.read))
                effects = await in_thread_if(_is_large(given), session.step, self.now_ns(), given)
        result = effects[-1].result if isinstance(effects[-1], Ended) else None
        said = [effect for effect in effects if isinstance(effect, Send)]
        for effect in said:
            extension = None if effect.refusal else await extending(result)
            await self.frames.send(effect, extension)
        return result, bool(said)

    async def next(self) -> Reconcile:
        """The peer's next frame; raises as `Frames.receive`."""
        frame = await self.frames.receive()
        if self.agreement is not None:
            self.agreement.hear(frame)
        return frame


def received(frame: Reconcile) -> Received:
    """A frame of the peer as an input of the session."""
    return Received(frame.payload, frame.count, shown(frame.refusal))


async def first_frame(stream: FrameStream, observer: SyncObserver) -> Reconcile | None:
    """The frame with which an initiator begins; None: it has nothing to ask.

    Raises:
        PeerFailed: it leaves instead.
    """
    data = await in_time(stream.read(), FIRST_FRAME_S)
    if data is None:
        return None
    frame = Reconcile.parse(data)
    observer.sync_bytes("received", frame.size_bytes)
    return frame


async def end_of_frames(stream: FrameStream, silence_s: float) -> None:
    """An initiator that is done says so, and waits until the responder has ended the call.

    Raises:
        PeerFailed: it fails, or goes on.
    """
    await stream.half_close()
    if await in_time(stream.read(), silence_s) is not None:
        raise ProtocolBroken("the peer goes on after the end of the reconciliation")


async def asked_range(payload: bytes, limits: CodecLimits) -> tuple[SyncId, SyncId] | None:
    """What an initiator's first payload is about, from the end of its leading Skip on.

    None: it asks nothing.

    Raises:
        MalformedPayload: it is no payload.
        LimitExceeded: it is too large.
    """
    return await in_thread_if(len(payload) > THREADED_PAYLOAD_BYTES, _asked_range, payload, limits)


def _asked_range(payload: bytes, limits: CodecLimits) -> tuple[SyncId, SyncId] | None:
    return asked_about(decode(payload, limits).ranges)


@asynccontextmanager
async def time_limit() -> AsyncIterator[None]:
    """Around a whole reconciliation."""
    try:
        async with asyncio.timeout(MAX_RECONCILE_S) as scope:
            yield
    except TimeoutError:
        if not scope.expired():
            raise
        raise PeerSilent(
            f"the reconciliation was not done within {MAX_RECONCILE_S:.0f} s: reconcile a shorter "
            "window"
        ) from None


async def in_time(work: Awaitable[_T], silence_s: float) -> _T:
    """Wait for a frame to come, or to be taken, for so many seconds.

    Raises:
        PeerSilent: neither happens.
    """
    try:
        async with asyncio.timeout(silence_s):
            return await work
    except TimeoutError:
        raise PeerSilent(
            f"the peer has said nothing for {silence_s:.0f} s: see what keeps it, or give "
            "--peer-silence on both nodes if it needs longer for an answer"
        ) from None


def _is_large(given: Input) -> bool:
    match given:
        case Received():
            return len(given.payload) > THREADED_PAYLOAD_BYTES
        case Answered(answer):
            measured, parts, items, probed = (
                answer.measured,
                answer.parts,
                answer.items,
                answer.probed,
            )
            rows = (
                (0 if measured is None else len(measured.counts))
                + (0 if parts is None else len(parts.counts))
                + (0 if items is None else len(items.ids))
                + (0 if probed is None else len(probed.hit))
            )
            return rows > THREADED_ROWS
        case _:
            return False
