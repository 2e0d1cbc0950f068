"""Cuts the answer to a read by SDS message ID into pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from store.domain.claims import Found
from store.domain.limits import DEFAULT_PAGE_BYTES
from store.domain.ports import HistoryEntry, SdsPage
from store.messages.frames import sds_stored_message
from storenode.message.limits import HASH_BYTES

HANDY_PAGE_BYTES: Final = 1024 * 1024
"""Size at which a page is sent, where the limit allows more: its reader can begin with it while
the next one is read."""

_MISSING_OVERHEAD_BYTES: Final = 16
_MAX_LAYOUTS: Final = 8_192

_Layout = tuple[bytes, bytes, bytes, int]
"""An encoded entry: what is before its message ID, before its hash, before its frame without the
tag; and the bytes of the whole."""


class Pages:
    """Takes what is to be sent and hands out pages as they fill up."""

    def __init__(self, page_bytes: int = DEFAULT_PAGE_BYTES) -> None:
        """Entries of one page have ``page_bytes`` at most."""
        self._page_bytes = min(page_bytes, HANDY_PAGE_BYTES)
        self._parts: list[bytes] = []
        self._count = 0
        self._missing: list[HistoryEntry] = []
        self._bytes = 0

    def add(self, portion: Sequence[Found], frames: Sequence[bytes | None]) -> Iterator[SdsPage]:
        """Add messages with their frames; those without one are missing."""
        for (_, _, digest, message_id), frame in zip(portion, frames, strict=True):
            if frame is None:
                yield from self.add_missing(HistoryEntry(message_id, digest))
                continue
            before_id, before_hash, before_frame, size = _layout(len(message_id), len(frame))
            if self._bytes + size > self._page_bytes and self._bytes:
                yield self._cut(truncated=False)
            self._bytes += size
            self._count += 1
            self._parts += (before_id, message_id, before_hash, digest, before_frame, frame[1:])

    def add_missing(self, entry: HistoryEntry) -> Iterator[SdsPage]:
        """Add an entry that is not held."""
        size = len(entry.message_id) + len(entry.retrieval_hint or b"") + _MISSING_OVERHEAD_BYTES
        if self._bytes + size > self._page_bytes and self._bytes:
            yield self._cut(truncated=False)
        self._bytes += size
        self._missing.append(entry)

    def finish(self, *, truncated: bool) -> Iterator[SdsPage]:
        """The last page, which says if the answer is truncated; none if it would say nothing."""
        if self._bytes or truncated:
            yield self._cut(truncated=truncated)

    def _cut(self, *, truncated: bool) -> SdsPage:
        page = SdsPage(b"".join(self._parts), self._count, tuple(self._missing), truncated)
        self._parts, self._count, self._missing, self._bytes = [], 0, [], 0
        return page


@lru_cache(maxsize=_MAX_LAYOUTS)
def _layout(id_bytes: int, frame_bytes: int) -> _Layout:
    """What `sds_stored_message` puts around its arguments, which depends on their sizes only."""
    whole = sds_stored_message(bytes(id_bytes), bytes(HASH_BYTES), bytes(frame_bytes))
    frame_at = len(whole) - (frame_bytes - 1)
    hash_at = frame_at - 1 - HASH_BYTES
    id_at = hash_at - 2 - id_bytes
    return (
        whole[:id_at],
        whole[id_at + id_bytes : hash_at],
        whole[hash_at + HASH_BYTES : frame_at],
        len(whole),
    )
