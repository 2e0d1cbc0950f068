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
"""How often Spark is asked."""

SELDOM_S: Final = 30.0
"""How long nothing is said at most."""

_SHARE: Final = 0.1
"""Of the time that something has taken, as the time until more is said of it."""

Say = Callable[[str], None]
"""Shows a line about the progress."""


def silent(_line: str) -> None:
    """Shows nothing."""


@contextmanager
def shown(session: SparkSession, say: Say, what: str, messages: int = 0) -> Iterator[None]:
    """Show how far Spark is with what the block does, see `Lines`.

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


class Counts(NamedTuple):
    """Tasks of the stages that are under way; ``step`` numbers the newest of these."""

    done: int
    tasks: int
    step: int


class _Tasks(Protocol):
    """Knows how far Spark is."""

    def counts(self) -> Counts:
        """As of now, or of the last report."""

    def close(self) -> None:
        """Watch no longer."""


class _Tracked:
    """Spark that was started here is asked."""

    def __init__(self, session: SparkSession) -> None:
        self._tracker = session.sparkContext.statusTracker()

    def counts(self) -> Counts:
        found = (self._tracker.getStageInfo(each) for each in self._tracker.getActiveStageIds())
        stages = [each for each in found if each is not None]
        return Counts(
            sum(each.numCompletedTasks for each in stages),
            sum(each.numTasks for each in stages),
            max((each.stageId for each in stages), default=0),
        )

    def close(self) -> None:
        pass


class _Reported:
    """A Spark Connect server reports while it carries out what it was asked."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._last = Counts(0, 0, 0)
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
        self._last = Counts(
            sum(each.num_completed_tasks for each in begun),
            sum(each.num_tasks for each in begun),
            max((each.stage_id for each in begun), default=0),
        )

    def counts(self) -> Counts:
        return self._last

    def close(self) -> None:
        self._session.removeProgressHandler(self)  # type: ignore[arg-type]


def _tasks_of(session: SparkSession) -> _Tasks:
    return _Reported(session) if is_remote(session) else _Tracked(session)


def is_remote(session: object) -> bool:
    """Whether a session is one of Spark Connect; its class only looks like the other one."""
    return not isinstance(session, SparkSession)


def _watch(tasks: _Tasks, say: Say, what: str, messages: int, ended: threading.Event) -> None:
    lines = Lines(what, messages, time.monotonic())
    while not ended.wait(INTERVAL_S):
        line = lines.line(tasks.counts(), time.monotonic())
        if line is not None:
            say(line)


class Lines:
    """What is said of a piece of work: often at its beginning, and seldom when it takes long.

    Spark works in steps. What there is to do is known of the step that is under way; only the
    first, which reads, goes over ``messages``. Times are in seconds, of any clock.
    """

    def __init__(self, what: str, messages: int, now: float) -> None:
        self._what = what
        self._messages = messages
        self._began = self._said = self._step_began = now
        self._steps: list[int] = []
        self._last = ""

    def line(self, found: Counts, now: float) -> str | None:
        """What to say now; None: nothing."""
        if not found.tasks:
            return None
        if not self._steps or found.step > self._steps[-1]:
            self._steps.append(found.step)
            self._step_began = self._said if len(self._steps) > 1 else self._began
        line = self._text(found, now - self._step_began)
        quiet = now - self._said
        if quiet < min(SELDOM_S, (now - self._began) * _SHARE):
            return None
        if line == self._last and quiet < SELDOM_S:
            return None
        self._said, self._last = now, line
        return line

    def _text(self, found: Counts, seconds: float) -> str:
        done, tasks, step = found
        number = step - self._steps[0] + 1
        line = f"{self._what}: {f'step {number}, ' if number > 1 else ''}{done} of {tasks} parts"
        if self._messages and number == 1:
            about = self._messages * done // tasks
            line += f", about {about:,} of {self._messages:,} messages"
            if done:
                line += f", {about / seconds:,.0f}/s"
        if done:
            line += f", about {seconds * (tasks - done) / done:,.0f} s left"
        return line
