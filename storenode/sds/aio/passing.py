"""A link that hands everything on, for those that look on, count or lose something on the way."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass

from storenode.sds.aio.transport import FeedPage, Fetched, Link, Outbound, Verdict
from storenode.sds.codec import Entry


@dataclass(frozen=True, slots=True)
class PassingLink:
    """Another link as it is; methods are those of `sds.aio.transport.Link`. Override some."""

    inner: Link

    @property
    def name(self) -> str:
        """That of the other."""
        return self.inner.name

    def publish(
        self, batches: AsyncIterator[Sequence[Outbound]]
    ) -> AsyncGenerator[Sequence[Verdict], None]:
        """Publish by the other."""
        return self.inner.publish(batches)

    def follow(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """The other's feed."""
        return self.inner.follow(cursor)

    def scan(self, since_ns: int) -> AsyncGenerator[Sequence[Fetched], None]:
        """What the other remembers from a time on."""
        return self.inner.scan(since_ns)

    def by_hint(self, hints: Sequence[bytes]) -> AsyncGenerator[Sequence[Fetched], None]:
        """What the other has under hints."""
        return self.inner.by_hint(hints)

    def by_id(self, entries: Sequence[Entry]) -> AsyncGenerator[Sequence[Fetched], None]:
        """What the other has under IDs."""
        return self.inner.by_id(entries)

    def closure(
        self, heads: Sequence[Entry], known_ids: Sequence[str]
    ) -> AsyncGenerator[Sequence[Fetched], None]:
        """What heads depend on, by the other."""
        return self.inner.closure(heads, known_ids)

    async def close(self) -> None:
        """End all calls of the other."""
        await self.inner.close()
