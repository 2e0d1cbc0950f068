"""Rules for the logs of SDS participants.

- *unnamed loss*: each message of a channel is in every log of it, or the participant whose log
  lacks it has reported it as lost.
- *unequal logs*: two logs have a message at the same position (Lamport timestamp, message ID), with
  the same sender and content, and each log is in that order.
- *unknown entry*: each entry of a log was sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from chaos.checker.history import Violation, list_violations


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a log; ``content`` is a digest of the message's content."""

    lamport: int
    message_id: str
    sender: str
    content: str


@dataclass(frozen=True, slots=True)
class Log:
    """A participant's log; ``sent`` maps the IDs of its own messages to their content."""

    name: str
    channel: str
    sent: Mapping[str, str]
    entries: Sequence[Entry]
    lost: frozenset[str] = frozenset()


def check_logs(logs: Sequence[Log]) -> list[Violation]:
    """Return all violations of the rules above."""
    found: list[Violation] = []
    for channel in sorted({log.channel for log in logs}):
        found += _check_channel([log for log in logs if log.channel == channel])
    return found


def _check_channel(logs: Sequence[Log]) -> list[Violation]:
    sent = {name: (log.name, content) for log in logs for name, content in log.sent.items()}
    first_seen: dict[str, Entry] = {}
    found: list[Violation] = []
    for log in logs:
        names = {entry.message_id for entry in log.entries}
        order = [(entry.lamport, entry.message_id) for entry in log.entries]
        unknown = {
            entry.message_id
            for entry in log.entries
            if sent.get(entry.message_id) != (entry.sender, entry.content)
        }
        differing = {
            entry.message_id
            for entry in log.entries
            if first_seen.setdefault(entry.message_id, entry) != entry
        }
        misplaced = [later[1] for earlier, later in pairwise(order) if later <= earlier]
        missing = sent.keys() - names - log.lost
        for rule, sentence, cases in (
            ("unnamed loss", f"messages are not in the log of {log.name}", missing),
            ("unknown entry", f"entries in the log of {log.name} were never sent", unknown),
            ("unequal logs", f"entries of {log.name} differ from other logs", differing),
            ("unequal logs", f"entries of {log.name} are out of order", misplaced),
        ):
            found += list_violations(rule, sentence, cases)
    return found
