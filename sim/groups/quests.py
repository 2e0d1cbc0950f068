"""What a participant looks for at store nodes, and how it asks: in few calls, each of them bounded.

First by the hints that histories give, then by ID. Where what was found depends again on what is
missing, twice in a row, the rest is asked for as a causal history, in one call. What no node has
is asked for again later, and ever more rarely.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Final

from sim.groups.limits import MAX_QUESTS
from sim.groups.spoken import ByHint, ById, Causes, Request
from sim.limits import NS_PER_MS, NS_PER_S
from store.domain.limits import RequestLimits
from storenode.sds.envelope import Entry
from storenode.sds.events import MissingMessage

DEEP_ROUNDS: Final = 2
"""After so many rounds that each brought new causes to look for, ask for all causes at once."""

_FIRST_REST_NS: Final = 500 * NS_PER_MS
_LONGEST_REST_NS: Final = 8 * NS_PER_S


@dataclass(slots=True)
class Quest:
    """One missing message; ``tried``: its hints were, in this round."""

    hints: tuple[bytes, ...]
    due_ns: int
    tries: int = 0
    tried: bool = False


class Quests:
    """Missing messages of one participant. Times are in nanoseconds and count from anywhere."""

    def __init__(self, limits: RequestLimits) -> None:
        self.by_id: dict[str, Quest] = {}
        self._limits = limits
        self._rounds = 0

    def want(self, messages: Sequence[MissingMessage], now_ns: int) -> None:
        """Some messages are missing; those known already may have new hints."""
        for message in messages:
            quest = self.by_id.get(message.message_id)
            if quest is None:
                if len(self.by_id) < MAX_QUESTS:
                    self.by_id[message.message_id] = Quest(message.hints, now_ns)
            elif quest.hints != message.hints:
                quest.hints, quest.tried = message.hints, False

    def next(self, now_ns: int, known: Callable[[int], Sequence[str]]) -> Request | None:
        """What to ask now; ``known`` gives so many IDs of the log at most."""
        due = {key: quest for key, quest in self.by_id.items() if quest.due_ns <= now_ns}
        limits = self._limits
        if not due:
            self._rounds = 0
            return None
        if self._rounds >= DEEP_ROUNDS:
            heads = [_entry(key, due[key]) for key in list(due)[: limits.causal_heads]]
            return Causes(heads, known(limits.causal_known_ids))
        hints = [hint for quest in due.values() if not quest.tried for hint in quest.hints]
        if hints:
            return ByHint(tuple(dict.fromkeys(hints))[: limits.query_hashes])
        return ById([_entry(key, due[key]) for key in list(due)[: limits.sds_entries]])

    def answered(self, request: Request, missing: Container[str], now_ns: int) -> None:
        """A request was answered, and what came was taken; ``missing`` is what still is."""
        for key in [key for key in self.by_id if key not in missing]:
            del self.by_id[key]
        if isinstance(request, ByHint):
            asked = set(request.hints)
            for quest in self.by_id.values():
                quest.tried = quest.tried or not asked.isdisjoint(quest.hints)
            return
        entries = request.entries if isinstance(request, ById) else request.heads
        for entry in entries:
            found = self.by_id.get(entry.message_id)
            if found is not None:
                rest_ns = min(_FIRST_REST_NS << min(found.tries, 8), _LONGEST_REST_NS)
                found.tries, found.due_ns, found.tried = found.tries + 1, now_ns + rest_ns, False

    def deepened(self, *, deeper: bool) -> None:
        """What came has causes that are missing in their turn, or has none."""
        self._rounds = self._rounds + 1 if deeper else 0

    def next_due_ns(self) -> int | None:
        """When there is something to ask."""
        return min((quest.due_ns for quest in self.by_id.values()), default=None)


def _entry(message_id: str, quest: Quest) -> Entry:
    return Entry(message_id, quest.hints[-1] if quest.hints else None)
