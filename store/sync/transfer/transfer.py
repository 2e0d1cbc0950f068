"""The transfer of what a reconciliation found, both ways, over one stream: the same on both sides.

Source: WAKU-SYNC, "Transfer Protocol", and the node's contract (the schema of ``TransferFrame``).

Rules.

1. Only what the session found missing is stored, each message once: its hash, which admission has
   computed again, is that of an ID that is expected, and its timestamp too. Anything else is
   refused by name, counted, and ends the transfer when it is too much.
2. Every ID that is expected is answered once: ``stored`` when it is durable, whichever way it came,
   or ``refused`` with the reason. When the peer is done, what has not come is looked up, and
   refused as "not received" where it is not held.
3. Every ID to send is answered once by the peer. An answer to anything else, or a second one, is a
   fault of the peer.
   A message that is not stored since another one has its hash is refused as a conflict, and the two
   sides are not equal then.
4. What policy refuses is remembered on both sides (`PolicyMemory`): it is answered at once in later
   sessions, and not sent.
5. At most `TransferLimits.unsent_bytes` are read ahead of the stream, and at most one frame is
   under way to it. While `unstored_bytes` or `unstored_pieces` wait for the database, the stream is
   not read (`reading`). Answers wait as places of IDs. So memory does not depend on what the peer
   does.
6. It ends when both sides are done and all is answered; when it takes too long
   (`Patience`); at a fault; or when the stream or the database is lost. What
   was persisted stays, and the next reconciliation does not find it. A stream that is lost when all
   is answered was only closed: who has everything first need not wait for the other.
7. Where this side's result is ``partial``, since there are more differences than it may report, the
   peer may have found others, if its limit is another one. Then messages that are not expected are
   refused by name, a few at a time, and answers about others passed over, and none is a fault.

A peer is silent until a frame has something in it that counts: an expected message, an answer, or
the word that it is done.

A task reads the stream; others write a frame, load, look up and store. Whatever one of them comes
back with is taken in between two awaits, and `Transfer._go_on` then begins what has become due. A
piece of a frame is taken in before the next is read, and none is read while too much waits, so that
gRPC's flow control holds the peer back.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from reconcile.ids import SyncIds
from store.domain.admission import Admission
from store.domain.environment import Environment
from store.domain.ports import NotServingError, PeerError, Source, StoreBusyError, Writer
from store.sync.errors import Fault, ProtocolBrokenError, SessionFaultError
from store.sync.frames import Piece, pieces
from store.sync.limits import (
    BUSY_PATIENCE_S,
    FIRST_BUSY_PAUSE_S,
    FRAME_RESERVE_BYTES,
    LAST_WORDS_S,
    LONGEST_BUSY_PAUSE_S,
    MAX_FRAME_BYTES,
    PEER_CLOSING_S,
    TRANSFER_TICK_S,
    TransferLimits,
)
from store.sync.peers import FrameStream
from store.sync.session.registry import PeerSession
from store.sync.session.report import SyncObserver
from store.sync.transfer.halves import Accepted, Answer, Receiving, Sending
from store.sync.transfer.policy_memory import PolicyMemory
from storenode.common.backoff import Backoff
from storenode.message.limits import HASH_BYTES, NS_PER_S
from storenode.message.rules import Policy
from storenode.wire.storenode.internal.v1.transfer_raw_pb2 import RawTransferFrame
from storenode.wire.storenode.v1.peer_pb2 import TransferRefusal

DEFAULT_LIMITS: Final = TransferLimits()

_STORED_BYTES: Final = 2 + HASH_BYTES
_REFUSED_BYTES: Final = 12 + HASH_BYTES
"""An answer in a frame at most, without the reason."""

_BROKEN: Final = (Fault.PROTOCOL, Fault.LIMIT)
_NOT_IN_VAIN: Final = "what was stored stays, and the next session goes on"

_T = TypeVar("_T")


class TransferReads(Protocol):
    """Messages by ID, for a transfer to a peer."""

    async def load(self, ids: SyncIds, max_bytes: int) -> list[bytes | None]:
        """Return encoded ``WakuMessageAndTopic`` of the first IDs: as many as fit, at least one.

        None stands for a message that is not held any more. ``ids`` ascend. Fewer than are asked
        for come also where there are very many; the rest is asked for again.
        """

    async def are_stored(self, ids: SyncIds) -> list[bool]:
        """Return for each of ascending IDs if the message is stored."""


@dataclass(frozen=True, slots=True)
class TransferWork:
    """The parts that a transfer works on.

    ``policy``: the node's rules as they stand for clients, horizon included.
    """

    reads: TransferReads
    writer: Writer
    policy: Callable[[], Policy]
    observer: SyncObserver
    environment: Environment
    transfer_limits: TransferLimits = DEFAULT_LIMITS


class Transfer:
    """The transfer of what a session has found, made in half a second for a million IDs each way.

    The report of the session is filled on the way, and final when `run` has ended. The result is
    partial (rule 7) where differences are left over.
    """

    def __init__(self, session: PeerSession, work: TransferWork, memory: PolicyMemory) -> None:
        report, limits = session.report, work.transfer_limits
        # The caller names the session at once; the callee with what it has to send first.
        self._is_caller = session.own
        self._partial = report.left_over
        self.session_id = session.session_id
        self._report = report
        self._wait = functools.partial(session.wait, work.environment.steady_ns)
        self._work = work
        self._limits = limits
        self._sending = Sending(session.to_send, limits, report, memory)
        self._receiving = Receiving(session.to_receive, limits, report, memory)
        self._named = False  # this side has sent a frame
        self._answered = False  # the peer has
        self._writing = False
        self._done = False

    async def run(self, stream: FrameStream, first: bytes | None = None) -> None:
        """Transfer to the end, whatever that is: `SessionReport.error` says it.

        Cancelling it ends all that it does; what is stored stays. ``first``: a frame that was read.
        """
        self._stream = stream
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readable = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        now_ns = self._work.environment.now_ns()
        self._receiving.decline(now_ns)
        self._sending.withhold(now_ns)
        steady_ns = self._work.environment.steady_ns()
        self._patience = Patience(self._limits, steady_ns, self._open_ids)
        self._reader = self._spawn(self._read(first))
        del first
        self._ticks = asyncio.get_running_loop().call_later(TRANSFER_TICK_S, self._tick)
        try:
            if self._is_caller:
                self._go_on()
            await self._ended
            if not self._report.fault:
                await self._close()
        finally:
            await self._stop()

    def check(self) -> None:
        """Verify the invariants of both halves, and the bounds of rule 5.

        Raises:
            AssertionError: one is broken.
        """
        self._sending.check()
        self._receiving.check()
        assert not self._ended.done() or self._report.fault or self._partial or self._is_complete()
        assert self._named or not (self._writing or self._done)

    # The course of a transfer

    def _take(self, step: Callable[..., None] | None = None, *given: object) -> None:
        """Take in what has come, unless the end has come before it, and begin what is due."""
        if self._ended.done():
            return
        is_own_work = self._receiving.looks or self._sending.loading
        steady_ns = self._work.environment.steady_ns()
        self._patience.pass_time(steady_ns, waiting=not is_own_work)
        if step is not None:
            step(*given)
        self._go_on()

    def _go_on(self) -> None:
        """Begin what is due."""
        missing, reads = self._receiving.find(), self._work.reads
        if missing is not None:
            self._spawn(self._read_stored(self._receiving.found, reads.are_stored, missing))
        load = self._sending.load()
        if load is not None:
            self._spawn(self._read_stored(self._sending.loaded, reads.load, *load))
        frame = None if self._writing else self._frame()
        if frame is not None:
            self._writing = self._named = True
            self._spawn(self._write(frame))
        elif not self._writing and self._is_complete():
            self._end(Fault.NONE, "")
        if self._receiving.reading:
            self._readable.set()
        else:
            self._readable.clear()

    def _is_complete(self) -> bool:
        return self._done and self._receiving.peer_is_done and not self._open_ids

    def _lose(self, sentence: str) -> None:
        """End without the stream, or the database: well if nothing is open (rule 6).

        A peer whose result was cut elsewhere (rule 7) does not wait for answers about what only
        this side has found missing.
        """
        both_done = self._done and self._receiving.peer_is_done and not self._sending.unanswered
        is_well = self._is_complete() or (self._partial and both_done)
        self._end(Fault.NONE if is_well else Fault.LOST, "" if is_well else sentence)

    def _end(self, fault: Fault, sentence: str) -> None:
        if self._ended.done():
            return
        report = self._report
        report.fault, report.error = fault, sentence
        report.unanswered = self._sending.unanswered
        report.outstanding = self._receiving.outstanding
        report.reasons_of_peer = tuple(self._sending.reasons)
        report.refused_by_peer = +report.refused_by_peer
        self._ended.set_result(None)

    async def _close(self) -> None:
        """Close this side, and wait for the other to do the same; nothing depends on it."""
        with suppress(PeerError):
            await self._stream.half_close()
        # Who is called ends the call, and waits with that for the caller's half-close: a call that
        # ends while the last frame is on its way makes that frame seem to have failed.
        await asyncio.wait({self._reader}, timeout=PEER_CLOSING_S)

    async def _stop(self) -> None:
        self._ticks.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # The end of a task keeps its frames, which keep the transfer: without a cut here, frames of
        # 64 MiB pile up until the garbage collector finds them.
        del self._reader, self._ended

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._watch(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # cancelled at once, it was never awaited
        return task

    async def _watch(self, work: Awaitable[None]) -> None:
        """Let the error of a part end the whole."""
        try:
            await work
        except SessionFaultError as error:
            self._end(error.fault, str(error))
        except NotServingError as error:
            self._lose(f"the database of this node does not serve: {error}")
        except Exception as error:  # noqa: BLE001 - the caller of the transfer gets it
            if not self._ended.done():
                self._ended.set_exception(error)

    def _tick(self) -> None:
        """Count what has moved, and see whether there is time left; every few seconds."""
        self._ticks = asyncio.get_running_loop().call_later(TRANSFER_TICK_S, self._tick)
        self._work.observer.session_progressed(self._report)
        try:
            self._take(self._patience.check_time, self._open_ids)
        except SessionFaultError as error:
            self._end(error.fault, str(error))

    @property
    def _open_ids(self) -> int:
        return self._sending.unanswered + self._receiving.outstanding

    # The stream

    async def _read(self, frame: bytes | None) -> None:
        try:
            while frame is not None or (frame := await self._wait(self._stream.read())) is not None:
                for piece in pieces(frame):
                    self._take(self._receive, piece)
                    await self._readable.wait()
                frame = None
                del piece
        except PeerError as error:
            if isinstance(error, SessionFaultError) and error.fault in _BROKEN:
                self._end(error.fault, str(error))
            self._lose(str(error))
        else:
            self._lose("the peer ended the transfer before everything was answered")

    def _receive(self, piece: Piece) -> None:
        """Take in a piece of a frame: its answers, then its messages.

        Raises:
            SessionFaultError: it breaks the rules.
        """
        frame, size_bytes = piece
        if frame.session_id != self.session_id and (frame.session_id or not self._answered):
            raise ProtocolBrokenError("the frame names another session, or the first one none")
        sending, receiving = self._sending, self._receiving
        now_ns = self._work.environment.now_ns()
        admission = Admission(self._work.policy(), now_ns, Source.TRANSFER)
        if frame.messages:
            admission.admit(frame.messages)
        answers: list[Answer] = [(digest, None) for digest in frame.stored]
        answers += [(each.message_hash, each.reason) for each in frame.refused]
        before = receiving.news, receiving.peer_is_done, sending.unanswered, self._answered
        sending.answered(now_ns, answers, partial=self._partial)
        accepted = receiving.receive(now_ns, admission.admitted, size_bytes)
        if accepted is not None:
            self._spawn(self._persist(accepted))
        receiving.peer_is_done = receiving.peer_is_done or frame.done
        self._answered = True
        if receiving.news > before[0]:
            self._patience.moved_bytes += size_bytes
        after = receiving.news, receiving.peer_is_done, sending.unanswered, self._answered
        if after != before:
            self._patience.restart()

    def _frame(self) -> RawTransferFrame | None:
        """Return the next frame to send, if there is one."""
        stored, refused = self._receiving.answers.take(self._limits.frame_answers)
        room = MAX_FRAME_BYTES - FRAME_RESERVE_BYTES - _STORED_BYTES * len(stored)
        room -= sum(_REFUSED_BYTES + len(reason.encode()) for _, reason in refused)
        messages = self._sending.take(room, alone=not stored and not refused)
        done = not self._done and self._sending.exhausted
        must_name = self._is_caller and not self._named
        if not (messages or stored or refused or done or must_name):
            return None
        self._done = self._done or done
        session_id = "" if self._named else self.session_id
        return RawTransferFrame(
            session_id=session_id,
            messages=messages,
            stored=stored,
            refused=[TransferRefusal(message_hash=digest, reason=why) for digest, why in refused],
            done=done,
        )

    async def _write(self, frame: RawTransferFrame) -> None:
        try:
            await self._wait(self._stream.write(frame.SerializeToString()))
        except PeerError as error:
            # What the peer has said before it left is heard first; the reader also knows why.
            await asyncio.wait({self._reader}, timeout=LAST_WORDS_S)
            self._lose(str(error))
        else:
            self._writing = False
            self._patience.moved_bytes += sum(map(len, frame.messages))
            self._take()

    # The database

    async def _persist(self, accepted: Accepted) -> None:
        store = functools.partial(self._work.writer.store, accepted.batch, Source.TRANSFER)
        self._take(self._receiving.persisted, accepted, await patiently(store))

    async def _read_stored(
        self, step: Callable[[_T], None], read: Callable[..., Awaitable[_T]], *given: object
    ) -> None:
        self._take(step, await patiently(functools.partial(read, *given)))


async def patiently(work: Callable[[], Awaitable[_T]]) -> _T:
    """Run work that a busy store refuses until it takes it: others fill it for moments.

    Raises:
        StoreBusyError: it was busy for `BUSY_PATIENCE_S`.
    """
    waited_s, backoff = 0.0, Backoff(FIRST_BUSY_PAUSE_S, LONGEST_BUSY_PAUSE_S)
    while True:
        try:
            return await work()
        except StoreBusyError:
            if waited_s >= BUSY_PATIENCE_S:
                raise
        waited_s += backoff.pause_s
        await asyncio.sleep(backoff.take())


class Patience:
    """The patience of a transfer with a peer that sends little, or nothing.

    Three limits, of which the first two count only time in which it is the peer's turn: no word for
    `TransferLimits.silence_ns`; too little moved in `pace_ns`, so that a peer which lets messages
    trickle does not keep a session for itself; and `total_ns` in all. What ends so was not in vain:
    what is stored stays, and the next session finds the rest. Times are nanoseconds of a monotonic
    clock.

    Attributes:
        moved_bytes: bytes of messages that have moved since the pace was checked last.
    """

    def __init__(self, limits: TransferLimits, now_ns: int, open_ids: int) -> None:
        self._limits = limits
        self._began_ns = self._now_ns = self._news_ns = now_ns
        self._waited_ns, self._open_ids = 0, open_ids
        self.moved_bytes = 0

    def pass_time(self, now_ns: int, *, waiting: bool) -> None:
        """Set the time; ``waiting``: up to now it was for the peer to do something."""
        if waiting:
            self._waited_ns += now_ns - self._now_ns
        else:
            self._news_ns = now_ns
        self._now_ns = now_ns

    def restart(self) -> None:
        """Note that the peer has just sent something that counts."""
        self._news_ns = self._now_ns

    def check_time(self, open_ids: int) -> None:
        """Check that there is time left; ``open_ids``: IDs that are not settled.

        Raises:
            SessionFaultError: there is not.
        """
        limits, silent_ns = self._limits, self._now_ns - self._news_ns
        if silent_ns >= limits.silence_ns:
            raise SessionFaultError(
                Fault.SILENCE,
                f"the peer has said nothing for {silent_ns // NS_PER_S} s: {_NOT_IN_VAIN}; if it "
                "needs longer for an answer, see to its database, or give --peer-silence on both",
            )
        if self._now_ns - self._began_ns >= limits.total_ns:
            raise SessionFaultError(
                Fault.SLOW,
                f"the transfer was not done within {limits.total_ns // NS_PER_S} s: {_NOT_IN_VAIN}",
            )
        if self._waited_ns < limits.pace_ns:
            return
        settled, size_bytes = self._open_ids - open_ids, self.moved_bytes
        if settled < min(limits.pace_ids, self._open_ids) and size_bytes < limits.pace_bytes:
            raise SessionFaultError(
                Fault.SLOW,
                f"the transfer moved {settled:,} messages and {size_bytes:,} bytes in "
                f"{limits.pace_ns // NS_PER_S} s, and {limits.pace_ids:,} or "
                f"{limits.pace_bytes:,} are due: {_NOT_IN_VAIN}",
            )
        self._waited_ns, self._open_ids, self.moved_bytes = 0, open_ids, 0
