"""The local log: message IDs ordered by (Lamport timestamp, message ID).

The entries that came last are in memory, in order. Of those before them only a digest of the ID is
kept, about 90 bytes, so that a message that was delivered at any time is known for good. It is the
coming that counts: others choose clocks, and could fill the end of the log for ever.

The last entries of the log alone, as the causal history of a message, hide what was said at the
same time, and acknowledge only themselves. So the *heads* are named too: the messages that no other
message in the log names. All heads together lead to the whole log, since each message leads to its
causes; so a participant that receives one message and fetches what it lacks has everything that its
sender had, without any filter.

Source: SDS, "Participant state", "Send message", "Deliver message" and "Resolve conflicts".
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Final, Protocol

from sortedcontainers import SortedList

from storenode.sds.codec import Entry, size_of
from storenode.sds.config import ChannelConfig
from storenode.sds.limits import MAX_HISTORY_BYTES

KEPT_ENTRIES: Final = 10_000
"""Entries that stay in memory."""

SALT_BYTES: Final = 16
_DIGEST_BYTES: Final = 16
_SLACK_ENTRIES: Final = 256
"""Entries that leave memory together."""

Key = tuple[int, str]
"""Position in the log: (Lamport timestamp, message ID)."""


class Rng(Protocol):
    """The one method of the standard library's generators that is used."""

    def uniform(self, a: float, b: float) -> float:
        """Return a number between the two."""


@dataclass(slots=True)
class LogEntry:
    """A message of the log. The hint is the latest that is known; the sender may be empty."""

    lamport: int
    message_id: str
    sender_id: str
    hint: bytes | None = None

    @property
    def key(self) -> Key:
        """The position in the log (SDS, "Resolve conflicts")."""
        return self.lamport, self.message_id


class MessageLog:
    """The entries of a log, at least the last ``kept`` that came.

    Attributes:
        salt: a secret that keeps others from making two IDs with one digest.
        older: digests of the IDs of messages that left memory.
    """

    def __init__(self, salt: bytes, kept: int = KEPT_ENTRIES) -> None:
        self.salt = salt
        self.older: set[bytes] = set()
        self._kept = kept
        self._entries: dict[str, LogEntry] = {}
        self._keys: SortedList[Key] = SortedList()

    def digest(self, message_id: str) -> bytes:
        """Return what is remembered of an ID for good."""
        return blake2b(message_id.encode(), digest_size=_DIGEST_BYTES, key=self.salt).digest()

    def __len__(self) -> int:
        """Return the number of all messages, in memory or not."""
        return len(self.older) + len(self._entries)

    def __contains__(self, message_id: str) -> bool:
        """Return True if the message was delivered at any time."""
        return message_id in self._entries or self.digest(message_id) in self.older

    def recent(self, message_id: str) -> LogEntry | None:
        """Return the entry, if it is in memory."""
        return self._entries.get(message_id)

    def insert(self, entry: LogEntry) -> int:
        """Insert a message that is not in the log; return how many entries come after it.

        Entries that left memory do not count.
        """
        after = self.after(entry.key)
        self._keys.add(entry.key)
        self._entries[entry.message_id] = entry
        if len(self._keys) >= self._kept + _SLACK_ENTRIES:
            self._forget(_SLACK_ENTRIES)
        return after

    def remove(self, key: Key) -> None:
        """Remove a message, as if it had not come."""
        if self._entries.pop(key[1], None) is None:
            self.older.discard(self.digest(key[1]))
        else:
            self._keys.remove(key)

    def preceding(self, key: Key, count: int) -> list[LogEntry]:
        """Return the last entries in memory before a key, in log order: at most ``count``."""
        end = len(self._keys) - self.after(key)
        if end and self._keys[end - 1] == key:
            end -= 1
        return [self._entries[name] for _, name in self._keys[max(end - count, 0) : end]]

    def entries(self) -> Iterator[LogEntry]:
        """Yield all entries in memory, in order; the log must not change meanwhile."""
        for _, message_id in self._keys:
            yield self._entries[message_id]

    def after(self, key: Key) -> int:
        """Return how many entries in memory come after a key."""
        keys = self._keys
        return 0 if not keys or keys[-1] <= key else len(keys) - keys.bisect_right(key)

    def check(self) -> None:
        """Verify the invariants: order, each entry once, and no ID both in memory and older."""
        keys = list(self._keys)
        assert keys == sorted(set(keys))
        assert keys == [entry.key for entry in self.entries()]
        assert self._entries.keys() == {message_id for _, message_id in keys}
        assert not self.older & set(map(self.digest, self._entries))
        assert len(keys) < self._kept + _SLACK_ENTRIES

    def _forget(self, count: int) -> None:
        """Remove the entries from memory that came first."""
        for entry in list(islice(self._entries.values(), count)):
            del self._entries[entry.message_id]
            self._keys.remove(entry.key)
            self.older.add(self.digest(entry.message_id))


RECENT_MS: Final = 120_000
"""An entry of the log that is older need not be named besides the heads: sync messages have named
it. In a slow channel it would be a third of each line."""


def history_of(
    config: ChannelConfig, log: MessageLog, named: Iterable[str], lamport: int, *, last: int
) -> tuple[Entry, ...]:
    """Return the causes of a message with this clock, in log order.

    Messages whose clock is ahead of ours do not precede it: one with the largest clock would be
    in every history from then on. What is neither named nor recent has been named by others since.
    """
    extra = (log.recent(key) for key in dict.fromkeys(named))
    chosen = {entry.message_id: entry for entry in extra if entry is not None}
    count = last if chosen else config.history_entries
    since = lamport - RECENT_MS if chosen and config.name_heads else 0
    before = (entry for entry in log.preceding((lamport, ""), count) if entry.lamport >= since)
    chosen |= {entry.message_id: entry for entry in before}
    entries = sorted(chosen.values(), key=lambda entry: entry.key)
    found = [Entry(entry.message_id, entry.hint, entry.sender_id or None) for entry in entries]
    left = MAX_HISTORY_BYTES - sum(map(size_of, found))
    while left < 0:
        left += size_of(found.pop(0))
    return tuple(found)
