"""What a binary COPY sends, as Arrow batches: the rows of a batch are read together, by value.

A row is one message of the server: the number of its values, then each after its length, -1 for
null. An array is a value of this form::

    dimensions  has nulls  type of elements  [elements  lower bound]  [length  element] …

All numbers are big-endian. Sources: PostgreSQL manual, "COPY", "Binary Format", and "Message Flow",
"COPY Operations"; `array_send` for arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store.pipeline.errors import PipelineError

Octets = NDArray[np.uint8]
Places = NDArray[np.int64]

SIGNATURE: Final = b"PGCOPY\n\xff\r\n\x00"
_FLAGS_BYTES: Final = 4
_END: Final = b"\xff\xff"
_COUNT: Final = 2
"""Bytes of the number of values of a row."""

_LENGTH: Final = 4
_BIGINT: Final = 8
_ARRAY_HEAD: Final = 12
_DIMENSION: Final = 8
_NULL: Final = -1
_MOST_BYTES: Final = 2**31 - 1
"""Bytes of the rows of one batch: the offsets of Arrow's binary values have 32 bits."""


def batches_of(
    messages: Iterable[bytes | memoryview | bytearray], schema: pa.Schema, batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The rows of a COPY as batches of about so many bytes; there is no empty one.

    Columns are int64, binary, or lists of binary values.

    Raises:
        PipelineError: the server sends something else.
    """
    held: list[bytes] = []
    size = 0
    for row in _rows(messages):
        if held and size + len(row) > batch_bytes:
            yield _batch(held, schema)
            held, size = [], 0
        held.append(row)
        size += len(row)
    if held:
        yield _batch(held, schema)


def _rows(messages: Iterable[bytes | memoryview | bytearray]) -> Iterator[bytes]:
    """Each row, without the header, which comes with the first message, and the trailer."""
    following = iter(messages)
    first = bytes(next(following, b""))
    start = len(SIGNATURE) + _FLAGS_BYTES
    if not first.startswith(SIGNATURE) or len(first) < start + _LENGTH:
        raise _not_as_agreed()
    extension = int.from_bytes(first[start : start + _LENGTH], "big")
    begun = first[start + _LENGTH + extension :]
    ended = False
    # What comes behind the trailer is read too: else the connection would still be in the COPY.
    for message in chain([begun] if begun else [], following):
        if ended:
            raise _not_as_agreed()
        row = bytes(message)
        ended = row == _END
        if not ended:
            yield row
    if not ended:
        raise _not_as_agreed()


def _not_as_agreed() -> PipelineError:
    return PipelineError(
        "The database answered something else than rows of the wanted columns: check that it is"
        " PostgreSQL itself, and no other server that speaks its protocol."
    )


def _batch(rows: list[bytes], schema: pa.Schema) -> pa.RecordBatch:
    if sum(map(len, rows)) > _MOST_BYTES:
        raise PipelineError("A message in the database is larger than 2 GB, and cannot be read.")
    walk = _Walk(rows, len(schema))
    columns = [_column(walk, field.type) for field in schema]
    walk.finish()
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(walk: _Walk, kind: pa.DataType) -> pa.Array:
    starts, sizes = walk.value()
    if kind == pa.int64():
        return _bigints(walk, starts, sizes)
    if kind == pa.binary():
        return gathered(walk.octets, starts, sizes)
    return _lists(walk, starts, sizes)


class _Walk:
    """A cursor per row, that moves over its values, all rows at once."""

    def __init__(self, rows: list[bytes], values: int) -> None:
        ends = np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)))
        # What claims to reach beyond the last row is read as zeros, and found out at the end.
        self.octets = np.frombuffer(b"".join([*rows, bytes(_ARRAY_HEAD + _DIMENSION)]), np.uint8)
        self._last = int(ends[-1])
        self._at = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        self._ends = ends
        if (self.numbers(self._at, _COUNT) != values).any():
            raise _not_as_agreed()
        self._at += _COUNT

    def value(self) -> tuple[Places, Places]:
        """Where the next value of each row begins, and its size, -1 for null."""
        sizes = self.numbers(self._at, _LENGTH)
        starts = self._at + _LENGTH
        self._at = starts + np.maximum(sizes, 0)
        if (sizes < _NULL).any() or (self._at > self._ends).any():
            raise _not_as_agreed()
        return starts, sizes

    def finish(self) -> None:
        """Make sure that nothing is left of any row."""
        if (self._at != self._ends).any():
            raise _not_as_agreed()

    def numbers(self, places: Places, size: int) -> Places:
        """Signed numbers of ``size`` bytes."""
        found = np.zeros(len(places), np.int64)
        # Places are checked by whoever uses what is read there; here they must only exist.
        inside = np.minimum(places, self._last)
        for offset in range(size):
            found = found << 8 | self.octets[inside + offset]
        shift = 64 - 8 * size
        return found << shift >> shift


def _bigints(walk: _Walk, starts: Places, sizes: Places) -> pa.Array:
    absent = sizes == _NULL
    if not (absent | (sizes == _BIGINT)).all():
        raise _not_as_agreed()
    return pa.array(walk.numbers(starts, _BIGINT), pa.int64(), mask=absent)


def gathered(octets: Octets, starts: Places, sizes: Places) -> pa.Array:
    """Binary values that lie somewhere in ``octets``; those with a negative size are null."""
    lengths = np.maximum(sizes, 0)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    buffers = [_validity(sizes), pa.py_buffer(offsets.astype(np.int32)), None]
    buffers[2] = pa.py_buffer(octets[places])
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def _validity(sizes: Places) -> pa.Buffer | None:
    present = sizes >= 0
    return None if present.all() else pa.array(present).buffers()[1]


def _lists(walk: _Walk, starts: Places, sizes: Places) -> pa.Array:
    """Arrays of binary values of one dimension; an empty one has none."""
    counts = _counts(walk, starts, sizes)
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    begins, lengths = np.zeros(offsets[-1], np.int64), np.zeros(offsets[-1], np.int64)
    at, ends = starts + _ARRAY_HEAD + _DIMENSION, starts + sizes
    for number in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > number)
        size = walk.numbers(at[rows], _LENGTH)
        begin = at[rows] + _LENGTH
        places = offsets[rows] + number
        begins[places], lengths[places] = begin, size
        at[rows] = begin + np.maximum(size, 0)
        if (size < _NULL).any() or (at[rows] > ends[rows]).any():
            raise _not_as_agreed()
    values = gathered(walk.octets, begins, lengths)
    buffers = [_validity(sizes), pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(pa.list_(pa.binary()), len(counts), buffers, children=[values])


def _counts(walk: _Walk, starts: Places, sizes: Places) -> Places:
    """Elements of each array; none of a null."""
    counts = np.zeros(len(starts), np.int64)
    held = np.flatnonzero(sizes >= 0)
    dimensions = walk.numbers(starts[held], _LENGTH)
    full = held[dimensions == 1]
    counts[full] = walk.numbers(starts[full] + _ARRAY_HEAD, _LENGTH)
    # Each element has at least its length: no number of them makes memory that was not sent.
    room = (sizes - _ARRAY_HEAD - _DIMENSION) // _LENGTH
    if not np.isin(dimensions, (0, 1)).all() or (counts[full] > room[full]).any():
        raise _not_as_agreed()
    if (counts < 0).any():
        raise _not_as_agreed()
    return counts
