"""Rows of the view `export_messages` as columns, many at a time.

A *tail* is what follows the payload in a stored frame (`store.messages.record`)::

    12 len content topic  [18 version]  50 time  [5A len meta]  [AA 01 len proof]  [F8 01 bool]
    1A len pubsub topic

All tails of a batch are read at once: a cursor per row moves from field to field. The two topics
are read once per topic key (`Topics`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.pipeline.columns import (
    ARROW,
    HASH_COLUMNS,
    HASH_WORDS,
    PARENT,
    SDS_COLUMNS,
    TAIL_COLUMNS,
    TOPIC_COLUMNS,
)
from store.pipeline.copied import Octets, Places, gathered
from store.pipeline.errors import PipelineError
from store.pipeline.limits import DAY_NS, MAX_KNOWN_TOPICS, SHARD_PARTITIONS
from storenode.message.limits import HASH_BYTES
from storenode.message.topics import parse_shard

NO_SHARD: Final = -1
_MORE: Final = 0x80
_ALL: Final = slice(None)
_MAX_VARINT_BYTES: Final = 10
_HASH_WORDS: Final = HASH_BYTES // 8

_CONTENT_TOPIC: Final = (0x12,)
_VERSION: Final = (0x18,)
_TIMESTAMP: Final = (0x50,)
_META: Final = (0x5A,)
_PROOF: Final = (0xAA, 0x01)
_EPHEMERAL: Final = (0xF8, 0x01)
_PUBSUB_TOPIC: Final = (0x1A,)


_Here: TypeAlias = Places | slice
"""Some rows, or `_ALL`."""


class DamagedRows(Exception):
    """Some rows are not what a node stores; ``places`` are their places in the batch."""

    def __init__(self, places: Places) -> None:
        super().__init__(f"{len(places)} damaged rows")
        self.places = places


def shard_of(pubsub_topic: str) -> int:
    """The number of the directory that a topic's messages are kept in.

    The shard of a topic with static sharding (WAKU2-RELAY-SHARDING), modulo `SHARD_PARTITIONS`;
    `NO_SHARD` for any other topic.
    """
    shard = parse_shard(pubsub_topic)
    return NO_SHARD if shard is None else shard[1] % SHARD_PARTITIONS


class Topics:
    """The names behind topic keys, each read from the tail of one message and then remembered.

    A history has few topics and many batches: reading them anew in each costs more than all else.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, _Topic] = {}

    def columns(self, keys: pa.Array, tails: pa.Array) -> dict[str, pa.Array]:
        """`TOPIC_COLUMNS` of some messages.

        Raises:
            DamagedRows: a tail names no topics.
        """
        coded = keys.dictionary_encode()
        distinct = coded.dictionary.to_pylist()
        self._learn(distinct, coded.indices, tails)
        found = [self._known[key] for key in distinct]
        return {
            "pubsub_topic": pa.array([each.pubsub for each in found], pa.string()).take(
                coded.indices
            ),
            "content_topic": pa.array([each.content for each in found], pa.string()).take(
                coded.indices
            ),
            "shard": pa.array([each.shard for each in found], pa.int32()).take(coded.indices),
        }

    def _learn(self, keys: list[bytes], codes: pa.Array, tails: pa.Array) -> None:
        new = [place for place, key in enumerate(keys) if key not in self._known]
        if not new:
            return
        if len(self._known) + len(new) > MAX_KNOWN_TOPICS:
            self._known.clear()
            new = list(range(len(keys)))
        _, first = np.unique(codes.to_numpy(zero_copy_only=False), return_index=True)
        rows = first[new]
        for place, found in zip(new, _names(tails.take(pa.array(rows)), rows), strict=True):
            self._known[keys[place]] = found


