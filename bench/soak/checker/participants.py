"""The logs of SDS participants at the end, against what they said.

- *unnamed loss*: what anybody in a channel said is in every log of it, or the participant whose log
  lacks it has named it as lost.
- *unequal logs*: what two logs have, they have at the same place (Lamport timestamp, message ID),
  with the same sender and content, and each log is in that order.
- *unheard*: what is in a log was said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.soak.checker.verdict import Violation, violation


@dataclass(frozen=True, slots=True)
class Entry:
    """A message of a log; ``content`` is a digest of it."""

    lamport: int
    message_id: str
    sender: str
    content: str


@dataclass(frozen=True, slots=True)
class Log:
    """What a participant has at the end; ``said`` maps the IDs of its own messages to content."""

    name: str
    channel: str
    said: Mapping[str, str]
    entries: Sequence[Entry]
    lost: frozenset[str] = frozenset()


def check_participants(logs: Sequence[Log]) -> list[Violation]:
    """All rules above; an empty list when they hold."""
    found: list[Violation] = []
    for channel in sorted({log.channel for log in logs}):
        found += _check_channel([log for log in logs if log.channel == channel])
    return found


def _check_channel(logs: Sequence[Log]) -> list[Violation]:
    said = {name: (log.name, content) for log in logs for name, content in log.said.items()}
    places: dict[str, Entry] = {}
    found: list[Violation] = []
    for log in logs:
        names = {entry.message_id for entry in log.entries}
        where = [(entry.lamport, entry.message_id) for entry in log.entries]
        unheard = {
            entry.message_id
            for entry in log.entries
            if said.get(entry.message_id) != (entry.sender, entry.content)
        }
        moved = {
            entry.message_id
            for entry in log.entries
            if places.setdefault(entry.message_id, entry) != entry
        }
        astray = [later[1] for earlier, later in pairwise(where) if later <= earlier]
        missing = said.keys() - names - log.lost
        found += violation("unnamed loss", f"messages are not in the log of {log.name}", missing)
        found += violation("unheard", f"entries in the log of {log.name} nobody said", unheard)
        found += violation("unequal logs", f"entries of {log.name} differ from others'", moved)
        found += violation("unequal logs", f"entries of {log.name} are out of order", astray)
    return found
