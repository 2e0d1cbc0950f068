"""Unread events, as the edges tell each other of them: see the contract's `min_confirms`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from store.domain.ports import Source
from store.messages.record import RecordBatch


@dataclass(frozen=True, slots=True)
class UnreadEvent:
    """A message that too few other stores have confirmed.

    ``stores`` are the IDs of those that have confirmed it; ``needed`` is how many must.
    ``age_ns``: for how long it has waited, by the clock of the database. ``expired``: for too long,
    and so it is unread no more.
    """

    message_hash: bytes
    content_digest: bytes
    needed: int
    stores: Sequence[str] = ()
    age_ns: int = 0
    expired: bool = False


class OwnBatch(NamedTuple):
    """The new messages of a batch that this node wrote.

    ``needed``: how many stores must confirm, by hash, where any must.
    """

    batch: RecordBatch
    source: Source
    needed: Mapping[bytes, int]


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A store has said that it holds a message durably."""

    message_hash: bytes
    store_id: str


@dataclass(frozen=True, slots=True)
class UnreadSummary:
    """The unread events of a database.

    Attributes:
        count: Events that are unread.
        waiting: Messages with parents that are not held, up to a limit.
        oldest_ns: The age of the oldest unread event.
        overdue_ns: The age of the oldest event that fewer stores have confirmed than this node's
            ``--max-confirms`` asks for, whatever its publisher asked for.
    """

    count: int
    waiting: int
    oldest_ns: int
    overdue_ns: int = 0


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The result of the wait for confirmations of one message.

    ``reason``: one sentence why they were too few; empty: they were enough.
    """

    confirms: int
    reason: str = ""


class Confirmations(Protocol):
    """The wait until other stores hold messages of this node."""

    async def confirmed(
        self,
        hashes: Sequence[bytes],
        content_digests: Sequence[bytes],
        stored: Sequence[bool],
        min_confirms: int,
        timeout_s: float | None,
    ) -> list[Confirmation]:
        """Wait until enough other stores have each of these messages, or the time is up.

        The messages are committed here; ``stored`` are those that were new. A time of None is the
        node's. Never raises for what a peer does; cancelling it costs nothing.
        """

    def stop(self) -> None:
        """End the wait of all requests: the node is stopping."""
