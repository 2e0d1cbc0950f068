"""The schema's version: what it is, what it must be, and the way there.

Nodes of two versions work on one database while they are replaced one by one: first comes what
the older ones survive (phase "before"), and what they do not (phase "after") when they are gone.
The database says which nodes it serves (`store.serves_from`), so that an older one may also start
meanwhile, and finds out when it may not.

Works over a synchronous connection of its own, since an upgrade happens before a node serves.
URLs are libpq's, so several hosts and ``target_session_attrs`` are allowed. Besides what is said
below, everything here raises `psycopg.OperationalError` when the database cannot be reached.
Alembic and SQLAlchemy, which take longer to import than all else that a node needs, are imported
only when there is something to migrate.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from store.db.errors import SchemaError, sentence
from store.db.locks import FOLDING, MIGRATION, PARTITIONS
from store.db.schema.names import OLDEST_POSTGRES, SCHEMA
from store.db.schema.upgrade_locks import lock_tables

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
_BETWEEN: Final = (
    "the database's schema is between two versions, at revision {found}, and this needs {wanted}:"
    " when all nodes run the newer version, end the upgrade with `storenode db upgrade`"
)
_UNFINISHED: Final = (
    "the upgrade before this one was not ended, at revision {found}: when all nodes run the version"
    " that it was for, end it with that version's `storenode db upgrade`, and begin this one again"
)
_IN_USE: Final = (
    "nodes of an older version work on this database ({nodes}), which the upgrade would break:"
    " restart them on this version, or do only what they survive by"
    " `storenode db upgrade --before-restart`"
)
_BUSY: Final = (
    "the upgrade waited {seconds} s for a lock that a long-running transaction holds, and gave up"
    " so as not to block other queries: nothing has changed, run it again"
)

_STORE: Final = Path(__file__).parents[2]
LOCATION: Final = str(
    next(path for path in (_STORE / "migrations", _STORE.parent / "migrations") if path.is_dir())
)
"""The migrations: inside the package where it is installed, beside it in the repository."""

APPLICATION_NAME: Final = "storenode"
"""Of a node's connections, followed by the newest revision that the node knows."""

_LOCK_TIMEOUT_S: Final = 5

_FIRST_ROLLING: Final = "0005"
"""The revision from which on a schema says which nodes it serves."""
_OLDER_NODES: Final = """
select distinct application_name::text, coalesce(client_addr::text, 'this machine')
from pg_stat_activity
where datname = current_database() and application_name ~ '^storenode [0-9]{4}$'
  and right(application_name, 4) < %s
order by 1, 2
"""
_ASSIGNMENT: Final = re.compile(r'^(revision|phase|serves_from|locks) = "([\w ]+)"$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Revision:
    """A migration; all but its name as `migrations/versions/0005_rolling.py` says."""

    revision: str
    phase: str = "before"
    serves_from: str = ""
    locks: str = ""

    @property
    def is_after(self) -> bool:
        """True when nodes of the version before do not survive it."""
        return self.phase == "after"


def revisions() -> list[Revision]:
    """All revisions that this program knows, the oldest first; read, not run."""
    texts = (path.read_text() for path in Path(LOCATION, "versions").glob("[!_]*.py"))
    found = [Revision(**dict(_ASSIGNMENT.findall(text))) for text in texts]
    return sorted(found, key=lambda each: each.revision)


def head() -> str:
    """The newest revision that this program knows."""
    return revisions()[-1].revision


def current(url: str) -> str | None:
    """The revision of a database; None when it has no schema of ours.

    Raises:
        SchemaError: The role may not look at it.
    """
    with connect(url) as connection:
        return _revision(connection)


def serves_from(url: str) -> str:
    """The oldest revision whose nodes work on a database.

    Raises:
        SchemaError: There is no schema, or the role may not look at it.
    """
    return _found(url)[1]


def application_name() -> str:
    """What the connections of a node of this version are called, for who upgrades the schema."""
    return f"{APPLICATION_NAME} {head()}"


def require_current(url: str) -> None:
    """Make sure that a database has the newest schema that this version knows.

    Raises:
        SchemaError: Schema missing, too old or too new, or a server that is not supported.
    """
    found, _ = _found(url)
    if found != head():
        raise SchemaError(_mismatch(found))


def require_served(url: str) -> None:
    """Make sure that a node of this version can work on a database.

    It can on all that the last version's nodes survive, and on what a newer version has made of it
    for as long as that serves nodes of this one.

    Raises:
        SchemaError: Schema missing, too old or too new, or a server that is not supported.
    """
    found, serves_from = _found(url)
    known = [each.revision for each in revisions()]
    served = serves_from in known if found not in known else found >= _needed()
    if not served:
        raise SchemaError(_mismatch(found))


def upgrade(url: str, *, before_restart: bool = False, alone: bool = False) -> str:
    """Upgrade a database in one transaction and return the revision that it has then.

    ``before_restart``: go only as far as nodes of the version before survive; otherwise to `head`.
    ``alone``: nobody else can be there, so do not look for older nodes.
    Those that do so at the same time wait for each other. The role needs CREATE in the database,
    or a schema `storenode` that is its own; it need not be a superuser.

    Raises:
        SchemaError: The schema is too new, older nodes are connected, the server is not supported,
            somebody's lock does not go away, or the role may not.
    """
    with connect(url) as first:
        check_server(first)
        found = _revision(first)
    if found is not None and found == _target(found, before_restart=before_restart):
        return found
    try:
        return _migrate(url, before_restart=before_restart, alone=alone)
    except psycopg.Error as error:
        raise _refused(error) from error


def _migrate(url: str, *, before_restart: bool, alone: bool) -> str:
    from store.db.schema import apply  # noqa: PLC0415 - see above

    with apply.connect(url) as connection, connection.begin():
        raw = apply.driver_connection(connection)
        raw.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION,))
        found = _revision(raw)
        target = _target(found, before_restart=before_restart)
        if found is not None and target != found and not alone:
            _check_alone(raw, found, target)
            raw.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT_S}s'")
            # Before the tables that a node locks after them: see `store.db.locks`.
            for each in (FOLDING, PARTITIONS):
                raw.execute("SELECT pg_advisory_xact_lock(%s)", (each,))
            lock_tables(raw, _locked(found, target), _LOCK_TIMEOUT_S)
            raw.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT_S}s'")
        _create_schema(raw)
        apply.upgrade(connection, LOCATION, target)
        if target != found:
            raw.execute("UPDATE storenode.store SET serves_from = %s", (_serves_from(target),))
    return target


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


