"""The state machines of both sides of a compact session, and its outcome.

Both have the same window and fixed views, and the initiator's count and XOR of it come with the
base payload. Frames are bytes; a side accepts one and returns its answer.

    initiator   frame     what follows                              next state
    ---------   --------  ----------------------------------------  -----------------
    new         (begin)   OFFER                                     offered
    new         (await)   nothing                                   asked
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
    new         (begin)   SLICES, of the whole window               sliced
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
without an outcome. The result of the responder is valid only if the initiator does not send FAILED.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from reconcile.compact import plan
from reconcile.compact.frames import (
    AnswerHead,
    Frame,
    FrameKind,
    PlainFrame,
    ResultFrame,
    SingleFrame,
    SlicesFrame,
    TableFrame,
    decode,
    encode,
    encode_answer,
    encode_balances,
    encode_offer,
)
from reconcile.compact.keys import (
    NO_WORDS,
    SHORT_BYTES,
    SHORT_MASK,
    SessionKeys,
    ShortKey,
    first_key,
)
from reconcile.compact.plan import Slicing, slicing
from reconcile.compact.slices import (
    FIRST_PRINT_BYTES,
    NO_REGION,
    Regions,
    SliceDifferences,
    Slices,
    WindowIndex,
)
from reconcile.compact.table import (
    MAX_CELLS,
    MAX_TABLES,
    NOWHERE,
    ShortIdTable,
    cells_for,
    divide,
    find,
    has_repeats,
    shape_for,
)
from reconcile.compact.table_choice import NOTHING_CHOSEN, choose, may_be_anchored
from reconcile.errors import MalformedCompactError
from reconcile.ids import Bools, Ints, SyncId, SyncIds, Words, ordered
from reconcile.index import IndexView

_NO_XOR: Final = np.zeros(4, np.uint64)
_FrameT = TypeVar("_FrameT", bound=Frame)
_NumbersT = TypeVar("_NumbersT", Words, Ints)


@dataclass(frozen=True, slots=True)
class Expected:
    """The IDs that the peer has and the view lacks: their short IDs, and the XOR of their hashes.

    Attributes:
        shorts: ``(n,)``, ascending.
        xor: ``(4,)``.
        key: the key of the short IDs.
    """

    shorts: Words
    xor: Words
    key: ShortKey = field(repr=False)

    def __len__(self) -> int:
        return len(self.shorts)

    def accepts(self, hashes: NDArray[np.uint8]) -> Bools:
        """Return ``(n,)``: is each of ``(n, 32)`` hashes one of these."""
        if not len(self.shorts):
            return np.zeros(len(hashes), np.bool_)
        found = self.key.of_hashes(hashes)
        at = np.minimum(self.shorts.searchsorted(found), len(self.shorts) - 1)
        return np.asarray(self.shorts[at] == found)

    def complete(self, hashes: NDArray[np.uint8]) -> bool:
        """Return True if ``(n, 32)`` different hashes are just these, to all of their 256 bits."""
        if len(hashes) != len(self.shorts) or not bool(self.accepts(hashes).all()):
            return False
        words = np.ascontiguousarray(hashes).view(np.uint64)
        return bool((np.bitwise_xor.reduce(words, axis=0) == self.xor).all())


@dataclass(frozen=True, slots=True)
class CompactResult:
    """The differences.

    Attributes:
        to_send: IDs that the peer lacks, ascending; all of them are in the view.
        to_receive: the IDs that the peer has and the view lacks.
    """

    to_send: SyncIds
    to_receive: Expected


@dataclass(frozen=True, slots=True)
class FallBack:
    """A failure, after which a base session follows; ``reason`` is for the log."""

    reason: str


Outcome = CompactResult | FallBack


@dataclass(frozen=True, slots=True)
class CompactStep:
    """The answer to a frame: a frame to send, if any, and the outcome, if that is all."""

    frame: bytes | None
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """The initiator's count of IDs in the window, and the XOR of their hashes."""

    count: int
    xor: Words


@dataclass(frozen=True, slots=True)
class _Matched:
    """The short IDs that each side has alone, in some slices.

    Attributes:
        wanted: short IDs that the responder lacks.
        offered: short IDs that only the responder has.
        to_send: the IDs of these.
        sent: the XOR of their hashes.
        clear: no short ID is that of several IDs.
    """

    wanted: Words
    offered: Words
    to_send: SyncIds
    sent: Words
    clear: bool


class _State(Enum):
    NEW = "new"
    OFFERED = "offered"
    ASKED = "asked"
    FILLED = "filled"
    LOOKING = "looking"
    SLICED = "sliced"
    ENDED = "ended"


