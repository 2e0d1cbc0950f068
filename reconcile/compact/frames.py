"""The frames of the compact mode as bytes; docs/spec/compact.md describes each.

A frame is a byte for its kind and fields one after the other. Numbers are varints (LEB128, as
short as possible, at most 63 bits); columns are written one after the other, each whole. The kernel
reads and writes slices (`reconcile.compact.slices`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile.codec.decoding import read_varint
from reconcile.compact.keys import BIT_BALANCES, NO_WORDS, SHORT_BYTES
from reconcile.compact.table import MAX_CELLS, MAX_PLACES, TableShape
from reconcile.errors import MalformedCompactError, MalformedPayloadError, PayloadLimitError
from reconcile.ids import Bools, Ints, Words
from storenode.message.limits import HASH_BYTES
from storenode.message.varint import varint

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""The size limit of a compact frame."""

MAX_FIRST_SLICES: Final = 64
"""Slices in the initiator's first frame."""

MAX_SLICES: Final = 65_536
"""Slices in the responder's answer."""

MAX_BALANCE: Final = 1 << 31
"""A balance of a window, without its sign."""

EXACT_PRINT_BYTES: Final = 4
"""Bytes of prints with which single differences are found: an ID that only seems to be one is then
as rare as other failures."""

_WORD_BYTES: Final = 8
_MAX_WINDOWS: Final = 128
_MAX_NUMBER: Final = (1 << 63) - 1
_NO_SHAPE: Final = TableShape(1, 1, 1)

# What a table's first byte says: which slices it is about, and what is beside it.
_TABLE_OF_ALL: Final = 0
_TABLE_OF_CHOSEN: Final = 1
_EXPLAINED: Final = 2
_LISTED: Final = 3
_BY_PRINTS: Final = 4


class FrameKind(IntEnum):
    """A frame's first byte.

    ``EQUAL``, ``MORE``, ``AGAIN``, ``DONE`` and ``FAILED`` have no fields: the kind is the frame.
    """

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


_PLAIN: Final = frozenset(
    {FrameKind.EQUAL, FrameKind.MORE, FrameKind.AGAIN, FrameKind.DONE, FrameKind.FAILED}
)


