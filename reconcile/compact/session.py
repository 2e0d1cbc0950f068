"""Both sides of a compact session, as state machines.

Both have the same window and fixed views, and the initiator's count and XOR of it come with the
base payload. Frames are bytes; each takes one and says what follows.

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
without an outcome. What the responder has found holds only if the initiator does not say FAILED.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeVar

import numpy as np

from reconcile.compact.choosing import NOTHING_CHOSEN, Heard, choose, survey
from reconcile.compact.frames import (
    Answered,
    AnswerHead,
    Decoded,
    Filled,
    Frame,
    Kind,
    Offer,
    Plain,
    Single,
    answer_bytes,
    balances_bytes,
    decode,
    encode,
    offer_bytes,
    read_answer_head,
)
from reconcile.compact.keys import NO_WORDS, SHORT_MASK, SessionKeys, first_key
from reconcile.compact.limits import (
    MAX_CELLS,
    MAX_FIRST_SLICES,
    MAX_SLICES,
    MAX_TABLES,
)
from reconcile.compact.matching import Matched, merged, repeats, shortened
from reconcile.compact.outcome import Expected, FallBack, Found, Step
from reconcile.compact.plan import (
    FIRST_SLICES,
    LARGER,
    Slicing,
    slicing,
    unoffered,
)
from reconcile.compact.sizing import estimate
from reconcile.compact.slices import NO_REGION, Compared, Held, Regions, Slices
from reconcile.compact.table import NOWHERE, Table, cells_for, divided, find, shape_for
from reconcile.errors import MalformedCompact
from reconcile.ids import Bools, Ints, SyncId, SyncIds, Words, ordered
from reconcile.index import IndexView
from reconcile.index.probe import probed

_FIRST_PRINT_BYTES: Final = 2
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

    def _go(self, state: _State, frame: Frame | bytes) -> Step:
        self._state = state
        return Step(frame if isinstance(frame, bytes) else encode(frame))

    def _probe(self, low: Ints, high: Ints, xor: Words) -> SyncIds | None:
        """The one ID with a hash, in an interval of places; or none."""
        hit = probed(self._held.rows, low, high, xor.reshape(1, -1))
        return hit.found if hit.hit[0] else None


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
        self._choice = NOTHING_CHOSEN
        self._size = 0.0

    @property
    def claim(self) -> Claim:
        """What the base payload and its frame say."""
        return Claim(self._held.count, self._held.xor)

    def begin(self) -> bytes:
        """The first frame."""
        wanted = Slicing(FIRST_SLICES, _FIRST_PRINT_BYTES)
        self._slices, cut = self._held.cut(self._held.regions, self._first_key, wanted)
        self._state = _State.OFFERED
        return offer_bytes(cut)

    def await_slices(self) -> None:
        """Offer nothing, and take what the responder begins with."""
        self._slices = self._held.whole
        self._state = _State.ASKED

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
            step = self._sliced_quickly(data, len(self._slices), self._keys)
            if step is not None:
                return step
            frame = decode(
                data, lambda differs: len(self._regions(differs).start), len(self._slices)
            )
            return self._take(frame, self._keys)
        except BaseException:
            self._state = _State.ENDED
            raise

    def _regions(self, differs: Bools) -> Regions:
        own = self._slices
        assert own is not None
        return Regions.joined(own.lower[differs], own.upper[differs])

    def _heard(self, head: AnswerHead) -> Heard:
        own = self._slices
        assert own is not None
        return Heard(head, self._regions(head.differs), own.items_in(head.differs))

    def _take(self, frame: Frame, keys: SessionKeys) -> Step:
        match frame:
            case Plain(Kind.FAILED):
                return self._end(FallBack("the peer could not go on"))
            case Plain(Kind.EQUAL):
                self._at(frame, Plain, _State.OFFERED)
                nothing = Expected(NO_WORDS, self._nothing(), keys.short)
                return self._end(Found(SyncIds.empty(), nothing))
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
        xor = frame.xor ^ self._held.xor
        if frame.kind is Kind.FOUND:
            short = np.array([keys.short.of_xor(xor)], np.uint64)
            return self._end(Found(SyncIds.empty(), Expected(short, xor, keys.short)))
        own = self._slices
        if own is None or frame.number >= len(own):
            raise MalformedCompact(0, "There is no such slice")
        number = slice(frame.number, frame.number + 1)
        to_send = self._probe(own.low[number], own.high[number], xor)
        if to_send is None:
            return self._go(_State.ASKED, Plain(Kind.MORE))
        nothing = Expected(NO_WORDS, self._nothing(), keys.short)
        return self._end(Found(to_send, nothing), Plain(Kind.DONE))

    def _sliced_quickly(self, data: bytes, slices: int, keys: SessionKeys) -> Step | None:
        """What ``_sliced`` does, by compiled code as soon as the slices are reached."""
        if self._state not in (_State.OFFERED, _State.ASKED):
            return None
        found = read_answer_head(data, slices)
        if found is None:
            return None
        heard = self._heard(found[0])
        plan = Slicing(MAX_SLICES, heard.head.print_bytes, heard.may_be_anchored)
        unread = data, found[1]
        compared = self._held.compare_quickly(unread, heard.regions, keys.short, plan)
        return None if compared is None else self._choose(heard, compared, keys)

    def _sliced(self, frame: Answered, keys: SessionKeys) -> Step:
        """Compare the responder's slices with what is held here."""
        head = AnswerHead(frame.xor, frame.count, frame.differs, frame.cut.print_bytes)
        heard = self._heard(head)
        compared = self._held.compare(frame.cut, heard.regions, keys.short)
        if frame.tally is not None:
            apart = self._held.tally(heard.regions, keys.short) - frame.tally
            heard = replace(heard, apart=apart)
        return self._choose(heard, compared, keys)

    def _choose(self, heard: Heard, compared: Compared, keys: SessionKeys) -> Step:
        """Put what is in slices that differ into a table."""
        self._peer = heard.head.count, heard.head.xor
        self._choice = choose(self._held, heard, compared, keys.short)
        self._size = self._choice.size
        return self._table(keys)

    def _table(self, keys: SessionKeys) -> Step:
        if self._tables == MAX_TABLES or cells_for(self._size) > MAX_CELLS // 2:
            return self._fail(f"about {self._size:.0f} differences, after {self._tables} tables")
        choice, shape = self._choice, shape_for(self._size)
        table = Table(shape, keys.salts[self._tables])
        choice.put_into(table, self._held, keys.short)
        self._tables += 1
        beside = choice.explained, choice.told, choice.listed, choice.named
        frame = Filled(choice.differs, shape, table.cells, *beside, by_prints=choice.by_prints)
        return self._go(_State.FILLED, frame)

    def _decoded(self, frame: Decoded, keys: SessionKeys) -> Step:
        """Find what is wanted, and hold the result to the XOR of both sides."""
        mask = (1 << (8 * frame.wanted_bytes)) - 1
        choice = self._choice
        at = find(frame.wanted, choice.shorts, mask)
        if bool((at < 0).any()):
            return self._fail("the peer wants an ID that is not here, or not the only one")
        at = merged(at, choice.explaining)
        if repeats(at):
            return self._fail("the peer wants an ID that it was told of")
        to_send, sent = self._held.gather(choice.low, choice.high, at)
        count, xor = self._peer
        same = bool((self._held.xor ^ sent ^ frame.xor == xor).all())
        if not same or self._held.count + len(frame.offered) != count + len(at):
            return self._fail("the differences do not explain the fingerprints")
        return self._end(Found(to_send, Expected(frame.offered, frame.xor, keys.short)))


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
        self._xor = self._held.xor ^ claim.xor
        self._regions = self._held.regions
        self._differs = np.empty(0, np.bool_)
        self._compared: Compared | None = None
        self._print_bytes = 0

    @property
    def is_equal(self) -> bool:
        """Whether count and XOR are those of the initiator."""
        return self._claim.count == self._held.count and not self._xor.any()

    def begin(self) -> bytes:
        """The first frame, where the initiator takes slices that it has not offered."""
        self._differs = np.ones(1, np.bool_)
        plan = unoffered(abs(self._held.count - self._claim.count), self._held.count)
        return self._answer_with(plan)

    def receive(self, data: bytes) -> Step:
        """Take a frame.

        Raises:
            MalformedCompact: it is none, or none that is possible now.
            LimitExceeded: it is larger than this node allows.
        """
        try:
            step = self._offered_quickly(data)
            if step is not None:
                return step
            return self._take(decode(data, None, 0 if self._slices is None else len(self._slices)))
        except BaseException:
            self._state = _State.ENDED
            raise

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
            case Offer():
                return self._offered(self._at(frame, Offer, _State.NEW))
        return self._tabled(self._at(frame, Filled, _State.SLICED))

    def _to_receive(self, shorts: Words, xor: Words) -> Found:
        return Found(SyncIds.empty(), Expected(shorts, xor, self._keys.short))

    def _offered_quickly(self, data: bytes) -> Step | None:
        """What ``_offered`` does, by compiled code."""
        if self._state is not _State.NEW or data[:1] != bytes((Kind.OFFER,)):
            return None
        plan = Slicing(MAX_FIRST_SLICES - 1, _FIRST_PRINT_BYTES)
        compared = self._held.compare_quickly((data, 1), self._regions, self._first_key, plan)
        return None if compared is None else self._decide(compared)

    def _offered(self, frame: Offer) -> Step:
        """Compare the initiator's slices with what is held here."""
        if self.is_equal:
            return self._equal()
        return self._decide(self._held.compare(frame.cut, self._regions, self._first_key))

    def _equal(self) -> Step:
        return self._end(self._to_receive(NO_WORDS, self._xor), Plain(Kind.EQUAL))

    def _decide(self, compared: Compared) -> Step:
        """Go on in slices that differ; the XOR of both sides may be the only difference."""
        if self.is_equal:
            return self._equal()
        chosen, apart = compared.chosen, compared.chosen.balances
        self._differs = compared.differs
        if not len(chosen):
            return self._fail("no slice differs, and the fingerprints do")
        self._compared = compared
        least = abs(self._held.count - self._claim.count)
        if least == 1 and len(apart) == 1 and abs(int(apart[0])) == 1:
            return self._single(chosen.low, chosen.high)
        return self._answer()

    def _single(self, low: Ints, high: Ints) -> Step:
        if self._held.count < self._claim.count:
            number = int(self._differs.argmax())
            return self._go(_State.LOOKING, Single(Kind.LOOK, self._held.xor, number))
        to_send = self._probe(low, high, self._xor)
        if to_send is None:
            return self._answer()
        nothing = Expected(NO_WORDS, np.zeros_like(self._xor), self._keys.short)
        return self._end(Found(to_send, nothing), Single(Kind.FOUND, self._held.xor))

    def _answer(self) -> Step:
        """Slices of what differs, as many as are worth it."""
        compared, slices = self._compared, len(self._differs)
        assert compared is not None
        chosen, least = compared.chosen, abs(self._held.count - self._claim.count)
        single, usual = np.abs(chosen.balances) <= 1, self._claim.count // slices
        said = survey(self._held, compared, single, usual, NO_REGION)
        sums = said.sums if compared.equal.enough else said.sums.credible(chosen.balances)
        about, most = estimate(sums, slices, least, certain=True)
        self._regions = Regions.joined(chosen.lower, chosen.upper)
        return Step(self._answer_with(slicing(about, most, chosen.items, len(chosen))))

    def _answer_with(self, plan: Slicing) -> bytes:
        held = self._held
        self._slices, cut = held.cut(self._regions, self._keys.short, plan)
        self._state, self._print_bytes = _State.SLICED, plan.print_bytes
        head = AnswerHead(held.xor, held.count, self._differs, plan.print_bytes)
        if len(self._slices) == len(self._regions.start):
            cut += balances_bytes(held.tally(self._regions, self._keys.short))
        return answer_bytes(head, cut)

    def _tabled(self, frame: Filled) -> Step:
        """Take out of a table what is held here, and peel the rest."""
        if self._tables == MAX_TABLES:
            return self._fail("too many tables")
        inside, listed = self._parts(frame)
        if int((listed[1] - listed[0]).sum()) > MAX_CELLS:
            return self._fail("more is listed than can be told")
        table = Table(frame.shape, self._keys.salts[self._tables], frame.cells)
        self._tables += 1
        shorts = table.fill(self._held.rows, *inside, self._keys.short)
        decoded = table.peel()
        if decoded is None:
            if self._tables == MAX_TABLES:
                return self._fail(f"{MAX_TABLES} tables did not empty")
            return self._go(_State.SLICED, Plain(Kind.AGAIN))
        parts = [self._matched(decoded, shorts, inside)] if len(decoded) else []
        told, items = frame.told, len(shorts) + len(frame.named)
        if frame.by_prints:
            single, places = self._by_prints(frame)
            if repeats(single):
                return self._fail("two slices differ in the same ID")
            own = self._keys.short.of_places(self._held.rows, *places)
            parts.append(self._matched(single, own, places))
            told, items = NO_WORDS, items + len(own)
        if frame.listed is not None:
            parts.append(self._listed(frame.named, listed))
        return self._result(parts, told, items)

    def _by_prints(self, frame: Filled) -> tuple[Words, tuple[Ints, Ints]]:
        """The short IDs that prints are apart by, ascending, and places of what is in the slices.

        The initiator has only the lower bytes of this side's prints.
        """
        assert self._slices is not None
        assert frame.explained is not None
        rows = frame.explained.nonzero()[0]
        if frame.differs is not None:
            rows = frame.differs.nonzero()[0][rows]
        slices = self._slices
        unsaid = np.uint64(SHORT_MASK >> 8 * self._print_bytes << 8 * self._print_bytes)
        apart = np.sort(frame.told ^ (slices.prints[rows] & unsaid))
        return apart, (slices.low[rows], slices.high[rows])

    def _parts(self, frame: Filled) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
        """Places of what a table is about, and of what is listed beside it."""
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

    def _matched(self, apart: Words, shorts: Words, places: tuple[Ints, Ints]) -> Matched:
        """Whose short IDs are, by which both sides differ in some intervals of places."""
        at = find(apart, shorts)
        own = at >= 0
        rows = at[own]
        rows.sort()
        to_send, sent = self._held.gather(*places, rows)
        clear = int(at.min(initial=NOWHERE)) == NOWHERE
        return Matched(apart[~own], apart[own], to_send, sent, clear)

    def _listed(self, named: Words, places: tuple[Ints, Ints]) -> Matched:
        """Whose short IDs are, where all that the initiator has in some intervals is named."""
        own = self._keys.short.of_places(self._held.rows, *places)
        wanted, rows, offered, clear = divided(named, own)
        to_send, sent = self._held.gather(*places, rows)
        return Matched(wanted, offered, to_send, sent, clear)

    def _result(self, parts: list[Matched], told: Words, items: int) -> Step:
        """Hold what was found to what both sides say that they have."""
        wanted = merged(told[:0], *(part.wanted for part in parts))
        offered = merged(told[:0], *(part.offered for part in parts))
        lacking = merged(wanted, told)
        together = int(np.bitwise_xor.reduce(lacking) ^ np.bitwise_xor.reduce(offered))
        explained = together == self._keys.short.of_xor(self._xor)
        if not explained or not all(part.clear for part in parts):
            return self._fail("the differences do not explain the fingerprints")
        count = self._held.count + len(lacking)
        if count != self._claim.count + len(offered) or repeats(lacking) or repeats(offered):
            return self._fail("the differences do not explain the counts")
        some = [part.to_send for part in parts if len(part.to_send)]
        to_send = some[0] if len(some) == 1 else ordered(SyncIds.join(some))
        sent = np.zeros_like(self._xor)
        for part in parts:
            sent ^= part.sent
        expected = Expected(lacking, self._xor ^ sent, self._keys.short)
        size, cut = shortened(wanted, items)
        return self._end(Found(to_send, expected), Decoded(sent, cut, size, offered))
