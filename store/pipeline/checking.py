"""What can be wrong with messages of an archive, row by row, as conditions on whole columns.

A missing value is never right: it makes the conditions true that concern it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from hashlib import sha256
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.pipeline.decode import shard_of
from store.pipeline.fingerprints import HASH_WORDS, numbers_of
from storenode.message.limits import HASH_BYTES, MAX_TOPIC_BYTES

WRONG_HASH: Final = "hash is not that of the message"
WRONG_WORDS: Final = "h0 to h3 are not the hash"
WRONG_PLACE: Final = "in the directory of another shard"
NOT_ELIGIBLE: Final = "no message that a node stores"
TOO_LONG: Final = "a topic is longer than may be"
ROW_FAULTS: Final = (NOT_ELIGIBLE, WRONG_HASH, WRONG_WORDS, TOO_LONG, WRONG_PLACE)

CHECKED: Final = (
    "ts",
    "hash",
    *HASH_WORDS,
    "pubsub_topic",
    "content_topic",
    "payload",
    "meta",
    "ephemeral",
)
"""The columns that are looked at."""

HASHED: Final = ("ts", "hash", "pubsub_topic", "content_topic", "payload", "meta")
"""Those that are looked at for `WRONG_HASH`."""

_TOPICS: Final = ("pubsub_topic", "content_topic")
_TIME_BYTES: Final = 8

Flags = NDArray[np.bool_]


def row_faults(
    rows: pa.RecordBatch, shards: Iterable[int], kinds: Iterable[str] = ROW_FAULTS
) -> dict[str, Flags]:
    """Of each kind of fault, which rows have it.

    ``shards`` are those of the directories that the rows are in: one for each row, or one for all.
    """
    look: dict[str, Callable[[pa.RecordBatch], Flags]] = {
        NOT_ELIGIBLE: _not_eligible,
        WRONG_HASH: _wrong_hash,
        WRONG_WORDS: _wrong_words,
        TOO_LONG: _too_long,
        WRONG_PLACE: partial(_wrong_place, np.fromiter(shards, np.int64)),
    }
    return {kind: look[kind](rows) for kind in kinds}


def _not_eligible(rows: pa.RecordBatch) -> Flags:
    lasting = ~_flags(rows["ephemeral"].fill_null(False))
    sound = (numbers_of(rows["ts"]) > 0) & lasting
    for name in _TOPICS:
        sound &= _of_values(rows[name], _is_topic)
    return ~sound


def _too_long(rows: pa.RecordBatch) -> Flags:
    short = np.ones(len(rows), np.bool_)
    for name in _TOPICS:
        short &= _of_values(rows[name], lambda text: len(text) <= MAX_TOPIC_BYTES)
    return ~short


def _wrong_place(shards: NDArray[np.int64], rows: pa.RecordBatch) -> Flags:
    known, places = _coded(rows["pubsub_topic"])
    found = np.array([shard_of(text.decode(errors="replace")) for text in known], np.int64)
    right: Flags = (found[places] == shards) & _flags(rows["pubsub_topic"].is_valid())
    return ~right


def _is_topic(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return bool(text) and b"\0" not in text


def _of_values(column: pa.Array, sound: Callable[[bytes], bool]) -> Flags:
    """Which rows have a value that is sound."""
    known, places = _coded(column)
    found = np.array([sound(text) for text in known], np.bool_)
    return found[places] & _flags(column.is_valid())


def _coded(column: pa.Array) -> tuple[list[bytes], NDArray[np.int64]]:
    """The different values of a column of text, of which there are few, and of each row which it
    has; any one where it has none.
    """
    coded = column.cast(pa.binary()).dictionary_encode()
    places = coded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    return coded.dictionary.to_pylist() or [b""], places


def _flags(column: pa.Array) -> Flags:
    flags: Flags = column.to_numpy(zero_copy_only=False).astype(np.bool_)
    return flags


def _wrong_words(rows: pa.RecordBatch) -> Flags:
    words = np.stack([numbers_of(rows[name]) for name in HASH_WORDS], axis=1)
    right: Flags = (words == _hash_words(rows["hash"])).all(axis=1)
    return ~right | _flags(pc.not_equal(pc.binary_length(rows["hash"]), HASH_BYTES).fill_null(True))


def _hash_words(hashes: pa.Array) -> NDArray[np.int64]:
    """The hashes as words; zeros where one has another length."""
    sized = pc.if_else(pc.equal(pc.binary_length(hashes), HASH_BYTES), hashes, bytes(HASH_BYTES))
    fixed = sized.fill_null(bytes(HASH_BYTES)).cast(pa.binary(HASH_BYTES))
    octets = np.frombuffer(fixed.buffers()[1], np.uint8)
    first = fixed.offset * HASH_BYTES
    return octets[first : first + HASH_BYTES * len(fixed)].view("<i8").reshape(len(fixed), -1)


def _wrong_hash(rows: pa.RecordBatch) -> Flags:
    """Whether a hash is not that of the message (14/WAKU2-MESSAGE)."""
    hashed = _hashed(rows)
    ends = np.frombuffer(hashed.buffers()[1], np.int32, len(hashed) + 1, 4 * hashed.offset).tolist()
    data = memoryview(hashed.buffers()[2] or b"")
    digests = [sha256(data[low:high]).digest() for low, high in pairwise(ends)]
    same = pc.equal(pa.array(digests, pa.binary()), rows["hash"])
    whole = _flags(pc.is_valid(hashed))
    return ~(_flags(same.fill_null(False)) & whole)


def _hashed(rows: pa.RecordBatch) -> pa.Array:
    """What the hash of each row is made of, joined; null where something is missing."""
    times = pa.Array.from_buffers(
        pa.binary(_TIME_BYTES),
        len(rows),
        [None, pa.py_buffer(numbers_of(rows["ts"]).astype(">i8"))],
    )
    return pc.binary_join_element_wise(
        rows["pubsub_topic"].cast(pa.binary()),
        rows["payload"],
        rows["content_topic"].cast(pa.binary()),
        rows["meta"].fill_null(b""),
        times.cast(pa.binary()),
        b"",
    )
