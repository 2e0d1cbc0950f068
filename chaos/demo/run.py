"""A run of the demo, from an empty directory to a verdict."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from chaos.demo.report import ConsoleReport
from chaos.demo.story import Plan, Story

_END_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def run(plan: Plan, report: ConsoleReport) -> bool:
    """Run the story and print the verdict; return True if everything is everywhere.

    Ctrl-C, SIGTERM and SIGHUP end it in order, with ``CancelledError``; a second signal kills the
    nodes.

    Raises:
        NodeFailedError: A node did not start, or ended by itself.
        NoAnswerError: A node could not be read.
    """
    story = Story(plan, report)
    with _ended_by_signals(story):
        try:
            return await _run_until_failure(story)
        finally:
            await story.close()


async def _run_until_failure(story: Story) -> bool:
    """Run the story to its end, or until one of its tasks fails."""
    running = asyncio.create_task(story.run())
    try:
        failure = story.tasks.failure
        await asyncio.wait((running, failure), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            failure.result()
        return await running
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await running


@contextmanager
def _ended_by_signals(story: Story) -> Iterator[None]:
    """Cancel the current task at the first signal, and kill the nodes at any further one."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    asked = False

    def end() -> None:
        nonlocal asked
        if asked:
            story.cluster.kill()
        else:
            asked = True
            task.cancel()

    for number in _END_SIGNALS:
        loop.add_signal_handler(number, end)
    try:
        yield
    finally:
        for number in _END_SIGNALS:
            loop.remove_signal_handler(number)
