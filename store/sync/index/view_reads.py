"""Running computations that read a view, which may have to load IDs from the database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from reconcile.view import Loaded, Loading, Needs, proceed
from store.sync.limits import THREADED_ROWS

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


async def worked_through(
    work: Loading[_Result],
    load: Callable[[Needs], Awaitable[Loaded]] | None,
    *,
    large: bool = False,
) -> _Result:
    """Return the result of a computation; a large step, such as a ``large`` first one, in a thread.

    Without ``load`` it must not need anything.

    Raises:
        SummaryMismatchError: what was loaded contradicts itself.
        StoreUnavailableError: ``load`` failed.
    """
    found = await in_thread_if(large, proceed, work)
    while isinstance(found, Needs):
        assert load is not None, found
        loaded = await load(found)
        found = await in_thread_if(len(loaded) >= THREADED_ROWS, proceed, work, loaded)
    return found


async def in_thread_if(
    large: bool, work: Callable[_Given, _Result], *given: _Given.args, **named: _Given.kwargs
) -> _Result:
    """Return the result of work that is done here, or in a thread when it is large."""
    return await asyncio.to_thread(work, *given, **named) if large else work(*given, **named)
