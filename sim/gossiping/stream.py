"""A stream of frames with one peer: read when the machine listens, written a frame at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.calls import Closed, End
from sim.process import Process
from sim.tasks import Promise, Steps, Task
from store.gossip.events import FrameOut


class Stream:
    """One end of a call.

    ``called``: the peer has begun it. ``sent`` is told when it has taken a frame.
    """

    def __init__(
        self,
        process: Process,
        end: End,
        task: Task,
        sent: Callable[[Stream], None],
        *,
        called: bool,
    ) -> None:
        self.key = end.there.node_id
        self.store_id = end.there.store_id
        self.called = called
        self._process = process
        self._end = end
        self._task = task
        self._sent = sent
        self._listens: Promise[None] = Promise()
        self._listens.keep(None)
        self._closed = False

    def read(self) -> Steps[Any]:
        """The next frame, once the machine listens."""
        yield from self._listens.wait()
        return (yield from self._end.read().wait())

    def listen(self, reading: bool) -> None:
        """Leave frames in the stream, or read on."""
        if reading:
            self._listens.keep(None)
        elif self._listens.settled:
            self._listens = Promise()

    def send(self, frame: FrameOut) -> None:
        """Write a frame; the machine is told when it is taken."""
        self._process.spawn("gossip frame", self._send(frame))

    def _send(self, frame: FrameOut) -> Steps[None]:
        try:
            yield from self._end.send(frame).wait()
        except Closed:
            return
        self._sent(self)

    def close(self) -> None:
        """End it, whoever began it."""
        if self._closed:
            return
        self._closed = True
        if self.called:
            self._end.finish()
        else:
            self._end.cancel()
        self._process.timeline.soon(self._task.cancel)
