"""Lines about the progress of a job: what begins, how many tasks are done, and how long it took."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

INTERVAL_S: Final = 10.0
"""The time between two lines about one piece of work."""

Say = Callable[[str], None]
"""Shows a line about the progress."""


def silent(_line: str) -> None:
    """Show nothing."""


@contextmanager
def shown(session: SparkSession, say: Say, what: str, messages: int = 0) -> Iterator[None]:
    """Show that ``what`` begins, how many of Spark's tasks are done, and that it has ended.

    ``messages`` is about how many there are to process. A Spark Connect server does not report its
    tasks to other programs than its own shell.
    """
    if say is silent:
        yield
        return
    ended = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(session, say, what, ended), name="progress", daemon=True
    )
    started = time.monotonic()
    say(f"{what}: begins" + (f", {messages:,} messages" if messages else ""))
    if isinstance(session, SparkSession):  # the class of Spark Connect only looks like it
        watcher.start()
    try:
        yield
    finally:
        ended.set()
        if watcher.is_alive():
            watcher.join()
    seconds = time.monotonic() - started
    rate = f", {messages / seconds:,.0f} messages/s" if messages and seconds else ""
    say(f"{what}: done in {seconds:.1f} s{rate}")


def _watch(session: SparkSession, say: Say, what: str, ended: threading.Event) -> None:
    tracker = session.sparkContext.statusTracker()
    while not ended.wait(INTERVAL_S):
        found = (tracker.getStageInfo(each) for each in tracker.getActiveStageIds())
        stages = [each for each in found if each is not None]
        if stages:
            done = sum(each.numCompletedTasks for each in stages)
            say(f"{what}: {done} of {sum(each.numTasks for each in stages)} tasks")
