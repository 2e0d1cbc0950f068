"""What sessions have found out about other stores, span by span of time.

Nodes of the version before neither write nor read it. Nothing has to keep it true: a statement
holds only while the messages of its span have its count and fingerprint.

Revision ID: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

SCHEMA = "storenode"
HASH_BYTES = 32


def upgrade() -> None:
    op.create_table(
        "coverage",
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
            f"start_ns < end_ns AND octet_length(fingerprint) = {HASH_BYTES}",
            name="coverage_check",
        ),
        schema=SCHEMA,
    )