class _Side:
    """The behaviour of both sides."""

    def __init__(self, view: IndexView, window: tuple[SyncId, SyncId]) -> None:
        self._window = WindowIndex(view, window)
        self._state = _State.NEW
        self._slices: Slices | None = None
        self._tables = 0

    @property
    def ended(self) -> bool:
        """True if there is an outcome, or an error."""
        return self._state is _State.ENDED

    @property
    def own_count(self) -> int:
        """The number of IDs in the window."""
        return self._window.count

    @property
    def tables(self) -> int:
        """The number of tables so far."""
        return self._tables

    def _at(self, frame: Frame, expected: type[_FrameT], *states: _State) -> _FrameT:
        if not isinstance(frame, expected) or self._state not in states:
            raise MalformedCompactError(0, f"No such frame may come while {self._state.value}")
        return frame

    def _end(self, outcome: CompactResult | FallBack, frame: Frame | None = None) -> CompactStep:
        self._state = _State.ENDED
        return CompactStep(None if frame is None else encode(frame), outcome)

    def _fail(self, reason: str) -> CompactStep:
        return self._end(FallBack(reason), PlainFrame(FrameKind.FAILED))

    def _go(self, state: _State, frame: Frame | bytes) -> CompactStep:
        self._state = state
        return CompactStep(frame if isinstance(frame, bytes) else encode(frame))

    def _probe(self, low: Ints, high: Ints, xor: Words) -> SyncIds | None:
        """Return the one ID with a hash, in an interval of places; or None."""
        hit = self._window.rows.probe(low, high, xor.reshape(1, -1))
        return hit.found if hit.hit[0] else None


