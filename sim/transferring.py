"""Drives a `store.sync.transfer.core.Transfer` between a call, the door and the database.

A frame is taken in before the next
is read, and none is read while the machine does not want it.
"""

from __future__ import annotations

from typing import Final

from reconcile.ids import SyncIds
from sim.calls import Closed, End, Ended, Status
from sim.database import Unavailable
from sim.limits import NS_PER_S
from sim.process import Process
from sim.tasks import Promise, Steps, Task, within
from store.domain.ports import Source
from store.messages.transfer import parse, transfer_frame, transferred
from store.sync.transfer.core import Transfer
from store.sync.transfer.events import (
    Begin,
    Effect,
    Find,
    Found,
    Frame,
    Input,
    Load,
    Loaded,
    Lost,
    Persist,
    Persisted,
    Received,
    Report,
    SendFrame,
    SendReady,
    Ticked,
)
from store.sync.transfer.events import Ended as Over

_TICK_NS: Final = NS_PER_S


class Driver:
    """One transfer, on one side; ``calls``: that of the caller."""

    def __init__(self, process: Process, machine: Transfer, end: End, *, calls: bool) -> None:
        self._calls = calls
        self._process = process
        self._machine = machine
        self._end = end
        self._over: Promise[Report] = Promise()
        self._read_all: Promise[None] = Promise()
        self._readable: Promise[None] = Promise()
        self._tasks: list[Task] = []

    def run(self) -> Steps[Report]:
        """To its end, whatever that is: `Report.error` says it."""
        try:
            self._give(Begin(self._process.clock.unix_ns()))
            self._spawn(self._read())
            self._spawn(self._tick())
            report = yield from self._over.wait()
            if self._calls and not report.error:
                self._end.half_close()
                yield from self._leave()
            return report
        finally:
            for task in self._tasks:
                task.cancel()

    def _leave(self) -> Steps[None]:
        """Wait until the callee has ended the call too."""
        process = self._process
        late = Closed(Status.DEADLINE_EXCEEDED, "the peer does not end the call")
        yield from within(process.timeline, self._read_all, process.scenario.silence_ns, late)

    def _give(self, given: Input) -> None:
        if self._over.settled:
            return
        machine = self._machine
        effects = machine.step(self._process.clock.steady_ns(), given)
        machine.check()
        for effect in effects:
            self._do(effect)
        if machine.reading:
            self._readable.keep(None)
        elif self._readable.settled:
            self._readable = Promise()

    def _do(self, effect: Effect) -> None:
        match effect:
            case Over(report):
                self._over.keep(report)
            case SendFrame(frame):
                self._spawn(self._send(frame))
            case Persist():
                self._spawn(self._persist(effect))
            case Load():
                self._spawn(self._load(effect))
            case Find():
                self._spawn(self._find(effect))

    def _spawn(self, steps: Steps[None]) -> None:
        self._tasks.append(self._process.spawn("transfer", steps))

    def _tick(self) -> Steps[None]:
        while True:
            yield from self._process.sleep(_TICK_NS)
            self._give(Ticked())

    # The stream

    def _read(self) -> Steps[None]:
        try:
            while isinstance(frame := (yield from self._end.read().wait()), Frame):
                self._give(self._judged(frame))
                if not self._over.settled:
                    yield from self._readable.wait()
        except Closed as error:
            self._give(Lost(str(error)))
        else:
            status = frame.status if isinstance(frame, Ended) else "nothing"
            self._give(Lost(f"the peer ended the transfer with {status}"))
        self._read_all.keep(None)

    def _judged(self, frame: Frame) -> Received:
        process = self._process
        door = process.cores.door(process.policy(), process.clock.unix_ns(), Source.TRANSFER)
        if frame.messages:
            door.admit(parse(frame.messages))
        return Received(
            frame.session_id,
            door.published,
            _size(frame),
            list(frame.stored),
            list(frame.refused),
            frame.done,
        )

    def _send(self, frame: Frame) -> Steps[None]:
        process = self._process
        process.judge.acknowledge(process.database, frame.stored)
        try:
            yield from self._end.send(frame).wait()
        except Closed as error:
            self._give(Lost(str(error)))
        else:
            self._give(SendReady())

    # The database

    def _persist(self, effect: Persist) -> Steps[None]:
        process = self._process
        try:
            new = yield from process.database.write(process, effect.batch).wait()
        except Unavailable as error:
            self._give(Lost(str(error)))
        else:
            self._give(Persisted(effect.token, new))

    def _load(self, effect: Load) -> Steps[None]:
        try:
            found = yield from self._process.database.look(
                lambda: self._loaded(effect.ids, effect.max_bytes)
            ).wait()
        except Unavailable as error:
            self._give(Lost(str(error)))
        else:
            self._give(Loaded(found))

    def _loaded(self, ids: SyncIds, max_bytes: int) -> list[bytes | None]:
        held, left = self._process.database.held, max_bytes
        found: list[bytes | None] = []
        for _, digest in ids.pairs():
            stored = held.get(digest)
            message = None if stored is None else transferred(stored[1])
            left -= len(message or b"")
            if left < 0 and found:
                break
            found.append(message)
        return found

    def _find(self, effect: Find) -> Steps[None]:
        held = self._process.database.held
        try:
            found = yield from self._process.database.look(
                lambda: [digest in held for _, digest in effect.ids.pairs()]
            ).wait()
        except Unavailable as error:
            self._give(Lost(str(error)))
        else:
            self._give(Found(found))


def _size(frame: Frame) -> int:
    return len(
        transfer_frame(
            frame.session_id, frame.messages, frame.stored, frame.refused, done=frame.done
        )
    )
