"""A transport that loses chosen messages on their way in, and has all of them when it is asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from chaos.link import PassingLink
from storenode.sds.aio.transport import FeedPage, Fetched, Route, Transport


@dataclass(frozen=True)
class Lossy:
    """A transport that loses what ``loses`` selects, in its feed and in scans."""

    inner: Transport
    loses: Callable[[Fetched], bool]

    @property
    def name(self) -> str:
        return self.inner.name

    def open(self, route: Route) -> LossyLink:
        return LossyLink(self.inner.open(route), self.loses)


@dataclass(frozen=True, slots=True)
class LossyLink(PassingLink):
    """A link of it."""

    loses: Callable[[Fetched], bool]

    async def follow(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        async with aclosing(self.inner.follow(cursor)) as pages:
            async for page in pages:
                yield replace(page, messages=self._kept(page.messages))

    async def scan(self, since_ns: int) -> AsyncGenerator[Sequence[Fetched], None]:
        async with aclosing(self.inner.scan(since_ns)) as pages:
            async for messages in pages:
                if kept := self._kept(messages):
                    yield kept

    def _kept(self, messages: Sequence[Fetched]) -> list[Fetched]:
        return [each for each in messages if not self.loses(each)]
