"""The schema's version: what it is, what it must be, and the way there.

Works over a synchronous connection of its own, since an upgrade happens before a node serves.
URLs are libpq's, so several hosts and ``target_session_attrs`` are allowed. Besides what is said
below, everything here raises `psycopg.OperationalError` when the database cannot be reached.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Final

import psycopg
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from store.db.errors import SchemaError, sentence
from store.db.locks import MIGRATION
from store.db.schema import OLDEST_POSTGRES, SCHEMA

_MISSING: Final = (
    "the database has no storenode schema: create it with `storenode db upgrade`, or check that"
    " the database URL names the right database"
)
_TOO_OLD: Final = (
    "the database's schema is at revision {found} and this node needs {wanted}:"
    " run `storenode db upgrade`"
)
_TOO_NEW: Final = (
    "this node is older than the schema: the database is at revision {found}, which this version"
    " does not know; upgrade storenode"
)


def head() -> str:
    """The newest revision that this program knows."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None, "the package of migrations is empty"
    return revision


def current(url: str) -> str | None:
    """The revision of a database; None when it has no schema of ours.

    Raises:
        SchemaError: The role may not look at it.
    """
    with connect(url) as connection:
        return _revision(connection)


def require_current(url: str) -> None:
    """Make sure that a node of this version can work on a database.

    Raises:
        SchemaError: Schema missing, too old or too new, or a server that is not supported.
    """
    with connect(url) as connection:
        check_server(connection)
        found = _revision(connection)
    if found is None:
        raise SchemaError(_MISSING)
    if found != head():
        raise SchemaError(_mismatch(found))


def upgrade(url: str) -> str:
    """Bring a database to `head` in one transaction and return the revision that it has then.

    Nodes that do so at the same time wait for each other. The role needs CREATE in the database,
    or a schema `storenode` that is its own; it need not be a superuser.

    Raises:
        SchemaError: The schema is too new, the server is not supported, or the role may not.
    """
    with connect(url) as first:
        check_server(first)
    with engine(url).connect() as connection, connection.begin():
        raw = connection.connection.driver_connection
        assert isinstance(raw, psycopg.Connection)
        raw.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION,))
        found = _revision(raw)
        if found is not None and found not in _known():
            raise SchemaError(_mismatch(found))
        try:
            _create_schema(raw)
            command.upgrade(_config(connection), "head")
        except (psycopg.errors.InsufficientPrivilege, sa.exc.ProgrammingError) as error:
            cause = getattr(error, "orig", error)
            if not isinstance(cause, psycopg.errors.InsufficientPrivilege):
                raise
            raise SchemaError(_denied(cause)) from error
    return head()


@contextmanager
def connect(url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A connection in autocommit mode, closed at the end."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def check_server(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Refuse servers and databases that cannot hold a store.

    Raises:
        SchemaError: Postgres is older than 14, or the database's encoding is not UTF8.
    """
    info = connection.info
    if info.server_version < OLDEST_POSTGRES:
        raise SchemaError(
            f"the database server is Postgres {info.server_version // 10_000}, and storenode needs"
            f" {OLDEST_POSTGRES // 10_000} or newer: upgrade Postgres"
        )
    encoding = info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise SchemaError(
            f"the database {info.dbname!r} has the encoding {encoding}, and storenode needs UTF8:"
            " create another one with ENCODING 'UTF8' TEMPLATE template0"
        )


def _revision(connection: psycopg.Connection[tuple[object, ...]]) -> str | None:
    try:
        found = connection.execute(
            "SELECT to_regclass(%s) IS NOT NULL", ("storenode.alembic_version",)
        ).fetchone()
        if found != (True,):
            return None
        row = connection.execute("SELECT version_num FROM storenode.alembic_version").fetchone()
    except psycopg.errors.InsufficientPrivilege as error:
        raise SchemaError(
            f"the role {connection.info.user!r} may not use the schema {SCHEMA}"
            f" ({sentence(error)}): connect as the role that owns it"
        ) from error
    return None if row is None else str(row[0])


def _create_schema(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    # IF NOT EXISTS would demand the right to create schemas even where there is one.
    row = connection.execute("SELECT to_regnamespace(%s) IS NULL", (SCHEMA,)).fetchone()
    if row == (True,):
        connection.execute(f"CREATE SCHEMA {SCHEMA}")


def _known() -> set[str]:
    return {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def _mismatch(found: str) -> str:
    text = _TOO_OLD if found in _known() else _TOO_NEW
    return text.format(found=found, wanted=head())


def _denied(error: psycopg.Error) -> str:
    return (
        f"the schema could not be upgraded ({sentence(error)}): grant the role CREATE on the"
        f" database, or let the owner of the schema {SCHEMA} run `storenode db upgrade`"
    )


def engine(url: str) -> sa.Engine:
    """An engine of SQLAlchemy without a pool, for what Alembic does."""
    # SQLAlchemy's URLs know one host only; libpq reads its own.
    return sa.create_engine(
        "postgresql+psycopg://", creator=lambda: _creator(url), poolclass=sa.NullPool
    )


def _creator(url: str) -> psycopg.Connection[tuple[object, ...]]:
    connection = psycopg.connect(url, autocommit=True)
    # Alembic treats the tables of the default schema differently, and ours would be in that when
    # the role has the schema's name.
    connection.execute("SET search_path = pg_catalog")
    connection.autocommit = False
    return connection


def _config(connection: sa.Connection | None = None) -> Config:
    config = Config(attributes={"connection": connection})
    location = str(files("migrations"))
    config.set_main_option("script_location", location.replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    return config
