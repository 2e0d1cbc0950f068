"""The tables of a participant's state.

One state belongs to one participant of one channel. Rows are added and removed; nothing but the
one row of `PARTICIPANT` is written again and again. Lamport timestamps have 64 bits without a
sign, which databases lack: they are kept less 2^63, in the same order. IDs are kept as UTF-8 bytes:
others choose them, text of a database does not take all of it, and bytes sort by code point as the
log does.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)

VERSION: Final = 1
LAMPORT_OFFSET: Final = 2**63

METADATA: Final = MetaData()


PARTICIPANT: Final = Table(
    "sds_participant",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
    Column("channel_id", Text, nullable=False),
    Column("sender_id", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("commits", BigInteger, nullable=False),
    Column("clock", BigInteger, nullable=False),
    Column("sends", BigInteger, nullable=False),
    Column("serial", BigInteger, nullable=False),
    Column("counts", Text, nullable=False),
    Column("gap_from_ns", BigInteger),
    Column("online_ns", BigInteger, nullable=False),
)
"""One row. ``commits`` counts transactions, ``serial`` messages that entered the filter;
``gap_from_ns`` is where a scan must begin, ``online_ns`` when the feed was last live."""

CURSORS: Final = Table(
    "sds_cursors",
    METADATA,
    Column("node", Text, primary_key=True),
    Column("cursor", LargeBinary, nullable=False),
)

LOG: Final = Table(
    "sds_log",
    METADATA,
    Column("serial", BigInteger, primary_key=True, autoincrement=False),
    Column("lamport", BigInteger, nullable=False),
    Column("message_id", LargeBinary, nullable=False),
    Column("sender_id", LargeBinary, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Column("hint", LargeBinary),
    Column("unmet", Text, nullable=False),
    Column("committed", BigInteger, nullable=False),
    Index("sds_log_order", "lamport", "message_id", unique=True),
)
"""``serial`` is the message's place in the filter, ``committed`` the transaction that added it."""

WAITING: Final = Table(
    "sds_waiting",
    METADATA,
    Column("serial", BigInteger, primary_key=True, autoincrement=False),
    Column("payload", LargeBinary, nullable=False),
    Column("hint", LargeBinary),
    Column("arrived_ms", BigInteger, nullable=False),
)

UNACKNOWLEDGED: Final = Table(
    "sds_unacknowledged",
    METADATA,
    Column("message_id", LargeBinary, primary_key=True),
    Column("payload", LargeBinary, nullable=False),
    Column("due_ms", BigInteger, nullable=False),
    Column("sends", Integer, nullable=False),
    Column("witnesses", Text, nullable=False),
    Column("error", Float, nullable=False),
)

OUTBOX: Final = Table(
    "sds_outbox",
    METADATA,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("message_id", LargeBinary, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("timestamp_ns", BigInteger, nullable=False),
)
"""Own messages that no node has taken yet, just as they will be published."""

LOST: Final = Table(
    "sds_lost",
    METADATA,
    Column("message_id", LargeBinary, primary_key=True),
)
