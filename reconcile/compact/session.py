"""The two sides of a compact session, and its outcome.

Both have the same window and fixed views, and the initiator's count and XOR of it come with the
base payload. Frames are bytes; a side accepts one and returns its answer.

    initiator            responder          then
    ---------            ---------          ----
    OFFER                EQUAL              nothing differs
                         FOUND              the initiator receives the one ID that differs
                         LOOK               the initiator probes one of its slices for it:
      DONE                                  it is there, and is sent
      MORE               SLICES             it is not
                         SLICES
    (none)               SLICES             of the whole window, if the responder begins
    TABLE                RESULT             the differences, which the initiator checks
                         AGAIN              the table did not empty
      TABLE              ...                several times larger; three tables at most

A side that cannot continue, because checks disagree or a table is too large, sends FAILED: then a
base session follows. The other side may send FAILED after its last frame too, which revokes the
result. A frame that is malformed, beyond a limit, or not expected raises, and the session has ended
without an outcome.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from reconcile.compact import plan
from reconcile.compact.frames import (
    AnswerHead,
    Frame,
    FrameKind,
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
    ShortKey,
    derive_keys,
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
    SEVERAL,
    ShortIdTable,
    cells_for,
    find,
    has_repeats,
)
from reconcile.compact.table_choice import TableChoice, choose
from reconcile.errors import MalformedCompactError
from reconcile.ids import Bools, Ints, SyncId, SyncIds, Words
from reconcile.index import IndexView

_NO_XOR: Final = np.zeros(4, np.uint64)
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


class _FailedError(Exception):
    """A session that cannot continue; its text is the reason."""


_Work = Generator[bytes, bytes, CompactStep]
"""A side at work: yields its frames, is sent those of the peer, returns its last step."""

_FAILED: Final = encode(FrameKind.FAILED)


class _Side:
    """The behaviour of both sides.

    Attributes:
        ended: there is an outcome, or an error.
        tables: the number of tables so far.
    """

    def __init__(self, view: IndexView, window: tuple[SyncId, SyncId]) -> None:
        self._window = WindowIndex(view, window)
        self._slices: Slices | None = None
        self._work: _Work | None = None
        self.ended = False
        self.tables = 0

    @property
    def own_count(self) -> int:
        """The number of IDs in the window."""
        return self._window.count

    def receive(self, data: bytes) -> CompactStep:
        """Accept a frame, and return the answer.

        Raises:
            MalformedCompactError: the bytes are no frame, or none that is possible now.
            PayloadLimitError: the frame is larger than this node allows.
        """
        had_ended, self.ended = self.ended, True
        if data == _FAILED:
            return CompactStep(None, FallBack("the peer could not go on"))
        if had_ended or self._work is None:
            raise _unexpected()
        try:
            frame = self._work.send(data)
        except StopIteration as last:
            step: CompactStep = last.value
            return step
        except _FailedError as failure:
            return CompactStep(_FAILED, FallBack(str(failure)))
        self.ended = False
        return CompactStep(frame)

    def _begin(self, work: _Work) -> bytes:
        self._work = work
        return next(work)

    def _decode(self, data: bytes) -> Frame:
        """Decode a frame that is about the slices of this side."""
        return decode(data, 0 if self._slices is None else len(self._slices))

    def _probe(self, low: Ints, high: Ints, xor: Words) -> SyncIds | None:
        """Return the one ID with a hash, in an interval of places; or None."""
        hit = self._window.rows.probe_places(low, high, xor.reshape(1, -1))
        return hit.found if hit.hit[0] else None


def _unexpected() -> MalformedCompactError:
    return MalformedCompactError(0, "No such frame may come now")


def _found(
    key: ShortKey, to_send: SyncIds, xor: Words | None = None, frame: Frame | None = None
) -> CompactStep:
    """Return the step of a side that sends some IDs, and receives at most one of a hash."""
    expected = Expected(NO_WORDS, _NO_XOR, key)
    if xor is not None:
        expected = Expected(np.array([key.of_xor(xor)], np.uint64), xor, key)
    return CompactStep(None if frame is None else encode(frame), CompactResult(to_send, expected))


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
        self._keys: tuple[ShortKey, tuple[int, ...]] | None = None

    @property
    def claim(self) -> Claim:
        """The count and XOR that the base payload and its frame carry."""
        return Claim(self._window.count, self._window.xor)

    def begin(self) -> bytes:
        """Return the first frame."""
        wanted = Slicing(plan.FIRST_SLICES, FIRST_PRINT_BYTES)
        slices, cut = self._window.cut(self._window.regions, self._first_key, wanted)
        return self._begin(self._initiate(slices, encode_offer(cut)))

    def await_slices(self) -> None:
        """Offer nothing, and await the slices with which the responder begins."""
        self._begin(self._initiate(self._window.whole, b""))

    def agree(self, nonce: bytes) -> None:
        """Set the responder's nonce, which comes with its first frame.

        Raises:
            ValueError: it has another length.
        """
        self._keys = derive_keys(self._nonce, nonce)

    def _initiate(self, own: Slices, offer: bytes) -> _Work:
        window, self._slices = self._window, own
        frame = self._decode((yield offer))
        assert self._keys is not None, "both nonces are known by now"
        key, salts = self._keys
        match frame:
            case FrameKind.EQUAL if offer:
                return _found(key, SyncIds.empty())
            case SingleFrame(xor, None) if offer:
                return _found(key, SyncIds.empty(), xor ^ window.xor)
            case SingleFrame(xor, int(number)) if offer and number < len(own):
                row = slice(number, number + 1)
                to_send = self._probe(own.low[row], own.high[row], xor ^ window.xor)
                if to_send is not None:
                    return _found(key, to_send, frame=FrameKind.DONE)
                frame = self._decode((yield encode(FrameKind.MORE)))
        if not isinstance(frame, SlicesFrame) or frame.head is None:
            raise _unexpected()
        head = frame.head
        choice = self._choose(frame, head, own, key)
        size = choice.size
        for salt in salts[:MAX_TABLES]:
            if cells_for(size) > MAX_CELLS // 2:
                break
            self.tables += 1
            answer = self._decode((yield encode(choice.fill(size, salt))))
            if isinstance(answer, ResultFrame):
                return CompactStep(None, self._checked(answer, choice, head, key))
            if answer != FrameKind.AGAIN:
                raise _unexpected()
            size *= plan.LARGER
        raise _FailedError(f"about {size:.0f} differences, after {self.tables} tables")

    def _choose(
        self, frame: SlicesFrame, head: AnswerHead, own: Slices, key: ShortKey
    ) -> TableChoice:
        """Compare the responder's slices with the own IDs, and choose how to send what differs."""
        if not head.differs.any():
            raise MalformedCompactError(0, "An answer is about no slice")
        regions = Regions.join(own.lower[head.differs], own.upper[head.differs])
        items = own.items_in(head.differs)
        compared = self._window.compare(frame, regions, key)
        return choose(self._window, head, compared, key, (regions, items))

    def _checked(
        self, frame: ResultFrame, choice: TableChoice, head: AnswerHead, key: ShortKey
    ) -> CompactResult:
        """Find the wanted IDs, and compare the result with the XOR of both sides."""
        window, mask = self._window, (1 << (8 * frame.wanted_bytes)) - 1
        at = find(frame.wanted, choice.shorts, mask)
        if bool((at < 0).any()):
            raise _FailedError("the peer wants an ID that is not here, or not the only one")
        at = _merge(at, choice.explaining)
        if has_repeats(at):
            raise _FailedError("the peer wants an ID that was sent to it")
        to_send, sent = window.gather(choice.low, choice.high, at)
        same = bool((window.xor ^ sent ^ frame.xor == head.xor).all())
        if not same or window.count + len(frame.offered) != head.count + len(at):
            raise _FailedError("the differences do not explain the fingerprints")
        return CompactResult(to_send, Expected(frame.offered, frame.xor, key))


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
        self._key, self._salts = derive_keys(*nonces)
        self._claim = claim
        self._xor = self._window.xor ^ claim.xor
        self._least = abs(self._window.count - claim.count)
        self._print_bytes = 0
        self._begin(self._respond())

    @property
    def is_equal(self) -> bool:
        """True if count and XOR are those of the initiator."""
        return not self._least and not self._xor.any()

    def begin(self) -> bytes:
        """Return the first frame, where the initiator accepts slices without an offer."""
        wanted = plan.unoffered(self._least, self._window.count)
        return self._begin(self._answer(np.ones(1, np.bool_), self._window.regions, wanted))

    def _respond(self) -> _Work:
        """Reply to an offer; the XOR of both sides may be the only difference."""
        window, key = self._window, self._key
        frame = self._decode((yield b""))
        if not isinstance(frame, SlicesFrame) or frame.head is not None:
            raise _unexpected()
        if self.is_equal:
            return _found(key, SyncIds.empty(), frame=FrameKind.EQUAL)
        compared = window.compare(frame, window.regions, self._first_key)
        chosen, apart = compared.chosen, compared.chosen.balances
        if not len(chosen):
            raise _FailedError("no slice differs, and the fingerprints do")
        if self._least == 1 and len(apart) == 1 and abs(int(apart[0])) == 1:
            if window.count > self._claim.count:
                to_send = self._probe(chosen.low, chosen.high, self._xor)
                if to_send is not None:
                    return _found(key, to_send, frame=SingleFrame(window.xor))
            else:
                number = int(compared.differs.argmax())
                frame = self._decode((yield encode(SingleFrame(window.xor, number))))
                if frame == FrameKind.DONE:
                    return _found(key, SyncIds.empty(), self._xor)
                if frame != FrameKind.MORE:
                    raise _unexpected()
        regions = Regions.join(chosen.lower, chosen.upper)
        return (yield from self._answer(compared.differs, regions, self._slicing(compared)))

    def _slicing(self, compared: SliceDifferences) -> Slicing:
        """Return as many slices of the differences as are worth it."""
        chosen, slices = compared.chosen, len(compared.differs)
        single, usual = np.abs(chosen.balances) <= 1, self._claim.count // slices
        sums = self._window.survey(compared, single, usual, NO_REGION).sums
        about, most = plan.estimate(sums, slices, self._least, certain=True)
        return slicing(about, most, chosen.items, len(chosen))

    def _answer(self, differs: Bools, regions: Regions, wanted: Slicing) -> _Work:
        """Send slices, and find the differences by the table that the initiator makes of them."""
        window, key = self._window, self._key
        self._slices, cut = window.cut(regions, key, wanted)
        self._print_bytes = wanted.print_bytes
        if len(self._slices) == len(regions.start):
            cut += encode_balances(window.balance_bits(regions, key))
        answer = encode_answer(
            AnswerHead(window.xor, window.count, differs, wanted.print_bytes), cut
        )
        for salt in self._salts[:MAX_TABLES]:
            frame = self._decode((yield answer))
            if not isinstance(frame, TableFrame):
                raise _unexpected()
            self.tables += 1
            found = self._peeled(frame, salt)
            if found is not None:
                return found
            answer = encode(FrameKind.AGAIN)
        raise _FailedError(f"{MAX_TABLES} tables did not empty")

    def _peeled(self, frame: TableFrame, salt: int) -> CompactStep | None:
        """Remove the own IDs from a table, and peel the rest; None: it does not empty."""
        slices, explained, listed = self._parts(frame)
        if slices.items_in(listed) > MAX_CELLS:
            raise _FailedError("more is listed than can be answered")
        rows = np.ones(len(slices), np.bool_) if frame.by_prints else ~explained
        low, high = slices.low[rows], slices.high[rows]
        own = self._key.of_places(self._window.rows, low, high)
        table = ShortIdTable(frame.shape, salt, frame.cells)
        beside = (explained | listed)[rows]
        table.toggle(own[np.repeat(~beside, high - low)] if beside.any() else own)
        decoded = table.peel()
        if decoded is None:
            return None
        parts = [decoded]
        if frame.by_prints:
            parts.append(self._prints_apart(frame.single, slices.prints[explained]))
        if frame.listed is not None:
            # All IDs of the initiator are named there.
            parts.append(np.setxor1d(frame.named, own[np.repeat(listed[rows], high - low)]))
        return self._result(_merge(*parts), own, (low, high), frame)

    def _parts(self, frame: TableFrame) -> tuple[Slices, Bools, Bools]:
        """Return the slices that a table is about, and which are explained or listed beside it."""
        assert self._slices is not None
        slices = self._slices
        if frame.differs is not None:
            slices = slices[frame.differs.nonzero()[0]]
        explained, listed = np.zeros((2, len(slices)), np.bool_)
        if frame.explained is not None:
            explained = frame.explained
        if frame.listed is not None:
            listed[~explained] = frame.listed
        return slices, explained, listed

    def _prints_apart(self, reported: Words, prints: Words) -> Words:
        """Return the short IDs that prints are apart by, of which a part is in what is reported.

        The initiator has only the lower bytes of this side's prints.
        """
        unsaid = np.uint64(SHORT_MASK >> 8 * self._print_bytes << 8 * self._print_bytes)
        return reported ^ (prints & unsaid)

    def _result(
        self, apart: Words, own: Words, places: tuple[Ints, Ints], frame: TableFrame
    ) -> CompactStep:
        """Find which side has what differs, and compare with the counts and XORs of both sides.

        Args:
            apart: the short IDs of the differences, ascending, but for those of the initiator's
                that it has sent.
            own: the own short IDs.
            places: the places of these, as intervals.
            frame: the initiator's table.
        """
        at = find(apart, own) if not has_repeats(apart) else np.full(len(apart), SEVERAL)
        is_own = at >= 0
        wanted, offered = apart[~is_own], apart[is_own]
        lacking = _merge(wanted, NO_WORDS if frame.by_prints else frame.single)
        together = int(np.bitwise_xor.reduce(lacking) ^ np.bitwise_xor.reduce(offered))
        if together != self._key.of_xor(self._xor) or int(at.min(initial=NOWHERE)) != NOWHERE:
            raise _FailedError("the differences do not explain the fingerprints")
        count = self._window.count + len(lacking)
        if count != self._claim.count + len(offered) or has_repeats(lacking):
            raise _FailedError("the differences do not explain the counts")
        to_send, sent = self._window.gather(*places, np.sort(at[is_own]))
        expected = Expected(lacking, self._xor ^ sent, self._key)
        size, cut = _shorten(wanted, len(own) + len(frame.named))
        answer = encode(ResultFrame(sent, cut, size, offered))
        return CompactStep(answer, CompactResult(to_send, expected))


def _merge(*parts: _NumbersT) -> _NumbersT:
    """Return all numbers of one part or more, ascending."""
    some = [part for part in parts if len(part)]
    found = np.concatenate(some) if len(some) > 1 else (some or parts)[0].copy()
    found.sort()
    return found


def _shorten(wanted: Words, items: int) -> tuple[int, Words]:
    """Cut short IDs to the bytes that find them among ``items`` IDs; ascending."""
    size = plan.wanted_bytes(len(wanted), items)
    if not len(wanted):
        return size, wanted
    while True:
        cut = wanted & np.uint64(min((1 << (8 * size)) - 1, SHORT_MASK))
        cut.sort()
        if not has_repeats(cut):
            return min(size, SHORT_BYTES), cut
        size += 1
