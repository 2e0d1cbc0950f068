"""The contract of the data pipeline: views of what it reads, and the hours that it has archived.

Revision ID: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
locks = "sds"

SCHEMA = "storenode"
PARTITIONS_LOCK = 0x73746F72 << 32 | 2
PAGES_PER_RANGE = 32

VIEWS = {
    # `tail` is what follows the payload in the frame: all other fields, and the pubsub topic.
    "export_messages": "SELECT ts, hash, topic, batch, payload, tail FROM storenode.messages",
    "export_sds": (
        "SELECT ts, hash, channel, message_id, sender, lamport, parent_ids, parent_hints"
        " FROM storenode.sds"
    ),
    "export_commits": (
        "SELECT position, batch, token, messages, min_ts, max_ts, source, committed_at, summary"
        " FROM storenode.commits"
    ),
    "export_buckets": "SELECT level, start_ns, count, x0, x1, x2, x3 FROM storenode.buckets",
    "export_store": (
        "SELECT store_id, horizon_ns, folded_position,"
        " (SELECT coalesce(max(position), 0) FROM storenode.commits) AS position"
        " FROM storenode.store"
    ),
}


def upgrade() -> None:
    # No partition may be made meanwhile: it would lack the new index.
    op.execute(f"SELECT pg_advisory_xact_lock({PARTITIONS_LOCK})")
    op.create_index(
        "sds_time_idx",
        "sds",
        ["ts"],
        schema=SCHEMA,
        postgresql_using="brin",
        postgresql_with={"pages_per_range": PAGES_PER_RANGE},
    )
    create_archived()
    for name, query in VIEWS.items():
        op.execute(f"CREATE VIEW {SCHEMA}.{name} AS {query}")


def create_archived() -> None:
    op.create_table(
        "archived",
        sa.Column("start_ns", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        *(sa.Column(f"x{word}", sa.BigInteger, nullable=False) for word in range(4)),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("archive", sa.Text, nullable=False),
        sa.Column(
            "archived_at",
            sa.DateTime(timezone=True),
            nullable=False,
            server_default=sa.func.clock_timestamp(),
        ),
        schema=SCHEMA,
    )
