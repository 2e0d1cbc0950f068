"""What a long job has done, what is left, and how fast it goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

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
    watcher = threading.Thread(
        target=_watch, args=(session, say, what, messages, ended), name="progress", daemon=True
    )
    started = time.monotonic()
    say(f"{what}: begins" + (f", {messages:,} messages" if messages else ""))
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    seconds = time.monotonic() - started
    rate = f", {messages / seconds:,.0f} messages/s" if messages and seconds else ""
    say(f"{what}: done in {seconds:.1f} s{rate}")


def _watch(
    session: SparkSession, say: Say, what: str, messages: int, ended: threading.Event
) -> None:
    tracker = session.sparkContext.statusTracker()
    started, last = time.monotonic(), ""
    while not ended.wait(INTERVAL_S):
        tasks = done = 0
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                tasks, done = tasks + info.numTasks, done + info.numCompletedTasks
        line = _line(what, done, tasks, messages, time.monotonic() - started)
        if tasks and line != last:
            say(line)
            last = line


def _line(what: str, done: int, tasks: int, messages: int, seconds: float) -> str:
    line = f"{what}: {done} of {tasks} parts"
    if messages and tasks:
        about = messages * done // tasks
        line += f", about {about:,} of {messages:,} messages"
        if done:
            line += f", {about / seconds:,.0f}/s"
    return line
