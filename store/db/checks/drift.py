"""Differences between a database and `store.db.schema.tables`, table by table."""

from typing import Any, Final

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from store.db.schema.apply import connect
from store.db.schema.names import SCHEMA, SEQUENCES, VIEWS
from store.db.schema.tables import metadata

_Change = tuple[Any, ...] | list[Any]

_PARTITION_KEYS: Final = """
select c.relname, replace(pg_get_partkeydef(c.oid), '"', '')
from pg_class c where c.relnamespace = 'storenode'::regnamespace and c.relkind = 'p'
"""
_PRIMARY_KEYS: Final = """
select t.relname, array_agg(a.attname::text order by k.place)
from pg_index i join pg_class t on t.oid = i.indrelid
cross join unnest(i.indkey) with ordinality as k(attnum, place)
join pg_attribute a on a.attrelid = t.oid and a.attnum = k.attnum
where t.relnamespace = 'storenode'::regnamespace and i.indisprimary and not t.relispartition
group by t.relname
"""
_COLLATIONS: Final = """
select t.relname, a.attname, l.collname
from pg_attribute a join pg_class t on t.oid = a.attrelid join pg_collation l
  on l.oid = a.attcollation
where t.relnamespace = 'storenode'::regnamespace and t.relkind = 'p' and l.collname <> 'default'
"""
_SEQUENCES: Final = "select sequencename from pg_sequences where schemaname = 'storenode'"
_VIEWS: Final = "select viewname from pg_views where schemaname = 'storenode'"
_EXTERNAL: Final = """
select attrelid::regclass::text, attname from pg_attribute
where attrelid in (to_regclass('storenode.messages'), to_regclass('storenode.commits'))
  and attnum > 0 and not attisdropped and attstorage = 'e'
"""
_WANTED_EXTERNAL: Final = {
    ("storenode.messages", "payload"),
    ("storenode.commits", "summary"),
    ("storenode.commits", "claims"),
}
"""What cannot be compressed, and is not tried."""


def differences(url: str) -> list[str]:
    """What a database's tables, columns, indexes and keys have otherwise than the schema says.

    Each entry names one difference; none when all is as it should be. The database must have the
    newest revision for the answer to mean anything. Raises `psycopg.OperationalError` when it
    cannot be reached.
    """
    with connect(url) as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "include_schemas": True,
                "include_name": _is_ours,
                "compare_type": True,
                "compare_server_default": True,
                "version_table_schema": SCHEMA,
            },
        )
        changes = compare_metadata(context, metadata)
        return [_described(change) for change in changes] + _catalog_differences(connection)


def _is_ours(name: str | None, kind: str, parents: object) -> bool:
    if kind == "schema":
        return name == SCHEMA
    if kind == "table":
        return f"{SCHEMA}.{name}" in metadata.tables
    return bool(parents)


def _described(change: _Change) -> str:
    if isinstance(change, list):
        return "; ".join(_described(each) for each in change)
    kind, *parts = change
    names = [getattr(part, "fullname", None) or getattr(part, "name", part) for part in parts]
    return " ".join([kind.replace("_", " "), *(name for name in names if isinstance(name, str))])


def _catalog_differences(connection: sa.Connection) -> list[str]:
    wanted_keys, wanted_primary, wanted_collations = {}, {}, set()
    for table in metadata.tables.values():
        partitioned = table.dialect_options["postgresql"]["partition_by"]
        if partitioned:
            wanted_keys[table.name] = partitioned
        wanted_primary[table.name] = sorted(column.name for column in table.primary_key)
        for column in table.columns:
            collation = getattr(column.type, "collation", None)
            if collation:
                wanted_collations.add((table.name, column.name, collation))
    keys: dict[str, str] = dict(connection.execute(sa.text(_PARTITION_KEYS)).all())
    primary = {
        name: sorted(columns)
        for name, columns in connection.execute(sa.text(_PRIMARY_KEYS))
        if name in wanted_primary
    }
    collations = {tuple(row) for row in connection.execute(sa.text(_COLLATIONS))}
    sequences = set(connection.execute(sa.text(_SEQUENCES)).scalars())
    views = set(connection.execute(sa.text(_VIEWS)).scalars())
    external = {tuple(row) for row in connection.execute(sa.text(_EXTERNAL))}
    checks = {
        f"the partition keys are {keys}, not {wanted_keys}": keys == wanted_keys,
        f"the primary keys are {primary}, not {wanted_primary}": primary == wanted_primary,
        f"the collations are {collations}, not {wanted_collations}": collations
        == wanted_collations,
        f"the sequences are {sequences}, not {SEQUENCES}": sequences == set(SEQUENCES),
        f"the views are {views}, not {VIEWS}": views == set(VIEWS),
        f"payloads, summaries and claims are stored otherwise: {external} without compression": (
            external == _WANTED_EXTERNAL
        ),
    }
    return [text for text, holds in checks.items() if not holds]
