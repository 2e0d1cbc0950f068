"""The frames of the compact mode as bytes; docs/spec/compact.md describes each.

A frame is a byte for its kind and fields one after the other. Numbers are varints (LEB128, as
short as possible, at most 63 bits); columns are written one after the other, each whole. The kernel
reads and writes slices (`reconcile.compact.slices`), tables and results.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np

from reconcile import kernel
from reconcile.codec.decoding import read_varint
from reconcile.compact.keys import BIT_BALANCES, NO_WORDS, SHORT_BYTES
from reconcile.compact.table import TableShape
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

_NO_FLAGS: Final = np.empty(0, np.bool_)
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
            pack = kernel.require().pack
            counts = varint(len(frame.wanted)) + varint(len(frame.offered))
            head = bytes((FrameKind.RESULT,)) + frame.xor.tobytes() + counts
            wanted: bytes = pack(frame.wanted, frame.wanted_bytes)
            offered: bytes = pack(frame.offered, SHORT_BYTES)
            return head + bytes((frame.wanted_bytes,)) + wanted + offered


def encode_offer(slices: bytes) -> bytes:
    """Return an offer with slices that are bytes already."""
    return bytes((FrameKind.OFFER,)) + slices


def encode_answer(head: AnswerHead, slices: bytes) -> bytes:
    """Return an answer with slices that are bytes already."""
    differs = np.packbits(head.differs, bitorder="little").tobytes()
    first = bytes((FrameKind.SLICES,)) + head.xor.tobytes() + varint(head.count)
    return first + differs + bytes((head.print_bytes,)) + slices


def encode_balances(balances: Ints) -> bytes:
    """Return a column of balances, zigzag and varint."""
    return b"".join(map(varint, (balances << 1 ^ balances >> 63).tolist()))


def _encode_table(frame: TableFrame) -> bytes:
    shape = frame.shape
    flag = int(frame.differs is not None)
    if frame.explained is not None:
        flag = _BY_PRINTS if frame.by_prints else _EXPLAINED if frame.listed is None else _LISTED
    numbers = np.array((flag, shape.places, shape.windows, shape.length))
    flags = frame.differs, frame.explained, frame.listed
    differs, explained, listed = (_NO_FLAGS if part is None else part for part in flags)
    columns = numbers, differs, explained, frame.single, listed, frame.named, frame.cells
    written: bytes = kernel.require().write_table(*columns)
    return written


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
    frame: Frame | None = None
    if kind == FrameKind.OFFER:
        frame = SlicesFrame(FrameKind.OFFER, data, 1)
    elif kind in _PLAIN and len(data) == 1:
        frame = PlainFrame(FrameKind(kind))
    elif kind == FrameKind.FOUND and len(data) == 1 + HASH_BYTES:
        frame = SingleFrame(FrameKind.FOUND, np.frombuffer(data, np.uint64, offset=1))
    elif kind == FrameKind.LOOK and len(data) == 2 + HASH_BYTES:
        frame = SingleFrame(FrameKind.LOOK, np.frombuffer(data[1:-1], np.uint64), data[-1])
    elif kind == FrameKind.SLICES:
        frame = _decode_answer(data, slices)
    elif kind == FrameKind.TABLE:
        frame = _decode_table(data, slices)
    elif kind == FrameKind.RESULT:
        frame = _decode_result(data)
    if frame is None:
        raise malformed(kind)
    return frame


def malformed(kind: int) -> MalformedCompactError:
    """Return the error of a frame of some kind that the kernel refuses."""
    return MalformedCompactError(0, f"A frame of kind {kind} is malformed or beyond a limit")


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


def _decode_answer(data: bytes, slices: int) -> SlicesFrame | None:
    fields = kernel.require().read_head(data, slices)
    if fields is None:
        return None
    xor, count, differs, print_bytes, at = fields
    flags = np.frombuffer(differs, np.bool_)
    head = AnswerHead(np.frombuffer(xor, np.uint64), count, flags, print_bytes)
    return SlicesFrame(FrameKind.SLICES, data, at, head)


def _decode_table(data: bytes, slices: int) -> TableFrame | None:
    fields = kernel.require().read_table(data, slices)
    if fields is None:
        return None
    differs, places, length, windows, cells, explained, single, listed, named, by_prints = fields
    return TableFrame(
        _flags(differs),
        TableShape(places, length, windows),
        _words(cells),
        _flags(explained),
        _words(single),
        _flags(listed),
        _words(named),
        by_prints=bool(by_prints),
    )


def _decode_result(data: bytes) -> ResultFrame | None:
    fields = kernel.require().read_result(data)
    if fields is None:
        return None
    xor, wanted, size, offered = fields
    return ResultFrame(_words(xor), _words(wanted), size, _words(offered))


def _flags(column: bytes | None) -> Bools | None:
    return None if column is None else np.frombuffer(column, np.bool_)


def _words(column: bytes | None) -> Words:
    return NO_WORDS if column is None else np.frombuffer(column, np.uint64)
