"""Which nodes a schema serves, so that an upgrade need not stop them.

A revision may have a `phase`: "before" (so it is taken where there is none) is what nodes of the
version before survive, "after" is what they do not. The latter has `serves_from`, the oldest
revision whose nodes work on the schema from then on. Of tables that were there before, a revision
may lock only ``store`` and those that it names in ``locks``: `store.db.schema.upgrade_locks`.

Revision ID: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

SCHEMA = "storenode"


def upgrade() -> None:
    op.add_column(
        "store",
        sa.Column("serves_from", sa.Text, nullable=False, server_default=revision),
        schema=SCHEMA,
    )
