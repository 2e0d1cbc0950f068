"""A link that forwards every call, for those that count or drop messages on the way."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass

from storenode.sds.aio.transport import FeedPage, Fetched, Link, Outbound, PublishResult
from storenode.sds.codec import Entry


@dataclass(frozen=True, slots=True)
class PassingLink:
    """A link that forwards to another one; override some of its methods."""

    inner: Link

    @property
    def name(self) -> str:
        """The name of the inner link."""
        return self.inner.name

    def publish(
        self, batches: AsyncIterator[Sequence[Outbound]]
    ) -> AsyncGenerator[Sequence[PublishResult], None]:
        """Publish through the inner link."""
        return self.inner.publish(batches)

    def follow(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """Return the feed of the inner link."""
        return self.inner.follow(cursor)

    def scan(self, since_ns: int) -> AsyncGenerator[Sequence[Fetched], None]:
        """Scan the inner link."""
        return self.inner.scan(since_ns)

    def by_hint(self, hints: Sequence[bytes]) -> AsyncGenerator[Sequence[Fetched], None]:
        """Fetch by hints from the inner link."""
        return self.inner.by_hint(hints)

    def by_id(self, entries: Sequence[Entry]) -> AsyncGenerator[Sequence[Fetched], None]:
        """Fetch by IDs from the inner link."""
        return self.inner.by_id(entries)

    def closure(
        self, heads: Sequence[Entry], known_ids: Sequence[str]
    ) -> AsyncGenerator[Sequence[Fetched], None]:
        """Fetch causal histories from the inner link."""
        return self.inner.closure(heads, known_ids)

    async def close(self) -> None:
        """Close the inner link."""
        await self.inner.close()
