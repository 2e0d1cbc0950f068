"""Keys of the advisory locks, which are the same for every node on one database.

A transaction takes them in this order: FOLDING before anything else, PARTITIONS before the tables
that it creates or drops, COMMIT_ORDER after the tables' own locks, last of all. The upper half
spells "stor", so that other programs in the same database are not met by accident.
"""

from typing import Final

_NAMESPACE: Final = 0x73746F72 << 32

COMMIT_ORDER: Final = _NAMESPACE | 1
"""Held by a writing transaction for its last step: positions appear in commit order."""

PARTITIONS: Final = _NAMESPACE | 2
"""Held while partitions are created or dropped."""

MAINTENANCE: Final = _NAMESPACE | 3
"""Held by the session of the one node that does the maintenance."""

MIGRATION: Final = _NAMESPACE | 4
"""Held while the schema is upgraded."""

FOLDING: Final = _NAMESPACE | 5
"""Held while buckets are changed."""

ARCHIVING: Final = _NAMESPACE | 6
"""Held by the session of the one job that archives the database."""

RESTORING: Final = _NAMESPACE | 7
"""Held by the session of the one job that restores messages into the database."""
