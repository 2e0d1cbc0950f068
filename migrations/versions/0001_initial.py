"""Messages, their look-up tables and the commit order.

Revision ID: 0001
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0001"
down_revision = None

SCHEMA = "storenode"
COMMITS_PER_PARTITION = 1 << 20


def upgrade() -> None:
    create_store()
    create_messages()
    create_hashes()
    create_sds()
    create_topics()
    create_commits()


def create_store() -> None:
    op.create_table(
        "store",
        sa.Column("store_id", sa.Uuid, primary_key=True, server_default=sa.func.gen_random_uuid()),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            nullable=False,
            server_default=sa.func.clock_timestamp(),
        ),
        sa.Column("horizon_ns", sa.BigInteger, nullable=False, server_default="0"),
        # Messages in partitions that were dropped, and messages that dropped rows of commits
        # counted: what is held = folded + sum(commits.messages) - pruned.
        sa.Column("pruned_messages", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("folded_messages", sa.BigInteger, nullable=False, server_default="0"),
        schema=SCHEMA,
    )
    op.create_index("store_one_row_idx", "store", [sa.text("(true)")], unique=True, schema=SCHEMA)
    op.execute(f"INSERT INTO {SCHEMA}.store DEFAULT VALUES")


def create_messages() -> None:
    op.create_table(
        "messages",
        sa.Column("ts", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("hash", sa.LargeBinary, primary_key=True),
        sa.Column("topic", sa.Uuid, nullable=False),
        sa.Column("batch", sa.BigInteger, nullable=False),
        sa.Column("head", sa.LargeBinary, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.Column("tail", sa.LargeBinary, nullable=False),
        schema=SCHEMA,
        postgresql_partition_by="RANGE (ts)",
    )
    op.create_index("messages_topic_idx", "messages", ["topic", "ts", "hash"], schema=SCHEMA)
    op.create_index("messages_batch_idx", "messages", ["batch"], schema=SCHEMA)
    # Payloads are mostly encrypted: trying to compress them costs time and saves nothing.
    op.execute(f"ALTER TABLE {SCHEMA}.messages ALTER COLUMN payload SET STORAGE EXTERNAL")
    op.execute(f"CREATE SEQUENCE {SCHEMA}.batch_seq")


def create_hashes() -> None:
    op.create_table(
        "hashes",
        sa.Column("key", sa.Uuid, primary_key=True),
        sa.Column("rest", sa.LargeBinary, nullable=False),
        sa.Column("ts", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("topic", sa.Uuid, nullable=False),
        schema=SCHEMA,
        postgresql_partition_by="RANGE (ts)",
    )


def create_sds() -> None:
    op.create_table(
        "sds",
        sa.Column("key", sa.Uuid, primary_key=True),
        sa.Column("channel_key", sa.Uuid, nullable=False),
        sa.Column("ts", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("hash", sa.LargeBinary, primary_key=True),
        sa.Column("channel", sa.LargeBinary, nullable=False),
        sa.Column("message_id", sa.LargeBinary, nullable=False),
        sa.Column("sender", sa.LargeBinary, nullable=False),
        sa.Column("lamport", sa.BigInteger),
        sa.Column("parent_keys", ARRAY(sa.Uuid), nullable=False),
        sa.Column("parent_ids", ARRAY(sa.LargeBinary), nullable=False),
        sa.Column("parent_hints", ARRAY(sa.LargeBinary), nullable=False),
        sa.CheckConstraint(
            "cardinality(parent_keys) = cardinality(parent_ids)"
            " AND cardinality(parent_keys) = cardinality(parent_hints)",
            name="sds_parents_check",
        ),
        schema=SCHEMA,
        postgresql_partition_by="RANGE (ts)",
    )
    op.create_index("sds_channel_idx", "sds", ["channel_key", "ts", "hash"], schema=SCHEMA)


def create_topics() -> None:
    op.create_table(
        "topics",
        sa.Column("key", sa.Uuid, primary_key=True),
        sa.Column("ts", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("pubsub_topic", sa.Text(collation="C"), nullable=False),
        sa.Column("content_topic", sa.Text(collation="C"), nullable=False),
        schema=SCHEMA,
        postgresql_partition_by="RANGE (ts)",
    )
    op.create_index("topics_pubsub_idx", "topics", ["pubsub_topic"], schema=SCHEMA)
    op.create_index("topics_content_idx", "topics", ["content_topic"], schema=SCHEMA)


def create_commits() -> None:
    op.execute(f"CREATE SEQUENCE {SCHEMA}.position_seq")
    op.create_table(
        "commits",
        sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("batch", sa.BigInteger, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("messages", sa.Integer, nullable=False),
        sa.Column("min_ts", sa.BigInteger, nullable=False),
        sa.Column("max_ts", sa.BigInteger, nullable=False),
        sa.Column("topics", ARRAY(sa.Uuid)),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column(
            "committed_at",
            sa.DateTime(timezone=True),
            nullable=False,
            server_default=sa.func.clock_timestamp(),
        ),
        schema=SCHEMA,
        postgresql_partition_by="RANGE (position)",
    )
    for number in range(2):
        low = number * COMMITS_PER_PARTITION
        op.execute(
            f"CREATE TABLE {SCHEMA}.commits_{number} PARTITION OF {SCHEMA}.commits"
            f" FOR VALUES FROM ({low}) TO ({low + COMMITS_PER_PARTITION})"
        )
