"""The schema: its revision, the revision that this program needs, the upgrade, its description.

Migrations are additive (``docs/upgrading.md``): nodes of the version before work on through an
upgrade. The revision of a migration is the name of its file, so that revisions sort by age.

Works over a synchronous connection of its own, since an upgrade happens before a node serves.
URLs are libpq's, with several hosts and ``target_session_attrs``. Besides the errors named below,
everything here raises `psycopg.OperationalError` when the database cannot be reached. Alembic and
SQLAlchemy, which take longer to import than all else of a node, are imported only to migrate.

``schema.txt`` describes the schema that the migrations leave: a line for each column, index, check,
partition key, sequence and view. Partitions are not listed: Postgres's own catalog is the truth
about them.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import psycopg

from store.db.errors import SchemaError, sentence
from store.db.locks import FOLDING, MIGRATION, PARTITIONS
from store.db.statements import SCHEMA

_MISSING: Final = (
    "the database has no storenode schema: create it with `storenode db upgrade`, or check that"
    " the database URL names the right database"
)
_TOO_OLD: Final = (
    "the database's schema is at revision {found} and this node needs {wanted}:"
    " run `storenode db upgrade` of this version; nodes of the version before go on meanwhile, and"
    " do not start again afterwards"
)
_UNKNOWN: Final = (
    "the database's schema is at revision {found}, which this version does not know: if a newer"
    " version made it, upgrade storenode; if a development version from before the first release"
    " did, move the messages to a new database with that version's `storenode pipeline archive` and"
    " this one's `storenode pipeline restore`, or with `storenode scan` and `storenode publish`"
)
_BUSY: Final = (
    "the upgrade waited {seconds} s for a lock that a long-running transaction holds, and gave up"
    " so as not to block other queries: nothing has changed, run it again"
)

EMPTY: Final = "the table storenode.store is empty: restore the database from a backup"

_STORE: Final = Path(__file__).parents[1]
LOCATION: Final = str(
    next(path for path in (_STORE / "migrations", _STORE.parent / "migrations") if path.is_dir())
)
"""The migrations: inside the package where it is installed, beside it in the repository."""

EXPECTED: Final = Path(__file__).with_name("schema.txt")
OLDEST_POSTGRES: Final = 140_000
"""``server_version_num`` of the oldest supported release."""

APPLICATION_NAME: Final = "storenode"
"""The name of a node's connections."""

_LOCK_TIMEOUT_S: Final = 5


def revisions() -> list[str]:
    """Return all revisions of this program, the oldest first."""
    return sorted(path.stem for path in Path(LOCATION, "versions").glob("[!_]*.py"))


def head() -> str:
    """Return the newest revision of this program."""
    return revisions()[-1]


def current(url: str) -> str | None:
    """Return the revision of a database; None when it has no schema of ours.

    Raises:
        SchemaError: The role may not look at it.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        return _revision(connection)


def require_served(url: str, *, may_be_empty: bool = False, lock_timeout_s: int = 0) -> None:
    """Make sure that a database has the schema that this version works on, and its store's row.

    Raises:
        SchemaError: One is missing, the schema is too old or unknown, or the server not supported.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        if lock_timeout_s:
            connection.execute(f"SET lock_timeout = '{lock_timeout_s}s'")
        check_server(connection)
        if (found := _revision(connection)) != head():
            raise SchemaError(_mismatch(found))
        if not may_be_empty and not connection.execute("SELECT 1 FROM storenode.store").fetchone():
            raise SchemaError(EMPTY)


def upgrade(url: str) -> str:
    """Upgrade a database in one transaction and return the revision that it has then.

    Upgrades that run at the same time wait for each other. The role needs CREATE in the database,
    or a schema `storenode` that is its own; it need not be a superuser.

    Raises:
        SchemaError: The schema is unknown, the server is not supported, another transaction keeps a
            lock, or the role may not.
    """
    with psycopg.connect(url, autocommit=True) as first:
        check_server(first)
        found = _revision(first)
    if found == head():
        return found
    if found is not None and found not in revisions():
        raise SchemaError(_mismatch(found))
    try:
        _migrate(url)
    except psycopg.Error as error:
        raise _refused(error) from error
    return head()


def _migrate(url: str) -> None:
    """Run the migrations with Alembic, over a connection of SQLAlchemy."""
    import sqlalchemy as sa  # noqa: PLC0415 - see above
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    # SQLAlchemy's URLs know one host only; libpq reads its own.
    engine = sa.create_engine(
        "postgresql+psycopg://", creator=lambda: _connect_alembic(url), poolclass=sa.NullPool
    )
    try:
        with engine.connect() as connection, connection.begin():
            raw = connection.connection.driver_connection
            assert isinstance(raw, psycopg.Connection)
            raw.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION,))
            if _revision(raw) is not None:
                raw.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT_S}s'")
                # Before the tables that a node locks after them: see `store.db.locks`.
                for lock in (FOLDING, PARTITIONS):
                    raw.execute("SELECT pg_advisory_xact_lock(%s)", (lock,))
            _create_schema(raw)
            config = Config(attributes={"connection": connection})
            config.set_main_option("script_location", LOCATION.replace("%", "%%"))
            config.set_main_option("path_separator", "newline")
            command.upgrade(config, head())
    except sa.exc.DBAPIError as error:
        if isinstance(error.orig, psycopg.Error):
            raise error.orig from error
        raise


def _connect_alembic(url: str) -> psycopg.Connection[tuple[object, ...]]:
    connection = psycopg.connect(url, autocommit=True)
    # Alembic treats the tables of the default schema differently, and ours would be in that when
    # the role has the schema's name.
    connection.execute("SET search_path = pg_catalog")
    connection.autocommit = False
    return connection


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


def _mismatch(found: str | None) -> str:
    text = _MISSING if found is None else _TOO_OLD if found in revisions() else _UNKNOWN
    return text.format(found=found, wanted=head())


def _refused(error: psycopg.Error) -> Exception:
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return SchemaError(
            f"the schema could not be upgraded ({sentence(error)}): grant the role CREATE on the"
            f" database, or let the owner of the schema {SCHEMA} run `storenode db upgrade`"
        )
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return SchemaError(_BUSY.format(seconds=_LOCK_TIMEOUT_S))
    return error


def differences(objects: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return what a database's schema has otherwise than the newest revision, in any order.

    Tables that are not the store's, and checks that were added, are left out. ``objects`` are what
    ``partitions.describe`` selects: relation, kind (``pg_class.relkind``) and line.
    """
    expected, rows = set(EXPECTED.read_text().splitlines()), list(objects)
    found = {line for _, _, line in rows}
    tables = {line.split()[1].split(".")[0] for line in expected if line.startswith("column ")}
    unexpected = {
        line
        for name, kind, line in rows
        if line not in expected
        and (kind in {"v", "S"} or name in tables)
        and not line.startswith("check ")
    }
    return [
        *(f"missing: {line}" for line in sorted(expected - found)),
        *(f"unexpected: {line}" for line in sorted(unexpected)),
    ]
