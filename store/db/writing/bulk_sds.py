"""Rows of ``sds`` by COPY, beside a large batch of new messages (`store.db.writing.bulk`).

As parameters of an insert, parents would be texts that Postgres takes apart again: rows have
different numbers of them, which no rectangular array carries. COPY takes each row's arrays in
binary form. What stands between the values of a row depends on their sizes alone, which few rows
have to themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from store.db.arrays import BYTEA_OID, UUID_OID
from store.messages.record import RecordBatch
from storenode.message.limits import HASH_BYTES
from storenode.sds.codec import channel_key, sds_key
from storenode.sds.limits import SDS_KEY_BYTES

COPY_SDS: Final = (
    "copy storenode.sds (key, channel_key, ts, hash, channel, message_id, sender, lamport,"
    " parent_keys, parent_ids, parent_hints, proof) from stdin (format binary)"
)

MAX_CACHED_TEMPLATES: Final = 1_024
MAX_CACHED_PARENTS: Final = 8
"""Rows with more parents are laid out each for itself."""

_COLUMNS: Final = 12
_INT64: Final = 1 << 64
_VALUE: Final = b"%b"
_NONE: Final = -1
_PROOF: Final = {False: b"\0", True: b"\1"}

_Sizes = tuple[int, int, int, int, tuple[int, ...], tuple[int, ...]]
"""Of channel, message ID, sender and clock, and of the IDs and hints of all parents."""


def sds_block(batch: RecordBatch) -> bytes:
    """The SDS rows of a batch, without header and trailer, ascending by the key."""
    channels = {name: channel_key(name) for name in {row.channel_id for row in batch.sds}}
    times = np.array(batch.timestamps, ">i8").view("V8").tolist()
    laid_out = []
    for row, place in zip(batch.sds, batch.sds_index, strict=True):
        channel, message_id, sender = row.channel_id, row.message_id, row.sender_id
        key = sds_key(channel, message_id)
        clock = b"" if row.lamport is None else signed(row.lamport).to_bytes(8, signed=True)
        ids = [parent for parent, _ in row.parents]
        hints = [hint for _, hint in row.parents]
        held = hints if None not in hints else [hint for hint in hints if hint is not None]
        sizes = (
            len(channel),
            len(message_id),
            len(sender),
            len(clock) or _NONE,
            tuple(map(len, ids)),
            tuple([_NONE if hint is None else len(hint) for hint in hints]),
        )
        template = _cached_template if len(ids) <= MAX_CACHED_PARENTS else _template
        values = (key, channels[channel], times[place], batch.hashes[place], channel, message_id)
        keys = [sds_key(channel, parent) for parent in ids]
        row_bytes = template(sizes) % (
            *values, sender, clock, *keys, *ids, *held, _PROOF[row.proven]
        )  # fmt: skip
        laid_out.append((key, row_bytes))
    laid_out.sort()
    return b"".join([row_bytes for _, row_bytes in laid_out])


def signed(lamport: int) -> int:
    """An unsigned 64-bit number as a ``bigint`` carries it."""
    return lamport - _INT64 if lamport >= _INT64 // 2 else lamport


def _template(sizes: _Sizes) -> bytes:
    channel, message_id, sender, clock, ids, hints = sizes
    fixed = (SDS_KEY_BYTES, SDS_KEY_BYTES, 8, HASH_BYTES, channel, message_id, sender)
    parts = [_plain(">h", _COLUMNS)]
    parts += [_size(size) + _VALUE for size in fixed]
    # An empty value where the clock would be.
    parts.append(_size(clock) + _VALUE)
    parts.append(_array(UUID_OID, [SDS_KEY_BYTES] * len(ids)))
    parts += (_array(BYTEA_OID, ids), _array(BYTEA_OID, hints), _size(1) + _VALUE)
    return b"".join(parts)


_cached_template = lru_cache(maxsize=MAX_CACHED_TEMPLATES)(_template)


def _array(oid: int, sizes: Sequence[int]) -> bytes:
    if not sizes:
        return _plain(">iiii", 12, 0, 0, oid)
    whole = 20 + sum(4 + max(size, 0) for size in sizes)
    header = _plain(">iiiiii", whole, 1, int(_NONE in sizes), oid, len(sizes), 1)
    return header + b"".join(
        [_size(size) if size == _NONE else _size(size) + _VALUE for size in sizes]
    )


def _size(size: int) -> bytes:
    return _plain(">i", size)


def _plain(layout: str, *numbers: int) -> bytes:
    return struct.pack(layout, *numbers).replace(b"%", b"%%")
