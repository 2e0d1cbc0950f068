"""The tables as the newest migration leaves them, for comparison with what a database has.

Statements elsewhere are plain SQL; nothing is generated from these definitions but the search for
differences (`storenode db check`). Partitions are not listed: Postgres's own catalog is the truth
about them.
"""

from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from store.db.schema.names import SCHEMA

metadata: Final = sa.MetaData(schema=SCHEMA)

_NOW: Final = sa.func.clock_timestamp()


def _timestamp(name: str = "ts") -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, primary_key=True, autoincrement=False)


# A random UUID has 122 random bits, of a cryptographic generator.
_RANDOM_KEY: Final = sa.text(
    "sha256((uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())))"
)

sa.Table(
    "store",
    metadata,
    sa.Column("store_id", sa.Uuid, primary_key=True, server_default=sa.func.gen_random_uuid()),
    sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=_NOW),
    sa.Column("horizon_ns", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("pruned_messages", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("folded_messages", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("folded_position", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("last_online_ns", sa.BigInteger),
    sa.Column("cursor_key", sa.LargeBinary, nullable=False, server_default=_RANDOM_KEY),
    sa.Column("claimed_position", sa.BigInteger, nullable=False, server_default="0"),
    sa.Index("store_one_row_idx", sa.text("(true)"), unique=True),
)

sa.Table(
    "messages",
    metadata,
    _timestamp(),
    sa.Column("hash", sa.LargeBinary, primary_key=True),
    sa.Column("topic", sa.Uuid, nullable=False),
    sa.Column("batch", sa.BigInteger, nullable=False),
    sa.Column("content_digest", sa.LargeBinary, nullable=False),
    sa.Column("head", sa.LargeBinary, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),
    sa.Column("tail", sa.LargeBinary, nullable=False),
    sa.Index("messages_topic_idx", "topic", "ts", sa.text("substr(hash, 1, 7)")),
    sa.Index("messages_batch_idx", "batch"),
    postgresql_partition_by="RANGE (ts)",
)

sa.Table(
    "hashes",
    metadata,
    sa.Column("key", sa.Uuid, primary_key=True),
    _timestamp(),
    sa.Column("topic", sa.Uuid, nullable=False),
    postgresql_partition_by="RANGE (ts)",
)

sa.Table(
    "sds",
    metadata,
    sa.Column("key", sa.Uuid, primary_key=True),
    sa.Column("channel_key", sa.Uuid, nullable=False),
    _timestamp(),
    sa.Column("hash", sa.LargeBinary, primary_key=True),
    sa.Column("channel", sa.LargeBinary, nullable=False),
    sa.Column("message_id", sa.LargeBinary, nullable=False),
    sa.Column("sender", sa.LargeBinary, nullable=False),
    sa.Column("lamport", sa.BigInteger),
    sa.Column("parent_keys", ARRAY(sa.Uuid), nullable=False),
    sa.Column("parent_ids", ARRAY(sa.LargeBinary), nullable=False),
    sa.Column("parent_hints", ARRAY(sa.LargeBinary), nullable=False),
    sa.Column("proof", sa.Boolean, nullable=False),
    sa.CheckConstraint(
        "cardinality(parent_keys) = cardinality(parent_ids)"
        " AND cardinality(parent_keys) = cardinality(parent_hints)",
        name="sds_parents_check",
    ),
    sa.Index("sds_channel_idx", "channel_key", "ts", "hash"),
    sa.Index("sds_time_idx", "ts", postgresql_using="brin"),
    sa.Index("sds_proven_idx", "key", postgresql_where=sa.text("proof")),
    postgresql_partition_by="RANGE (ts)",
)

sa.Table(
    "topics",
    metadata,
    sa.Column("key", sa.Uuid, primary_key=True),
    _timestamp(),
    sa.Column("pubsub_topic", sa.Text(collation="C"), nullable=False),
    sa.Column("content_topic", sa.Text(collation="C"), nullable=False),
    sa.Index("topics_pubsub_idx", "pubsub_topic"),
    sa.Index("topics_content_idx", "content_topic"),
    postgresql_partition_by="RANGE (ts)",
)

sa.Table(
    "commits",
    metadata,
    _timestamp("position"),
    sa.Column("batch", sa.BigInteger, nullable=False),
    sa.Column("token", sa.BigInteger, nullable=False),
    sa.Column("messages", sa.Integer, nullable=False),
    sa.Column("min_ts", sa.BigInteger, nullable=False),
    sa.Column("max_ts", sa.BigInteger, nullable=False),
    sa.Column("topics", ARRAY(sa.Uuid)),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("committed_at", sa.DateTime(timezone=True), nullable=False, server_default=_NOW),
    sa.Column("summary", sa.LargeBinary, nullable=False),
    sa.Column("claims", sa.LargeBinary, nullable=False),
    sa.CheckConstraint("octet_length(summary) % 48 = 0", name="commits_summary_check"),
    sa.CheckConstraint("octet_length(claims) % 24 = 0", name="commits_claims_check"),
    postgresql_partition_by="RANGE (position)",
)

sa.Table(
    "buckets",
    metadata,
    sa.Column("level", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("start_ns", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("count", sa.BigInteger, nullable=False),
    *(sa.Column(f"x{word}", sa.BigInteger, nullable=False) for word in range(4)),
    sa.Column("lattice", sa.LargeBinary),
    sa.Column("lattice_count", sa.BigInteger),
    sa.CheckConstraint(
        "octet_length(lattice) = 2048 AND (lattice IS NULL) = (lattice_count IS NULL)",
        name="buckets_lattice_check",
    ),
)

sa.Table(
    "archived",
    metadata,
    sa.Column("start_ns", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("count", sa.BigInteger, nullable=False),
    *(sa.Column(f"x{word}", sa.BigInteger, nullable=False) for word in range(4)),
    sa.Column("position", sa.BigInteger, nullable=False),
    sa.Column("archive", sa.Text, nullable=False),
    sa.Column("archived_at", sa.DateTime(timezone=True), nullable=False, server_default=_NOW),
)

sa.Table(
    "unread",
    metadata,
    sa.Column("hash", sa.LargeBinary, primary_key=True),
    sa.Column("ts", sa.BigInteger, nullable=False),
    sa.Column("content_digest", sa.LargeBinary, nullable=False),
    sa.Column("needed", sa.Integer, nullable=False),
    sa.Column("stores", ARRAY(sa.Text), nullable=False, server_default="{}"),
    sa.Column("missing", ARRAY(sa.LargeBinary), nullable=False, server_default="{}"),
    sa.Column("began_at", sa.DateTime(timezone=True), nullable=False, server_default=_NOW),
    sa.Column("expired_at", sa.DateTime(timezone=True)),
    sa.CheckConstraint(
        "cardinality(stores) < needed OR cardinality(missing) > 0", name="unread_state_check"
    ),
)

sa.Table(
    "coverage",
    metadata,
    sa.Column("store_id", sa.Text, primary_key=True),
    sa.Column("start_ns", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("end_ns", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("compared_ns", sa.BigInteger, nullable=False),
    sa.Column("keyed", sa.Boolean, nullable=False),
    sa.Column("missing_here", sa.BigInteger, nullable=False),
    sa.Column("missing_there", sa.BigInteger, nullable=False),
    sa.Column("count", sa.BigInteger, nullable=False),
    sa.Column("fingerprint", sa.LargeBinary, nullable=False),
    sa.CheckConstraint(
        "start_ns < end_ns AND octet_length(fingerprint) = 32", name="coverage_check"
    ),
)

sa.Table(
    "online",
    metadata,
    sa.Column("start_ns", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("resumed", sa.Boolean, primary_key=True),
    sa.Column("end_ns", sa.BigInteger, nullable=False),
    sa.CheckConstraint("start_ns <= end_ns", name="online_check"),
)

sa.Table(
    "missing_parents",
    metadata,
    sa.Column("channel_key", sa.Uuid, primary_key=True),
    sa.Column("ts", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("parent_key", sa.Uuid, primary_key=True),
    sa.Index("missing_parents_idx", "parent_key"),
)