class CompactInitiator(_Side):
    """The side that begins.

    Args:
        view: its IDs; the whole window is in it.
        window: the range to reconcile, not empty.
        nonce: its own, 16 random bytes.

    Raises:
        ValueError: the nonce has another length.
    """

    def __init__(self, view: IndexView, window: tuple[SyncId, SyncId], nonce: bytes) -> None:
        super().__init__(view, window)
        self._nonce = nonce
        self._first_key = first_key(nonce)
        self._keys: SessionKeys | None = None
        self._peer: tuple[int, Words] = (0, self._window.xor)
        self._choice = NOTHING_CHOSEN
        self._size = 0.0

    @property
    def claim(self) -> Claim:
        """The count and XOR that the base payload and its frame carry."""
        return Claim(self._window.count, self._window.xor)

    def begin(self) -> bytes:
        """Return the first frame."""
        wanted = Slicing(plan.FIRST_SLICES, FIRST_PRINT_BYTES)
        self._slices, cut = self._window.cut(self._window.regions, self._first_key, wanted)
        self._state = _State.OFFERED
        return encode_offer(cut)

    def await_slices(self) -> None:
        """Offer nothing, and await the slices with which the responder begins."""
        self._slices = self._window.whole
        self._state = _State.ASKED

    def agree(self, nonce: bytes) -> None:
        """Set the responder's nonce, which comes with its first frame.

        Raises:
            ValueError: it has another length.
        """
        self._keys = SessionKeys.derive(self._nonce, nonce)

    def receive(self, data: bytes) -> CompactStep:
        """Accept a frame, and return the answer.

        Raises:
            MalformedCompactError: the bytes are no frame, or none that is possible now.
            PayloadLimitError: the frame is larger than this node allows.
        """
        assert self._slices is not None
        assert self._keys is not None, "both nonces are known by now"
        try:
            return self._take(decode(data, len(self._slices)), self._keys)
        except BaseException:
            self._state = _State.ENDED
            raise

    def _take(self, frame: Frame, keys: SessionKeys) -> CompactStep:
        match frame:
            case PlainFrame(FrameKind.FAILED):
                return self._end(FallBack("the peer could not go on"))
            case PlainFrame(FrameKind.EQUAL):
                self._at(frame, PlainFrame, _State.OFFERED)
                nothing = Expected(NO_WORDS, _NO_XOR, keys.short)
                return self._end(CompactResult(SyncIds.empty(), nothing))
            case PlainFrame(FrameKind.AGAIN):
                self._at(frame, PlainFrame, _State.FILLED)
                self._size *= plan.LARGER
                return self._table(keys)
            case SingleFrame():
                return self._single(self._at(frame, SingleFrame, _State.OFFERED), keys)
            case SlicesFrame(FrameKind.SLICES):
                self._at(frame, SlicesFrame, _State.OFFERED, _State.ASKED)
                return self._compare(frame, keys)
        return self._decoded(self._at(frame, ResultFrame, _State.FILLED), keys)

    def _single(self, frame: SingleFrame, keys: SessionKeys) -> CompactStep:
        xor = frame.xor ^ self._window.xor
        if frame.kind is FrameKind.FOUND:
            short = np.array([keys.short.of_xor(xor)], np.uint64)
            return self._end(CompactResult(SyncIds.empty(), Expected(short, xor, keys.short)))
        own = self._slices
        if own is None or frame.number >= len(own):
            raise MalformedCompactError(0, "There is no such slice")
        number = slice(frame.number, frame.number + 1)
        to_send = self._probe(own.low[number], own.high[number], xor)
        if to_send is None:
            return self._go(_State.ASKED, PlainFrame(FrameKind.MORE))
        nothing = Expected(NO_WORDS, _NO_XOR, keys.short)
        return self._end(CompactResult(to_send, nothing), PlainFrame(FrameKind.DONE))

    def _compare(self, frame: SlicesFrame, keys: SessionKeys) -> CompactStep:
        """Compare the responder's slices with the own IDs, and send a table of the differences."""
        own, head = self._slices, frame.head
        assert own is not None
        assert head is not None
        if not head.differs.any():
            raise MalformedCompactError(0, "An answer is about no slice")
        regions = Regions.join(own.lower[head.differs], own.upper[head.differs])
        items = own.items_in(head.differs)
        anchored = may_be_anchored(head, items)
        compared = self._window.compare(frame, regions, keys.short, anchored=anchored)
        self._peer = head.count, head.xor
        self._choice = choose(self._window, head, compared, keys.short, (regions, items))
        self._size = self._choice.size
        return self._table(keys)

    def _table(self, keys: SessionKeys) -> CompactStep:
        if self._tables == MAX_TABLES or cells_for(self._size) > MAX_CELLS // 2:
            return self._fail(f"about {self._size:.0f} differences, after {self._tables} tables")
        choice, shape = self._choice, shape_for(self._size)
        table = ShortIdTable(shape, keys.salts[self._tables])
        choice.put_into(table, self._window, keys.short)
        self._tables += 1
        beside = choice.explained, choice.single, choice.listed, choice.named
        frame = TableFrame(choice.differs, shape, table.cells, *beside, by_prints=choice.by_prints)
        return self._go(_State.FILLED, frame)

    def _decoded(self, frame: ResultFrame, keys: SessionKeys) -> CompactStep:
        """Find the wanted IDs, and compare the result with the XOR of both sides."""
        mask = (1 << (8 * frame.wanted_bytes)) - 1
        choice = self._choice
        at = find(frame.wanted, choice.shorts, mask)
        if bool((at < 0).any()):
            return self._fail("the peer wants an ID that is not here, or not the only one")
        at = _merge(at, choice.explaining)
        if has_repeats(at):
            return self._fail("the peer wants an ID that was sent to it")
        to_send, sent = self._window.gather(choice.low, choice.high, at)
        count, xor = self._peer
        same = bool((self._window.xor ^ sent ^ frame.xor == xor).all())
        if not same or self._window.count + len(frame.offered) != count + len(at):
            return self._fail("the differences do not explain the fingerprints")
        return self._end(CompactResult(to_send, Expected(frame.offered, frame.xor, keys.short)))


