"""The frames of the compact mode as bytes; docs/compact.md describes each.

A frame is a byte for its kind and fields one after the other. Numbers are varints (LEB128, as
short as possible, at most 63 bits); columns are written one after the other, each whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np

from reconcile import kernel
from reconcile.codec.decoding import read_varint
from reconcile.compact.keys import NO_WORDS, SHORT_BYTES, TALLIED
from reconcile.compact.limits import (
    MAX_CELLS,
    MAX_FIRST_SLICES,
    MAX_FRAME_BYTES,
    MAX_SLICES,
    MAX_WINDOWS,
    SIFTED_BYTES,
)
from reconcile.compact.table import MAX_PLACES, Shape
from reconcile.errors import LimitExceeded, MalformedCompact, MalformedPayload
from reconcile.ids import Bools, Ints, Words
from storenode.message.limits import HASH_BYTES
from storenode.message.varint import varint

_XOR_DTYPE: Final = np.dtype("<u8")
_CELL_BYTES: Final = 8
_VARINT_BITS: Final = 7
_MAX_VARINT_BYTES: Final = 9
_MAX_EXPONENT: Final = 62
_NO_FLAGS: Final = np.empty(0, np.bool_)
_EXPLAINED: Final = 2
"""The first byte of a table beside which some slices are explained."""

_LISTED: Final = 3
"""The same where some others are listed."""

_BY_PRINTS: Final = 4
"""As the first of these; whose IDs explain the slices, the responder finds out."""


class Kind(IntEnum):
    """A frame's first byte."""

    OFFER = 1
    EQUAL = 2
    FOUND = 3
    LOOK = 4
    SLICES = 5
    MORE = 6
    TABLE = 7
    AGAIN = 8
    RESULT = 9
    DONE = 10
    FAILED = 11


@dataclass(frozen=True, slots=True)
class Cut:
    """Slices of a side: bounds as multiples of a power of two, and what is in the slices.

    There is a row more of what is in them than there are bounds, or several where edges of
    regions are bounds too.
    """

    exponent: int
    multiples: Ints
    prints: Words
    print_bytes: int
    balances: Ints


@dataclass(frozen=True, slots=True)
class Offer:
    """What the initiator begins with."""

    cut: Cut


@dataclass(frozen=True, slots=True)
class Plain:
    """A frame without fields: ``EQUAL``, ``MORE``, ``AGAIN``, ``DONE`` or ``FAILED``."""

    kind: Kind


@dataclass(frozen=True, slots=True)
class Single:
    """The XOR of both sides is an ID that the responder has (``FOUND``), or may be the peer's.

    ``number``: in which of the initiator's slices that is, with ``LOOK``.
    """

    kind: Kind
    xor: Words
    number: int = 0


