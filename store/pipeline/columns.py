"""The columns of a message outside of the database, for Arrow, for Spark and in an archive.

``hash`` again as ``h0`` to ``h3`` is what makes fingerprints native. ``tail`` fields that may be
absent are null. ``lamport`` is an unsigned number of 64 bits in a signed column, as in the
database. The SDS columns are null for messages that are not of SDS; they are claims of the
message's publisher.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

PARENT: Final = pa.struct([("id", pa.string()), ("hint", pa.binary())])

ARROW: Final = pa.schema(
    [
        pa.field("day", pa.date32(), nullable=False),
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("ts", pa.int64(), nullable=False),
        pa.field("hash", pa.binary(), nullable=False),
        pa.field("h0", pa.int64(), nullable=False),
        pa.field("h1", pa.int64(), nullable=False),
        pa.field("h2", pa.int64(), nullable=False),
        pa.field("h3", pa.int64(), nullable=False),
        pa.field("pubsub_topic", pa.string(), nullable=False),
        pa.field("content_topic", pa.string(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("version", pa.int64()),
        pa.field("meta", pa.binary()),
        pa.field("rate_limit_proof", pa.binary()),
        pa.field("ephemeral", pa.bool_()),
        pa.field("channel", pa.string()),
        pa.field("message_id", pa.string()),
        pa.field("sender", pa.string()),
        pa.field("lamport", pa.int64()),
        pa.field("parents", pa.list_(PARENT)),
    ]
)
"""``ts`` in nanoseconds since the epoch; ``day`` is its UTC day; ``shard`` see `shard_of`."""

CONTENT_DIGEST: Final = "content_digest"
"""The column with the digest of a message's content (`storenode.message.hashing`), which no archive
has: it is computed from the other columns."""

READABLE: Final = ARROW.append(pa.field(CONTENT_DIGEST, pa.binary(), nullable=False))

PARTITIONS: Final = ("day", "shard")
"""Columns that are directories in an archive."""

NAMES: Final = tuple(ARROW.names)

TAIL_COLUMNS: Final = frozenset({"version", "meta", "rate_limit_proof", "ephemeral"})
SDS_COLUMNS: Final = frozenset({"channel", "message_id", "sender", "lamport", "parents"})
HASH_WORDS: Final = ("h0", "h1", "h2", "h3")


def spark_schema(names: Iterable[str] = NAMES) -> StructType:
    """Return the schema of some columns, in the given order.

    Raises:
        KeyError: there is no column of a name.
    """
    return from_arrow_schema(pa.schema(map(READABLE.field, names)))
