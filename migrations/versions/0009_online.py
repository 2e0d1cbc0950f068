"""When nodes of the store were taking messages in, interval by interval, and what was resumed.

Nodes of the version before neither write nor read it.

Revision ID: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

SCHEMA = "storenode"


def upgrade() -> None:
    op.create_table(
        "online",
        sa.Column("start_ns", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("resumed", sa.Boolean, primary_key=True),
        sa.Column("end_ns", sa.BigInteger, nullable=False),
        sa.CheckConstraint("start_ns <= end_ns", name="online_check"),
        schema=SCHEMA,
    )
