"""A broadcast as it travels, and what participants and stores say to each other about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storenode.sds.envelope import Entry, SdsMessage


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """``payload`` is what is sent, ``message`` what it says, for the judge.

    ``hint``: 32 bytes under which a store keeps it; ``timestamp_ns``: its publisher's.
    ``lasting``: content, which stores keep; all else they only hand on.
    """

    payload: bytes
    hint: bytes
    timestamp_ns: int
    message: SdsMessage
    lasting: bool


@dataclass(frozen=True, slots=True)
class Page:
    """Some messages, in the order of the answer; ``place`` is where a follower goes on."""

    messages: Sequence[Spoken]
    place: int = 0
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """Messages to be stored; the answer has the hints of those that are."""

    messages: Sequence[Spoken]


@dataclass(frozen=True, slots=True)
class FollowFrom:
    """Everything from a place on."""

    place: int


@dataclass(frozen=True, slots=True)
class ByHint:
    """`Query` by message hashes."""

    hints: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class ById:
    """`GetSdsMessages`."""

    entries: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class Causes:
    """`GetCausalHistory`: heads with all their causes, but for what is known."""

    heads: Sequence[Entry]
    known: Sequence[str]


Request = ByHint | ById | Causes
