"""What a long job has done, what is left, and how fast it goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pyspark.sql.connect.shell.progress import StageInfo

INTERVAL_S: Final = 1.0

Say = Callable[[str], None]
"""Shows a line about the progress."""


def silent(_line: str) -> None:
    """Shows nothing."""


@contextmanager
def shown(session: SparkSession, say: Say, what: str, messages: int = 0) -> Iterator[None]:
    """Show how far Spark is with what the block does, every second.

    ``messages`` is how many there are to go through, as far as that is known: parts of a job have
    about the same number of them.
    """
    if say is silent:
        yield
        return
    ended = threading.Event()
    tasks = _tasks_of(session)
    watcher = threading.Thread(
        target=_watch, args=(tasks, say, what, messages, ended), name="progress", daemon=True
    )
    started = time.monotonic()
    say(f"{what}: begins" + (f", {messages:,} messages" if messages else ""))
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        tasks.close()
    seconds = time.monotonic() - started
    rate = f", {messages / seconds:,.0f} messages/s" if messages and seconds else ""
    say(f"{what}: done in {seconds:.1f} s{rate}")


class _Counts(NamedTuple):
    """Tasks of the stages that are under way."""

    done: int
    tasks: int


class _Tasks(Protocol):
    """Knows how far Spark is."""

    def counts(self) -> _Counts:
        """As of now, or of the last report."""

    def close(self) -> None:
        """Watch no longer."""


class _Tracked:
    """Spark that was started here is asked."""

    def __init__(self, session: SparkSession) -> None:
        self._tracker = session.sparkContext.statusTracker()

    def counts(self) -> _Counts:
        found = (self._tracker.getStageInfo(each) for each in self._tracker.getActiveStageIds())
        stages = [each for each in found if each is not None]
        done = sum(each.numCompletedTasks for each in stages)
        return _Counts(done, sum(each.numTasks for each in stages))

    def close(self) -> None:
        pass


class _Reported:
    """A Spark Connect server reports while it carries out what it was asked."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._last = _Counts(0, 0)
        session.registerProgressHandler(self)  # type: ignore[arg-type]

    def __call__(
        self,
        stages: Iterable[StageInfo] | None,
        inflight_tasks: int,  # noqa: ARG002 - Spark's name
        operation_id: str | None,  # noqa: ARG002
        done: bool,
    ) -> None:
        """Take a report; stages of the operation that are done stay in it."""
        begun = [each for each in stages or () if not each.done and not done]
        completed = sum(each.num_completed_tasks for each in begun)
        self._last = _Counts(completed, sum(each.num_tasks for each in begun))

    def counts(self) -> _Counts:
        return self._last

    def close(self) -> None:
        self._session.removeProgressHandler(self)  # type: ignore[arg-type]


def _tasks_of(session: SparkSession) -> _Tasks:
    return _Reported(session) if is_remote(session) else _Tracked(session)


def is_remote(session: object) -> bool:
    """Whether a session is one of Spark Connect; its class only looks like the other one."""
    return not isinstance(session, SparkSession)


def _watch(tasks: _Tasks, say: Say, what: str, messages: int, ended: threading.Event) -> None:
    started, last = time.monotonic(), ""
    while not ended.wait(INTERVAL_S):
        found = tasks.counts()
        line = _line(what, found, messages, time.monotonic() - started)
        if found.tasks and line != last:
            say(line)
            last = line


def _line(what: str, found: _Counts, messages: int, seconds: float) -> str:
    done, tasks = found
    line = f"{what}: {done} of {tasks} parts"
    if messages and tasks:
        about = messages * done // tasks
        line += f", about {about:,} of {messages:,} messages"
        if done:
            line += f", {about / seconds:,.0f}/s"
    return line
