"""The local log: message IDs ordered by (Lamport timestamp, message ID).

The newest entries are objects in a sorted list; older ones are packed pages. A late entry is
inserted at its place, wherever that is. Pages can leave the log, oldest first; that their
messages were met is remembered for good (`sds.ids`), and so is what was given up, up to a bound.

Costs: finding out whether an ID is known, and inserting near the end, take constant time; a late
insertion takes the time of one page, whatever the length of the log.

Source: SDS, "Participant state", "Deliver message" and "Resolve conflicts".
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Final

from sortedcontainers import SortedList

from storenode.sds.ids import IdSet
from storenode.sds.pages import PAGE_ENTRIES, Key, LogEntry, pack_page, unpack_page

OPEN_ENTRIES: Final = 2_048
"""Newest entries that stay objects; a page's worth more, and the oldest are packed."""


class MessageLog:
    """Entries in order. ``salt`` (16 bytes) is that of the set of IDs."""

    __slots__ = (
        "_counts",
        "_firsts",
        "_open",
        "_open_at",
        "_packed",
        "_pages",
        "_recent",
        "_tail",
        "met",
        "pruned",
    )

    def __init__(self, salt: bytes) -> None:
        self.met = IdSet(salt)
        self.pruned = 0
        self._recent: dict[str, LogEntry] = {}
        self._tail: SortedList[Key] = SortedList()
        self._pages: list[bytes] = []
        self._firsts: list[Key] = []
        self._counts: list[int] = []
        self._packed = 0
        self._open_at: int | None = None
        self._open: list[LogEntry] = []

    def __len__(self) -> int:
        """Return the number of entries in memory."""
        return self._packed + len(self._tail)

    def __contains__(self, message_id: str) -> bool:
        """Return True if the message was delivered at any time, pruned or not."""
        return message_id in self._recent or message_id in self.met

    def recent(self, message_id: str) -> LogEntry | None:
        """Return the entry, when it is one of the newest."""
        return self._recent.get(message_id)

    def insert(self, entry: LogEntry) -> int:
        """Insert a message that is not in the log; return how many entries come after it."""
        key = entry.key
        if not self._pages or self._belongs_to_tail(key):
            return self._insert_in_tail(entry, key)
        self.met.add(entry.message_id)
        self._packed += 1
        return self._insert_in_page(max(bisect_right(self._firsts, key) - 1, 0), entry)

    def remove(self, key: Key) -> None:
        """Remove a message, as if it had not come."""
        _, message_id = key
        self.met.discard(message_id)
        if self._recent.pop(message_id, None) is not None:
            self._tail.remove(key)
        else:
            self._remove_from_page(bisect_right(self._firsts, key) - 1, key)

    def preceding(self, key: Key, count: int) -> list[LogEntry]:
        """Return the last entries before a key, in log order: at most `count`."""
        tail = self._tail
        end = len(tail) if tail and tail[-1] < key else tail.bisect_left(key)
        found = [self._recent[message_id] for _, message_id in tail[max(end - count, 0) : end]]
        page = bisect_left(self._firsts, key)
        while len(found) < count and page > 0:
            page -= 1
            older = [entry for entry in self._read(page) if entry.key < key]
            found = older[max(len(older) - (count - len(found)), 0) :] + found
        return found

    def entries(self) -> Iterator[LogEntry]:
        """Yield all entries in memory, in order; the log must not change meanwhile."""
        for page in range(len(self._pages)):
            yield from self._read(page)
        for _, message_id in self._tail:
            yield self._recent[message_id]

    def prune(self, keep: int) -> list[bytes]:
        """Remove and return the oldest pages while at least `keep` entries stay."""
        gone: list[bytes] = []
        left = len(self)
        while len(gone) < len(self._pages) and left - self._counts[len(gone)] >= keep:
            left -= self._counts[len(gone)]
            gone.append(b"")
        if gone:
            self._close()
            gone = self._pages[: len(gone)]
            self._drop_pages(len(gone))
        return gone

    def pages(self) -> tuple[list[bytes], list[bytes]]:
        """Return the log in memory as pages, in order: those that are packed, and the newest."""
        self._close()
        newest = [self._recent[message_id] for _, message_id in self._tail]
        runs = range(0, len(newest), PAGE_ENTRIES)
        packed = [pack_page(newest[start : start + PAGE_ENTRIES]) for start in runs]
        return list(self._pages), packed

    def restore(self, packed: list[bytes], newest: list[bytes], digests: bytes) -> None:
        """Fill an empty log from `pages` and the digests of `met`.

        Raises:
            ValueError: a page is damaged or empty, or entries are not in order.
        """
        self.met = IdSet.from_digests(self.met.salt, digests)
        last: Key | None = None
        for number, page in enumerate(packed + newest):
            entries = unpack_page(page)
            keys = [entry.key for entry in entries]
            if not keys or keys != sorted(set(keys)) or (last is not None and keys[0] <= last):
                raise ValueError("the log in this snapshot is not in order")
            last = keys[-1]
            if number < len(packed):
                self._append_page(entries, page)
            else:
                self._recent.update((entry.message_id, entry) for entry in entries)
                self._tail.update(keys)

    def after(self, key: Key) -> int:
        """Return how many entries come after a key near the end of the log."""
        return len(self._tail) - self._tail.bisect_right(key)

    def load(self, entries: Iterable[LogEntry]) -> None:
        """Fill an empty log with entries in order; the newest stay objects."""
        newest: list[LogEntry] = []
        for entry in entries:
            newest.append(entry)
            if len(newest) >= OPEN_ENTRIES + PAGE_ENTRIES:
                self._append_page(newest[:PAGE_ENTRIES], pack_page(newest[:PAGE_ENTRIES]))
                self.remember(packed.message_id for packed in newest[:PAGE_ENTRIES])
                del newest[:PAGE_ENTRIES]
        self._recent.update((entry.message_id, entry) for entry in newest)
        self._tail.update(entry.key for entry in newest)

    def remember(self, message_ids: Iterable[str]) -> None:
        """Add messages that were delivered, whose entries are not in memory."""
        for message_id in message_ids:
            self.met.add(message_id)

    def check(self) -> None:
        """Verify the invariants: order, no ID twice, counts, and that all packed IDs are met."""
        entries = list(self.entries())
        keys = [entry.key for entry in entries]
        assert keys == sorted(set(keys))
        assert len({entry.message_id for entry in entries}) == len(entries) == len(self)
        assert self._recent.keys() == {message_id for _, message_id in self._tail}
        assert all(entry.message_id in self for entry in entries)
        assert self._packed == sum(self._counts)
        assert self._firsts == [self._read(page)[0].key for page in range(len(self._pages))]
        self.met.check()

    def _belongs_to_tail(self, key: Key) -> bool:
        return bool(self._tail) and key > self._tail[0]

    def _insert_in_tail(self, entry: LogEntry, key: Key) -> int:
        tail = self._tail
        after = 0 if not tail or tail[-1] < key else len(tail) - tail.bisect_left(key)
        tail.add(key)
        self._recent[entry.message_id] = entry
        if len(tail) >= OPEN_ENTRIES + PAGE_ENTRIES:
            self._pack_oldest()
        return after

    def _pack_oldest(self) -> None:
        entries = [self._recent.pop(message_id) for _, message_id in self._tail[:PAGE_ENTRIES]]
        del self._tail[:PAGE_ENTRIES]
        for entry in entries:
            self.met.add(entry.message_id)
        self._append_page(entries, pack_page(entries))

    def _append_page(self, entries: list[LogEntry], page: bytes) -> None:
        self._pages.append(page)
        self._firsts.append(entries[0].key)
        self._counts.append(len(entries))
        self._packed += len(entries)

    def _insert_in_page(self, page: int, entry: LogEntry) -> int:
        self._open_page(page)
        insort(self._open, entry, key=lambda other: other.key)
        place = bisect_left(self._open, entry.key, key=lambda other: other.key)
        self._counts[page] += 1
        self._firsts[page] = self._open[0].key
        later = sum(self._counts[page + 1 :]) + len(self._tail)
        after = later + len(self._open) - place - 1
        if len(self._open) >= 2 * PAGE_ENTRIES:
            self._split_page(page)
        return after

    def _remove_from_page(self, page: int, key: Key) -> None:
        if page >= 0:
            self._open_page(page)
        entries = self._open if page >= 0 else []
        place = bisect_left(entries, key, key=lambda other: other.key)
        if place == len(entries) or entries[place].key != key:
            # It left memory, though an older one may have come since.
            self.pruned -= 1
            return
        del entries[place]
        self._counts[page] -= 1
        self._packed -= 1
        if self._open:
            self._firsts[page] = self._open[0].key
        else:
            self._open_at = None
            del self._pages[page], self._firsts[page], self._counts[page]

    def _split_page(self, page: int) -> None:
        halves = self._open[:PAGE_ENTRIES], self._open[PAGE_ENTRIES:]
        self._open_at = None
        self._pages[page : page + 1] = [pack_page(half) for half in halves]
        self._firsts[page : page + 1] = [half[0].key for half in halves]
        self._counts[page : page + 1] = [len(half) for half in halves]

    def _open_page(self, page: int) -> None:
        if self._open_at != page:
            self._close()
            self._open, self._open_at = unpack_page(self._pages[page]), page

    def _close(self) -> None:
        if self._open_at is not None:
            self._pages[self._open_at] = pack_page(self._open)
            self._open_at = None

    def _read(self, page: int) -> list[LogEntry]:
        return self._open if page == self._open_at else unpack_page(self._pages[page])

    def _drop_pages(self, count: int) -> None:
        dropped = sum(self._counts[:count])
        del self._pages[:count], self._firsts[:count], self._counts[:count]
        self._packed -= dropped
        self.pruned += dropped
