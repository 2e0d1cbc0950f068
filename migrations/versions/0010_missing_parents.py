"""Parents that messages of SDS channels name and that are not held.

``commits.claims`` has keys and timestamps of the SDS messages of a commit. Nodes of the version
before leave it empty; maintenance then finds these messages by their batch.

Revision ID: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
locks = "commits"

SCHEMA = "storenode"
CLAIM_BYTES = 24


def upgrade() -> None:
    op.add_column("commits", sa.Column("claims", sa.LargeBinary), schema=SCHEMA)
    # Claims cannot be compressed.
    op.execute(f"ALTER TABLE {SCHEMA}.commits ALTER COLUMN claims SET STORAGE EXTERNAL")
    op.create_check_constraint(
        "commits_claims_check",
        "commits",
        f"octet_length(claims) % {CLAIM_BYTES} = 0",
        schema=SCHEMA,
    )
    op.add_column(
        "store",
        sa.Column("claimed_position", sa.BigInteger, nullable=False, server_default="0"),
        schema=SCHEMA,
    )
    op.create_table(
        "missing_parents",
        sa.Column("channel_key", sa.Uuid, primary_key=True),
        sa.Column("ts", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("parent_key", sa.Uuid, primary_key=True),
        schema=SCHEMA,
    )
    op.create_index("missing_parents_idx", "missing_parents", ["parent_key"], schema=SCHEMA)
    # The position comes first: what is committed meanwhile is harmlessly looked at once more.
    op.execute(
        "UPDATE storenode.store SET claimed_position ="
        " (SELECT coalesce(max(position), 0) FROM storenode.commits)"
    )
    op.execute(
        f"""
        INSERT INTO {SCHEMA}.missing_parents (channel_key, ts, parent_key)
        SELECT s.channel_key, s.ts, p.key
        FROM {SCHEMA}.sds s CROSS JOIN unnest(s.parent_keys) AS p(key)
        WHERE s.ts >= (SELECT horizon_ns FROM {SCHEMA}.store)
          AND NOT EXISTS (
            SELECT FROM {SCHEMA}.sds h WHERE h.key = p.key
              AND (h.ts >= (SELECT horizon_ns FROM {SCHEMA}.store) OR EXISTS (
                SELECT FROM {SCHEMA}.messages m WHERE m.ts = h.ts AND m.hash = h.hash)))
        ON CONFLICT DO NOTHING
        """  # noqa: S608 - constants
    )
