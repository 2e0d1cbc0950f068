"""Messages of a range in blocks: of each column the server sends one value for many messages.

A row at a time costs more than what is in it: to be sent, taken apart, and put into columns again.
So the server joins the values of each column, and the lengths of those that vary, and what comes is
what Arrow keeps. Numbers are big-endian. Source: PostgreSQL manual, "Aggregate Functions" and
"Binary String Functions and Operators".

Values that are large are left out, since little of what they cost is for their rows. Where a block
lacks one, the messages from there on come as rows for a while.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from store.pipeline.copied import Octets
from store.pipeline.readers import Connection
from storenode.message.limits import HASH_BYTES, TOPIC_KEY_BYTES

BLOCK_ROWS: Final = 8_192
"""Messages of one block."""

MAX_VALUE_BYTES: Final = 2_000
"""A payload or a tail with more is in no block: Postgres keeps it apart from its row, too."""

ROWS_INSTEAD: Final = 8 * BLOCK_ROWS
"""Messages that come as rows before a block is tried again."""

_FIXED: Final = {"hash": HASH_BYTES, "topic": TOPIC_KEY_BYTES}
"""Bytes of values that all have the same length."""

_SIZES: Final = "_sizes"
_AS_ROWS: Final = {"topic": "uuid_send(topic) as topic"}
_IN_BLOCKS: Final = {
    "ts": "string_agg(int8send(ts), '')",
    "hash": "string_agg(hash, '')",
    "topic": "string_agg(uuid_send(topic), '')",
}
"""Columns whose values all have the same length; the others come with `_SIZES`."""

_ROWS: Final = """
select {columns} from storenode.export_messages
where ts >= {low.ts} and ts < {high_ns}
 and (ts, hash) > ({low.ts}, decode('{after}', 'hex')){condition}
order by ts, hash limit {limit}"""
_BLOCK: Final = """
select {values} from ({rows}) as messages"""


class Place(NamedTuple):
    """Behind which messages are read, in their order; no message has an empty hash."""

    ts: int
    hash: bytes = b""


class Messages:
    """Reads columns of `export_messages`; among them are ``ts`` and ``hash``."""

    def __init__(self, connection: Connection, schema: pa.Schema) -> None:
        self._connection = connection
        self._schema = schema
        self._names = ", ".join(schema.names)
        self._columns = ", ".join(_AS_ROWS.get(name, name) for name in schema.names)
        values = [value for name in schema.names for value in _values(name).items()]
        self._values = ", ".join(f"{expression} as {name}" for name, expression in values)
        self._block = pa.schema([(name, pa.binary()) for name, _ in values])

    def in_rows(
        self, low: Place, high_ns: int, condition: str = "", limit: int | None = None
    ) -> Generator[pa.RecordBatch]:
        """Messages behind a place and before a time; ``condition`` begins with ``and``."""
        statement = self._statement(self._columns, low, high_ns, limit, condition)
        return self._connection.batches(statement, self._schema)

    def in_blocks(self, low: Place, high_ns: int) -> Generator[pa.RecordBatch]:
        """The same; the connection is in a transaction with one snapshot for all of it."""
        # Of a partition without statistics Postgres would sort all that is left for every block.
        self._connection.run("set local enable_sort = off")
        ended = False
        while not ended:
            block = self._next_block(low, high_ns)
            wanted = ROWS_INSTEAD if block is None else BLOCK_ROWS
            rows = 0
            for batch in self.in_rows(low, high_ns, limit=wanted) if block is None else [block]:
                if len(batch):
                    low = Place(batch["ts"][-1].as_py(), batch["hash"][-1].as_py())
                    yield batch
                rows += len(batch)
            ended = rows < wanted

    def _statement(
        self, columns: str, low: Place, high_ns: int, limit: int | None, condition: str = ""
    ) -> str:
        return _ROWS.format(
            columns=columns,
            low=low,
            after=low.hash.hex(),
            high_ns=high_ns,
            condition=condition,
            limit="all" if limit is None else limit,
        )

    def _next_block(self, low: Place, high_ns: int) -> pa.RecordBatch | None:
        """Messages, none at the end; None: there are some, but not all of what is in them."""
        rows = self._statement(self._names, low, high_ns, BLOCK_ROWS)
        statement = _BLOCK.format(values=self._values, rows=rows)
        (row,) = list(self._connection.batches(statement, self._block))
        values = {name: _octets(row[name]) for name in row.schema.names}
        stamps = values["ts"].view(">i8").astype(np.int64)
        columns = [
            pa.array(stamps) if name == "ts" else _column(name, values, len(stamps))
            for name in self._schema.names
        ]
        if any(column is None for column in columns):
            return None
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _values(name: str) -> dict[str, str]:
    """What a block holds of a column: names of values, and how they are joined."""
    if name in _IN_BLOCKS:
        return {name: _IN_BLOCKS[name]}
    length = f"octet_length({name})"
    return {
        name + _SIZES: f"string_agg(int4send({length}), '')",
        name: f"string_agg({name}, '') filter (where {length} <= {MAX_VALUE_BYTES})",
    }


def _octets(column: pa.Array) -> Octets:
    """The bytes of the only value; none of a null."""
    buffer = column[0].as_buffer()
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def _column(name: str, values: dict[str, Octets], rows: int) -> pa.Array | None:
    """Values of a column; None: some are not there, or not as long as they must be."""
    octets = values[name]
    offsets = np.zeros(rows + 1, np.int64)
    if name in _FIXED:
        offsets += np.arange(rows + 1) * _FIXED[name]
    else:
        np.cumsum(values[name + _SIZES].view(">i4"), out=offsets[1:])
    if offsets[-1] != len(octets):
        return None
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(octets)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)