def _needed() -> str:
    """The revision that nodes of this version need: what comes after it only takes away."""
    return [each.revision for each in revisions() if not each.is_after][-1]


def _serves_from(target: str) -> str:
    """The oldest revision whose nodes work on the schema of another one."""
    told = [each for each in revisions() if each.is_after and each.revision <= target]
    return told[-1].serves_from if told else _FIRST_ROLLING


def _locked(found: str, target: str) -> set[str]:
    """The tables that the revisions between two lock, and the one that every upgrade writes to."""
    taken = [each.locks.split() for each in revisions() if found < each.revision <= target]
    return {"store"}.union(*taken)


def _target(found: str | None, *, before_restart: bool) -> str:
    known = revisions()
    if found is None:
        return known[-1].revision
    if found not in (each.revision for each in known):
        raise SchemaError(_mismatch(found))
    if not before_restart:
        return known[-1].revision
    reached = found
    for each in known:
        if each.revision <= found or each.revision > _needed():
            continue
        if each.is_after:
            raise SchemaError(_UNFINISHED.format(found=found))
        reached = each.revision
    return reached


def _check_alone(connection: psycopg.Connection[tuple[object, ...]], found: str, to: str) -> None:
    """Refuse to take away what nodes that are connected need."""
    if not any(each.is_after for each in revisions() if found < each.revision <= to):
        return
    older = connection.execute(_OLDER_NODES, (_serves_from(to),)).fetchall()
    if older:
        nodes = ", ".join(f"{name} from {address}" for name, address in older)
        raise SchemaError(_IN_USE.format(nodes=nodes))


def _found(url: str) -> tuple[str, str]:
    """The revision of a schema, and the oldest one whose nodes it serves."""
    with connect(url) as connection:
        check_server(connection)
        found = _revision(connection)
        if found is None:
            raise SchemaError(_MISSING)
        if found < _FIRST_ROLLING:
            return found, found
        row = connection.execute("SELECT serves_from FROM storenode.store").fetchone()
    return found, found if row is None else str(row[0])


def _mismatch(found: str) -> str:
    if found not in (each.revision for each in revisions()):
        text = _TOO_NEW
    else:
        text = _TOO_OLD if found < _needed() else _BETWEEN
    return text.format(found=found, wanted=head())


def _refused(error: psycopg.Error) -> Exception:
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return SchemaError(_denied(error))
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return SchemaError(_BUSY.format(seconds=_LOCK_TIMEOUT_S))
    return error


def _denied(error: psycopg.Error) -> str:
    return (
        f"the schema could not be upgraded ({sentence(error)}): grant the role CREATE on the"
        f" database, or let the owner of the schema {SCHEMA} run `storenode db upgrade`"
    )
