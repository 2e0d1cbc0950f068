"""One run of the demo, from an empty directory to a verdict, and nothing left behind."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Any, Final, TypeVar

from store.demo.network import Network
from store.demo.scene import Scene
from store.demo.story import Plan, Story
from store.demo.tables import summary
from store.demo.tasks import Tasks
from store.demo.verdict import Verdict, judge
from store.demo.views import View

_T = TypeVar("_T")
_END_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def run(plan: Plan, view: View) -> bool:
    """Tell the story, show it, and print the summary; whether everything was everywhere.

    Ctrl-C, SIGTERM and SIGHUP end it in order, with ``CancelledError``; a second one kills the
    nodes.

    Raises:
        NodeFailed: a node did not start, or ended by itself.
        NodeError: a node refused what it should take.
    """
    scene = Scene(Tasks(), Network())
    with _ending_by_signals(scene):
        try:
            with view.showing(scene):
                verdict = await _played(scene, plan, view)
        finally:
            await _clean_up(scene)
    view.conclude(summary(scene, verdict))
    return not verdict.differences


async def _played(scene: Scene, plan: Plan, view: View) -> Verdict:
    scene.tasks.start(view.run(scene))
    await _unless_failed(scene, Story(scene, plan).tell())
    assert scene.cluster is not None
    assert scene.people is not None
    assert scene.watch is not None
    scene.tell("Every store is read, every hash computed anew", chapter=True)
    await scene.watch.look()
    return await _unless_failed(scene, judge(scene.cluster, scene.ledger, scene.people))


async def _unless_failed(scene: Scene, work: Coroutine[Any, Any, _T]) -> _T:
    """Do something to its end, or until a task of the scene fails."""
    doing = asyncio.create_task(work)
    try:
        failure = scene.tasks.failure
        await asyncio.wait((doing, failure), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            failure.result()
        return await doing
    finally:
        doing.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await doing


async def _clean_up(scene: Scene) -> None:
    """End everything, the last first; what cannot be ended in order keeps nothing else running."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(scene.network.close)
        if scene.cluster is not None:
            stack.push_async_callback(scene.cluster.stop)
        stack.push_async_callback(scene.tasks.stop)
        if scene.people is not None:
            stack.push_async_callback(scene.people.leave)


@contextmanager
def _ending_by_signals(scene: Scene) -> Iterator[None]:
    """Cancel the current task at the first signal, and kill the nodes at any further one."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    asked = False

    def end() -> None:
        nonlocal asked
        if asked and scene.cluster is not None:
            scene.cluster.kill()
        elif not asked:
            asked = True
            task.cancel()

    for number in _END_SIGNALS:
        loop.add_signal_handler(number, end)
    try:
        yield
    finally:
        for number in _END_SIGNALS:
            loop.remove_signal_handler(number)
