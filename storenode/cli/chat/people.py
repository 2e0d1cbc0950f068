"""Who takes part, as far as can be told: participants that were heard, and what they show."""

from __future__ import annotations

import time
from dataclasses import dataclass

from storenode.cli.chat.limits import MAX_PEOPLE
from storenode.cli.client.text import counted, safe
from storenode.common.bounded import BoundedDict

_MS_PER_S = 1_000


@dataclass(slots=True)
class Person:
    """When it was last heard (Unix time), and how many messages it has that are not here."""

    heard_ms: int = 0
    ahead: int = 0
    searches: int = 0


class People:
    """Participants by name, up to 500, whoever was heard last at the end."""

    def __init__(self, own: str) -> None:
        self.own = own
        self.others = BoundedDict[str, Person](MAX_PEOPLE)
        self.namesakes = False
        """Whether another participant writes under our name."""

    def heard(self, name: str, when_ms: int) -> None:
        """A message of somebody came, or was in the log."""
        if name and name != self.own:
            person = self._person(name)
            person.heard_ms = max(person.heard_ms, min(when_ms, now_ms()))

    def ahead(self, name: str, at_least: int, searches: int) -> None:
        """Somebody has messages that are not here."""
        person = self._person(name)
        person.ahead, person.searches = at_least, searches

    def level(self, name: str) -> None:
        """All that somebody has is here."""
        if name in self.others:
            self.others[name].ahead = self.others[name].searches = 0

    def by_name(self) -> list[tuple[str, Person]]:
        """The others in the order of their names."""
        return sorted(self.others.items(), key=lambda item: item[0].casefold())

    def _person(self, name: str) -> Person:
        person = self.others[name] = self.others.get(name) or Person()
        return person


def now_ms() -> int:
    """Unix time in milliseconds."""
    return int(time.time() * _MS_PER_S)


def clock_of(when_ms: int) -> str:
    """A time of the day on the clock of the user: hours and minutes."""
    return time.strftime("%H:%M", time.localtime(when_ms / _MS_PER_S))


def standing(name: str, person: Person, lacks: int = 0) -> str:
    """One of the others, in words; ``lacks`` is how many messages of ours are not there."""
    heard = f"last heard at {clock_of(person.heard_ms)}" if person.heard_ms else "not heard yet"
    said = [f"{safe(name)}: {heard}"]
    if person.ahead:
        said.append(f"has {counted(person.ahead, 'message')} or more that are not here: searching")
    if lacks:
        here = "is" if lacks == 1 else "are"
        said.append(f"lacks {counted(lacks, 'message')} that {here} here: being sent again")
    return ", ".join(said)
