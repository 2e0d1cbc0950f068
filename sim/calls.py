"""Calls between hosts: a stream of frames each way, as gRPC gives them.

Frames of one direction arrive in their order, each once, until the call ends or breaks. It may
break at any frame; then the two ends notice it at different times, and frames in flight are lost. A
writer waits while the reader leaves `STREAM_WINDOW_FRAMES` frames unread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from sim.bridge import Promise
from sim.limits import STREAM_WINDOW_FRAMES
from sim.marks import Mark

if TYPE_CHECKING:
    from sim.network import Network


class Status(StrEnum):
    """The status of a call that ended: a subset of the codes of gRPC."""

    OK = "ok"
    CANCELLED = "cancelled"
    INVALID_ARGUMENT = "invalid argument"
    FAILED_PRECONDITION = "failed precondition"
    ABORTED = "aborted"
    OUT_OF_RANGE = "out of range"
    UNAVAILABLE = "unavailable"


class CallClosedError(Exception):
    """A call ended with an error."""

    def __init__(self, status: Status, sentence: str) -> None:
        super().__init__(f"{status}: {sentence}")
        self.status = status
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a direction: no frame follows."""

    status: Status = Status.OK
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a side in the metadata of a call."""

    node_id: str
    store_id: str


LINE_LOST: Final = "the connection broke"


class Pipe:
    """A direction of a call."""

    def __init__(self, network: Network, sender: str, receiver: str) -> None:
        self.sender = sender
        self.receiver = receiver
        self.stalled: deque[Any] = deque()
        self._network = network
        self._arrives_ns = 0
        self._under_way = 0
        self._arrived: deque[Any] = deque()
        self._reader: Promise[Any] | None = None
        self._blocked: tuple[Any, Promise[None]] | None = None
        self._error: CallClosedError | None = None
        self._last: Ended | None = None
        self._ignored = False
        self.on_end: Callable[[], None] = lambda: None

    def send(self, frame: object) -> Promise[None]:
        """Send a frame; the promise is kept when there is room for another."""
        taken: Promise[None] = Promise()
        assert self._blocked is None, "a frame is sent while another waits"
        if self._error is not None:
            taken.fail(self._error)
        elif self._ignored:
            taken.keep(None)
        elif self._unread < STREAM_WINDOW_FRAMES:
            self._launch(frame)
            taken.keep(None)
        else:
            self._blocked = frame, taken
            self._network.counts[str(Mark.BACKPRESSURE)] += 1
        return taken

    def end(self, last: Ended) -> None:
        """Send the last thing; there is always room for it."""
        if self._error is None and self._last is None:
            self._last = last
            self._launch(last)

    def ignore(self) -> None:
        """Drop all further frames: the receiver reads no more."""
        self._ignored = True
        if self._blocked is not None:
            self._blocked[1].keep(None)
            self._blocked = None

    def read(self) -> Promise[Any]:
        """Return the next frame, or `Ended`."""
        assert self._reader is None or self._reader.done(), "two read one stream"
        self._reader = Promise()
        self._hand_over()
        return self._reader

    def lose(self, error: CallClosedError) -> None:
        """Fail all reads and writes from now on."""
        if self._error is not None:
            return
        self._error = error
        self.stalled.clear()
        if self._blocked is not None:
            self._blocked[1].fail(error)
            self._blocked = None
        self._hand_over()

    def flow(self) -> None:
        """Release the frames that a partition held up."""
        stalled, self.stalled = self.stalled, deque()
        if stalled:
            self._network.counts[str(Mark.STALLED)] += 1
        for item in stalled:
            self._fly(item)

    def without_sender(self) -> Pipe:
        """Return a pipe for a reader that never learns that the call broke."""
        dead = Pipe(self._network, self.sender, self.receiver)
        dead._reader, self._reader = self._reader, None
        return dead

    def without_reader(self) -> Pipe:
        """Return a pipe for a sender that never learns that the call broke."""
        dead = Pipe(self._network, self.sender, self.receiver)
        dead._blocked, self._blocked = self._blocked, None
        dead.ignore()
        return dead

    @property
    def has_ended(self) -> bool:
        """True if the end has arrived, whether or not it was read."""
        return any(isinstance(item, Ended) for item in self._arrived)

    def check(self) -> None:
        """Verify the bound on what is under way.

        Raises:
            AssertionError: it is passed.
        """
        assert self._unread <= STREAM_WINDOW_FRAMES + 2, "more is under way than the window lets"
        assert len(self.stalled) <= self._under_way, "more is held up than is under way"

    @property
    def _unread(self) -> int:
        return self._under_way + len(self._arrived)

    def _launch(self, item: object) -> None:
        self._under_way += 1
        self._fly(item)

    def _fly(self, item: object) -> None:
        network = self._network
        delay_ns = network.delay_ns(self.sender, self.receiver)
        self._arrives_ns = max(self._arrives_ns, network.timeline.now_ns + delay_ns)
        network.timeline.at(self._arrives_ns, lambda: self._arrive(item))

    def _arrive(self, item: object) -> None:
        if self._error is not None:
            return
        if self.stalled or self._network.is_cut(self.sender, self.receiver):
            self.stalled.append(item)
            return
        self._under_way -= 1
        self._arrived.append(item)
        self._hand_over()

    def _hand_over(self) -> None:
        reader = self._reader
        if reader is None or reader.done():
            return
        if self._error is not None:
            reader.fail(self._error)
        elif self._arrived:
            item = self._arrived.popleft()
            reader.keep(item)
            self._unblock()
            if isinstance(item, Ended):
                self.on_end()

    def _unblock(self) -> None:
        if self._blocked is not None:
            (frame, taken), self._blocked = self._blocked, None
            self._launch(frame)
            taken.keep(None)


class End:
    """An end of a call; ``there`` is the identity of the other end.

    Every read and write fails with `CallClosedError` once the call has ended with an error.
    ``on_lost`` is then called too, once, for work that does not read or write at that moment.
    """

    def __init__(self, call: Call, inward: Pipe, outward: Pipe, there: Identity) -> None:
        self.there = there
        self.on_lost: Callable[[CallClosedError], object] | None = None
        self._call = call
        self._in = inward
        self._out = outward
        self._lost = False
        self._over = False

    async def read(self) -> Any:  # noqa: ANN401 - whatever the other side has sent
        """Return the next frame; None after the last.

        Raises:
            CallClosedError: The call ended with an error.
        """
        if self._over:
            return None
        item = await self._in.read()
        if not isinstance(item, Ended):
            return item
        self._over = True
        if item.status is not Status.OK:
            raise CallClosedError(item.status, item.sentence)
        return None

    def send(self, frame: object) -> Promise[None]:
        """Send a frame; kept when there is room for another."""
        promise = self._out.send(frame)
        self._call.sent()
        return promise

    def half_close(self) -> None:
        """End the frames of the caller."""
        self._out.end(Ended())

    def finish(self, status: Status = Status.OK, sentence: str = "") -> None:
        """End the call as the callee; the caller reads what was sent before."""
        self._out.end(Ended(status, sentence))
        self._in.ignore()

    @property
    def has_ended(self) -> bool:
        """True if the other side has ended the call, whether or not this was read."""
        return self._lost or self._in.has_ended

    def sever(self) -> None:
        """Disconnect this end, which does not notice it."""
        self._in, self._out = self._in.without_sender(), self._out.without_reader()

    def lose(self, error: CallClosedError) -> None:
        """Notify this end that the call has ended with an error."""
        if self._lost:
            return
        self._lost = True
        self._in.lose(error)
        if self.on_lost is not None:
            self.on_lost(error)


class Call:
    """A call between two hosts that has not ended."""

    def __init__(self, network: Network, caller: str, callee: str, who: Identity) -> None:
        self.hosts = caller, callee
        self.pipes = Pipe(network, caller, callee), Pipe(network, callee, caller)
        there, back = self.pipes
        self.caller = End(self, back, there, Identity("", ""))
        self.callee = End(self, there, back, who)
        self.over = False
        self._network = network
        back.on_end = self._over

    def sent(self) -> None:
        """Note a sent frame, at which the call may break."""
        if not self.over and self._network.breaks_now():
            self._network.trace.note(self.hosts[0], f"call to {self.hosts[1]} breaks")
            self._network.counts[str(Mark.TORN)] += 1
            self.break_off()

    def cancel(self) -> None:
        """Cancel the call: the caller receives nothing more, the callee is notified later."""
        if not self.over:
            self._over()
            self.pipes[1].lose(CallClosedError(Status.CANCELLED, "the caller has left"))
            self._tell(self.callee, CallClosedError(Status.CANCELLED, "the caller has left"))

    def refuse(self, error: CallClosedError) -> None:
        """Refuse the call; the caller is notified."""
        if not self.over:
            self._over()
            self._tell(self.caller, error)

    def break_off(self) -> None:
        """Break the call: frames on their way are lost, both ends are notified later."""
        if not self.over:
            self._over()
            self._tell(self.caller, CallClosedError(Status.UNAVAILABLE, LINE_LOST))
            if self._network.is_silent():
                self._network.counts[str(Mark.UNREPORTED)] += 1
                self.callee.sever()
            else:
                self._tell(self.callee, CallClosedError(Status.UNAVAILABLE, LINE_LOST))

    def drop(self, host: str) -> None:
        """End the call of a host that is gone; the other end is notified, if it lasts."""
        if not self.over:
            self._over()
            other = self.callee if host == self.hosts[0] else self.caller
            self._tell(other, CallClosedError(Status.UNAVAILABLE, LINE_LOST))

    def _tell(self, end: End, error: CallClosedError) -> None:
        network = self._network
        pipe = self.pipes[0] if end is self.callee else self.pipes[1]
        delay_ns = network.notice_ns(pipe.sender, pipe.receiver)
        network.timeline.after(delay_ns, lambda: self._lose(end, error))

    def _lose(self, end: End, error: CallClosedError) -> None:
        for pipe in self.pipes:
            pipe.lose(error)
        end.lose(error)

    def _over(self) -> None:
        if not self.over:
            self.over = True
            self._network.forget(self)
