"""Messages that peers have announced and that are not here: looked up, asked for, waited for.

A message is looked up in the database when it is announced. Where it is missing, it is open while
no peer is asked for it. It is removed when its body has come, when it is stored from another
source, or when no peer is left that announced it.

A *round* is what one ``get_events`` asks for. Its peer is judged only while it talks: the clock of
a round begins with the first frame of the peer after it was asked, and anew with each body that it
delivers. After `PATIENCE_NS` the rest of the round counts as not delivered, and is asked of others.
Where no other is known to have a message, the peer is asked again, up to `MAX_FAILURES` times in
all: it may be slow, but a message that it has dropped since never comes. A peer that is silent is
no liar; after `SILENCE_NS` another one may be asked.

A *guess* is a parent of an event: its peers are asked although they did not announce it, so that
not to deliver it is no fault. A peer is asked for guesses in rounds of their own, one at a time,
which end after `SILENCE_NS` without a body: parents that no peer has never delay what is
announced. While a peer that announced a parent can be asked, no other is.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from store.gossip.limits import (
    MAX_DOUBTED,
    MAX_FAILURES,
    MAX_HOLDERS,
    MAX_ROUNDS,
    PATIENCE_NS,
    SILENCE_NS,
    SLOWED_ROUND_IDS,
)

_FULL_ROUNDS: Final = 2
"""So many times `GossipLimits.round_ids` may be under way with one peer."""


@dataclass(slots=True)
class FetchRound:
    """A request to a peer; ``talks_ns``: when its clock began, None: not yet."""

    asked_ns: int
    ids: dict[bytes, None]
    guess: bool = False
    talks_ns: int | None = None
    given_up: bool = False

    @property
    def ends_ns(self) -> int | None:
        """The time at which the round expires; None: its clock has not begun."""
        if self.guess:
            return (self.talks_ns or self.asked_ns) + SILENCE_NS
        return None if self.talks_ns is None else self.talks_ns + PATIENCE_NS

    @property
    def wake_ns(self) -> int:
        """The time at which it expires or is given up; in the past where a frame must come."""
        given_up_ns = self.asked_ns + SILENCE_NS
        ends_ns = given_up_ns if self.ends_ns is None else self.ends_ns
        return ends_ns if self.given_up else min(ends_ns, given_up_ns)


@dataclass(slots=True)
class FetchSource:
    """A peer that may deliver messages.

    ``announced``: what it may be asked for, with the content digests that it has announced, empty
    where it has announced none. ``open``: of those, what is not requested and what
    the peer has announced itself; ``guesses``: what it has not.
    """

    announced: dict[bytes, bytes] = field(default_factory=dict)
    open: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    guesses: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    rounds: list[FetchRound] = field(default_factory=list)

    @property
    def asked(self) -> int:
        """The number of messages in rounds."""
        return sum(len(round_.ids) for round_ in self.rounds)

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
    although no peer has announced it. ``failures``: rounds that did not deliver it.
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
    """The messages to fetch: ``announced_ids`` of one peer at most, ``round_ids`` in a round."""

    def __init__(self, announced_ids: int, round_ids: int) -> None:
        self._announced_ids = announced_ids
        self._round_ids = round_ids
        self._wants: dict[bytes, _Fetch] = {}
        self._unknown: OrderedDict[bytes, None] = OrderedDict()
        self.sources: dict[str, FetchSource] = {}

    def __len__(self) -> int:
        """Return the number of messages to fetch."""
        return len(self._wants)

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
        if len(source.announced) >= self._announced_ids:
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
        contents: dict[str, bytes] = {}
        for peer in want.peers:
            source = self.sources[peer]
            contents[peer] = source.announced.pop(digest, b"")
            source.withdraw(digest)
        for peer in dict.fromkeys((*want.peers, want.asked)):
            if peer:
                self._close(self.sources[peer], digest)
        return [(peer, contents[peer]) for peer, guess in want.peers.items() if not guess]

    def refuse(self, digest: bytes, peer: str) -> None:
        """Fetch a message no more from a peer whose copy is refused."""
        source = self.sources[peer]
        self._close(source, digest)
        self._forget(source, digest, peer)

    # Asking

    def ask(self, now_ns: int, peer: str, *, slowed: bool) -> list[bytes]:
        """Begin the next round with a peer; return its messages."""
        source = self.sources[peer]
        queue = source.open or source.guesses
        guess = queue is source.guesses
        if len(source.rounds) >= MAX_ROUNDS:
            return []
        if guess and any(round_.guess for round_ in source.rounds):
            return []
        room = _FULL_ROUNDS * self._round_ids - source.asked
        most = min(room, self._round_ids, SLOWED_ROUND_IDS if slowed else room)
        ids = dict.fromkeys(islice(queue, max(0, most)))
        for digest in ids:
            want = self._wants[digest]
            want.asked = peer
            for other in want.peers:
                self.sources[other].withdraw(digest)
        if ids:
            source.rounds.append(FetchRound(now_ns, ids, guess))
        return list(ids)

    def is_asked(self, digest: bytes, peer: str) -> bool:
        """Return True if a message is in a round of a peer."""
        return any(digest in round_.ids for round_ in self.sources[peer].rounds)

    def note_frame(self, now_ns: int, peer: str, *, delivers: bool = False) -> None:
        """Start the clocks of a peer's rounds; restart them if it ``delivers`` a message."""
        for round_ in self.sources[peer].rounds:
            if delivers or round_.talks_ns is None:
                round_.talks_ns = now_ns

    def expire(self, now_ns: int) -> list[tuple[str, int]]:
        """Return peers that did not deliver, and how many messages of a round, without guesses."""
        failed = []
        for peer, source in self.sources.items():
            for round_ in list(source.rounds):
                if round_.ends_ns is not None and now_ns >= round_.ends_ns:
                    failed.append((peer, self._fail(source, peer, round_)))
                elif not round_.given_up and now_ns >= round_.asked_ns + SILENCE_NS:
                    round_.given_up = True
                    for digest in round_.ids:
                        if self._wants[digest].asked == peer:
                            self._open(digest, self._wants[digest])
        return failed

    @property
    def wake_ns(self) -> int | None:
        """The time at which `expire` is due; None: no round is open."""
        rounds = (round_ for source in self.sources.values() for round_ in source.rounds)
        return min((round_.wake_ns for round_ in rounds), default=None)

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
        assert sum(round_.guess for round_ in source.rounds) <= 1
        assert source.asked <= _FULL_ROUNDS * self._round_ids
        assert len(source.rounds) <= MAX_ROUNDS
        assert all(round_.ids for round_ in source.rounds)

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

    def _fail(self, source: FetchSource, peer: str, round_: FetchRound) -> int:
        source.rounds.remove(round_)
        faults = 0
        for digest in round_.ids:
            want = self._wants[digest]
            want.failures += 1
            if not round_.guess and len(want.peers) == 1 and want.failures < MAX_FAILURES:
                self._open(digest, want)
            else:
                faults += not want.peers[peer]
                self._forget(source, digest, peer)
        return faults

    def _close(self, source: FetchSource, digest: bytes) -> None:
        """Remove a message from the round of a peer."""
        for round_ in source.rounds:
            if digest in round_.ids:
                del round_.ids[digest]
                if not round_.ids:
                    source.rounds.remove(round_)
                return
