"""Nodes may write rows in the short form from here on, and the index by topic gets narrower.

Rows of the short form have one copy of the hash less. Nodes of this version read both forms, those
of the version before only the long one. Rows stay as they are; the long form is gone when retention
has dropped what was stored before.

The index by topic had whole hashes, and has of each only what puts messages of one time in order.
Where there are partitions already, it is left to maintenance, which builds theirs one by one beside
the old index, and drops that when all have one (`store.db.maintenance.narrowing`): no table is
locked for long, and ``messages`` not at all here, which writers lock before all else.

Revision ID: 0012
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
phase = "after"
serves_from = "0012"
locks = "hashes"

SCHEMA = "storenode"
PARTITIONS_LOCK = 0x73746F72 << 32 | 2
COLUMNS = "topic, ts, substr(hash, 1, 7)"


def upgrade() -> None:
    op.alter_column("hashes", "rest", nullable=True, schema=SCHEMA)
    # No partition may be made between the look for them and the new index.
    op.execute(f"SELECT pg_advisory_xact_lock({PARTITIONS_LOCK})")
    op.execute(f"ALTER INDEX {SCHEMA}.messages_topic_idx RENAME TO messages_topic_hash_idx")
    partitions = sa.text(
        f"SELECT count(*) FROM pg_inherits WHERE inhparent = '{SCHEMA}.messages'::regclass"  # noqa: S608
    )
    if not op.get_bind().execute(partitions).scalar_one():
        # A writer that waits for what is locked already must not be waited for.
        op.execute(f"LOCK TABLE ONLY {SCHEMA}.messages IN ACCESS EXCLUSIVE MODE NOWAIT")
        op.execute(f"DROP INDEX {SCHEMA}.messages_topic_hash_idx")
        op.execute(f"CREATE INDEX messages_topic_idx ON {SCHEMA}.messages ({COLUMNS})")
