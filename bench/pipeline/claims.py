"""SDS messages as an archive's files hold them, for the audit: many channels, each one long chain.

Every message refers to the one before it in its channel and, two times in three, to an older one
as well: 5 edges for 3 messages. One message in the first half of each channel is not there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from store.pipeline.columns import ARROW

DEPTH: Final = 600
EDGES_PER_CHANNEL: Final = 1_000
FILES: Final = 8
_REACH: Final = 20
_START_NS: Final = 1_700_000_000_000_000_000
_STEP_NS: Final = 1_000_000_000
_SEED: Final = 7
_ID_DIGITS: Final = 32
_COLUMNS: Final = ("ts", "h0", "channel", "message_id", "lamport", "parents")
_SCHEMA: Final = pa.schema([ARROW.field(name) for name in _COLUMNS])


def write_claims(directory: Path, channels: int) -> list[str]:
    """Write so many channels to `FILES` files, as they come in, by time; their paths."""
    directory.mkdir()
    generator = np.random.default_rng(_SEED)
    gaps = generator.integers(1, DEPTH // 2, channels)
    paths = []
    for number, levels in enumerate(np.array_split(np.arange(DEPTH), FILES)):
        level, channel = (
            each.ravel() for each in np.meshgrid(levels, np.arange(channels), indexing="ij")
        )
        there = level != gaps[channel]
        path = directory / f"claims-{number}.parquet"
        pq.write_table(_table(generator, channel[there], level[there]), path, compression="zstd")
        paths.append(str(path))
    return paths


def _table(generator: np.random.Generator, channel: np.ndarray, level: np.ndarray) -> pa.Table:
    names = pa.array([f"channel-{number:05d}" for number in range(int(channel.max()) + 1)])
    second = level - generator.integers(2, _REACH, len(level))
    has_second = (second >= 0) & (level % 3 != 0)
    counts = (level > 0).astype(np.int32) + has_second
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])
    which = np.repeat(np.arange(len(level)), counts)
    is_first = np.arange(len(which)) == offsets[:-1][which]
    parent = np.where(is_first, level[which] - 1, second[which])
    ids = _ids(channel[which], parent)
    pairs = pa.StructArray.from_arrays(
        [ids, pa.nulls(len(ids), pa.binary())], fields=list(ARROW.field("parents").type.value_type)
    )
    columns = [
        pa.array(_START_NS + level * _STEP_NS + channel),
        pa.array(generator.integers(-(2**63), 2**63 - 1, len(level))),
        names.take(pa.array(channel)),
        _ids(channel, level),
        pa.array(level + 1),
        pa.ListArray.from_arrays(pa.array(offsets), pairs),
    ]
    return pa.table(columns, schema=_SCHEMA)


def _ids(channel: np.ndarray, level: np.ndarray) -> pa.Array:
    """IDs of 32 hexadecimal digits that say nothing about their order, each the same every time."""
    number = (channel.astype(np.uint64) << np.uint64(20)) | level.astype(np.uint64)
    words = np.empty((len(number), 2), ">u8")
    words[:, 0] = number * np.uint64(0x9E3779B97F4A7C15)
    words[:, 1] = (number ^ np.uint64(0x5DEECE66D)) * np.uint64(0xC2B2AE3D27D4EB4F)
    digits = pa.py_buffer(words.tobytes().hex().encode())
    ends = pa.py_buffer(np.arange(len(number) + 1, dtype=np.int32) * _ID_DIGITS)
    # From text of numpy, so many come back in chunks, of which no column is made.
    return pa.StringArray.from_buffers(len(number), ends, digits)
