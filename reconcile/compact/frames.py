"""The frames of the compact mode as bytes; docs/spec/compact.md describes each.

A frame is a byte for its kind and fields one after the other. Numbers are varints (LEB128, as
short as possible, at most 63 bits); columns are written one after the other, each whole. The kernel
reads and writes slices (`reconcile.compact.slices`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np

from reconcile.codec.decoding import read_varint
from reconcile.compact.keys import BIT_BALANCES, NO_WORDS, SHORT_BYTES
from reconcile.compact.table import MAX_CELLS, MAX_PLACES, TableShape
from reconcile.errors import MalformedCompactError, MalformedPayloadError, PayloadLimitError
from reconcile.ids import Bools, Ints, Words
from storenode.message.limits import HASH_BYTES
from storenode.message.varint import varint

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""One compact frame."""

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
_CELL_BYTES: Final = 8
_MAX_WINDOWS: Final = 128

# What a table's first byte says: which slices it is about, and what is beside it.
_TABLE_OF_ALL: Final = 0
_TABLE_OF_CHOSEN: Final = 1
_EXPLAINED: Final = 2
_LISTED: Final = 3
_BY_PRINTS: Final = 4


class FrameKind(IntEnum):
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


_PLAIN: Final = frozenset(
    {FrameKind.EQUAL, FrameKind.MORE, FrameKind.AGAIN, FrameKind.DONE, FrameKind.FAILED}
)


@dataclass(frozen=True, slots=True)
class PlainFrame:
    """A frame without fields: ``EQUAL``, ``MORE``, ``AGAIN``, ``DONE`` or ``FAILED``."""

    kind: FrameKind


@dataclass(frozen=True, slots=True)
class SingleFrame:
    """The XOR of both sides is an ID that the responder has (``FOUND``), or may be the peer's.

    ``number``: in which of the initiator's slices that is, with ``LOOK``.
    """

    kind: FrameKind
    xor: Words
    number: int = 0


@dataclass(frozen=True, slots=True)
class SlicesFrame:
    """Slices, which a side compares with its own: from a place in a frame to its end.

    Attributes:
        kind: ``OFFER`` or ``SLICES``.
        data: the whole frame.
        at: where the slices begin.
        head: the fields of an answer before its slices; None: the frame is an offer.
    """

    kind: FrameKind
    data: bytes = field(repr=False)
    at: int
    head: AnswerHead | None = None


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
    shape: TableShape
    cells: Words = field(repr=False)
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


Frame = PlainFrame | SingleFrame | SlicesFrame | TableFrame | ResultFrame


def encode(frame: Frame) -> bytes:
    """Return a frame as bytes."""
    match frame:
        case PlainFrame(kind):
            return bytes((kind,))
        case SingleFrame(kind, xor, number):
            last = (number,) if kind is FrameKind.LOOK else ()
            return bytes((kind,)) + xor.tobytes() + bytes(last)
        case SlicesFrame():
            return frame.data
        case TableFrame():
            return _encode_table(frame)
        case ResultFrame():
            counts = varint(len(frame.wanted)) + varint(len(frame.offered))
            head = bytes((FrameKind.RESULT,)) + frame.xor.tobytes() + counts
            wanted = _pack_words(frame.wanted, frame.wanted_bytes)
            offered = _pack_words(frame.offered, SHORT_BYTES)
            return head + bytes((frame.wanted_bytes,)) + wanted + offered


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
    shape, parts = frame.shape, [b""]
    form = _TABLE_OF_ALL if frame.differs is None else _TABLE_OF_CHOSEN
    if frame.differs is not None:
        parts.append(_pack_flags(frame.differs))
    if frame.explained is not None:
        form = _BY_PRINTS if frame.by_prints else _EXPLAINED
        parts += [_pack_flags(frame.explained), _pack_words(frame.single, SHORT_BYTES)]
    if frame.listed is not None:
        form = _LISTED
        named = varint(len(frame.named)), _pack_words(frame.named, SHORT_BYTES)
        parts += [_pack_flags(frame.listed), *named]
    parts += [bytes((shape.places,)), varint(shape.windows), varint(shape.length)]
    parts[0] = bytes((FrameKind.TABLE, form))
    return b"".join((*parts, _pack_words(frame.cells, _CELL_BYTES)))


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
    kind = data[0] if data else 0
    if kind not in _DECODERS:
        raise malformed(kind)
    try:
        return _DECODERS[kind](data, slices)
    except MalformedPayloadError as error:
        raise malformed(kind, error.offset) from error


def malformed(kind: int, at: int = 0) -> MalformedCompactError:
    """Return the error of a frame of some kind."""
    return MalformedCompactError(at, f"A frame of kind {kind} is malformed or beyond a limit")


def decode_balances(data: bytes, at: int) -> Ints:
    """Decode the balances by bits with which a frame ends.

    Raises:
        MalformedCompactError: the bytes are no such column.
    """
    found = np.empty(BIT_BALANCES, np.int64)
    try:
        for row in range(BIT_BALANCES):
            zigzag, at = read_varint(data, at)
            found[row] = zigzag >> 1 ^ -(zigzag & 1)
    except MalformedPayloadError as error:
        raise MalformedCompactError(error.offset, error.what) from None
    if at != len(data) or bool((np.abs(found) > MAX_BALANCE).any()):
        raise malformed(FrameKind.SLICES)
    return found


def _decode_plain(data: bytes, _slices: int) -> PlainFrame:
    _check_end(data, 1)
    return PlainFrame(FrameKind(data[0]))