class CompactResponder(_Side):
    """The side that answers.

    Args:
        view: its IDs; the whole window is in it.
        window: the initiator's.
        nonces: the initiator's and its own, 16 random bytes each.
        claim: the count and XOR that the initiator sent.

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
        self._xor = self._window.xor ^ claim.xor
        self._regions = self._window.regions
        self._differs = np.empty(0, np.bool_)
        self._compared: SliceDifferences | None = None
        self._print_bytes = 0

    @property
    def is_equal(self) -> bool:
        """True if count and XOR are those of the initiator."""
        return self._claim.count == self._window.count and not self._xor.any()

    def begin(self) -> bytes:
        """Return the first frame, where the initiator accepts slices without an offer."""
        self._differs = np.ones(1, np.bool_)
        apart = abs(self._window.count - self._claim.count)
        return self._answer_with(plan.unoffered(apart, self._window.count))

    def receive(self, data: bytes) -> CompactStep:
        """Accept a frame, and return the answer.

        Raises:
            MalformedCompactError: the bytes are no frame, or none that is possible now.
            PayloadLimitError: the frame is larger than this node allows.
        """
        try:
            return self._take(decode(data, 0 if self._slices is None else len(self._slices)))
        except BaseException:
            self._state = _State.ENDED
            raise

    def _take(self, frame: Frame) -> CompactStep:
        match frame:
            case PlainFrame(FrameKind.FAILED) if self._state is not _State.NEW:
                return self._end(FallBack("the peer could not go on"))
            case PlainFrame(FrameKind.DONE):
                self._at(frame, PlainFrame, _State.LOOKING)
                short = np.array([self._keys.short.of_xor(self._xor)], np.uint64)
                return self._end(self._to_receive(short, self._xor))
            case PlainFrame(FrameKind.MORE):
                self._at(frame, PlainFrame, _State.LOOKING)
                return self._answer()
            case SlicesFrame(FrameKind.OFFER):
                self._at(frame, SlicesFrame, _State.NEW)
                return self._offered(frame)
        return self._tabled(self._at(frame, TableFrame, _State.SLICED))

    def _to_receive(self, shorts: Words, xor: Words) -> CompactResult:
        return CompactResult(SyncIds.empty(), Expected(shorts, xor, self._keys.short))

    def _offered(self, frame: SlicesFrame) -> CompactStep:
        """Compare the offer; the XOR of both sides may be the only difference."""
        if self.is_equal:
            return self._end(self._to_receive(NO_WORDS, self._xor), PlainFrame(FrameKind.EQUAL))
        compared = self._window.compare(frame, self._regions, self._first_key)
        chosen, apart = compared.chosen, compared.chosen.balances
        self._differs = compared.differs
        if not len(chosen):
            return self._fail("no slice differs, and the fingerprints do")
        self._compared = compared
        least = abs(self._window.count - self._claim.count)
        if least == 1 and len(apart) == 1 and abs(int(apart[0])) == 1:
            return self._single(chosen.low, chosen.high)
        return self._answer()

    def _single(self, low: Ints, high: Ints) -> CompactStep:
        if self._window.count < self._claim.count:
            number = int(self._differs.argmax())
            return self._go(_State.LOOKING, SingleFrame(FrameKind.LOOK, self._window.xor, number))
        to_send = self._probe(low, high, self._xor)
        if to_send is None:
            return self._answer()
        nothing = Expected(NO_WORDS, _NO_XOR, self._keys.short)
        return self._end(
            CompactResult(to_send, nothing), SingleFrame(FrameKind.FOUND, self._window.xor)
        )

    def _answer(self) -> CompactStep:
        """Return as many slices of the differences as are worth it."""
        compared, slices = self._compared, len(self._differs)
        assert compared is not None
        chosen, least = compared.chosen, abs(self._window.count - self._claim.count)
        single, usual = np.abs(chosen.balances) <= 1, self._claim.count // slices
        sums = self._window.survey(compared, single, usual, NO_REGION).sums
        if not compared.equal.is_enough:
            sums = sums.credible(chosen.balances)
        about, most = plan.estimate(sums, slices, least, certain=True)
        self._regions = Regions.join(chosen.lower, chosen.upper)
        return CompactStep(self._answer_with(slicing(about, most, chosen.items, len(chosen))))

    def _answer_with(self, wanted: Slicing) -> bytes:
        window, key = self._window, self._keys.short
        self._slices, cut = window.cut(self._regions, key, wanted)
        self._state, self._print_bytes = _State.SLICED, wanted.print_bytes
        head = AnswerHead(window.xor, window.count, self._differs, wanted.print_bytes)
        if len(self._slices) == len(self._regions.start):
            cut += encode_balances(window.balance_bits(self._regions, key))
        return encode_answer(head, cut)

    def _tabled(self, frame: TableFrame) -> CompactStep:
        """Remove the own IDs from a table, and peel the rest."""
        if self._tables == MAX_TABLES:
            return self._fail("too many tables")
        inside, listed = self._parts(frame)
        if int((listed[1] - listed[0]).sum()) > MAX_CELLS:
            return self._fail("more is listed than can be answered")
        table = ShortIdTable(frame.shape, self._keys.salts[self._tables], frame.cells)
        self._tables += 1
        shorts = table.fill(self._window.rows, *inside, self._keys.short)
        decoded = table.peel()
        if decoded is None:
            if self._tables == MAX_TABLES:
                return self._fail(f"{MAX_TABLES} tables did not empty")
            return self._go(_State.SLICED, PlainFrame(FrameKind.AGAIN))
        parts = [self._matched(decoded, shorts, inside)] if len(decoded) else []
        sent, items = frame.single, len(shorts) + len(frame.named)
        if frame.by_prints:
            single, places = self._by_prints(frame)
            if has_repeats(single):
                return self._fail("two slices differ in the same ID")
            own = self._keys.short.of_places(self._window.rows, *places)
            parts.append(self._matched(single, own, places))
            sent, items = NO_WORDS, items + len(own)
        if frame.listed is not None:
            parts.append(self._listed(frame.named, listed))
        return self._result(parts, sent, items)

    def _by_prints(self, frame: TableFrame) -> tuple[Words, tuple[Ints, Ints]]:
        """Return the short IDs that prints are apart by, ascending, and places of the slices.

        The initiator has only the lower bytes of this side's prints.
        """
        assert self._slices is not None
        assert frame.explained is not None
        rows = frame.explained.nonzero()[0]
        if frame.differs is not None:
            rows = frame.differs.nonzero()[0][rows]
        slices = self._slices
        unsaid = np.uint64(SHORT_MASK >> 8 * self._print_bytes << 8 * self._print_bytes)
        apart = np.sort(frame.single ^ (slices.prints[rows] & unsaid))
        return apart, (slices.low[rows], slices.high[rows])

    def _parts(self, frame: TableFrame) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
        """Return the places that a table is about, and those that are listed beside it."""
        assert self._slices is not None
        low, high = self._slices.low, self._slices.high
        if frame.differs is not None:
            # Few of many: to find them once takes less than a mask for each column.
            rows = frame.differs.nonzero()[0]
            low, high = low[rows], high[rows]
        if frame.explained is not None:
            low, high = low[~frame.explained], high[~frame.explained]
        listed = frame.listed
        if listed is None:
            return (low, high), (low[:0], high[:0])
        return (low[~listed], high[~listed]), (low[listed], high[listed])

    def _matched(self, apart: Words, shorts: Words, places: tuple[Ints, Ints]) -> _Matched:
        """Find which side has each of the short IDs by which slices differ."""
        at = find(apart, shorts)
        own = at >= 0
        rows = at[own]
        rows.sort()
        to_send, sent = self._window.gather(*places, rows)
        clear = int(at.min(initial=NOWHERE)) == NOWHERE
        return _Matched(apart[~own], apart[own], to_send, sent, clear)

    def _listed(self, named: Words, places: tuple[Ints, Ints]) -> _Matched:
        """Find which side has which short IDs, where the initiator's are all named."""
        own = self._keys.short.of_places(self._window.rows, *places)
        wanted, rows, offered, clear = divide(named, own)
        to_send, sent = self._window.gather(*places, rows)
        return _Matched(wanted, offered, to_send, sent, clear)

    def _result(self, parts: list[_Matched], single: Words, items: int) -> CompactStep:
        """Compare the differences with the counts and XORs of both sides."""
        wanted = _merge(NO_WORDS, *(part.wanted for part in parts))
        offered = _merge(NO_WORDS, *(part.offered for part in parts))
        lacking = _merge(wanted, single)
        together = int(np.bitwise_xor.reduce(lacking) ^ np.bitwise_xor.reduce(offered))
        explained = together == self._keys.short.of_xor(self._xor)
        if not explained or not all(part.clear for part in parts):
            return self._fail("the differences do not explain the fingerprints")
        count = self._window.count + len(lacking)
        if (
            count != self._claim.count + len(offered)
            or has_repeats(lacking)
            or has_repeats(offered)
        ):
            return self._fail("the differences do not explain the counts")
        some = [part.to_send for part in parts if len(part.to_send)]
        to_send = some[0] if len(some) == 1 else ordered(SyncIds.join(some))
        sent = np.zeros_like(self._xor)
        for part in parts:
            sent ^= part.sent
        expected = Expected(lacking, self._xor ^ sent, self._keys.short)
        size, cut = _shorten(wanted, items)
        return self._end(CompactResult(to_send, expected), ResultFrame(sent, cut, size, offered))


def _merge(*parts: _NumbersT) -> _NumbersT:
    """Return all numbers of one part or more, ascending."""
    some = [part for part in parts if len(part)]
    found = np.concatenate(some) if len(some) > 1 else (some or parts)[0].copy()
    found.sort()
    return found


def _shorten(wanted: Words, items: int) -> tuple[int, Words]:
    """Cut short IDs to so many bytes that they can be found among items; ascending."""
    size = plan.wanted_bytes(len(wanted), items)
    if not len(wanted):
        return size, wanted
    while True:
        cut = wanted & np.uint64(min((1 << (8 * size)) - 1, SHORT_MASK))
        cut.sort()
        if not has_repeats(cut):
            return min(size, SHORT_BYTES), cut
        size += 1
