"""Nodes may write rows in the short form from here on, with one copy of the hash less in each.

Nodes of this version read both forms, those of the version before only the long one. Rows stay as
they are; the long form is gone when retention has dropped what was stored before.

Revision ID: 0011
"""

from alembic import op

revision = "0011"
down_revision = "0010"
phase = "after"
serves_from = "0011"

SCHEMA = "storenode"


def upgrade() -> None:
    op.alter_column("hashes", "rest", nullable=True, schema=SCHEMA)
