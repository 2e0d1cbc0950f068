"""A transport that loses chosen messages on their way in, and has all of them when it is asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from sds.aio.transport import FeedPage, Fetched, Link, Outbound, Route, Transport, Verdict
from sds.envelope import Entry


@dataclass(frozen=True)
class Lossy:
    """Another transport, less what ``loses`` says, in its feed and in scans."""

    inner: Transport
    loses: Callable[[Fetched], bool]

    @property
    def name(self) -> str:
        return self.inner.name

    def open(self, route: Route) -> LossyLink:
        return LossyLink(self.inner.open(route), self.loses)


@dataclass(frozen=True)
class LossyLink:
    """A link of it."""

    inner: Link
    loses: Callable[[Fetched], bool]

    @property
    def name(self) -> str:
        return self.inner.name

    def publish(
        self, batches: AsyncIterator[Sequence[Outbound]]
    ) -> AsyncGenerator[Sequence[Verdict], None]:
        return self.inner.publish(batches)

    async def follow(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        async with aclosing(self.inner.follow(cursor)) as pages:
            async for page in pages:
                yield replace(page, messages=self._kept(page.messages))

    async def scan(self, since_ns: int) -> AsyncGenerator[Sequence[Fetched], None]:
        async with aclosing(self.inner.scan(since_ns)) as pages:
            async for messages in pages:
                if kept := self._kept(messages):
                    yield kept

    def by_hint(self, hints: Sequence[bytes]) -> AsyncGenerator[Sequence[Fetched], None]:
        return self.inner.by_hint(hints)

    def by_id(self, entries: Sequence[Entry]) -> AsyncGenerator[Sequence[Fetched], None]:
        return self.inner.by_id(entries)

    def closure(
        self, heads: Sequence[Entry], known_ids: Sequence[str]
    ) -> AsyncGenerator[Sequence[Fetched], None]:
        return self.inner.closure(heads, known_ids)

    async def close(self) -> None:
        await self.inner.close()

    def _kept(self, messages: Sequence[Fetched]) -> list[Fetched]:
        return [each for each in messages if not self.loses(each)]
