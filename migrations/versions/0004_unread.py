"""Unread events: messages that too few other stores have confirmed, or whose parents are missing.

Revision ID: 0004
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0004"
down_revision = "0003"

SCHEMA = "storenode"


def upgrade() -> None:
    op.create_table(
        "unread",
        sa.Column("hash", sa.LargeBinary, primary_key=True),
        sa.Column("ts", sa.BigInteger, nullable=False),
        sa.Column("needed", sa.Integer, nullable=False),
        sa.Column("stores", ARRAY(sa.Text), nullable=False, server_default="{}"),
        sa.Column("missing", ARRAY(sa.LargeBinary), nullable=False, server_default="{}"),
        sa.Column(
            "began_at",
            sa.DateTime(timezone=True),
            nullable=False,
            server_default=sa.func.clock_timestamp(),
        ),
        sa.Column("expired_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "cardinality(stores) < needed OR cardinality(missing) > 0", name="unread_state_check"
        ),
        schema=SCHEMA,
    )
    # Rows come and go by the thousand: what they leave behind is cleared early, and most updates
    # find room on the page of their row.
    op.execute(
        f"ALTER TABLE {SCHEMA}.unread SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02,"
        " autovacuum_analyze_scale_factor = 0.05)"
    )
