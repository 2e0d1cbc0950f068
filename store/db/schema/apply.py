"""Running migrations with Alembic, over a connection of SQLAlchemy."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import sqlalchemy as sa
from alembic import command
from alembic.config import Config


@contextmanager
def connect(url: str) -> Iterator[sa.Connection]:
    """Open a connection to a database by a URL of libpq, closed at the end.

    Raises:
        psycopg.Error: For what the database refuses, instead of SQLAlchemy's errors.
    """
    # SQLAlchemy's URLs know one host only; libpq reads its own.
    engine = sa.create_engine(
        "postgresql+psycopg://", creator=lambda: _creator(url), poolclass=sa.NullPool
    )
    try:
        with engine.connect() as connection:
            yield connection
    except sa.exc.DBAPIError as error:
        if isinstance(error.orig, psycopg.Error):
            raise error.orig from error
        raise


def driver_connection(connection: sa.Connection) -> psycopg.Connection[tuple[object, ...]]:
    """Return the connection of psycopg below one of SQLAlchemy, in the same transaction."""
    raw = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)
    return raw


def upgrade(connection: sa.Connection, location: str, target: str) -> None:
    """Run the migrations of a folder that lead to a revision."""
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", location.replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    command.upgrade(config, target)


def _creator(url: str) -> psycopg.Connection[tuple[object, ...]]:
    connection = psycopg.connect(url, autocommit=True)
    # Alembic treats the tables of the default schema differently, and ours would be in that when
    # the role has the schema's name.
    connection.execute("SET search_path = pg_catalog")
    connection.autocommit = False
    return connection
