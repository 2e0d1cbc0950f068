"""Both sides of a compact session, as state machines.

Both have the same window and fixed views, and the initiator's count and XOR of it come with the
base payload. Frames are bytes; each takes one and says what follows.

    initiator   frame     what follows                              next state
    ---------   --------  ----------------------------------------  -----------------
    new         (begin)   OFFER                                     offered
    offered     EQUAL     found: nothing                            ended
    offered     FOUND     found: one to receive                     ended
    offered     LOOK      DONE, found: one to send                  ended
    offered     LOOK      MORE, if it is not there                  asked
    offered     SLICES    TABLE                                     filled
    asked       SLICES    TABLE                                     filled
    filled      AGAIN     TABLE, several times larger                  filled
    filled      RESULT    found, if it agrees with both XORs        ended
    any         FAILED    fall back                                 ended
    any         --        FAILED, fall back, if something disagrees  ended

    responder   frame     what follows                              next state
    ---------   --------  ----------------------------------------  -----------------
    new         OFFER     EQUAL, found: nothing                     ended
    new         OFFER     FOUND, found: one to send                 ended
    new         OFFER     LOOK, if it is not there                  looking
    new         OFFER     SLICES                                    sliced
    looking     DONE      found: one to receive                     ended
    looking     MORE      SLICES                                    sliced
    sliced      TABLE     RESULT, found                             ended
    sliced      TABLE     AGAIN, if it does not empty               sliced
    any, ended  FAILED    fall back                                 ended
    any         --        FAILED, fall back, if something disagrees  ended

A frame that is malformed, beyond a limit, or not in the table raises, and the session has ended
without an outcome. What the responder has found holds only if the initiator does not say FAILED.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

import numpy as np

from reconcile.compact.frames import (
    Answered,
    Cut,
    Decoded,
    Filled,
    Frame,
    Kind,
    Offer,
    Plain,
    Single,
    decode,
    encode,
)
from reconcile.compact.keys import SHORT_MASK, SessionKeys, ShortKey, first_key
from reconcile.compact.limits import MAX_CELLS, MAX_TABLES
from reconcile.compact.outcome import Expected, FallBack, Found, Step
from reconcile.compact.plan import FIRST_SLICES, LARGER, MIN_DENSE, slicing, wanted_bytes
from reconcile.compact.slices import Held, Regions, Slices, differing, estimate, print_mask
from reconcile.compact.table import NOWHERE, Table, cells_for, find, shape_for
from reconcile.errors import MalformedCompact
from reconcile.ids import Bools, Ints, SyncId, SyncIds, Words
from reconcile.index import IndexView
from reconcile.index.probe import probed

_FIRST_PRINT_BYTES: Final = 2
_NOTHING: Final = np.empty(0, np.uint64)
_FrameT = TypeVar("_FrameT", bound=Frame)


@dataclass(frozen=True, slots=True)
class Claim:
    """What the initiator says that it has in the window: how many, and the XOR of hashes."""

    count: int
    xor: Words


class _State(Enum):
    NEW = "new"
    OFFERED = "offered"
    ASKED = "asked"
    FILLED = "filled"
    LOOKING = "looking"
    SLICED = "sliced"
    ENDED = "ended"


class _Side:
    """What both sides do."""

    def __init__(self, view: IndexView, window: tuple[SyncId, SyncId]) -> None:
        self._held = Held(view, window)
        self._state = _State.NEW
        self._slices: Slices | None = None
        self._tables = 0

    @property
    def ended(self) -> bool:
        """Whether there is an outcome, or an error."""
        return self._state is _State.ENDED

    @property
    def held_count(self) -> int:
        """IDs in the window."""
        return self._held.count

    @property
    def tables(self) -> int:
        """How many tables there were."""
        return self._tables

    def _at(self, frame: Frame, expected: type[_FrameT], *states: _State) -> _FrameT:
        if not isinstance(frame, expected) or self._state not in states:
            raise MalformedCompact(0, f"No such frame may come while {self._state.value}")
        return frame

    def _end(self, outcome: Found | FallBack, frame: Frame | None = None) -> Step:
        self._state = _State.ENDED
        return Step(None if frame is None else encode(frame), outcome)

    def _fail(self, reason: str) -> Step:
        return self._end(FallBack(reason), Plain(Kind.FAILED))

    def _go(self, state: _State, frame: Frame) -> Step:
        self._state = state
        return Step(encode(frame))

    def _found(self, places: Ints, shorts: Words, xor: Words, key: ShortKey) -> Found:
        """What to send, by ascending places, and what to receive."""
        to_send = self._held.rows.take(places) if len(places) else SyncIds.empty()
        return Found(to_send, Expected(shorts, xor, key))

    def _probe(self, low: Ints, high: Ints, xor: Words) -> Ints:
        """The place of the one ID with a hash, in an interval of places; or none."""
        hit = probed(self._held.rows, low, high, xor.reshape(1, -1))
        if not hit.hit[0]:
            return np.empty(0, np.int64)
        ((timestamp, digest),) = hit.found.pairs()
        return np.array([self._held.rows.rank((timestamp, digest))])

    def _sent(self, lower: Ints, upper: Ints, cut: Cut) -> bool:
        """Do bounds make as many slices as there are rows of what is in them."""
        return len(lower) == len(upper) == len(cut.balances)


def _cut(slices: Slices, exponent: int, multiples: Ints, print_bytes: int) -> Cut:
    return Cut(exponent, multiples, slices.prints, print_bytes, slices.balances)


def _gathered(low: Ints, high: Ints, at: Ints) -> Ints:
    """The places of rows `at` of what is gathered from intervals of places; ascending."""
    ends = (high - low).cumsum()
    interval = ends.searchsorted(at, "right")
    return np.sort(low[interval] + at - (ends - high + low)[interval])


class Initiator(_Side):
    """The side that begins.

    Args:
        view: what it has; the whole window is in it.
        window: what to reconcile, not empty.
        nonce: its own, 16 random bytes.

    Raises:
        ValueError: the nonce has another length.
    """

    def __init__(self, view: IndexView, window: tuple[SyncId, SyncId], nonce: bytes) -> None:
        super().__init__(view, window)
        self._nonce = nonce
        self._first_key = first_key(nonce)
        self._keys: SessionKeys | None = None
        self._peer: tuple[int, Words] = (0, self._held.xor)
        self._shorts = _NOTHING
        self._chosen: tuple[Ints, Ints] = (np.empty(0, np.int64),) * 2
        self._differs: Bools | None = None
        self._size = 0.0

    @property
    def claim(self) -> Claim:
        """What the base payload and its frame say."""
        return Claim(self._held.count, self._held.xor)

    def begin(self) -> bytes:
        """The first frame."""
        held = self._held
        exponent, multiples = held.quantiles(held.regions, FIRST_SLICES)
        edges = held.regions.edges(multiples << exponent)
        self._slices = held.slices(*edges, self._first_key)
        self._state = _State.OFFERED
        return encode(Offer(_cut(self._slices, exponent, multiples, _FIRST_PRINT_BYTES)))

    def agree(self, nonce: bytes) -> None:
        """Take the responder's nonce, which comes with its first frame.

        Raises:
            ValueError: it has another length.
        """
        self._keys = SessionKeys.derive(self._nonce, nonce)

    def receive(self, data: bytes) -> Step:
        """Take a frame.

        Raises:
            MalformedCompact: it is none, or none that is possible now.
            LimitExceeded: it is larger than this node allows.
        """
        assert self._slices is not None
        assert self._keys is not None, "both nonces are known by now"
        try:
            frame = decode(data, self._regions_of, len(self._slices))
            return self._take(frame, self._keys)
        except BaseException:
            self._state = _State.ENDED
            raise

    def _regions_of(self, differs: Bools) -> int:
        assert self._slices is not None
        return len(Regions.joined(self._slices.lower[differs], self._slices.upper[differs]).start)

    def _take(self, frame: Frame, keys: SessionKeys) -> Step:
        match frame:
            case Plain(Kind.FAILED):
                return self._end(FallBack("the peer could not go on"))
            case Plain(Kind.EQUAL):
                self._at(frame, Plain, _State.OFFERED)
                none = np.empty(0, np.int64)
                return self._end(self._found(none, _NOTHING, self._nothing(), keys.short))
            case Plain(Kind.AGAIN):
                self._at(frame, Plain, _State.FILLED)
                self._size *= LARGER
                return self._table(keys)
            case Single():
                return self._single(self._at(frame, Single, _State.OFFERED), keys)
            case Answered():
                return self._sliced(self._at(frame, Answered, _State.OFFERED, _State.ASKED), keys)
        return self._decoded(self._at(frame, Decoded, _State.FILLED), keys)

    def _nothing(self) -> Words:
        return np.zeros_like(self._held.xor)

    def _single(self, frame: Single, keys: SessionKeys) -> Step:
        none = np.empty(0, np.int64)
        xor = frame.xor ^ self._held.xor
        if frame.kind is Kind.FOUND:
            short = np.array([keys.short.of_xor(xor)], np.uint64)
            return self._end(self._found(none, short, xor, keys.short))
        own = self._slices
        if own is None or frame.number >= len(own):
            raise MalformedCompact(0, "There is no such slice")
        number = slice(frame.number, frame.number + 1)
        place = self._probe(own.low[number], own.high[number], xor)
        if not len(place):
            return self._go(_State.ASKED, Plain(Kind.MORE))
        found = self._found(place, _NOTHING, self._nothing(), keys.short)
        return self._end(found, Plain(Kind.DONE))

    def _sliced(self, frame: Answered, keys: SessionKeys) -> Step:
        """Compare the responder's slices with what is held here."""
        assert self._slices is not None
        first, cut = self._slices, frame.cut
        regions = Regions.joined(first.lower[frame.differs], first.upper[frame.differs])
        bounds = cut.multiples << cut.exponent
        if len(bounds) and bounds[-1] >= regions.length:
            raise MalformedCompact(0, "A bound is outside of the slices that differ")
        lower, upper = regions.edges(bounds)
        if not self._sent(lower, upper, cut):
            raise MalformedCompact(0, "There are fewer slices than rows of what is in them")
        own = self._held.slices(lower, upper, keys.short)
        certain = cut.print_bytes > 0
        prints = cut.prints if certain else None
        differs = differing(own, prints, cut.balances, print_mask(cut.print_bytes))
        least = abs(self._held.count - frame.count)
        _, self._size = estimate(own, cut.balances, differs, least, certain=certain)
        if not certain:
            self._size = max(self._size, min(self._held.count + frame.count, MIN_DENSE))
        self._differs = differs if certain else None
        self._peer = frame.count, frame.xor
        self._chosen = own.low[differs], own.high[differs]
        self._shorts = keys.short.of_places(self._held.rows, *self._chosen)
        return self._table(keys)

    def _table(self, keys: SessionKeys) -> Step:
        if self._tables == MAX_TABLES or cells_for(self._size) > MAX_CELLS // 2:
            return self._fail(f"about {self._size:.0f} differences, after {self._tables} tables")
        shape = shape_for(self._size)
        table = Table(shape, keys.salts[self._tables])
        self._tables += 1
        table.toggle(self._shorts)
        return self._go(_State.FILLED, Filled(self._differs, shape, table.cells))

    def _decoded(self, frame: Decoded, keys: SessionKeys) -> Step:
        """Find what is wanted, and hold the result to the XOR of both sides."""
        mask = (1 << (8 * frame.wanted_bytes)) - 1
        at = find(frame.wanted, self._shorts, mask)
        if bool((at < 0).any()):
            return self._fail("the peer wants an ID that is not here, or not the only one")
        found = self._found(_gathered(*self._chosen, at), frame.offered, frame.xor, keys.short)
        count, xor = self._peer
        sent = np.bitwise_xor.reduce(found.to_send.words, axis=0)
        same = bool((self._held.xor ^ sent ^ frame.xor == xor).all())
        if not same or self._held.count + len(frame.offered) != count + len(frame.wanted):
            return self._fail("the differences do not explain the fingerprints")
        return self._end(found)


