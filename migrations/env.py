"""Run by Alembic: migrate over the connection that `store.db.migrate` hands in."""

from alembic import context
from sqlalchemy import Connection

connection: Connection = context.config.attributes["connection"]
context.configure(connection=connection, version_table_schema="storenode")
with context.begin_transaction():
    context.run_migrations()
