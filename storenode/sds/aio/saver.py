"""Transactions of a participant: changes made together are saved together, then released.

Nothing leaves before what it follows from is saved: a message is published, and an event handed
out, only after the transaction that has it. Many callers share one transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from storenode.common.backoff import Backoff
from storenode.sds.aio.ledger import ParticipantLedger
from storenode.sds.aio.state import SqliteState, StateBatch, StateError, StateTakenError
from storenode.sds.codec import bytes_of
from storenode.sds.limits import FIRST_DELAY_S, MAX_DELAY_S, MAX_UNSAVED, MAX_UNSAVED_BYTES

_T = TypeVar("_T")
_AT_ONCE = 64  # events, whose signatures may be verified, until other tasks get their turn


class Saver:
    """A saver of a ledger. ``release`` gets the number of a transaction and what waited for it."""

    def __init__(
        self,
        ledger: ParticipantLedger,
        state: SqliteState,
        thread: Executor | None,
        release: Callable[[int, list[Any]], None],
        troubled: Callable[[StateError | None], None],
    ) -> None:
        self._ledger = ledger
        self.state = state
        self._release = release
        self._troubled = troubled
        self._thread = thread
        self._wake = asyncio.Event()
        self._pending: list[Any] = []
        self._bytes = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._done = asyncio.Event()
        self._stopping = False
        self._failure: Exception | None = None

    def add(self, things: Sequence[Any]) -> None:
        """Release these after the next transaction, which has all that the ledger noted."""
        self._pending += things
        self._bytes += sum(map(bytes_of, things))
        self._wake.set()

    async def saved(self) -> None:
        """Wait until all that the ledger has noted is saved.

        Raises:
            Exception: the participant has failed.
        """
        if self._failure is not None:
            raise self._failure
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._wake.set()
        await waiter

    async def room(self) -> None:
        """Wait until few enough things are unsaved."""
        while len(self._pending) > MAX_UNSAVED or self._bytes > MAX_UNSAVED_BYTES:
            self._done.clear()
            await self._done.wait()

    def stop(self) -> None:
        """Make `run` return when all is saved."""
        self._stopping = True
        self._wake.set()

    def fail(self, error: Exception) -> None:
        """Stop saving, and raise an error to all that wait."""
        self._failure = self._failure or error
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._waiters.clear()

    async def run(self) -> None:
        """Save whenever something has changed.

        Raises:
            StateTakenError: another process took the state.
        """
        while not self._stopping or self._ledger.dirty:
            await self._wake.wait()
            self._wake.clear()
            await self._save()

    async def in_thread(self, call: Callable[..., _T], *given: Any, **options: Any) -> _T:  # noqa: ANN401 - those of the call
        """Call a method of the state in its thread."""
        call = partial(call, *given, **options)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def _save(self) -> None:
        """Write one transaction with all that waits."""
        pending, self._pending = self._pending, []
        count = len(self._waiters)
        batch = self._ledger.take()
        if batch is not None:
            try:
                await self._commit(batch)
            except StateError as error:
                self.fail(error)
                raise
        # What no transaction has comes after the last one: readers since then get it too.
        number = self._ledger.commits + 1 if batch is None else batch.number
        for start in range(0, len(pending) or 1, _AT_ONCE):
            if start:
                await asyncio.sleep(0)
            self._release(number, pending[start : start + _AT_ONCE])
        self._bytes -= sum(map(bytes_of, pending))
        # Until here they are where `fail` finds them, which is called when this task is cancelled.
        waiters, self._waiters = self._waiters[:count], self._waiters[count:]
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._done.set()

    async def _commit(self, batch: StateBatch) -> None:
        backoff = Backoff(FIRST_DELAY_S, MAX_DELAY_S)
        while True:
            try:
                await self.in_thread(self.state.commit, batch)
            except StateTakenError:
                raise
            except StateError as error:
                if self.state.in_memory:
                    raise
                self._troubled(error)
            else:
                self._troubled(None)
                return
            await asyncio.sleep(backoff.take())
