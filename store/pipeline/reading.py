"""Messages of a database as Arrow batches, in ascending order of (timestamp, hash).

Rows never change, so a slice is a range of time up to a commit position: a snapshot is held for one
slice at a time, and neither vacuum nor a drop waits for more. What was committed later is told by
its batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from store.pipeline.blocks import Messages, Place
from store.pipeline.columns import NAMES, SDS_COLUMNS
from store.pipeline.decode import DamagedRows, Topics, damaged, decoded, needed, rows_of
from store.pipeline.readers import AUTO, Connection, connection
from store.pipeline.slices import Slice

_BEGIN: Final = "begin transaction isolation level repeatable read, read only"
_END: Final = "commit"
_POSITIONS: Final = pa.schema([("position", pa.int64())])
_UP_TO: Final = """
 and batch not in (select batch from storenode.export_commits where position > {position})"""
_BEHIND: Final = """
 and batch in (select batch from storenode.export_commits
               where position > {start} and position <= {position})"""
# Retention locks messages before commits, and so does who reads.
_LATER: Final = """
select position from
    (select from storenode.export_messages where ts >= {low} and ts < {high} limit 1) as messages,
    storenode.export_commits
where position > {position} and max_ts >= {low} and min_ts < {high} limit 1"""
_SDS: Final = """
select {columns} from storenode.export_sds where ts >= {low} and ts < {high} order by ts, hash"""

MESSAGES: Final = pa.schema(
    [
        ("ts", pa.int64()),
        ("hash", pa.binary()),
        ("topic", pa.binary()),
        ("payload", pa.binary()),
        ("tail", pa.binary()),
    ]
)
"""What is read of `export_messages`; ``topic`` is a topic key's 16 bytes."""

SDS: Final = pa.schema(
    [
        ("ts", pa.int64()),
        ("hash", pa.binary()),
        ("channel", pa.binary()),
        ("message_id", pa.binary()),
        ("sender", pa.binary()),
        ("lamport", pa.int64()),
        ("parent_ids", pa.list_(pa.binary())),
        ("parent_hints", pa.list_(pa.binary())),
    ]
)
"""What is read of `export_sds`."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Which messages of a range of time: committed behind ``start`` (None: at any time before)
    and up to ``position``.
    """

    position: int
    start: int | None = None

    @property
    def condition(self) -> str:
        """The same in SQL."""
        if self.start is None:
            return _UP_TO.format(position=self.position)
        return _BEHIND.format(start=self.start, position=self.position)


def read_slices(
    url: str, slices: list[Slice], cut: Cut, names: tuple[str, ...], reader: str = AUTO
) -> Iterator[pa.RecordBatch]:
    """The wanted columns of the messages of some slices, one slice after the other.

    ``reader`` is one of `store.pipeline.readers.READERS`.

    Raises:
        PipelineError: the database cannot be reached, refuses, or holds what cannot be read.
    """
    if not slices:
        return
    with connection(url, reader) as first:
        reading = _Reading(first, cut, names)
        if not set(names) & SDS_COLUMNS:
            for each in slices:
                yield from reading.without_sds(each)
            return
        with connection(url, reader) as second:
            for each in slices:
                yield from reading.with_sds(each, second)


@dataclass(frozen=True, slots=True)
class Portion:
    """What one task reads of a database, in all columns."""

    url: str
    slices: list[Slice]
    cut: Cut

    def read(self) -> Iterator[pa.RecordBatch]:
        """See `read_slices`."""
        return read_slices(self.url, self.slices, self.cut, NAMES)


class _Reading:
    """Reads slices one after the other, for one task."""

    def __init__(self, connection: Connection, cut: Cut, names: tuple[str, ...]) -> None:
        self._connection = connection
        self._cut = cut
        self._names = names
        schema = pa.schema([MESSAGES.field(name) for name in needed(names)])
        self._messages = Messages(connection, schema)
        self._topics = Topics()

    def without_sds(self, each: Slice) -> Iterator[pa.RecordBatch]:
        for batch in self._stored(each):
            yield self._decoded(batch, None)

    def with_sds(self, each: Slice, second: Connection) -> Iterator[pa.RecordBatch]:
        statement = _SDS.format(columns=", ".join(SDS.names), low=each.low_ns, high=each.high_ns)
        with closing(second.batches(statement, SDS)) as batches:
            following = _Following(batches)
            for batch in self._stored(each):
                yield self._decoded(batch, following.within(*_ends(batch)))

    def _stored(self, each: Slice) -> Iterator[pa.RecordBatch]:
        low = Place(each.low_ns)
        self._connection.run(_BEGIN)
        if self._is_cut(each):
            yield from self._messages.in_rows(low, each.high_ns, self._cut.condition)
        else:
            yield from self._messages.in_blocks(low, each.high_ns)
        # Who reads no further closes the connection.
        self._connection.run(_END)

    def _is_cut(self, each: Slice) -> bool:
        """Whether a slice may hold messages that are not wanted."""
        if self._cut.start is not None:
            return True
        statement = _LATER.format(position=self._cut.position, low=each.low_ns, high=each.high_ns)
        return bool(list(self._connection.batches(statement, _POSITIONS)))

    def _decoded(self, batch: pa.RecordBatch, sds: pa.Table | None) -> pa.RecordBatch:
        try:
            return decoded(batch, sds, self._names, self._topics)
        except DamagedRows as error:
            raise damaged(error, batch["ts"]) from error


def _ends(batch: pa.RecordBatch) -> tuple[int, int]:
    return batch["ts"][0].as_py(), batch["ts"][-1].as_py()


class _Following:
    """Rows in the order of their timestamps, given out as far as another stream has come."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._held: list[pa.RecordBatch] = []
        self._ended = False

    def within(self, low: int, high: int) -> pa.Table | None:
        """Rows from one timestamp up to another, both included; None: there are none.

        Neither timestamp may be below those of the last call.
        """
        while not self._ended and (not self._held or self._held[-1]["ts"][-1].as_py() <= high):
            batch = next(self._batches, None)
            if batch is None:
                self._ended = True
            else:
                self._held.append(batch)
        # Another message with the same timestamp may come in the next batch.
        self._held = [each for each in self._held if each["ts"][-1].as_py() >= low]
        return rows_of(part for each in self._held if len(part := _part(each, low, high)))


def _part(batch: pa.RecordBatch, low: int, high: int) -> pa.RecordBatch:
    stamps = batch["ts"].to_numpy()
    first = int(np.searchsorted(stamps, low))
    return batch[first : int(np.searchsorted(stamps, high, "right"))]
