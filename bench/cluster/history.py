"""A synthetic archive that grows: every day as many messages, of which each has its true hash.

Random payloads of 60 bytes on four shards and 40 content topics. Every tenth message is one of SDS,
in one of 200 channels, with the two before it as parents; four channels lack a message a day. A
second archive has the same files, but for those of one hour of each day.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bench.pipeline.publishing import write_rows
from store.pipeline.actions import Written
from store.pipeline.columns import ARROW
from store.pipeline.fingerprints import HASH_WORDS, Fingerprint, Fingerprints
from store.pipeline.lake import Lake
from store.pipeline.limits import DAY_NS, HOUR_NS
from store.pipeline.manifest import Entry, FileNote, manifest_of
from store.pipeline.recording import digest_of
from storenode.message.hashing import message_hashes, pack_timestamp
from storenode.message.limits import HASH_BYTES

PER_DAY: Final = 1_000_000
SHARDS: Final = 4
TOPICS: Final = 40
PAYLOAD_BYTES: Final = 60
SDS_EVERY: Final = 10
CHANNELS: Final = 200
LACKING_EVERY: Final = 50
"""Of so many channels one lacks a message each day."""

LACKING_HOUR: Final = 12
"""Of each day, in the second archive."""

WRITERS: Final = 4
"""Processes that write days side by side."""

_PUBSUB: Final = [f"/waku/2/rs/1/{each}" for each in range(SHARDS)]
_CONTENT: Final = [f"/bench/1/topic-{each:02}/proto" for each in range(TOPICS)]
_FIRST_DAY: Final = 20_000
_SEED: Final = 13

Numbers = NDArray[np.int64]


class Day(NamedTuple):
    """What was written of a day; ``late`` files are those that the second archive lacks."""

    messages: int
    missing: int
    common: list[Written]
    late: list[Written]
    held: Fingerprints


@dataclass
class History:
    """Both archives, in a directory; ``lacking`` in the second, ``missing`` in the channels."""

    directory: Path
    per_day: int = PER_DAY
    days: int = 0
    messages: int = 0
    lacking: int = 0
    missing: int = 0

    @property
    def first(self) -> Path:
        """The path of the archive with everything."""
        return self.directory / "archive"

    @property
    def second(self) -> Path:
        """The path of the other one."""
        return self.directory / "other"

    def grown(self, days: int) -> History:
        """Archive day after day until there are so many; itself."""
        self._created()
        for day in self._each(range(self.days, days)):
            self._add(day)
        self.days = days
        return self

    def _add(self, day: Day) -> None:
        _publish(Lake(str(self.first)).open(), [*day.common, *day.late], day.held)
        hours = day.held.items()
        kept = {each: held for each, held in hours if not _is_lacking(each // HOUR_NS)}
        _publish(Lake(str(self.second)).open(), day.common, kept)
        self.messages += day.messages
        self.lacking += sum(each.rows for each in day.late)
        self.missing += day.missing

    def part(self, directory: Path, days: range) -> History:
        """Archives of some days that were prepared, which have the same files."""
        part = History(directory, self.per_day, len(days))
        part._created()
        for day in self._each(days):
            for each in day.common:
                _link(self.second, part.second, each.path)
            for each in [*day.common, *day.late]:
                _link(self.first, part.first, each.path)
            part._add(day)
        # What messages of before the first day are named is not there.
        part.missing += 2 * CHANNELS if days.start else 0
        return part

    def prepare(self, days: int, writers: int = WRITERS) -> None:
        """Write the files of so many days, which nothing names yet; those of before stay."""
        self._created()
        self._prepared.mkdir(exist_ok=True)
        for _ in self._each(range(days), writers):
            pass

    @property
    def prepared(self) -> bool:
        """Whether days were written beforehand."""
        return self._prepared.exists()

    def day(self, number: int) -> Day:
        """What was written of a day, now or beforehand."""
        noted = self._prepared / str(number)
        if noted.exists():
            found: Day = pickle.loads(noted.read_bytes())
            return found
        day = self.written(number)
        if self._prepared.exists():
            unfinished = noted.with_suffix(".part")
            unfinished.write_bytes(pickle.dumps(day))
            unfinished.rename(noted)
        return day

    @property
    def _prepared(self) -> Path:
        return self.directory / "prepared"

    def _created(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        for each in (self.first, self.second):
            Lake(str(each)).create()

    def _each(self, days: range, writers: int = WRITERS) -> Iterator[Day]:
        with ProcessPoolExecutor(writers, mp_context=get_context("spawn")) as pool:
            yield from pool.map(self.day, days)

    def written(self, day: int) -> Day:
        """Write the files of a day, which nothing names yet."""
        rows = _rows(day, self.per_day)
        late = pa.array(_is_lacking(rows["ts"].to_numpy() // HOUR_NS))
        common = self._written(f"day-{day:06}", rows.filter(pc.invert(late)))
        apart = self._written(f"late-{day:06}", rows.filter(late))
        missing = len(_not_there(day, self.per_day))
        return Day(len(rows), missing, common, apart, _hours(rows))

    def _written(self, run: str, rows: pa.RecordBatch) -> list[Written]:
        """Files in the first archive, and the same ones in the second, which take no more disk."""
        written = write_rows(Lake(str(self.first)), run, iter([rows]))
        for each in written:
            _link(self.first, self.second, each.path)
        return written


def _link(archive: Path, other: Path, path: str) -> None:
    """Have a file of an archive in another one too."""
    link = other / "messages" / path
    link.parent.mkdir(parents=True, exist_ok=True)
    os.link(archive / "messages" / path, link)


def _publish(lake: Lake, written: Sequence[Written], held: Fingerprints) -> None:
    """As `archive` does: log, manifest, hours."""
    lake.publish(written, {})
    added = {
        each.path: FileNote(
            each.min_ts // DAY_NS, each.rows, digest_of(f"{lake.messages}/{each.path}")
        )
        for each in written
    }
    manifest_of(lake.path).append(Entry(lake.version, added, [], held))
    lake.note_hours({start // DAY_NS for start in held}, held)


def _is_lacking(hour: Any) -> Any:  # noqa: ANN401 - a number or an array
    return hour % 24 == LACKING_HOUR


def _not_there(day: int, per_day: int) -> list[int]:
    """Numbers of messages that the history lacks."""
    said = per_day // SDS_EVERY
    depth = said // CHANNELS
    first = day * said + depth // 2 * CHANNELS
    return [(first + each) * SDS_EVERY for each in range(0, CHANNELS, LACKING_EVERY)]


def _rows(day: int, per_day: int) -> pa.RecordBatch:
    """The messages of a day, ascending by time."""
    number = np.arange(day * per_day, (day + 1) * per_day)
    number = number[~np.isin(number, _not_there(day, per_day))]
    ts = _FIRST_DAY * DAY_NS + number * (DAY_NS // per_day)
    noise = np.random.default_rng([_SEED, day]).bytes(len(number) * PAYLOAD_BYTES)
    payloads = _cut(noise, PAYLOAD_BYTES)
    hashes = _hashes(number, ts, payloads.to_pylist())
    words = np.frombuffer(hashes, "<i8").reshape(-1, len(HASH_WORDS))
    shard = number % SHARDS
    found = {
        "day": pa.array((ts // DAY_NS).astype(np.int32)).cast(pa.date32()),
        "shard": pa.array(shard.astype(np.int32)),
        "ts": pa.array(ts),
        "hash": _cut(hashes, HASH_BYTES),
        **{name: pa.array(words[:, place]) for place, name in enumerate(HASH_WORDS)},
        "pubsub_topic": pa.array(_PUBSUB).take(pa.array(shard)),
        "content_topic": pa.array(_CONTENT).take(pa.array(number % TOPICS)),
        "payload": payloads,
        **_sds(number),
    }
    columns = [found.get(each.name, pa.nulls(len(number), each.type)) for each in ARROW]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW)


def _cut(data: bytes, length: int) -> pa.Array:
    """A column of values of one length."""
    buffers = [None, pa.py_buffer(data)]
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(length), len(data) // length, buffers)
    return fixed.cast(pa.binary())


def _hashes(number: Numbers, ts: Numbers, payloads: list[bytes]) -> bytes:
    before, after = ([each.encode() for each in names] for names in (_PUBSUB, _CONTENT))
    each = zip(number.tolist(), payloads, ts.tolist(), strict=True)
    parts = (
        (before[place % SHARDS], payload, after[place % TOPICS], pack_timestamp(at))
        for place, payload, at in each
    )
    return b"".join(message_hashes(parts))


def _sds(number: Numbers) -> dict[str, pa.Array]:
    """The columns of SDS: null in nine rows of ten."""
    said = number % SDS_EVERY == 0
    order = number[said] // SDS_EVERY
    level, channel = order // CHANNELS, order % CHANNELS
    # Of rows that are none of SDS the place is null, and so is what is taken there.
    places = np.cumsum(said) - 1
    where = pa.array(places, mask=~said)
    counts = np.minimum(level, 2)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    owner = np.repeat(np.arange(len(order)), counts)
    back = np.arange(len(owner)) - offsets[owner] + 1
    parents = pa.StructArray.from_arrays(
        [_ids(level[owner] - back, channel[owner]), pa.nulls(len(owner), pa.binary())],
        fields=list(ARROW.field("parents").type.value_type),
    )
    columns = {
        "channel": pa.array([f"channel-{each:03}" for each in channel.tolist()]),
        "message_id": _ids(level, channel),
        "sender": pa.array([f"sender-{each % 100:02}" for each in level.tolist()]),
        "lamport": pa.array(level + 1),
        "parents": pa.ListArray.from_arrays(pa.array(offsets), parents),
    }
    return {name: each.take(where) for name, each in columns.items()}


def _ids(level: Numbers, channel: Numbers) -> pa.Array:
    pairs = zip(channel.tolist(), level.tolist(), strict=True)
    return pa.array([f"{one:016x}{other:016x}" for one, other in pairs], pa.string())


def _hours(rows: pa.RecordBatch) -> Fingerprints:
    hours = rows["ts"].to_numpy() // HOUR_NS
    begins = np.flatnonzero(np.diff(hours, prepend=hours[0] - 1))
    counts = np.diff([*begins, len(hours)])
    words = [np.bitwise_xor.reduceat(rows[name].to_numpy(), begins) for name in HASH_WORDS]
    return {
        int(hours[begin]) * HOUR_NS: Fingerprint(int(count), *map(int, each))
        for begin, count, *each in zip(begins, counts, *words, strict=True)
    }
