"""The key under which cursors of `Follow` are encrypted, the same for all nodes of the database.

Nodes of the version before do not look at it.

Revision ID: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

SCHEMA = "storenode"
# A random UUID has 122 random bits, of a cryptographic generator.
RANDOM_KEY = "sha256((uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())))"


def upgrade() -> None:
    column = sa.Column(
        "cursor_key", sa.LargeBinary, nullable=False, server_default=sa.text(RANDOM_KEY)
    )
    op.add_column("store", column, schema=SCHEMA)
