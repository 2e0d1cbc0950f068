"""Findings of a check of the database, gathered by kind within a bound."""

from dataclasses import dataclass, field
from typing import Final

from store.domain.audit import RowFault

MAX_EXAMPLES: Final = 5
"""Examples that are kept of one kind; the others are counted."""

MAX_EXAMPLE_CHARS: Final = 300

_RESTORE: Final = "restore the message from a backup, or let another node send it again"
_REINDEX: Final = (
    "restore the database from a backup; what was changed by hand must be changed in every table"
)
_COLLECT: Final = "it finds nothing and harms nothing; it goes with its partition"

_RESUMMARIZE: Final = (
    "run `storenode db resummarize`; until then too much or too little of this time is exchanged"
    " with peers"
)

_RECOUNT: Final = (
    "run `storenode db resummarize`; until then `storenode coverage --channel` counts wrongly"
)

ADVICE: Final[dict[str, str]] = {
    RowFault.FRAME: _RESTORE,
    RowFault.HASH: _RESTORE,
    RowFault.CONTENT_DIGEST: _RESTORE,
    RowFault.TIMESTAMP: _RESTORE,
    RowFault.TOPIC: _RESTORE,
    RowFault.NO_HASH_ROW: _REINDEX,
    RowFault.NO_TOPIC_ROW: _REINDEX,
    RowFault.WRONG_TOPIC_ROW: _REINDEX,
    RowFault.NO_SDS_ROW: _REINDEX,
    RowFault.WRONG_SDS_ROW: _REINDEX,
    RowFault.STRANGE_SDS_ROW: _REINDEX,
    RowFault.LOST_MESSAGE: _RESTORE,
    RowFault.LOST_SDS_MESSAGE: _COLLECT,
    "wrong schema": "undo what was changed by hand, or restore the database from a backup",
    "wrong store": "restore the database from a backup",
    "default partition": "move its rows away and drop it: it hides partitions that are missing",
    "partition being detached": "finish with ALTER TABLE ... DETACH PARTITION ... FINALIZE",
    "stray table": "drop it, or move it to another schema: its name may be needed",
    "odd bounds": "restore the partition, or drop it if what it holds may go",
    "too many partitions": "drop the oldest ones of hashes, sds and topics alike",
    "uncovered messages": "restart a node: it makes the partitions that are missing",
    "missing partition": "look into the log of the node that does the maintenance",
    "invalid index": "run REINDEX INDEX on it",
    "batch without a commit": "restore the database from a backup: followers miss these messages",
    "commit of fewer messages than are held": "restore the database from a backup",
    "summary differs from its messages": _RESUMMARIZE,
    "summary differs from those it is made of": _RESUMMARIZE,
    "lattice sum differs from what it is made of": _RESUMMARIZE,
    "missing parent that is not missing": _RECOUNT,
    "parent that is missing and is not counted": _RECOUNT,
    "folded beyond the newest commit": (
        "set folded_position of storenode.store to the newest position of storenode.commits, then"
        " run `storenode db resummarize`"
    ),
    "unread event without its message": "delete the row: a missing message cannot be confirmed",
    "store that has confirmed twice": "delete the row, then publish the message again to have it"
    " confirmed",
    "sequence behind its table": "set it with setval() to the largest number that the table has",
}


@dataclass
class Finding:
    """A kind of fault: how often it was found, and the first examples."""

    kind: str
    where: str
    count: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def advice(self) -> str:
        """The advice to the operator."""
        return ADVICE[self.kind]


class Findings:
    """Findings by kind and table."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Finding] = {}

    def add(self, kind: str, where: str, example: str, count: int = 1) -> None:
        """Note a fault in table ``where``; ``count`` of the same sort share the example."""
        finding = self._found.setdefault((kind, where), Finding(str(kind), where))
        finding.count += count
        if len(finding.examples) < MAX_EXAMPLES:
            finding.examples.append(example[:MAX_EXAMPLE_CHARS])

    def all(self) -> list[Finding]:
        """Return the findings in the order of their first examples."""
        return list(self._found.values())
