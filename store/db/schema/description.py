"""The schema that the migrations leave, as lines of text, for comparison with a database.

``schema.txt`` has a line for each column, index, check, partition key, sequence and view.
Partitions are not listed: Postgres's own catalog is the truth about them.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

EXPECTED: Final = Path(__file__).with_name("schema.txt")


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
