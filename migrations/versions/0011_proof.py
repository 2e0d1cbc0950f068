"""Whether a message's SDS ID proves it, and an index of those whose ID does.

``sds.proof`` is null in rows that were not judged: those from before this revision, and those that
nodes of the version before still write. They are judged when they are read.

Where there are partitions already, maintenance builds their indexes one by one
(`store.db.maintenance.lacking`): no table is locked for long. Until then a look-up is only slower
where very many messages claim one ID.

Revision ID: 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
locks = "sds"

SCHEMA = "storenode"
PARTITIONS_LOCK = 0x73746F72 << 32 | 2


def upgrade() -> None:
    # No partition may be made meanwhile: it would lack the column or the index.
    op.execute(f"SELECT pg_advisory_xact_lock({PARTITIONS_LOCK})")
    op.add_column("sds", sa.Column("proof", sa.Boolean), schema=SCHEMA)
    op.execute(f"CREATE INDEX sds_proven_idx ON ONLY {SCHEMA}.sds (key) WHERE proof")
