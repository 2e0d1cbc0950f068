"""The memory of what was refused for good, so that it is not fetched and sent over and over.

Two stores with different rules never hold the same set: one refuses what the other keeps. Without
a memory the same messages would be sent at every reconciliation. Remembered are, for each peer,
the hashes that this node refused from it, and those that the peer refused from this node.

Rules.

1. A memory is about one peer. Not all of a message is in its hash, so that another peer may hold
   the same ID in a form that is accepted; and no peer can make a node refuse what others bring.
2. A refusal is forgotten after a day, since rules change; "too new" when the message's time has
   come; one for a reason that this node does not know after an hour.
3. At most `MAX_REMEMBERED` in all. When that is passed, the peer with the most forgets its oldest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import islice
from typing import Final

from reconcile.ids import SyncIds
from store.sync.limits import MAX_REMEMBERED, REMEMBERED_NS
from storenode.message.limits import NS_PER_S
from storenode.message.rules import Reason

POLICY_LABELS: Final = frozenset(map(str, Reason))
"""The labels by which a node's rules refuse."""

OTHER: Final = "other"
"""Label of a peer's reason that is none of them."""

OTHER_NS: Final = 3_600 * NS_PER_S
"""The time that a refusal is remembered whose reason may pass."""


class Side(Enum):
    """The side that refused."""

    OURS = "ours"
    THEIRS = "theirs"


_Book = dict[bytes, tuple[int, str]]
"""Hash -> (forgotten at, label), the oldest first."""


class PolicyMemory:
    """The refusals of and by all peers of a node; times are Unix nanoseconds.

    Attributes:
        books: by the peer, such as its node ID, and who refused; none of them empty.
    """

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self.books: dict[tuple[str, Side], _Book] = {}
        self._limit = limit

    def __len__(self) -> int:
        """Return how many refusals are remembered in all."""
        return sum(map(len, self.books.values()))

    def add(self, peer: str, side: Side, now_ns: int, ids: SyncIds, labels: Sequence[str]) -> None:
        """Remember refusals in sessions with a peer; ``labels[i]`` is why ``ids[i]`` was refused.

        With too many, the peer with the most forgets its oldest (rule 3).
        """
        if not labels:
            return
        pairs = ids.pairs()
        self.forget(peer, side, [digest for _, digest in pairs])
        book = self.books.setdefault((peer, side), {})
        for (timestamp_ns, digest), label in zip(pairs, labels, strict=True):
            book[digest] = self.until_ns(now_ns, timestamp_ns, label), label
        while (excess := len(self) - self._limit) > 0:
            largest, book = max(self.books.items(), key=lambda item: len(item[1]))
            self.forget(*largest, list(islice(book, excess)))

    def known(self, peer: str, side: Side, now_ns: int) -> dict[bytes, str]:
        """Return the labels by hash; those whose time has come are forgotten."""
        book = self.books.get((peer, side), {})
        over = [digest for digest, (until_ns, _) in book.items() if until_ns <= now_ns]
        self.forget(peer, side, over)
        return {digest: label for digest, (_, label) in book.items()}

    def forget(self, peer: str, side: Side, hashes: Iterable[bytes]) -> None:
        """Remove refusals that no longer stand."""
        book = self.books.get((peer, side), {})
        for digest in hashes:
            book.pop(digest, None)
        if not book:
            self.books.pop((peer, side), None)

    def until_ns(self, now_ns: int, timestamp_ns: int, label: str) -> int:
        """Return when a refusal is forgotten (rule 2), in Unix nanoseconds."""
        if label == OTHER:
            return now_ns + OTHER_NS
        until_ns = now_ns + REMEMBERED_NS
        return min(until_ns, timestamp_ns) if label == Reason.TOO_NEW else until_ns

    def check(self) -> None:
        """Verify the invariants.

        Raises:
            AssertionError: one is broken.
        """
        assert len(self) <= self._limit
        assert all(self.books.values()), "an empty book is kept"
