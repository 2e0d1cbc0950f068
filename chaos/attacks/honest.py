"""An honest client beside an attack: it gets what it is owed, and nothing else."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Final

import grpc

from chaos.attacks.http2 import Target
from chaos.checker.clients import (
    Endpoint,
    Follower,
    NoAnswerError,
    Publisher,
    query,
    read_holding,
    scan,
)
from chaos.checker.history import History, Violation
from chaos.checker.stores import Served, check_stores
from chaos.tasks import StuckError, Waiter
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub

if TYPE_CHECKING:
    from storenode.wire.storenode.v1.store_pb2_grpc import StoreAsyncStub

PAUSE_S: Final = 0.1
_PATIENCE_S: Final = 60.0
_QUERIED: Final = 100


class HonestClient:
    """A client that publishes, follows, looks up, scans and probes again and again.

    Attributes:
        seconds: the times of the calls that succeeded.
        failures: the failed calls by kind and cause.
    """

    def __init__(self, target: Target, pause_s: float = PAUSE_S) -> None:
        self.seconds: list[float] = []
        self.failures: Counter[str] = Counter()
        self._target = target
        self._pause_s = pause_s
        endpoint, self._history = Endpoint(target["listen"]), History()
        # Other clients may have used the node before.
        self._topics = (f"/honest/1/{time.time_ns()}/proto",)
        self._follower = Follower("node", endpoint, self._topics)
        self._publisher = Publisher(
            "honest",
            endpoint,
            lambda: "node",
            self._history,
            Random(1),
            pause_s,
            batch_messages=2,
            try_s=_PATIENCE_S,
            content_topics=self._topics,
        )

    @property
    def calls(self) -> int:
        """The number of calls."""
        return len(self.seconds) + self.failures.total()

    async def run(self, ended: asyncio.Event) -> None:
        """Make calls until ``ended`` is set, and wait for open calls and the follower."""
        publisher, follower = self._publisher, self._follower
        following = asyncio.create_task(follower.run())
        async with follower.endpoint.open() as channel:
            store: StoreAsyncStub = StoreStub(channel)
            calls = {"query": self._query, "scan": self._scan, "probe": self._probe}
            repeating = (self._repeat(*each, store, ended) for each in calls.items())
            await asyncio.gather(publisher.run(ended), *repeating)
        with suppress(StuckError):
            await Waiter(_PATIENCE_S).until_none(
                "acknowledged messages that were not followed",
                lambda: len(self._history.acks.keys() - follower.stored),
            )
        following.cancel()
        self.seconds += publisher.seconds
        refused = {k: n for k, n in publisher.outcomes.items() if k not in ("STORED", "DUPLICATE")}
        for counts in (publisher.errors, refused, Counter(publisher.failures)):
            self.failures.update({f"publish: {what}": n for what, n in counts.items()})
        self.failures.update(follower.failures)

    async def judge(self) -> list[Violation]:
        """Return how what the node holds differs from what was published and acknowledged."""
        try:
            holding = await read_holding(self._follower, "node", self._history)
        except NoAnswerError as error:
            return [Violation("unread", str(error))]
        return check_stores(self._history, [holding])

    async def _repeat(
        self,
        name: str,
        call: Callable[[StoreAsyncStub], Awaitable[None]],
        store: StoreAsyncStub,
        ended: asyncio.Event,
    ) -> None:
        while not ended.is_set():
            began_s = time.monotonic()
            try:
                await call(store)
            except grpc.aio.AioRpcError as error:
                self.failures[f"{name}: {error.code().name}"] += 1
            except (OSError, NoAnswerError) as error:
                self.failures[f"{name}: {error!r}"] += 1
            else:
                self.seconds.append(time.monotonic() - began_s)
            await asyncio.sleep(self._pause_s)

    async def _query(self, store: StoreAsyncStub) -> None:
        owed = list(self._history.acks)[-_QUERIED:]
        _require(owed, await query(store, owed))

    async def _scan(self, store: StoreAsyncStub) -> None:
        owed = list(self._history.acks)
        _require(owed, await scan(store, self._topics))

    async def _probe(self, _store: StoreAsyncStub) -> None:
        def get() -> None:
            address = f"http://{self._target['metrics']}/healthz"
            with urllib.request.urlopen(address, timeout=_PATIENCE_S) as answer:
                answer.read()

        await asyncio.to_thread(get)


def _require(owed: Sequence[bytes], found: Sequence[Served]) -> None:
    if missing := len(set(owed) - {each.claimed for each in found}):
        raise NoAnswerError(f"{missing} acknowledged messages are missing")
