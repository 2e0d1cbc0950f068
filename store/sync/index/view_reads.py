"""Working through a read of a view that must load what it needs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from reconcile.summaries.summary import Loaded, Needs, SummaryView, proceed
from reconcile.view import ViewAnswer as Answer
from reconcile.view import ViewRead as Read
from store.sync.limits import THREADED_ROWS

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


async def worked_through(
    view: SummaryView, read: Read, load: Callable[[Needs], Awaitable[Loaded]]
) -> Answer:
    """Return the answer to a read, step by step; a large step in a thread.

    Raises:
        SummaryMismatch: what was loaded contradicts itself.
        StoreUnavailableError: ``load`` failed.
    """
    reading = view.reading(read)
    found = await in_thread_if(asks_much(read), proceed, reading)
    while not isinstance(found, Answer):
        loaded = await load(found)
        found = await in_thread_if(len(loaded) >= THREADED_ROWS, proceed, reading, loaded)
    return found


async def in_thread_if(
    large: bool, work: Callable[_Given, _Result], *given: _Given.args, **named: _Given.kwargs
) -> _Result:
    """Return the result of work that is done here, or in a thread when it is large."""
    return await asyncio.to_thread(work, *given, **named) if large else work(*given, **named)


def asks_much(read: Read) -> bool:
    """Return True if a read is about so many spans that its steps are large."""
    asked = (read.measure, read.split and read.split[0], read.items, read.probe and read.probe[0])
    return sum(len(spans) for spans in asked if spans is not None) >= THREADED_ROWS
