"""Messages that peers have announced and that are not here: looked up, asked for, waited for.

A message is looked up in the database when it is announced. Where it is missing, it is open while
no peer is asked for it. It is removed when its body has come, when it is stored from another
source, or when no peer is left that announced it.

After `SILENCE_NS` another peer may be asked. A peer that still sends frames `PATIENCE_NS` after it
was asked for a message, and after the last body that it delivered, has not delivered the message; a
peer that is silent is no liar. Where no other is known to have it, the peer is asked again, up to
`MAX_FAILURES` times in all: it may be slow, but a message that it has dropped since never comes.

A *guess* is a parent of an event: its peers are asked although they did not announce it, so that
not to deliver it is no fault. A peer is asked for guesses once more when those before have ended,
which is `SILENCE_NS` after a body: parents that no peer has never delay what is announced. While a
peer that announced a parent can be asked, no other is.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Final

from store.gossip.limits import (
    MAX_DOUBTED,
    MAX_FAILURES,
    MAX_HOLDERS,
    PATIENCE_NS,
    SILENCE_NS,
    SLOWED_ROUND_IDS,
)

_FULL_ROUNDS: Final = 2
"""The multiple of `GossipLimits.round_ids` that may be requested of one peer at the same time."""

_GUESSED_SHARE: Final = 16
"""A peer is guessed to have parents, which publishers invent, up to this part of its limit only."""


@dataclass(slots=True)
class FetchSource:
    """A peer that may deliver messages.

    Attributes:
        announced: What it may be asked for, with the content digests that it has announced, empty
            where it has announced none.
        open: Of those, what no peer is asked for and the peer has announced itself.
        guesses: The same of what it has not announced.
        asked: When it was asked for what it has announced, the longest ago first.
        late: The same of what others may be asked for too.
        guessed: When it was asked for guesses.
        delivered_ns: When its last body came.
    """

    announced: dict[bytes, bytes] = field(default_factory=dict)
    open: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    guesses: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    asked: dict[bytes, int] = field(default_factory=dict)
    late: dict[bytes, int] = field(default_factory=dict)
    guessed: dict[bytes, int] = field(default_factory=dict)
    delivered_ns: int = 0

    @property
    def under_way(self) -> tuple[dict[bytes, int], ...]:
        """The messages that it was asked for and that have not come."""
        return self.asked, self.late, self.guessed

    @property
    def silence_ns(self) -> int | None:
        """The time at which `FetchQueue.expire` is due for it; None: not before it is asked."""
        since = list(islice(self.asked.values(), 1))
        since += [max(asked_ns, self.delivered_ns) for asked_ns in islice(self.guessed.values(), 1)]
        return min(since) + SILENCE_NS if since else None

    def offer(self, digest: bytes, *, guess: bool) -> None:
        """Offer a message for the next request to the peer."""
        (self.guesses if guess else self.open)[digest] = None

    def withdraw(self, digest: bytes) -> None:
        """Withdraw an offered message."""
        self.open.pop(digest, None)
        self.guesses.pop(digest, None)


@dataclass(slots=True)
class _Fetch:
    """A message to fetch.

    ``peers``: those that may deliver it, each with whether that is a guess; one of them may be
    ``asked``. ``missing``: it was looked up, and is not stored. ``doubted``: it is to be looked up
    although no peer has announced it. ``failures``: how often it was not delivered.
    """

    missing: bool = False
    doubted: bool = False
    peers: dict[str, bool] = field(default_factory=dict)
    asked: str = ""
    failures: int = 0

    @property
    def is_open(self) -> bool:
        """True if a peer is to be asked."""
        return self.missing and not self.asked


class FetchQueue:
    """The messages to fetch: ``announced_ids`` of one peer at most, ``round_ids`` in a request."""

    def __init__(self, announced_ids: int, round_ids: int) -> None:
        self._announced_ids = announced_ids
        self._round_ids = round_ids
        self._wants: dict[bytes, _Fetch] = {}
        self._unknown: OrderedDict[bytes, None] = OrderedDict()
        self.sources: dict[str, FetchSource] = {}

    def join(self, peer: str) -> None:
        """Add a peer."""
        self.sources[peer] = FetchSource()

    def leave(self, peer: str) -> None:
        """Remove a peer."""
        source = self.sources.pop(peer)
        for digest in list(source.announced):
            self._forget(source, digest, peer)

    def announce(
        self, digest: bytes, peer: str, content: bytes = b"", *, guess: bool = False
    ) -> bool:
        """Note that a peer may deliver a message; return False if it has announced too many."""
        source = self.sources[peer]
        if digest in source.announced:
            if not guess:
                source.announced[digest] = content
                self._have_announced(digest, peer)
            return True
        most = self._announced_ids // _GUESSED_SHARE if guess else self._announced_ids
        if len(source.announced) >= most:
            return False
        want = self._want(digest)
        if len(want.peers) < MAX_HOLDERS:
            want.peers[peer] = guess
            source.announced[digest] = content
            if want.is_open:
                self._open(digest, want)
        return True

    def doubt(self, digest: bytes) -> bool:
        """Look up a message that no peer has announced; return False if too many wait for that."""
        if digest not in self._wants and len(self._unknown) >= MAX_DOUBTED:
            return False
        self._want(digest).doubted = True
        return True

    # Looking up

    def check_next(self, most: int) -> list[bytes]:
        """Return the next messages to look up in the database."""
        taken = list(islice(self._unknown, most))
        for digest in taken:
            del self._unknown[digest]
        return taken

    def missing(self, digest: bytes) -> None:
        """Open a message that was looked up and is not stored."""
        want = self._wants.get(digest)
        if want is None or want.missing or digest in self._unknown:
            return
        want.missing = True
        self._open(digest, want)
        if not want.peers:
            del self._wants[digest]

    def resolve(self, digest: bytes) -> list[tuple[str, bytes]]:
        """Forget a message that has come, or is held.

        Returns:
            The peers that have announced it, each with the content digest that it announced.
        """
        want = self._wants.pop(digest, None)
        if want is None:
            return []
        self._unknown.pop(digest, None)
        announced = []
        for peer, is_guess in want.peers.items():
            source = self.sources[peer]
            source.withdraw(digest)
            self._close(source, digest)
            content = source.announced.pop(digest)
            if not is_guess:
                announced.append((peer, content))
        return announced

    def refuse(self, digest: bytes, peer: str) -> None:
        """Fetch a message no more from a peer whose copy is refused."""
        source = self.sources[peer]
        self._close(source, digest)
        self._forget(source, digest, peer)

    # Asking

    def ask(self, now_ns: int, peer: str, *, slowed: bool) -> list[bytes]:
        """Return the messages that a peer is to be asked for now."""
        source = self.sources[peer]
        queue, asked = source.open, source.asked
        if not queue and not source.guessed:
            queue, asked = source.guesses, source.guessed
        room = _FULL_ROUNDS * self._round_ids - sum(map(len, source.under_way))
        most = min(room, self._round_ids, SLOWED_ROUND_IDS if slowed else room)
        ids = list(islice(queue, max(0, most)))
        for digest in ids:
            want = self._wants[digest]
            want.asked = peer
            for other in want.peers:
                self.sources[other].withdraw(digest)
            asked[digest] = now_ns
        return ids

    def is_asked(self, digest: bytes, peer: str) -> bool:
        """Return True if a peer was asked for a message that has not come."""
        return any(digest in asked for asked in self.sources[peer].under_way)

    def expire(self, now_ns: int) -> None:
        """Offer to others what peers have not delivered for too long, and end their guesses."""
        for peer, source in self.sources.items():
            due_ns = now_ns - SILENCE_NS
            for digest in _asked_before(source.asked, due_ns):
                source.late[digest] = source.asked.pop(digest)
                if self._wants[digest].asked == peer:
                    self._open(digest, self._wants[digest])
            if source.delivered_ns <= due_ns:
                for digest in _asked_before(source.guessed, due_ns):
                    self._fail(source, peer, digest)

    def end_overdue(self, now_ns: int, peer: str) -> int:
        """Note a frame of a peer; return how many announced messages it has not delivered."""
        source, due_ns = self.sources[peer], now_ns - PATIENCE_NS
        if source.delivered_ns > due_ns:
            return 0
        overdue = _asked_before(source.late, due_ns)
        return sum(self._fail(source, peer, digest) for digest in overdue)

    @property
    def wake_ns(self) -> int | None:
        """The time at which `expire` is due; None: no peer is asked."""
        times = (source.silence_ns for source in self.sources.values())
        return min((time_ns for time_ns in times if time_ns is not None), default=None)

    def check(self) -> None:
        """Raise AssertionError if an invariant or a bound is broken."""
        for digest, want in self._wants.items():
            assert not (want.missing and digest in self._unknown)
            assert all(digest in self.sources[peer].announced for peer in want.peers)
            assert not want.asked or (want.missing and self.is_asked(digest, want.asked))
            assert want.peers or not want.is_open
            free = [self.sources[each] for each in want.peers if not self.is_asked(digest, each)]
            offered = any(digest in each.open or digest in each.guesses for each in free)
            assert offered or not free or not want.is_open
        for peer, source in self.sources.items():
            self._check_source(peer, source)

    def _check_source(self, peer: str, source: FetchSource) -> None:
        assert len(source.announced) <= self._announced_ids
        assert all(peer in self._wants[digest].peers for digest in source.announced)
        for queue, guess in ((source.open, False), (source.guesses, True)):
            assert all(self._wants[digest].is_open for digest in queue)
            assert all(self._wants[digest].peers[peer] is guess for digest in queue)
        under_way = [digest for asked in source.under_way for digest in asked]
        assert len(set(under_way)) == len(under_way) <= _FULL_ROUNDS * self._round_ids
        assert all(list(each.values()) == sorted(each.values()) for each in source.under_way)
        assert source.announced.keys() >= set(under_way)

    def _have_announced(self, digest: bytes, peer: str) -> None:
        """Turn a guess into an announcement; an open request for it came too early."""
        want, source = self._wants[digest], self.sources[peer]
        if not want.peers[peer]:
            return
        want.peers[peer] = False
        source.withdraw(digest)
        self._close(source, digest)
        if want.asked == peer:
            want.asked = ""
        if want.is_open:
            self._open(digest, want)

    def _want(self, digest: bytes) -> _Fetch:
        want = self._wants.get(digest)
        if want is None:
            want = self._wants[digest] = _Fetch()
            self._unknown[digest] = None
        return want

    def _open(self, digest: bytes, want: _Fetch) -> None:
        """Offer a message to peers that have announced it, or else to guessed ones."""
        want.asked = ""
        free = [each for each in want.peers if not self.is_asked(digest, each)]
        announced = [peer for peer in free if not want.peers[peer]]
        for peer in announced or free:
            self.sources[peer].offer(digest, guess=want.peers[peer])

    def _forget(self, source: FetchSource, digest: bytes, peer: str) -> None:
        """Fetch a message no more from a peer that may have announced it, but from others."""
        if source.announced.pop(digest, None) is None:
            return
        source.withdraw(digest)
        want = self._wants[digest]
        del want.peers[peer]
        if want.asked == peer:
            want.asked = ""
        if want.peers:
            if want.is_open:
                self._open(digest, want)
        elif want.is_open or (digest in self._unknown and not want.doubted):
            self._unknown.pop(digest, None)
            del self._wants[digest]

    def _fail(self, source: FetchSource, peer: str, digest: bytes) -> bool:
        """Note that a peer has not delivered a message; return True if it had announced it."""
        self._close(source, digest)
        want = self._wants[digest]
        want.failures += 1
        is_guess = want.peers[peer]
        if not is_guess and len(want.peers) == 1 and want.failures < MAX_FAILURES:
            self._open(digest, want)
            return False
        self._forget(source, digest, peer)
        return not is_guess

    def _close(self, source: FetchSource, digest: bytes) -> None:
        """Expect a message of a peer no more."""
        for asked in source.under_way:
            asked.pop(digest, None)


def _asked_before(asked: dict[bytes, int], due_ns: int) -> list[bytes]:
    """Return the messages that were asked for at a time or before it."""
    return [digest for digest, _ in takewhile(lambda each: each[1] <= due_ns, asked.items())]
