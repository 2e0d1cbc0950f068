"""Lattice sums of hours and days, beside their counts and XORs.

They are NULL until a node or `storenode db resummarize` sums a bucket's messages up. A sum is that
of as many messages as ``lattice_count`` says, so nodes of the version before, which count only,
leave one behind that is not believed any more.

Revision ID: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
locks = "buckets"

SCHEMA = "storenode"
STATE_BYTES = 2048


def upgrade() -> None:
    op.add_column("buckets", sa.Column("lattice", sa.LargeBinary), schema=SCHEMA)
    op.add_column("buckets", sa.Column("lattice_count", sa.BigInteger), schema=SCHEMA)
    # Sums cannot be compressed; out of line they cost nothing when a count changes.
    op.execute(f"ALTER TABLE {SCHEMA}.buckets ALTER COLUMN lattice SET STORAGE EXTERNAL")
    op.create_check_constraint(
        "buckets_lattice_check",
        "buckets",
        f"octet_length(lattice) = {STATE_BYTES} AND (lattice IS NULL) = (lattice_count IS NULL)",
        schema=SCHEMA,
    )