def _decode_single(data: bytes, _slices: int) -> SingleFrame:
    xor, end, number = _read_xor(data), 1 + HASH_BYTES, 0
    if data[0] == FrameKind.LOOK:
        number, end = _read_byte(data, end, 0, MAX_FIRST_SLICES)
    _check_end(data, end)
    return SingleFrame(FrameKind(data[0]), xor, number)


def _decode_offer(data: bytes, _slices: int) -> SlicesFrame:
    return SlicesFrame(FrameKind.OFFER, data, 1)


def _decode_answer(data: bytes, slices: int) -> SlicesFrame:
    xor = _read_xor(data)
    count, at = read_varint(data, 1 + HASH_BYTES)
    differs, at = _read_flags(data, at, slices)
    print_bytes, at = _read_byte(data, at, 0, EXACT_PRINT_BYTES)
    return SlicesFrame(FrameKind.SLICES, data, at, AnswerHead(xor, count, differs, print_bytes))


def _decode_table(data: bytes, slices: int) -> TableFrame:
    differs = explained = listed = None
    single = named = NO_WORDS
    form, at = _read_byte(data, 1, _TABLE_OF_ALL, _BY_PRINTS)
    if form >= _TABLE_OF_CHOSEN:
        differs, at = _read_flags(data, at, slices)
        chosen = int(np.count_nonzero(differs))
        if form >= _EXPLAINED:
            explained, at = _read_flags(data, at, chosen)
            alone = int(np.count_nonzero(explained))
            single, at = _read_words(data, at, alone, SHORT_BYTES)
            if form == _LISTED:
                listed, at = _read_flags(data, at, chosen - alone)
                count, at = _read_number(data, at, 0, MAX_CELLS)
                named, at = _read_ascending(data, at, count, SHORT_BYTES)
    places, at = _read_byte(data, at, 1, MAX_PLACES)
    windows, at = _read_number(data, at, 1, _MAX_WINDOWS)
    length, at = _read_number(data, at, 1, MAX_CELLS)
    shape = TableShape(places, length, windows)
    if shape.cells > MAX_CELLS:
        raise MalformedPayloadError(at, f"A table has {shape.cells} cells")
    cells, at = _read_words(data, at, shape.cells, _CELL_BYTES)
    _check_end(data, at)
    beside = explained, single, listed, named
    return TableFrame(differs, shape, cells, *beside, by_prints=form == _BY_PRINTS)


def _decode_result(data: bytes, _slices: int) -> ResultFrame:
    xor = _read_xor(data)
    lacking, at = _read_number(data, 1 + HASH_BYTES, 0, MAX_CELLS)
    alone, at = _read_number(data, at, 0, MAX_CELLS - lacking)
    size, at = _read_byte(data, at, 1, SHORT_BYTES)
    wanted, at = _read_ascending(data, at, lacking, size)
    offered, at = _read_ascending(data, at, alone, SHORT_BYTES)
    _check_end(data, at)
    return ResultFrame(xor, wanted, size, offered)


_DECODERS: Final[dict[int, Callable[[bytes, int], Frame]]] = {
    **dict.fromkeys(_PLAIN, _decode_plain),
    FrameKind.OFFER: _decode_offer,
    FrameKind.FOUND: _decode_single,
    FrameKind.LOOK: _decode_single,
    FrameKind.SLICES: _decode_answer,
    FrameKind.TABLE: _decode_table,
    FrameKind.RESULT: _decode_result,
}


# Each of these returns a field and where it ends, or raises MalformedPayloadError.


def _read_byte(data: bytes, at: int, least: int, most: int) -> tuple[int, int]:
    if at >= len(data) or not least <= data[at] <= most:
        raise MalformedPayloadError(at, f"There is no number from {least} to {most}")
    return data[at], at + 1


def _read_number(data: bytes, at: int, least: int, most: int) -> tuple[int, int]:
    number, end = read_varint(data, at)
    if not least <= number <= most:
        raise MalformedPayloadError(at, f"A number is not from {least} to {most}")
    return number, end


def _read_xor(data: bytes) -> Words:
    if len(data) < 1 + HASH_BYTES:
        raise MalformedPayloadError(1, "An XOR is cut off")
    return np.frombuffer(data, np.uint64, HASH_BYTES // _WORD_BYTES, 1)


def _read_flags(data: bytes, at: int, count: int) -> tuple[Bools, int]:
    end = at + -(-count // 8)
    flags = np.unpackbits(np.frombuffer(data, np.uint8)[at:end], bitorder="little").view(np.bool_)
    if end > len(data) or flags[count:].any():
        raise MalformedPayloadError(at, f"{count} flags are cut off, or followed by others")
    return flags[:count], end


def _read_words(data: bytes, at: int, count: int, size: int) -> tuple[Words, int]:
    """Read numbers of some bytes each; the column can be written."""
    end = at + count * size
    if end > len(data):
        raise MalformedPayloadError(at, f"{count} numbers of {size} bytes are cut off")
    octets = np.zeros((count, _WORD_BYTES), np.uint8)
    octets[:, :size] = np.frombuffer(data, np.uint8)[at:end].reshape(count, size)
    return octets.view("<u8").ravel().astype(np.uint64, copy=False), end


def _read_ascending(data: bytes, at: int, count: int, size: int) -> tuple[Words, int]:
    words, end = _read_words(data, at, count, size)
    if bool((words[1:] <= words[:-1]).any()):
        raise MalformedPayloadError(at, f"{count} numbers do not ascend")
    return words, end


def _check_end(data: bytes, at: int) -> None:
    if at != len(data):
        raise MalformedPayloadError(at, "A frame goes on behind its last field")
