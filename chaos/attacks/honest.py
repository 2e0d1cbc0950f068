"""An honest client beside an attack: its calls, their times, and their failures."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import grpc

from chaos.attacks.registry import Target
from storenode.wire.storenode.v1.store_pb2 import (
    ContentFilter,
    PublishRequest,
    PublishResult,
    ScanRequest,
)
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from tests.support.waku_client import WakuClient

if TYPE_CHECKING:
    from storenode.wire.storenode.v1.store_pb2_grpc import StoreAsyncStub

PUBSUB: Final = "/waku/2/rs/1/0"
TOPIC: Final = "/honest/1/lobby/proto"

PAUSE_S: Final = 0.1
_PATIENCE_S: Final = 60.0
_STORED: Final = PublishResult.STORED, PublishResult.DUPLICATE


class WrongAnswerError(Exception):
    """An answer that does not serve the call."""


@dataclass(slots=True)
class CallRecord:
    """The seconds that each kind of call took, and the failures by kind and code."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def slowest_s(self) -> float:
        """The time of the slowest call that succeeded."""
        return max((max(each) for each in self.seconds.values() if each), default=0.0)

    @property
    def calls(self) -> int:
        """The number of calls."""
        return sum(map(len, self.seconds.values())) + self.failures.total()


class HonestClient:
    """A client that publishes, queries, scans and probes again and again."""

    def __init__(self, target: Target, pause_s: float = PAUSE_S) -> None:
        self.record = CallRecord()
        self._pause_s = pause_s
        self._target = target

    async def run(self, ended: asyncio.Event) -> None:
        """Make calls until ``ended`` is set; open calls may finish."""
        async with grpc.aio.insecure_channel(self._target.address) as channel:
            store = StoreStub(channel)
            calls: dict[str, Callable[[], Awaitable[None]]] = {
                "publish": lambda: self._publish(store),
                "query": lambda: self._query(store),
                "scan": lambda: self._scan(store),
                "probe": self._probe,
            }
            if self._target.gateway:
                calls["gateway"] = self._query_gateway
            await asyncio.gather(*(self._repeat(*each, ended) for each in calls.items()))

    async def _repeat(
        self, name: str, call: Callable[[], Awaitable[None]], ended: asyncio.Event
    ) -> None:
        taken = self.record.seconds.setdefault(name, [])
        while not ended.is_set():
            began_s = time.monotonic()
            try:
                await call()
            except grpc.aio.AioRpcError as error:
                self.record.failures[f"{name}: {error.code().name}"] += 1
            except (
                OSError,
                TimeoutError,
                asyncio.IncompleteReadError,
                WrongAnswerError,
            ) as error:
                self.record.failures[f"{name}: {error}"] += 1
            else:
                taken.append(time.monotonic() - began_s)
            await asyncio.sleep(self._pause_s)

    async def _publish(self, store: StoreAsyncStub) -> None:
        request, now_ns = PublishRequest(), time.time_ns()
        item = request.messages.add(pubsub_topic=PUBSUB)
        item.message.content_topic, item.message.timestamp = TOPIC, now_ns
        item.message.payload = now_ns.to_bytes(8, "big")
        answer = await store.Publish(request, timeout=_PATIENCE_S)
        if answer.results[0].outcome not in _STORED:
            raise WrongAnswerError(answer.results[0].reason)

    async def _query(self, store: StoreAsyncStub) -> None:
        request = StoreQueryRequest(
            request_id="honest", include_data=True, pubsub_topic=PUBSUB, content_topics=[TOPIC]
        )
        answer = await store.Query(request, timeout=_PATIENCE_S)
        if answer.status_code != 200:
            raise WrongAnswerError(f"{answer.status_code} {answer.status_desc}")

    async def _query_gateway(self) -> None:
        async with (
            WakuClient.connected(self._target.gateway) as client,
            asyncio.timeout(_PATIENCE_S),
        ):
            answer = await client.query(
                StoreQueryRequest(pubsub_topic=PUBSUB, content_topics=[TOPIC])
            )
        if answer.status_code != 200:
            raise WrongAnswerError(f"{answer.status_code} {answer.status_desc}")

    async def _scan(self, store: StoreAsyncStub) -> None:
        request = ScanRequest(filter=ContentFilter(content_topics=[TOPIC]), include_data=True)
        async for _ in store.Scan(request, timeout=_PATIENCE_S):
            pass

    async def _probe(self) -> None:
        def get() -> None:
            address = f"http://{self._target.metrics_address}/healthz"
            with urllib.request.urlopen(address, timeout=_PATIENCE_S) as answer:
                answer.read()

        await asyncio.to_thread(get)
