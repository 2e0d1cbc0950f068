"""Which of several servers that take writes holds the newest state of a store.

A promotion begins a new timeline of Postgres, with a higher number: on one system identifier the
higher timeline is the newer one. Where timelines do not tell (the same number, a restored dump, a
server that does not say), commits do: a server that lacks a commit which another one holds is not
the newer of the two. A commit is named by its position and its random token.

Source: PostgreSQL manual, "Timelines"; "System Administration Functions", control data functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from store.domain.hub import Place

OLDER: Final = (
    "{host} is on timeline {found}, and this node has seen timeline {seen} of the same store: it is"
    " a former primary; stop it or make it a standby, and start the server that replaced it"
)
LACKING: Final = (
    "{host} lacks commit {position}, which this node has seen: it is an older copy of the store;"
    " stop it, or, if it was restored on purpose, run `storenode db accept` for each node"
)
OTHER_STORE: Final = "{host} holds another store: name the hosts of one store in the database URL"
REPLACED: Final = (
    "{host} takes writes beside {other}, which is newer: stop it or make it a standby of {other}"
)
UNDECIDED: Final = (
    "{host} takes writes beside {other}, and neither is the newer one: stop the one that is wrong"
)


@dataclass(frozen=True, slots=True)
class Server:
    """A server that takes writes, as it describes itself.

    ``system`` and ``timeline`` are 0 where the role may not read them; ``started`` is the time at
    which it was started, as Postgres writes it; ``head`` is its newest commit.
    """

    host: str
    store_id: bytes
    system: int
    timeline: int
    started: str
    head: Place

    @property
    def identity(self) -> tuple[int, int, str]:
        """The same for two names or connections only if they lead to one server."""
        return self.system, self.timeline, self.started


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest state of a store that a node has worked on; ``place`` is a commit of it."""

    store_id: bytes
    system: int
    timeline: int
    place: Place


def seen_on(server: Server) -> Seen:
    """What is remembered of a server."""
    return Seen(server.store_id, server.system, server.timeline, server.head)


def order_of_timelines(one: Server | Seen, other: Server | Seen) -> int | None:
    """Positive if one is on the newer timeline, 0 on the same; None if they do not compare."""
    if not one.system or one.system != other.system or not one.timeline or not other.timeline:
        return None
    return one.timeline - other.timeline


def refusal(server: Server, seen: Seen, *, holds: bool) -> str | None:
    """Why a server must not be used after what was seen, or None.

    ``holds``: it has the commit that was seen.
    """
    if server.store_id != seen.store_id:
        return OTHER_STORE.format(host=server.host)
    order = order_of_timelines(server, seen)
    if order is not None and order < 0:
        return OLDER.format(host=server.host, found=server.timeline, seen=seen.timeline)
    if order or holds:
        return None
    return LACKING.format(host=server.host, position=seen.place[0])


def is_newer(one: Server, other: Server, *, holds_its_head: bool, is_held_by_it: bool) -> bool:
    """True if one server is certainly newer than another one.

    ``holds_its_head``: one has the newest commit of the other. ``is_held_by_it``: and conversely.
    """
    if one.store_id != other.store_id:
        return False
    order = order_of_timelines(one, other)
    if order:
        return order > 0
    return holds_its_head and not is_held_by_it