@dataclass(frozen=True, slots=True)
class SingleFrame:
    """The XOR of both sides is an ID that the responder has, or may be the peer's.

    Attributes:
        xor: the XOR of all hashes that the responder has.
        number: the initiator's slice in which the peer may have the ID (``LOOK``); None: the
            responder has it (``FOUND``).
    """

    xor: Words
    number: int | None = None


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The fields of the responder's answer before its slices.

    Attributes:
        xor: the XOR of all hashes that the responder has.
        count: how many.
        differs: which of the initiator's slices differ, in which the responder's slices are.
        print_bytes: bytes of each print.
    """

    xor: Words
    count: int
    differs: Bools
    print_bytes: int


@dataclass(frozen=True, slots=True)
class SlicesFrame:
    """Slices, which a side compares with its own: from a place in a frame to its end.

    Attributes:
        data: the whole frame.
        at: where the slices begin.
        head: the fields before the slices (``SLICES``); None: there are none (``OFFER``).
    """

    data: bytes = field(repr=False)
    at: int = 1
    head: AnswerHead | None = None


@dataclass(frozen=True, slots=True)
class TableFrame:
    """A table, and the IDs that are sent beside it.

    Attributes:
        differs: which of the responder's slices it is about; None: all of them.
        shape: its layout.
        cells: its content.
        explained: which of these slices differ by one ID of the initiator's, and are not in the
            table; None: none was looked for.
        single: the short IDs of these.
        by_prints: each of these IDs may be of either side. The initiator sends its prints, XOR the
            part of the responder's prints that it has.
        listed: of which of the other slices all of the initiator's IDs are named, and are not in
            the table; None: of none.
        named: the short IDs of these, ascending.
    """

    differs: Bools | None
    shape: TableShape = _NO_SHAPE
    cells: Words = field(default_factory=lambda: NO_WORDS, repr=False)
    explained: Bools | None = None
    single: Words = field(default_factory=lambda: NO_WORDS, repr=False)
    listed: Bools | None = None
    named: Words = field(default_factory=lambda: NO_WORDS, repr=False)
    by_prints: bool = False


@dataclass(frozen=True, slots=True)
class ResultFrame:
    """The differences that the responder found; both columns ascend.

    Attributes:
        xor: the XOR of the hashes that the responder will send.
        wanted: the lower bytes of the short IDs that it lacks.
        wanted_bytes: how many bytes.
        offered: the short IDs that it will send.
    """

    xor: Words
    wanted: Words
    wanted_bytes: int
    offered: Words


Frame = FrameKind | SingleFrame | SlicesFrame | TableFrame | ResultFrame


def encode(frame: Frame) -> bytes:
    """Return a frame as bytes."""
    match frame:
        case FrameKind():
            return bytes((frame,))
        case SingleFrame(xor, int(number)):
            return bytes((FrameKind.LOOK,)) + xor.tobytes() + bytes((number,))
        case SingleFrame(xor):
            return bytes((FrameKind.FOUND,)) + xor.tobytes()
        case SlicesFrame(data):
            return data
        case TableFrame():
            return _encode_table(frame)
        case ResultFrame(xor, wanted, size, offered):
            counts = varint(len(wanted)) + varint(len(offered)) + bytes((size,))
            columns = _pack_words(wanted, size) + _pack_words(offered, SHORT_BYTES)
            return bytes((FrameKind.RESULT,)) + xor.tobytes() + counts + columns


def encode_offer(slices: bytes) -> bytes:
    """Return an offer with slices that are bytes already."""
    return bytes((FrameKind.OFFER,)) + slices


def encode_answer(head: AnswerHead, slices: bytes) -> bytes:
    """Return an answer with slices that are bytes already."""
    first = bytes((FrameKind.SLICES,)) + head.xor.tobytes() + varint(head.count)
    return first + _pack_flags(head.differs) + bytes((head.print_bytes,)) + slices


def encode_balances(balances: Ints) -> bytes:
    """Return a column of balances, zigzag and varint."""
    return b"".join(map(varint, (balances << 1 ^ balances >> 63).tolist()))


def _encode_table(frame: TableFrame) -> bytes:
    form, parts = _TABLE_OF_ALL, []
    if frame.differs is not None:
        form = _TABLE_OF_CHOSEN
        parts.append(_pack_flags(frame.differs))
    if frame.explained is not None:
        form = _BY_PRINTS if frame.by_prints else _EXPLAINED
        parts += [_pack_flags(frame.explained), _pack_words(frame.single, SHORT_BYTES)]
    if frame.listed is not None:
        form = _LISTED
        named = varint(len(frame.named)), _pack_words(frame.named, SHORT_BYTES)
        parts += [_pack_flags(frame.listed), *named]
    shape = frame.shape
    size = bytes((shape.places,)) + varint(shape.windows) + varint(shape.length)
    cells = _pack_words(frame.cells, _WORD_BYTES)
    return b"".join((bytes((FrameKind.TABLE, form)), *parts, size, cells))


def _pack_flags(flags: Bools) -> bytes:
    return np.packbits(flags, bitorder="little").tobytes()


def _pack_words(words: Words, size: int) -> bytes:
    """Return the lower bytes of each word, one after the other."""
    octets = words.astype("<u8", copy=False).view(np.uint8).reshape(-1, _WORD_BYTES)
    return octets[:, :size].tobytes()


def decode(data: bytes, slices: int = 0) -> Frame:
    """Decode a frame.

    Args:
        data: the bytes.
        slices: in the first frame, for an initiator that reads an answer; for a responder the
            slices that it sent itself.

    Raises:
        MalformedCompactError: the bytes are no frame, or have more of something than allowed.
        PayloadLimitError: the frame is larger than this node allows.
    """
    if len(data) > MAX_FRAME_BYTES:
        raise PayloadLimitError("max_frame_bytes", MAX_FRAME_BYTES, len(data))
    fields = _Fields(data)
    frame: Frame | None = None
    match data[0] if data else 0:
        case FrameKind.OFFER:
            return SlicesFrame(data)
        case FrameKind.SLICES:
            head = AnswerHead(
                fields.xor(),
                fields.number(0, _MAX_NUMBER),
                fields.flags(slices),
                fields.byte(0, EXACT_PRINT_BYTES),
            )
            return SlicesFrame(data, fields.at, head)
        case FrameKind.FOUND:
            frame = SingleFrame(fields.xor())
        case FrameKind.LOOK:
            frame = SingleFrame(fields.xor(), fields.byte(0, MAX_FIRST_SLICES))
        case FrameKind.TABLE:
            frame = _decode_table(fields, slices)
        case FrameKind.RESULT:
            frame = _decode_result(fields)
        case plain if plain in _PLAIN:
            frame = FrameKind(plain)
    if frame is None or fields.at != len(data):
        raise malformed(data, fields.at)
    return frame


def malformed(data: bytes, at: int = 0) -> MalformedCompactError:
    """Return the error of a frame."""
    kind = data[0] if data else 0
    return MalformedCompactError(at, f"A frame of kind {kind} is malformed or beyond a limit")


def decode_balances(data: bytes, at: int) -> Ints:
    """Decode the balances by bits with which a frame ends.

    Raises:
        MalformedCompactError: the bytes are no such column.
    """
    fields = _Fields(data, at)
    zigzag = np.array([fields.number(0, 2 * MAX_BALANCE) for _ in range(BIT_BALANCES)])
    if fields.at != len(data):
        raise malformed(data, fields.at)
    return zigzag >> 1 ^ -(zigzag & 1)


def _decode_table(fields: _Fields, slices: int) -> TableFrame:
    differs = explained = listed = None
    single = named = NO_WORDS
    form = fields.byte(_TABLE_OF_ALL, _BY_PRINTS)
    if form >= _TABLE_OF_CHOSEN:
        differs = fields.flags(slices)
        if form >= _EXPLAINED:
            explained = fields.flags(int(np.count_nonzero(differs)))
            alone = int(np.count_nonzero(explained))
            single = fields.words(alone, SHORT_BYTES)
            if form == _LISTED:
                listed = fields.flags(len(explained) - alone)
                named = fields.ascending(fields.number(0, MAX_CELLS), SHORT_BYTES)
    places = fields.byte(1, MAX_PLACES)
    windows, length = fields.number(1, _MAX_WINDOWS), fields.number(1, MAX_CELLS)
    shape = TableShape(places, length, windows)
    fields.require(shape.cells <= MAX_CELLS)
    cells = fields.words(shape.cells, _WORD_BYTES)
    beside = explained, single, listed, named
    return TableFrame(differs, shape, cells, *beside, by_prints=form == _BY_PRINTS)


def _decode_result(fields: _Fields) -> ResultFrame:
    xor, lacking = fields.xor(), fields.number(0, MAX_CELLS)
    alone, size = fields.number(0, MAX_CELLS - lacking), fields.byte(1, SHORT_BYTES)
    wanted = fields.ascending(lacking, size)
    return ResultFrame(xor, wanted, size, fields.ascending(alone, SHORT_BYTES))


class _Fields:
    """The fields of a frame, read one after the other.

    Attributes:
        at: where the next one begins.
    """

    __slots__ = ("_data", "at")

    def __init__(self, data: bytes, at: int = 1) -> None:
        self._data = data
        self.at = at

    def require(self, is_sound: bool) -> None:
        """Raise an error if a field is not valid."""
        if not is_sound:
            raise malformed(self._data, self.at)

    def _take(self, size: int) -> NDArray[np.uint8]:
        start, self.at = self.at, self.at + size
        self.require(self.at <= len(self._data))
        return np.frombuffer(self._data, np.uint8, size, start)

    def byte(self, least: int, most: int) -> int:
        """Read a number of one byte."""
        number = self._data[self.at] if self.at < len(self._data) else -1
        self.require(least <= number <= most)
        self.at += 1
        return number

    def number(self, least: int, most: int) -> int:
        """Read a varint."""
        try:
            number, end = read_varint(self._data, self.at)
        except MalformedPayloadError as error:
            raise malformed(self._data, self.at) from error
        self.require(least <= number <= most)
        self.at = end
        return number

    def xor(self) -> Words:
        """Read an XOR of hashes."""
        return self._take(HASH_BYTES).view(np.uint64)

    def flags(self, count: int) -> Bools:
        """Read a bitmap."""
        flags = np.unpackbits(self._take(-(-count // 8)), bitorder="little").view(np.bool_)
        self.require(not flags[count:].any())
        return flags[:count]

    def words(self, count: int, size: int) -> Words:
        """Read numbers of some bytes each; the column can be written."""
        octets = np.zeros((count, _WORD_BYTES), np.uint8)
        octets[:, :size] = self._take(count * size).reshape(count, size)
        return octets.view("<u8").ravel().astype(np.uint64, copy=False)

    def ascending(self, count: int, size: int) -> Words:
        """Read numbers as `words` does, which must ascend."""
        words = self.words(count, size)
        self.require(not (words[1:] <= words[:-1]).any())
        return words
