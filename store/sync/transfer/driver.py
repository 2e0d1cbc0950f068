"""Drives a `store.sync.transfer.core.Transfer`: between a stream, admission and the database.

One task takes inputs to the machine, one at a time; others read the stream, write it, load, look
up and store, and come back with what the machine then takes in. A piece of a frame is taken in
before the next is read, and none is read while the machine does not want it, so that gRPC's flow
control holds the peer back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from store.domain.admission import Admission
from store.domain.environment import Environment
from store.domain.ports import (
    ContentConflict,
    FrameStream,
    PeerFailed,
    Source,
    StoreBusy,
    StoreUnavailable,
    SyncObserver,
    TransferReads,
    Writer,
)
from store.sync.errors import FrameTooLargeError, ProtocolBrokenError
from store.sync.frames import encode_transfer, pieces
from store.sync.limits import (
    BUSY_PATIENCE_S,
    FIRST_BUSY_PAUSE_S,
    LAST_WORDS_S,
    LONGEST_BUSY_PAUSE_S,
    PEER_CLOSING_S,
    TRANSFER_TICK_S,
)
from store.sync.transfer.core import Transfer
from store.sync.transfer.events import (
    Begin,
    Counted,
    Direction,
    Effect,
    Find,
    Found,
    Frame,
    Input,
    Load,
    Loaded,
    MessageOutcome,
    Persist,
    Persisted,
    Report,
    SendFrame,
    SendReady,
    StreamLost,
    Ticked,
    TransferEnded,
    TransferFault,
    TransferReceived,
)
from storenode.common.backoff import Backoff
from storenode.message.rules import Policy

_SOURCE: Final = Source.TRANSFER.value

_T = TypeVar("_T")


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


async def transfer(machine: Transfer, stream: FrameStream, work: TransferWork) -> Report:
    """Run a transfer to its end, whatever that is: `Report.error` says it.

    Cancelling it ends everything that it does; what is stored stays.
    """
    driver = _Driver(machine, stream, work)
    try:
        report = await driver.run()
        if not report.fault:
            await driver.close()
        return report
    finally:
        await driver.stop()


async def patiently(work: Callable[[], Awaitable[_T]]) -> _T:
    """Run work that a busy store refuses until it takes it: others fill it for moments.

    Raises:
        StoreBusy: it was busy for `BUSY_PATIENCE_S`.
    """
    waited_s, backoff = 0.0, Backoff(FIRST_BUSY_PAUSE_S, LONGEST_BUSY_PAUSE_S)
    while True:
        try:
            return await work()
        except StoreBusy:
            if waited_s >= BUSY_PATIENCE_S:
                raise
        waited_s += backoff.pause_s
        await asyncio.sleep(backoff.take())


class _Driver:
    def __init__(self, machine: Transfer, stream: FrameStream, work: TransferWork) -> None:
        self._machine = machine
        self._stream = stream
        self._work = work
        self._inputs: asyncio.Queue[tuple[Input | Exception, asyncio.Event]] = asyncio.Queue()
        self._readable = asyncio.Event()
        self._fault = TransferFault.NONE
        self._ended = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._reader: asyncio.Task[None] | None = None

    async def run(self) -> Report:
        report = self._take(Begin(self._work.environment.now_ns()))
        self._reader = self._spawn(self._read)
        self._spawn(self._tick)
        while report is None:
            given, taken = await self._inputs.get()
            if isinstance(given, Exception):
                raise given
            report = self._take(given)
            taken.set()
        self._ended = True
        while not self._inputs.empty():
            self._inputs.get_nowait()[1].set()
        if report.fault is TransferFault.LOST and self._fault:
            report.fault = self._fault
        return report

    async def close(self) -> None:
        """Close this side, and wait for the other to do the same; nothing depends on it."""
        assert self._reader is not None
        with suppress(PeerFailed):
            await self._stream.half_close()
        # Who is called ends the call, and waits with that for the caller's half-close: a call that
        # ends while the last frame is on its way makes that frame seem to have failed.
        await asyncio.wait({self._reader}, timeout=PEER_CLOSING_S)

    async def stop(self) -> None:
        # A task past its last await must not block in `_give`.
        self._ended = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # The end of a task keeps its frames, which keep the driver: without a cut here, frames of
        # 64 MiB pile up until the garbage collector finds them.
        self._reader = None

    def _take(self, given: Input) -> Report | None:
        for effect in self._machine.step(self._work.environment.steady_ns(), given):
            if isinstance(effect, TransferEnded):
                return effect.report
            self._do(effect)
        if self._machine.reading:
            self._readable.set()
        else:
            self._readable.clear()
        return None

    def _do(self, effect: Effect) -> None:
        match effect:
            case SendFrame():
                self._spawn(partial(self._send, effect.frame))
            case Persist():
                self._spawn(partial(self._answer, partial(self._persist, effect)))
            case Load():
                self._spawn(partial(self._answer, partial(self._load, effect)))
            case Find():
                self._spawn(partial(self._answer, partial(self._find, effect)))
            case Counted():
                self._count(effect)

    def _spawn(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._watched(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _watched(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - who runs the transfer is told
            self._inputs.put_nowait((error, asyncio.Event()))

    async def _give(self, given: Input) -> None:
        """Wait until the machine has taken an input in; once it has ended, it takes none."""
        if self._ended:
            return
        taken = asyncio.Event()
        self._inputs.put_nowait((given, taken))
        await taken.wait()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TRANSFER_TICK_S)
            await self._give(Ticked())

    # The stream

    async def _read(self) -> None:
        try:
            while await self._read_frame():
                continue
        except PeerFailed as error:
            if isinstance(error, ProtocolBrokenError):
                self._fault = TransferFault.PROTOCOL
            elif isinstance(error, FrameTooLargeError):
                self._fault = TransferFault.LIMIT
            await self._give(StreamLost(str(error)))
        else:
            await self._give(
                StreamLost("the peer ended the transfer before everything was answered")
            )

    async def _read_frame(self) -> bool:
        """Take in one frame; False: there is none any more."""
        frame = await self._stream.read()
        if frame is None:
            return False
        for piece in pieces(frame):
            await self._give(self._judged(piece))
            await self._readable.wait()
        return True

    def _judged(self, piece: Frame) -> TransferReceived:
        admission = Admission(self._work.policy(), self._work.environment.now_ns(), Source.TRANSFER)
        if piece.messages:
            admission.admit(piece.messages)
        return TransferReceived(
            piece.session_id,
            admission.admitted,
            piece.size_bytes,
            piece.stored,
            piece.refused,
            piece.done,
        )

    async def _send(self, frame: Frame) -> None:
        try:
            await self._stream.write(encode_transfer(frame))
        except PeerFailed as error:
            # What the peer has said before it left is heard first; the reader also knows why.
            assert self._reader is not None
            await asyncio.wait({self._reader}, timeout=LAST_WORDS_S)
            await self._give(StreamLost(str(error)))
        else:
            await self._give(SendReady())

    # The database

    async def _answer(self, work: Callable[[], Awaitable[Input]]) -> None:
        try:
            given = await work()
        except (StoreUnavailable, StoreBusy) as error:
            given = StreamLost(f"the database of this node does not serve: {error}")
        await self._give(given)

    async def _persist(self, effect: Persist) -> Input:
        store = partial(self._work.writer.store, effect.batch, Source.TRANSFER)
        result = await patiently(store)
        batch = effect.batch
        conflicts = {
            at: ContentConflict(
                batch.timestamps[at], batch.hashes[at], stored, batch.content_digests[at]
            )
            for at, stored in result.conflicts.items()
        }
        return Persisted(effect.token, result, conflicts)

    async def _load(self, effect: Load) -> Input:
        load = partial(self._work.reads.load, effect.ids, effect.max_bytes)
        return Loaded(await patiently(load))

    async def _find(self, effect: Find) -> Input:
        return Found(await patiently(partial(self._work.reads.held, effect.ids)))

    # The metrics

    def _count(self, counted: Counted) -> None:
        count, work = counted.count, self._work
        work.observer.transferred(counted.direction, counted.outcome, count)
        if counted.direction is not Direction.RECEIVED:
            return
        counts = work.environment.counts
        if counted.outcome is MessageOutcome.DUPLICATE:
            counts.count_intake(_SOURCE, count, {})
        elif counted.reason:
            counts.count_intake(_SOURCE, 0, {counted.reason: count})
