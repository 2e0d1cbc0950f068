"""A single-flight cache with a minimum refresh interval, and the last writes of a node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from store.domain.ports import NotServingError
from store.observe.logging import get_logger
from store.serving.tasks import Work

_LOG = get_logger("store.runtime.tasks")

LAST_WRITE_TIMEOUT_S: Final = 2.0
"""How long each last write of a node that shuts down may take, in all that happens after the calls
have ended."""


async def finish(work: Work) -> None:
    """Await a last write, and give it up when its time has passed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_WRITE_TIMEOUT_S):
            await work()


_T = TypeVar("_T")

READ_TIMEOUT_S: Final = 20.0
"""A read that takes longer is given up; a database that is away has been given up before."""

REST_FACTOR: Final = 20
"""A read is not begun again before so many times of what the last one took: whatever it costs, that
is a twentieth of one connection's time at most, for any number of callers."""

MAX_REST_S: Final = 60.0
"""It is begun again after so long in any case: a database that was slow once may be well."""


class SingleFlightCache(Generic[_T]):
    """The last result of a read, which is shared by all who ask, and read again when it is old.

    A read that fails because the database does not serve leaves the result as it is. ``factor``:
    how many times of what it took it rests; 0 for what only waits for other reads.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], Awaitable[_T]],
        rest_s: float,
        factor: int = REST_FACTOR,
    ) -> None:
        self._name = name
        self._read = read
        self._rest_s = rest_s
        self._factor = factor
        self._clock = asyncio.get_running_loop().time
        self._task: asyncio.Task[None] | None = None
        self._next_s = 0.0
        self._read_at_s = 0.0
        self._value: _T | None = None

    @property
    def age_s(self) -> float | None:
        """The age of the result; None: there is none yet."""
        return None if self._value is None else self._clock() - self._read_at_s

    async def get(self, patience_s: float) -> _T | None:
        """Return the result, read anew if it is old and that takes no longer; else the last.

        None: it was never read. A read that takes longer continues for the next caller.
        """
        if self._task is None and self._clock() >= self._next_s:
            self._task = asyncio.create_task(self._refresh(), name=f"reading {self._name}")
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=patience_s)
        return self._value

    async def stop(self) -> None:
        """End a read that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _refresh(self) -> None:
        began_s = self._clock()
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                self._value = await self._read()
            self._read_at_s = self._clock()
        except NotServingError:
            began_s = self._clock()  # what waited for a database has cost it nothing
        except TimeoutError:
            pass
        except Exception:  # noqa: BLE001 - a fault of ours; whoever looks sees the last result
            _LOG.exception("read_failed", what=self._name)
        finally:
            took_s = self._clock() - began_s
            self._next_s = self._clock() + max(self._rest_s, min(self._factor * took_s, MAX_REST_S))
            self._task = None