def decoded(
    messages: pa.RecordBatch,
    sds: pa.Table | None,
    names: tuple[str, ...],
    topics: Topics | None = None,
) -> pa.RecordBatch:
    """The wanted columns of a batch of `export_messages`.

    ``messages`` has ``ts`` and what `needed` says; ``sds`` the rows of `export_sds` of these
    messages, and perhaps of others; None: there are none. ``topics`` is shared by the batches of a
    database.

    Raises:
        DamagedRows: rows cannot be read.
    """
    found: dict[str, pa.Array] = {"ts": messages["ts"]}
    wanted = set(names)
    if "day" in wanted:
        found["day"] = _days(messages["ts"])
    if wanted & HASH_COLUMNS:
        found |= _hashes(messages["hash"], wanted & HASH_WORDS)
    if wanted & TOPIC_COLUMNS:
        found |= (topics or Topics()).columns(messages["topic"], messages["tail"])
    if wanted & TAIL_COLUMNS:
        found |= _Tails.of(messages["tail"]).fields()
    if "payload" in wanted:
        found["payload"] = messages["payload"]
    if wanted & SDS_COLUMNS:
        found |= _no_sds(len(messages)) if sds is None else _sds(messages, sds)
    schema = pa.schema([ARROW.field(name) for name in names])
    arrays = [_of_type(found[each.name], each.type) for each in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _of_type(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values if values.type == kind else values.cast(kind)


def needed(names: tuple[str, ...]) -> list[str]:
    """What must be selected from `export_messages` for some columns."""
    wanted = set(names)
    selected = ["ts", "hash"]
    if wanted & TOPIC_COLUMNS:
        selected.append("topic")
    if "payload" in wanted:
        selected.append("payload")
    if wanted & (TOPIC_COLUMNS | TAIL_COLUMNS):
        selected.append("tail")
    return selected


def _days(timestamps: pa.Array) -> pa.Array:
    days = timestamps.to_numpy(zero_copy_only=False) // DAY_NS
    return pa.array(days.astype(np.int32)).view(pa.date32())


def _hashes(hashes: pa.Array, names: set[str]) -> dict[str, pa.Array]:
    """The hashes, and some of their words."""
    words = _words(hashes)
    return {"hash": hashes, **{name: pa.array(words[:, int(name[1:])]) for name in names}}


def _words(hashes: pa.Array) -> NDArray[np.int64]:
    starts, lengths, octets = _layout(hashes)
    if (lengths != HASH_BYTES).any():
        raise DamagedRows(np.flatnonzero(lengths != HASH_BYTES))
    first = int(starts[0]) if len(starts) else 0
    joined = octets[first : first + HASH_BYTES * len(starts)]
    return joined.view("<i8").reshape(-1, _HASH_WORDS)


class _Topic(NamedTuple):
    pubsub: str
    content: str
    shard: int


def _names(tails: pa.Array, rows: Places) -> list[_Topic]:
    """The topics of some tails, which are from these rows of a batch."""
    try:
        found = _Tails.of(tails)
    except DamagedRows as error:
        raise DamagedRows(rows[error.places]) from error
    return [found.topic(place, int(row)) for place, row in enumerate(rows)]


@dataclass(frozen=True, slots=True)
class _Field:
    """Where a field is in each row: start and size of its content; size -1: it is absent."""

    starts: Places
    sizes: Places

    @property
    def present(self) -> NDArray[np.bool_]:
        return self.sizes >= 0


@dataclass(frozen=True, slots=True)
class _Tails:
    octets: Octets
    content: _Field
    version: _Field
    meta: _Field
    proof: _Field
    ephemeral: _Field
    pubsub: _Field

    @classmethod
    def of(cls, tails: pa.Array) -> _Tails:
        starts, lengths, octets = _layout(tails)
        walk = _Walk(octets, starts, starts + lengths)
        content = walk.delimited(_CONTENT_TOPIC)
        version = walk.varint(_VERSION)
        walk.varint(_TIMESTAMP)
        meta = walk.delimited(_META)
        proof = walk.delimited(_PROOF)
        ephemeral = walk.varint(_EPHEMERAL)
        pubsub = walk.delimited(_PUBSUB_TOPIC)
        walk.finish(content.present & pubsub.present)
        return cls(octets, content, version, meta, proof, ephemeral, pubsub)

    def fields(self) -> dict[str, pa.Array]:
        numbers = _numbers(self.octets, self.version)
        flags = _numbers(self.octets, self.ephemeral)
        return {
            "version": pa.array(numbers, pa.int64(), mask=~self.version.present),
            "meta": gathered(self.octets, self.meta.starts, self.meta.sizes),
            "rate_limit_proof": gathered(self.octets, self.proof.starts, self.proof.sizes),
            "ephemeral": pa.array(flags != 0, pa.bool_(), mask=~self.ephemeral.present),
        }

    def topic(self, place: int, row: int) -> _Topic:
        """The topics of one tail, which is from a row of the batch."""
        try:
            pubsub = self._text(self.pubsub, place)
            return _Topic(pubsub, self._text(self.content, place), shard_of(pubsub))
        except UnicodeDecodeError as error:
            raise DamagedRows(np.array([row])) from error

    def _text(self, field: _Field, place: int) -> str:
        start, size = int(field.starts[place]), int(field.sizes[place])
        return self.octets[start : start + size].tobytes().decode()


class _Walk:
    """A cursor per row that moves over the fields of tails, all rows at once.

    Most rows have the same fields: what all have is done without looking for who has it.
    """

    def __init__(self, octets: Octets, starts: Places, ends: Places) -> None:
        # A cursor that has run out of its row reads zeros, which begin no field.
        self._octets = np.append(octets, np.zeros(_MAX_VARINT_BYTES + 2, np.uint8))
        self._at = starts.copy()
        self._ends = ends
        self._last = len(octets)
        self._tags = np.zeros(len(starts), np.uint8)
        self._look(_ALL)

    def delimited(self, tag: tuple[int, ...]) -> _Field:
        here = self._enter(tag)
        starts, sizes = np.zeros_like(self._at), np.full_like(self._at, -1)
        if here is not None:
            lengths, after = self._varints(self._at[here])
            starts[here], sizes[here] = after, lengths
            self._move(here, after + lengths)
        return _Field(starts, sizes)

    def varint(self, tag: tuple[int, ...]) -> _Field:
        here = self._enter(tag)
        starts, sizes = np.zeros_like(self._at), np.full_like(self._at, -1)
        if here is not None:
            begins = self._at[here]
            after = self._behind_varints(begins)
            starts[here], sizes[here] = begins, after - begins
            self._move(here, after)
        return _Field(starts, sizes)

    def finish(self, sound: NDArray[np.bool_]) -> None:
        """Make sure that every cursor is at the end of its row."""
        damaged = np.flatnonzero(~sound | (self._at != self._ends))
        if len(damaged):
            raise DamagedRows(damaged)

    def _look(self, here: _Here) -> None:
        """Note the octet at the cursor, which begins a field; 0 at the end of a row."""
        at = self._at[here]
        self._tags[here] = np.where(at < self._ends[here], self._octets[at], 0)

    def _enter(self, tag: tuple[int, ...]) -> _Here | None:
        """Rows that have a tag at the cursor, which moves behind it; None: there are none."""
        here = np.flatnonzero(self._tags == tag[0])
        for offset, octet in enumerate(tag[1:], 1):
            here = here[self._octets[self._at[here] + offset] == octet]
        if not len(here):
            return None
        rows = _ALL if len(here) == len(self._at) else here
        self._at[rows] += len(tag)
        return rows

    def _move(self, here: _Here, places: Places) -> None:
        # What claims to reach beyond its row is damaged, and must not lead a cursor astray.
        wrong = (places > self._ends[here]) | (places < self._at[here])
        if wrong.any():
            raise DamagedRows(np.arange(len(self._at))[here][wrong])
        self._at[here] = places
        self._look(here)

    def _varints(self, places: Places) -> tuple[Places, Places]:
        """Values, modulo 2^63, and the places behind them."""
        values = self._octets[places].astype(np.int64)
        if (values < _MORE).all():
            return values, places + 1
        ends = self._behind_varints(places)
        values &= _MORE - 1
        for group in range(1, min(int((ends - places).max()), _MAX_VARINT_BYTES)):
            rows = np.flatnonzero(ends - places > group)
            octets = self._octets[np.minimum(places[rows] + group, self._last)].astype(np.int64)
            if 7 * group < 63:
                values[rows] |= (octets & (_MORE - 1)) << (7 * group)
        return values, ends

    def _behind_varints(self, places: Places) -> Places:
        """The places behind varints; behind all octets for one that is too long."""
        ends = places + 1
        open_rows: _Here = _ALL
        for _ in range(_MAX_VARINT_BYTES):
            more = self._octets[np.minimum(ends[open_rows] - 1, self._last)] >= _MORE
            if not more.all():
                open_rows = np.arange(len(places))[open_rows][more]
                if not len(open_rows):
                    return ends
            ends[open_rows] += 1
        ends[open_rows] = self._last + 1
        return ends


def _numbers(octets: Octets, field: _Field) -> Places:
    """The varints of a field, 0 where it is absent."""
    values = np.zeros(len(field.starts), np.int64)
    for offset in range(int(field.sizes.max(initial=0))):
        rows = np.flatnonzero(field.sizes > offset)
        part = octets[field.starts[rows] + offset].astype(np.int64) & (_MORE - 1)
        values[rows] |= part << min(7 * offset, 62)
    return values


def _layout(values: pa.Array) -> tuple[Places, Places, Octets]:
    """Starts and sizes of binary values, and the bytes that they are in; none may be null."""
    if values.null_count:
        raise DamagedRows(np.flatnonzero(pc.is_null(values).to_numpy(zero_copy_only=False)))
    _, offsets, data = values.buffers()
    wide = np.dtype(np.int64 if pa.types.is_large_binary(values.type) else np.int32)
    size = wide.itemsize
    laid_out = (
        np.frombuffer(offsets, wide, len(values) + 1, values.offset * size)
        if len(values)
        else np.zeros(1, wide)
    )
    places = laid_out.astype(np.int64)
    octets = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return places[:-1], np.diff(places), octets


def _no_sds(rows: int) -> dict[str, pa.Array]:
    return {name: pa.nulls(rows, ARROW.field(name).type) for name in SDS_COLUMNS}


def _sds(messages: pa.RecordBatch, sds: pa.Table) -> dict[str, pa.Array]:
    """SDS columns of messages, null for those that have no row."""
    rows = sds.combine_chunks()
    places = _matched(messages, rows)
    found = {
        name: _of_type(_whole(rows[name]).take(places), ARROW.field(name).type)
        for name in ("channel", "message_id", "sender", "lamport")
    }
    return {**found, "parents": _parents(rows).take(places)}


def _matched(messages: pa.RecordBatch, sds: pa.Table) -> pa.Array:
    """For each message the row of SDS that is about it, null if there is none; both ascend."""
    stamps = messages["ts"].to_numpy(zero_copy_only=False)
    told = _whole(sds["hash"])
    if (stamps[1:] == stamps[:-1]).any() or (_layout(told)[1] != HASH_BYTES).any():
        return pc.index_in(messages["hash"], value_set=told)
    hashes, wanted = _words(messages["hash"]), _words(told)
    found = np.searchsorted(stamps, sds["ts"].to_numpy())
    rows = np.flatnonzero(found < len(stamps))
    rows = rows[(hashes[found[rows]] == wanted[rows]).all(axis=1)]
    places = np.full(len(stamps), -1)
    places[found[rows]] = rows
    return pa.array(places, mask=places < 0)


def _parents(rows: pa.Table) -> pa.Array:
    ids, hints = _whole(rows["parent_ids"]), _whole(rows["parent_hints"])
    fields = [ids.flatten().cast(pa.string()), hints.flatten().cast(pa.binary())]
    offsets = np.zeros(len(ids) + 1, np.int32)
    np.cumsum(ids.value_lengths().to_numpy(zero_copy_only=False), out=offsets[1:])
    pairs = pa.StructArray.from_arrays(fields, fields=list(PARENT))
    return pa.ListArray.from_arrays(pa.array(offsets), pairs)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return joined if isinstance(joined, pa.Array) else pa.concat_arrays(joined.chunks)


def damaged(error: DamagedRows, timestamps: pa.Array) -> PipelineError:
    """The sentence for rows that cannot be read."""
    return PipelineError(
        "The database holds messages that are not what a node stores, the first with the timestamp"
        f" {timestamps[int(error.places[0])].as_py()}: `storenode db check` says what is wrong."
    )


def rows_of(batches: Iterator[pa.RecordBatch]) -> pa.Table | None:
    """The batches as one table; None: there are none."""
    held = list(batches)
    return pa.Table.from_batches(held) if held else None
