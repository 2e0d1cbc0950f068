"""One run of the demo, from an empty directory to a verdict, with nothing left behind."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from store.demo.report import ConsoleReport
from store.demo.story import Plan, Story
from store.demo.verdict import judge

_END_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def run(plan: Plan, report: ConsoleReport) -> bool:
    """Tell the story and print the verdict; return True if everything is everywhere.

    Ctrl-C, SIGTERM and SIGHUP end it in order, with ``CancelledError``; a second one kills the
    nodes.

    Raises:
        NodeFailed: A node did not start, or ended by itself.
        NodeError: A node refused what it should take.
    """
    story = Story(plan, report)
    with _ended_by_signals(story):
        try:
            verdict = await _unless_failed(story)
        finally:
            await story.close()
    return verdict


async def _unless_failed(story: Story) -> bool:
    """Tell the story to its end, or until a task of it fails."""
    telling = asyncio.create_task(_tell(story))
    try:
        failure = story.tasks.failure
        await asyncio.wait((telling, failure), return_when=asyncio.FIRST_COMPLETED)
        if not telling.done():
            failure.result()
        return await telling
    finally:
        telling.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await telling


async def _tell(story: Story) -> bool:
    await story.tell()
    story.report.chapter("Every store is read, and every hash is computed again")
    verdict = await judge(story.cluster, story.ledger, story.people)
    story.conclude(verdict)
    return not verdict.differences and not story.waiter.given_up


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
