"""The newest messages that are stored here, and which peers and stores have each ("Seen").

The newest `GossipLimits.seen_ids` messages are remembered, in the order in which they became
known. Five sets go with each, as bits of an integer: the stores that are known to hold it, the
peers to which this node has announced it, those to which it has again, which should answer, those
that its body was sent to, and those that it came from; bodies may cross. What concerns a peer is
about its stream, and forgotten with it; what concerns a store stays.

The content digest of each is remembered too, empty where it is not known.

A message is *quiet* when it was learnt of as one that had been held for a while, and so was not
announced.
"""

from __future__ import annotations

from collections.abc import Iterator


class Bits:
    """Gives out bits, the lowest free one first; one that is freed is given out again."""

    def __init__(self) -> None:
        self._taken = 0

    def take(self) -> int:
        """Return a free bit: a power of two."""
        bit = ~self._taken & (self._taken + 1)
        self._taken |= bit
        return bit

    def free(self, bit: int) -> None:
        """Free a bit."""
        self._taken &= ~bit


class RecentMessages:
    """A ring of IDs. Adding and looking up are constant, forgetting a bit is linear in the ring."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._places: dict[bytes, int] = {}
        self._ids: list[bytes] = []
        self._next = 0
        self.holders: list[int] = []
        self.notified: list[int] = []
        self.expecting: list[int] = []
        self.sent_to: list[int] = []
        self.received_from: list[int] = []
        self.quiet: list[bool] = []
        self.content_digests: list[bytes] = []

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self._places)

    def __contains__(self, digest: bytes) -> bool:
        """Return True for a message in the ring."""
        return digest in self._places

    def place(self, digest: bytes) -> int:
        """Return the place of a message in the columns; -1: it is not in the ring."""
        return self._places.get(digest, -1)

    def add(self, digest: bytes, content: bytes = b"", *, quiet: bool) -> int:
        """Remember a message, which was not, and return its place.

        With too many, the oldest is forgotten. ``content``: the content digest.
        """
        assert digest not in self._places
        place = self._next
        self._next = (place + 1) % self._capacity
        if place < len(self._ids):
            del self._places[self._ids[place]]
            self._ids[place] = digest
            for column in self._masks:
                column[place] = 0
        else:
            self._ids.append(digest)
            for column in self._masks:
                column.append(0)
            self.quiet.append(quiet)
            self.content_digests.append(content)
        self.quiet[place] = quiet
        self.content_digests[place] = content
        self._places[digest] = place
        return place

    def learn_content(self, place: int, content: bytes) -> None:
        """Set the content digest of a message; nothing is known of who holds another one."""
        if content and content != self.content_digests[place]:
            if self.content_digests[place]:
                self.holders[place] = 0
            self.content_digests[place] = content

    def newest(self) -> Iterator[tuple[bytes, int]]:
        """Yield all messages with their places, the newest first."""
        count = len(self._ids)
        for back in range(1, count + 1):
            place = (self._next - back) % count
            yield self._ids[place], place

    def forget_peer(self, bit: int) -> None:
        """Forget a peer whose stream has ended."""
        self.notified = [mask & ~bit for mask in self.notified]
        self.expecting = [mask & ~bit for mask in self.expecting]
        self.sent_to = [mask & ~bit for mask in self.sent_to]
        self.received_from = [mask & ~bit for mask in self.received_from]

    def forget_store(self, bit: int) -> None:
        """Clear the bit of a store."""
        self.holders = [mask & ~bit for mask in self.holders]

    @property
    def _masks(self) -> tuple[list[int], ...]:
        return self.holders, self.notified, self.expecting, self.sent_to, self.received_from

    def check(self) -> None:
        """Raise AssertionError if an invariant or a bound is broken."""
        count = len(self._ids)
        assert len(self._places) == count <= self._capacity
        assert all(len(column) == count for column in self._masks)
        assert len(self.quiet) == len(self.content_digests) == count
        assert all(self._ids[place] == digest for digest, place in self._places.items())
        assert self._next == (count if count < self._capacity else self._next)
