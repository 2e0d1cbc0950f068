"""A large batch of new messages by COPY, at half of what an insert costs that minds duplicates.

COPY inserts a page of rows at a time, and fails as a whole when one of them is there already.
Rows are laid out in COPY's binary format a column at a time (PostgreSQL manual, "COPY", "Binary
Format"), in the order of each table's primary key: transactions with the same messages wait for
each other at ``messages``, which come first, and never in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from store.db.connection import Connection
from store.db.schema.names import HASH_KEY_BYTES
from store.db.statements import SQL
from store.messages.record import COLUMNS, RecordBatch
from storenode.message.limits import CONTENT_DIGEST_BYTES, HASH_BYTES, TOPIC_KEY_BYTES

FEWEST_COPIED: Final = 100
"""Below so many messages an insert is quicker: it has one statement where COPY has two."""

HEADER: Final = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
TRAILER: Final = b"\xff\xff"


_BLOCK_ROWS: Final = 500
_LENGTH: Final = ">i4"
_BIGINT: Final = ">i8"


def _row(*values: tuple[str, DTypeLike]) -> np.dtype[np.void]:
    fields: list[tuple[str, DTypeLike]] = [("columns", ">i2")]
    for name, kind in values:
        fields += [(f"{name}_bytes", _LENGTH), (name, kind)]
    return np.dtype(fields)


_MESSAGE: Final = np.dtype(
    [
        (
            "fixed",
            _row(
                ("ts", _BIGINT),
                ("hash", f"V{HASH_BYTES}"),
                ("topic", f"V{TOPIC_KEY_BYTES}"),
                ("batch", _BIGINT),
                ("content_digest", f"V{CONTENT_DIGEST_BYTES}"),
            ),
        ),
        ("head_bytes", _LENGTH),
    ]
)
"""A row of ``messages`` up to the head; its length is the last."""

_HASH: Final = _row(("key", _BIGINT), ("ts", _BIGINT))


@dataclass(frozen=True, slots=True)
class OrderedColumns:
    """The columns of messages in the order of their keys, as COPY takes them."""

    timestamps: NDArray[np.int64]
    batch_ids: NDArray[np.int64]
    hashes: Sequence[bytes]
    topic_keys: Sequence[bytes]
    content_digests: Sequence[bytes]
    heads: Sequence[bytes]
    payloads: Sequence[bytes]
    tails: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.hashes)


def in_order(batch: RecordBatch, batch_ids: NDArray[np.int64]) -> OrderedColumns:
    """Return messages and the ID of the batch of each, ascending by timestamp and hash."""
    timestamps = np.array(batch.timestamps, np.int64)
    columns = [getattr(batch, name) for name in COLUMNS[1:]]
    if not bool((timestamps[1:] > timestamps[:-1]).all()):
        keys = list(zip(batch.timestamps, batch.hashes, strict=True))
        order = sorted(range(len(keys)), key=keys.__getitem__)
        timestamps, batch_ids = timestamps[order], batch_ids[order]
        columns = [[column[index] for index in order] for column in columns]
    return OrderedColumns(timestamps, batch_ids, *columns)


def message_blocks(rows: OrderedColumns) -> Iterator[bytes]:
    """Lay out rows of ``messages``, without header and trailer."""
    for start in range(0, len(rows), _BLOCK_ROWS):
        part = slice(start, start + _BLOCK_ROWS)
        heads, payloads, tails = rows.heads[part], rows.payloads[part], rows.tails[part]
        begins = np.empty(len(heads), _MESSAGE)
        fixed = begins["fixed"]
        _fill(fixed, 8)
        fixed["ts"], fixed["batch"] = rows.timestamps[part], rows.batch_ids[part]
        fixed["hash"] = _joined(rows.hashes[part], HASH_BYTES)
        fixed["topic"] = _joined(rows.topic_keys[part], TOPIC_KEY_BYTES)
        fixed["content_digest"] = _joined(rows.content_digests[part], CONTENT_DIGEST_BYTES)
        begins["head_bytes"] = list(map(len, heads))
        columns = (_cells(begins), heads, _lengths(payloads), payloads, _lengths(tails), tails)
        yield b"".join(chain.from_iterable(zip(*columns, strict=True)))


def hash_block(rows: OrderedColumns) -> bytes:
    """Lay out rows of ``hashes``, without header and trailer, ascending by the key.

    In any other order the index is entered at random: that costs Postgres an eighth more of all.
    """
    laid_out = np.empty(len(rows), _HASH)
    _fill(laid_out, 2)
    keys = np.frombuffer(b"".join(rows.hashes), _BIGINT)[:: HASH_BYTES // HASH_KEY_BYTES]
    laid_out["key"], laid_out["ts"] = keys, rows.timestamps
    return laid_out[np.argsort(keys.astype(np.int64))].tobytes()


def _fill(rows: NDArray[np.void], columns: int) -> None:
    rows["columns"] = columns
    names = rows.dtype.names
    assert names is not None
    for name in names:
        if name.endswith("_bytes"):
            rows[name] = rows.dtype[name.removesuffix("_bytes")].itemsize


def _joined(values: Sequence[bytes], size: int) -> NDArray[np.void]:
    return np.frombuffer(b"".join(values), f"V{size}")


def _lengths(values: Sequence[bytes]) -> list[bytes]:
    return _cells(np.array(list(map(len, values)), _LENGTH))


def _cells(values: NDArray[np.generic]) -> list[bytes]:
    return values.view(f"V{values.itemsize}").tolist()  # type: ignore[no-any-return]


async def copy_new(
    connection: Connection, batch: RecordBatch, batch_ids: NDArray[np.int64]
) -> None:
    """Copy messages, none of which may be stored; the caller's transaction is open.

    Args:
        connection: The connection, with an open transaction.
        batch: All messages.
        batch_ids: For each message, the ID of the batch that it is stored with.

    Raises:
        psycopg.errors.UniqueViolation: one is stored, or was and was pruned.
    """
    rows = in_order(batch, batch_ids)
    await _copy(connection, SQL.messages.copy_messages, message_blocks(rows))
    await _copy(connection, SQL.messages.copy_hashes, (hash_block(rows),))


async def _copy(connection: Connection, statement: str, blocks: Iterable[bytes]) -> None:
    async with connection.cursor() as cursor, cursor.copy(statement) as copy:
        await copy.write(HEADER)
        for block in blocks:
            await copy.write(block)
        await copy.write(TRAILER)