@dataclass(frozen=True, slots=True)
class Answered:
    """The responder's slices, in the initiator's slices that differ.

    ``tally``: where these are not cut any further, the balances of all short IDs in them, by bits.
    """

    xor: Words
    count: int
    differs: Bools
    cut: Cut
    tally: Ints | None = None


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The fields of ``Answered`` before its slices."""

    xor: Words
    count: int
    differs: Bools
    print_bytes: int


@dataclass(frozen=True, slots=True)
class Filled:
    """A table, and what is not in it.

    Attributes:
        differs: which of the responder's slices it is about; None: all of them.
        shape: how it is laid out.
        cells: what is in it.
        explained: which of these slices differ by one ID of the initiator's, and are not in the
            table; None: that was not looked for.
        told: the short IDs of these.
        by_prints: each of these IDs may be of either side. The initiator tells its prints, XOR the
            part of the responder's prints that it knows.
        listed: of which of the other slices all of the initiator's IDs are named, and are not in
            the table; None: of none.
        named: the short IDs of these, ascending.
    """

    differs: Bools | None
    shape: Shape
    cells: Words = field(repr=False)
    explained: Bools | None = None
    told: Words = field(default_factory=lambda: NO_WORDS, repr=False)
    listed: Bools | None = None
    named: Words = field(default_factory=lambda: NO_WORDS, repr=False)
    by_prints: bool = False


@dataclass(frozen=True, slots=True)
class Decoded:
    """What the responder found; both columns ascend.

    Attributes:
        xor: of the hashes that the responder will send.
        wanted: the lower bytes of the short IDs that it lacks.
        wanted_bytes: how many.
        offered: the short IDs that it will send.
    """

    xor: Words
    wanted: Words
    wanted_bytes: int
    offered: Words


Frame = Offer | Plain | Single | Answered | Filled | Decoded


# Writing


def encode(frame: Frame) -> bytes:
    """A frame as bytes."""
    match frame:
        case Offer(cut):
            return offer_bytes(cut_bytes(cut))
        case Plain(kind):
            return _byte(kind)
        case Single(kind, xor, number):
            return _byte(kind) + xor.tobytes() + (_byte(number) if kind is Kind.LOOK else b"")
        case Answered():
            cut = frame.cut
            answer = AnswerHead(frame.xor, frame.count, frame.differs, cut.print_bytes)
            tally = b"" if frame.tally is None else balances_bytes(frame.tally)
            return answer_bytes(answer, cut_bytes(cut) + tally)
        case Filled():
            return _table_bytes(frame)
        case Decoded():
            counts = varint(len(frame.wanted)) + varint(len(frame.offered))
            head = _byte(Kind.RESULT) + frame.xor.tobytes() + counts + _byte(frame.wanted_bytes)
            wanted = _cut_words(frame.wanted, frame.wanted_bytes)
            return head + wanted + _cut_words(frame.offered, SHORT_BYTES)


def _table_bytes(frame: Filled) -> bytes:
    shape = frame.shape
    if kernel.compiled is not None:
        numbers = np.array((_flag(frame), shape.places, shape.windows, shape.length))
        flags = frame.differs, frame.explained, frame.listed
        differs, explained, listed = (_NO_FLAGS if part is None else part for part in flags)
        columns = numbers, differs, explained, frame.told, listed, frame.named, frame.cells
        return kernel.compiled.write_table(*columns)
    sizes = _byte(shape.places) + varint(shape.windows) + varint(shape.length)
    cells = frame.cells.astype(_XOR_DTYPE, copy=False).tobytes()
    return _byte(Kind.TABLE) + _beside(frame) + sizes + cells


def _beside(frame: Filled) -> bytes:
    """What a table is about, and what is not in it."""
    found = _byte(_flag(frame))
    if frame.differs is not None:
        found += _bits(frame.differs)
    if frame.explained is not None:
        found += _bits(frame.explained) + _cut_words(frame.told, SHORT_BYTES)
    if frame.listed is not None:
        found += _bits(frame.listed) + varint(len(frame.named))
    return found + _cut_words(frame.named, SHORT_BYTES)


def _flag(frame: Filled) -> int:
    """The first byte behind the kind."""
    if frame.differs is None:
        return 0
    if frame.explained is None:
        return 1
    if frame.listed is not None:
        return _LISTED
    return _BY_PRINTS if frame.by_prints else _EXPLAINED


def offer_bytes(cut: bytes) -> bytes:
    """An offer with slices that are bytes already."""
    return _byte(Kind.OFFER) + cut


def answer_bytes(head: AnswerHead, cut: bytes) -> bytes:
    """An answer with slices that are bytes already."""
    first = _byte(Kind.SLICES) + head.xor.tobytes() + varint(head.count)
    return first + _bits(head.differs) + _byte(head.print_bytes) + cut


def cut_bytes(cut: Cut) -> bytes:
    """Slices, with which a frame ends."""
    return _bounds(cut) + _contents(cut)


def _byte(value: int) -> bytes:
    return bytes((value,))


def _bits(bools: Bools) -> bytes:
    return np.packbits(bools, bitorder="little").tobytes()


def _cut_words(words: Words, count: int) -> bytes:
    """The lower bytes of each."""
    if kernel.compiled is not None:
        return kernel.compiled.pack(words, count)
    octets = words.astype(_XOR_DTYPE, copy=False).view(np.uint8).reshape(-1, 8)
    return octets[:, :count].tobytes()


def _bounds(cut: Cut) -> bytes:
    deltas = _steps(cut.multiples, 0)
    return _byte(cut.exponent) + varint(len(deltas)) + varints(deltas)


def _contents(cut: Cut) -> bytes:
    return _cut_words(cut.prints, cut.print_bytes) + balances_bytes(cut.balances)


def balances_bytes(balances: Ints) -> bytes:
    """A column of balances."""
    return varints(balances << 1 ^ balances >> 63)


def _steps(numbers: Ints, before: int) -> Ints:
    """From each number to the next, the first from ``before``; `numpy.diff` takes longer."""
    found = numbers.copy()
    found[:1] -= before
    found[1:] -= numbers[:-1]
    return found


def varints(values: Ints) -> bytes:
    """Numbers from 0 to 2^63-1, each as a varint."""
    if not len(values) or int(values.max()) < 1 << _VARINT_BITS:
        return values.astype(np.uint8).tobytes()
    columns = -(-int(values.max()).bit_length() // _VARINT_BITS)
    shifts = np.arange(columns) * _VARINT_BITS
    shifted = values[:, None] >> shifts
    used = (shifted > 0) | (shifts == 0)
    more = np.zeros_like(used)
    more[:, :-1] = used[:, 1:]
    octets = (shifted & 0x7F | more.astype(np.int64) << _VARINT_BITS).astype(np.uint8)
    return bytes(octets[used].tobytes())


# Reading


def decode(data: bytes, regions: Callable[[Bools], int] | None = None, slices: int = 0) -> Frame:
    """The frame that bytes are.

    Args:
        data: the bytes.
        regions: of an initiator: how many regions the slices that differ make, of its own first.
        slices: in the first frame, of an initiator that reads an answer; of a responder the
            slices that it sent itself.

    Raises:
        MalformedCompact: they are no frame.
        LimitExceeded: it is larger than this node allows.
    """
    _allow("max_frame_bytes", MAX_FRAME_BYTES, len(data))
    quickly = _read_quickly(data, slices)
    if quickly is not None:
        return quickly
    try:
        reader = _Reader(data)
        frame = _read(reader, regions, slices)
        reader.end()
    except MalformedPayload as error:
        raise MalformedCompact(error.offset, error.what) from None
    return frame


def read_answer_head(data: bytes, slices: int) -> tuple[AnswerHead, int] | None:
    """What an answer begins with, and where its slices do, by compiled code.

    None: it is none, malformed, or there is no compiled code.
    """
    if kernel.compiled is None or data[:1] != _byte(Kind.SLICES) or len(data) > MAX_FRAME_BYTES:
        return None
    said = kernel.compiled.read_head(data, slices)
    if said is None:
        return None
    xor, count, differs, print_bytes, at = said
    flags = np.frombuffer(differs, np.bool_)
    return AnswerHead(np.frombuffer(xor, np.uint64), count, flags, print_bytes), at


def _read_quickly(data: bytes, slices: int) -> Frame | None:
    """A table, or what was found, by compiled code; None: it is for the reader."""
    if kernel.compiled is None or not data:
        return None
    if data[0] == Kind.RESULT:
        found = kernel.compiled.read_result(data)
        if found is None:
            return None
        xor, wanted, size, offered = found
        return Decoded(_words(xor), _words(wanted), size, _words(offered))
    said = kernel.compiled.read_table(data, slices) if data[0] == Kind.TABLE else None
    if said is None:
        return None
    differs, places, length, windows, cells, explained, told, listed, named, by_prints = said
    return Filled(
        _flags(differs),
        Shape(places, length, windows),
        _words(cells),
        _flags(explained),
        _words(told),
        _flags(listed),
        _words(named),
        by_prints=bool(by_prints),
    )


def _flags(column: bytes | None) -> Bools | None:
    return None if column is None else np.frombuffer(column, np.bool_)


def _words(column: bytes | None) -> Words:
    """A column; one that is not there is empty."""
    return NO_WORDS if column is None else np.frombuffer(column, np.uint64)


def _read(reader: _Reader, regions: Callable[[Bools], int] | None, slices: int) -> Frame:
    match reader.byte():
        case Kind.OFFER:
            return Offer(reader.cut(MAX_FIRST_SLICES - 1, 2, 1))
        case Kind.EQUAL | Kind.MORE | Kind.AGAIN | Kind.DONE | Kind.FAILED as kind:
            return Plain(Kind(kind))
        case Kind.FOUND | Kind.LOOK as kind:
            return Single(Kind(kind), reader.xor(), reader.byte() if kind == Kind.LOOK else 0)
        case Kind.SLICES if regions is not None:
            head = reader.answer_head(slices)
            cut = reader.cut(MAX_SLICES, head.print_bytes, regions(head.differs))
            tally = None if len(cut.multiples) else reader.balances(TALLIED)
            return Answered(head.xor, head.count, head.differs, cut, tally)
        case Kind.TABLE:
            return reader.filled(slices)
        case Kind.RESULT:
            return reader.decoded()
    raise reader.malformed("No frame of this kind is possible here")


class _Reader:
    """Reads fields one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at(self) -> int:
        """How many bytes were read."""
        return self._at

    def malformed(self, what: str) -> MalformedCompact:
        """An error at the present place."""
        return MalformedCompact(self._at, what)

    def end(self) -> None:
        """Nothing may follow."""
        if self._at != len(self._data):
            raise self.malformed("Something follows the frame")

    def take(self, count: int) -> bytes:
        """So many bytes."""
        if count > len(self._data) - self._at:
            raise self.malformed("The frame is cut off")
        self._at += count
        return self._data[self._at - count : self._at]

    def byte(self) -> int:
        """One byte."""
        return self.take(1)[0]

    def number(self) -> int:
        """One varint."""
        value, self._at = read_varint(self._data, self._at)
        return value

    def xor(self) -> Words:
        """The XOR of hashes, ``(4,)``."""
        return np.frombuffer(self.take(HASH_BYTES), np.uint64)

    def bits(self, count: int) -> Bools:
        """So many bits; those that fill up the last byte are zero."""
        octets = np.frombuffer(self.take(-(-count // 8)), np.uint8)
        found = np.unpackbits(octets, bitorder="little").view(np.bool_)
        if count % 8 and found[count:].any():
            raise self.malformed("A bit is set that stands for nothing")
        return found[:count]

    def words(self, count: int, size: int) -> Words:
        """Numbers of so many bytes each."""
        taken = np.frombuffer(self.take(count * size), np.uint8)
        if size == _CELL_BYTES:
            return taken.view(_XOR_DTYPE).astype(np.uint64)
        octets = np.zeros((count, 8), np.uint8)
        octets[:, :size] = taken.reshape(count, size)
        return octets.view(_XOR_DTYPE).reshape(-1).astype(np.uint64, copy=False)

    def varints(self, count: int) -> Ints:
        """A column of varints."""
        octets = np.frombuffer(self._data, np.uint8, offset=self._at)
        octets = octets[: count * _MAX_VARINT_BYTES]
        last = (octets < 1 << _VARINT_BITS).nonzero()[0][:count]
        if len(last) < count:
            raise self.malformed("A varint is cut off or past 2^63-1")
        if not count:
            return np.empty(0, np.int64)
        used = int(last[-1]) + 1
        lengths = _steps(last, -1)
        longest = int(lengths.max())
        if longest > _MAX_VARINT_BYTES:
            raise self.malformed("A varint is past 2^63-1")
        if longest == 1:
            self._at += used
            return octets[:used].astype(np.int64)
        if bool((octets[last[lengths > 1]] == 0).any()):
            raise self.malformed("A varint is longer than it must be")
        places = np.arange(used) - np.repeat(last - lengths + 1, lengths)
        parts = (octets[:used] & 0x7F).astype(np.int64) << _VARINT_BITS * places
        self._at += used
        return np.add.reduceat(parts, last - lengths + 1)

    def answer_head(self, slices: int) -> AnswerHead:
        """What an answer begins with, behind its kind."""
        head = AnswerHead(self.xor(), self.number(), self.bits(slices), self.byte())
        if head.print_bytes > SIFTED_BYTES:
            raise self.malformed(f"Prints have 0 to {SIFTED_BYTES} bytes, not so many")
        return head

    def cut(self, most: int, print_bytes: int, regions: int) -> Cut:
        """Slices; ``regions``: so many more of them than there are bounds, at most."""
        exponent, count = self.byte(), self.number()
        _allow("max_slices", most, count)
        if exponent > _MAX_EXPONENT:
            raise self.malformed(f"Bounds are multiples of 2^{_MAX_EXPONENT} at most, not of more")
        deltas = self.varints(count)
        if bool((deltas == 0).any()) or float(deltas.sum(dtype=np.float64)) > 2.0**62:
            raise self.malformed("Bounds do not ascend, or they go too far")
        multiples: Ints = deltas.cumsum()
        if count and int(multiples[-1]) << exponent >= 1 << 63:
            raise self.malformed("A bound is past 2^63-1")
        rows = count + regions
        prints = self.words(rows, print_bytes)
        return Cut(exponent, multiples, prints, print_bytes, self.balances(rows))

    def balances(self, count: int) -> Ints:
        """A column of balances."""
        zigzag = self.varints(count)
        found: Ints = zigzag >> 1 ^ -(zigzag & 1)
        if bool((np.abs(found) > 1 << 31).any()):
            raise self.malformed("A balance is past what a window can have")
        return found

    def filled(self, slices: int) -> Filled:
        """A table, and what is not in it."""
        flag = self.byte()
        if flag > _BY_PRINTS:
            raise self.malformed("A table is about no such choice of slices")
        chosen = self.bits(slices) if flag else None
        if chosen is None or flag < _EXPLAINED:
            return Filled(chosen, *self.table())
        explained = self.bits(int(np.count_nonzero(chosen)))
        told = self.words(int(np.count_nonzero(explained)), SHORT_BYTES)
        if flag != _LISTED:
            by_prints = flag == _BY_PRINTS
            return Filled(chosen, *self.table(), explained, told, by_prints=by_prints)
        listed, count = self.bits(len(explained) - len(told)), self.number()
        _allow("max_differences", MAX_CELLS, count)
        named = self.words(count, SHORT_BYTES)
        self.ascend(named)
        return Filled(chosen, *self.table(), explained, told, listed, named)

    def table(self) -> tuple[Shape, Words]:
        """A table's shape and cells."""
        places, windows, length = self.byte(), self.number(), self.number()
        if not (1 <= places <= MAX_PLACES and windows and length):
            raise self.malformed("A table has no such shape")
        _allow("max_windows", MAX_WINDOWS, windows)
        shape = Shape(places, length, windows)
        _allow("max_cells", MAX_CELLS, shape.cells)
        return shape, self.words(shape.cells, _CELL_BYTES)

    def ascend(self, shorts: Words) -> None:
        """Short IDs must."""
        if bool((shorts[1:] <= shorts[:-1]).any()):
            raise self.malformed("Short IDs do not ascend")

    def decoded(self) -> Decoded:
        """What was found."""
        xor, wanted, offered = self.xor(), self.number(), self.number()
        _allow("max_differences", MAX_CELLS, wanted + offered)
        size = self.byte()
        if not 1 <= size <= SHORT_BYTES:
            raise self.malformed(f"Short IDs have 1 to {SHORT_BYTES} bytes, not so many")
        columns = self.words(wanted, size), self.words(offered, SHORT_BYTES)
        for column in columns:
            self.ascend(column)
        return Decoded(xor, columns[0], size, columns[1])


def _allow(limit: str, allowed: int, claimed: int) -> None:
    if claimed > allowed:
        raise LimitExceeded(limit, allowed, claimed)