class Responder(_Side):
    """The side that answers.

    Args:
        view: what it has; the whole window is in it.
        window: the initiator's.
        nonces: the initiator's and its own, 16 random bytes each.
        claim: what the initiator says that it has.

    Raises:
        ValueError: a nonce has another length.
    """

    def __init__(
        self,
        view: IndexView,
        window: tuple[SyncId, SyncId],
        nonces: tuple[bytes, bytes],
        claim: Claim,
    ) -> None:
        super().__init__(view, window)
        self._first_key = first_key(nonces[0])
        self._keys = SessionKeys.derive(*nonces)
        self._claim = claim
        self._regions = self._held.regions
        self._differs = np.empty(0, np.bool_)
        self._about = 1.0

    def receive(self, data: bytes) -> Step:
        """Take a frame.

        Raises:
            MalformedCompact: it is none, or none that is possible now.
            LimitExceeded: it is larger than this node allows.
        """
        try:
            return self._take(decode(data, None, 0 if self._slices is None else len(self._slices)))
        except BaseException:
            self._state = _State.ENDED
            raise

    @property
    def _xor(self) -> Words:
        return self._held.xor ^ self._claim.xor

    def _take(self, frame: Frame) -> Step:
        match frame:
            case Plain(Kind.FAILED) if self._state is not _State.NEW:
                return self._end(FallBack("the peer could not go on"))
            case Plain(Kind.DONE):
                self._at(frame, Plain, _State.LOOKING)
                short = np.array([self._keys.short.of_xor(self._xor)], np.uint64)
                return self._end(self._to_receive(short, self._xor))
            case Plain(Kind.MORE):
                self._at(frame, Plain, _State.LOOKING)
                return self._answer()
            case Offer(cut):
                self._at(frame, Offer, _State.NEW)
                return self._offered(cut)
        return self._tabled(self._at(frame, Filled, _State.SLICED))

    def _to_receive(self, shorts: Words, xor: Words) -> Found:
        return self._found(np.empty(0, np.int64), shorts, xor, self._keys.short)

    def _offered(self, cut: Cut) -> Step:
        """Compare the initiator's slices; the XOR of both sides may be the only difference."""
        held, claim = self._held, self._claim
        if claim.count == held.count and not self._xor.any():
            return self._end(self._to_receive(_NOTHING, self._xor), Plain(Kind.EQUAL))
        bounds = cut.multiples << cut.exponent
        if len(bounds) and bounds[-1] >= self._regions.length:
            raise MalformedCompact(0, "A bound is outside of the window")
        lower, upper = self._regions.edges(bounds)
        if not self._sent(lower, upper, cut):
            raise MalformedCompact(0, "There are fewer slices than rows of what is in them")
        own = held.slices(lower, upper, self._first_key)
        mask = print_mask(_FIRST_PRINT_BYTES)
        self._differs = differing(own, cut.prints, cut.balances, mask)
        if not self._differs.any():
            return self._fail("no slice differs, and the fingerprints do")
        least = abs(held.count - claim.count)
        self._about, _ = estimate(own, cut.balances, self._differs, least, certain=True)
        self._regions = Regions.joined(lower[self._differs], upper[self._differs])
        apart = np.abs(own.balances - cut.balances)[self._differs]
        if least == 1 and len(apart) == 1 and apart[0] == 1:
            return self._single(own.low[self._differs], own.high[self._differs])
        return self._answer()

    def _single(self, low: Ints, high: Ints) -> Step:
        if self._held.count < self._claim.count:
            number = int(self._differs.argmax())
            return self._go(_State.LOOKING, Single(Kind.LOOK, self._held.xor, number))
        place = self._probe(low, high, self._xor)
        if not len(place):
            return self._answer()
        found = self._found(place, _NOTHING, np.zeros_like(self._xor), self._keys.short)
        return self._end(found, Single(Kind.FOUND, self._held.xor))

    def _answer(self) -> Step:
        """Slices of what differs, as many as are worth it."""
        held, regions = self._held, self._regions
        plan = slicing(self._about, held.count_in(regions))
        exponent, multiples = held.quantiles(regions, plan.count)
        bounds = multiples << exponent
        multiples = multiples[(bounds < regions.length) & ~regions.is_edge(bounds)]
        self._slices = held.slices(*regions.edges(multiples << exponent), self._keys.short)
        cut = _cut(self._slices, exponent, multiples, plan.print_bytes)
        return self._go(_State.SLICED, Answered(held.xor, held.count, self._differs, cut))

    def _tabled(self, frame: Filled) -> Step:
        """Take out of a table what is held here, and peel the rest."""
        assert self._slices is not None
        low, high = self._slices.low, self._slices.high
        if frame.differs is not None:
            low, high = low[frame.differs], high[frame.differs]
        if self._tables == MAX_TABLES:
            return self._fail("too many tables")
        shorts = self._keys.short.of_places(self._held.rows, low, high)
        table = Table(frame.shape, self._keys.salts[self._tables], frame.cells)
        self._tables += 1
        table.toggle(shorts)
        decoded = table.peel()
        if decoded is None:
            if self._tables == MAX_TABLES:
                return self._fail(f"{MAX_TABLES} tables did not empty")
            return self._go(_State.SLICED, Plain(Kind.AGAIN))
        at = find(decoded, shorts)
        explained = int(np.bitwise_xor.reduce(decoded)) == self._keys.short.of_xor(self._xor)
        if not explained or bool((at < NOWHERE).any()):
            return self._fail("the differences do not explain the fingerprints")
        return self._decoded(decoded, at, _gathered(low, high, at[at >= 0]), len(shorts))

    def _decoded(self, decoded: Words, at: Ints, places: Ints, items: int) -> Step:
        wanted, offered = decoded[at == NOWHERE], decoded[at >= 0]
        if self._held.count + len(wanted) != self._claim.count + len(offered):
            return self._fail("the differences do not explain the counts")
        found = self._found(places, wanted, self._xor, self._keys.short)
        sent = np.bitwise_xor.reduce(found.to_send.words, axis=0)
        expected = Expected(wanted, self._xor ^ sent, self._keys.short)
        size, cut = _shortened(wanted, items)
        reply = Decoded(sent, cut, size, offered)
        return self._end(Found(found.to_send, expected), reply)


def _shortened(wanted: Words, items: int) -> tuple[int, Words]:
    """Short IDs cut to so many bytes that they can be found among items; ascending."""
    size = wanted_bytes(len(wanted), items)
    while True:
        cut = np.unique(wanted & np.uint64(min((1 << (8 * size)) - 1, SHORT_MASK)))
        if len(cut) == len(wanted):
            return min(size, 6), cut
        size += 1
