"""The schema that the migrations leave, as lines of text, for comparison with a database.

``schema.txt`` has a line for each column, index, check, partition key, sequence and view.
Partitions are not listed: Postgres's own catalog is the truth about them.
"""

from pathlib import Path
from typing import Any, Final

import psycopg

from store.db.statements import SQL

EXPECTED: Final = Path(__file__).with_name("schema.txt")


def describe(connection: psycopg.Connection[Any]) -> list[tuple[str, str, str]]:
    """Return the relation, its kind (``pg_class.relkind``) and the line of each object."""
    return connection.execute(SQL.partitions.describe).fetchall()


def differences(connection: psycopg.Connection[Any]) -> list[str]:
    """Return what a database's schema has otherwise than the newest revision, in any order.

    Tables that are not the store's, and checks that were added, are left out.
    """
    expected = set(EXPECTED.read_text().splitlines())
    rows = describe(connection)
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
