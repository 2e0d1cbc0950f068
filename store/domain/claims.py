"""Who claims which SDS message ID: the rules by which a reference finds stored messages.

A stored message *claims* its ID in its channel; nothing keeps several from claiming the same one.
A *reference* (an entry asked for, a head, a parent) names an ID and perhaps, as retrieval hint, a
message hash. It selects:

1. the one claimant that the hint names, wherever it stands among the claimants;
2. else every claimant, lowest (timestamp, hash) first, 16 at most; and with them the message that
   the hint names, if its payload cannot be read as an SDS message (an encrypted one is found by
   its hint only).

A hint to a readable message under another ID or channel selects nothing. What is pruned, or
outside the filter of the call, claims nothing. Source: the node's contract, "SDS".

Claims travel as rows straight from the database: a tuple costs a fraction of an object, and a
walk takes in a hundred thousand of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from struct import Struct
from typing import Final

from message.limits import HASH_BYTES, MAX_SDS_CLAIMANTS
from store.domain.ports import SyncId

Claim = tuple[bytes, int, bytes, bytes, bytes, bytes]
"""(key of the ID in its channel, timestamp in ns, message hash, message ID, parent keys, hints).

The last two are ``uuid[]`` and ``bytea[]`` in Postgres's binary format, read by `references`.
"""

Child = tuple[bytes, int, bytes]
"""(key, timestamp, hash) of a claim: where references stand."""

Reference = tuple[bytes, bytes | None]
"""(key of the ID in its channel, hint): a hint that is no message hash counts as none."""

CROWD: Final = MAX_SDS_CLAIMANTS + 1
"""So many claimants of one key are read: one more than are returned shows that there are more."""

PREFETCHED_CLAIM_BYTES: Final = 420
"""What a claim costs in memory beside its parents: tuple, values, place in a table."""

_ARRAY_HEADER_BYTES: Final = 20
_KEY_STRIDE: Final = 20
_HINT_STRIDE: Final = 4 + HASH_BYTES
_FIRST_KEY: Final = _ARRAY_HEADER_BYTES + 4
_KEY_BYTES: Final = 16
_LENGTH: Final = Struct(">i")
_HASH_LENGTH: Final = _LENGTH.pack(HASH_BYTES)
_BY_POSITION: Final = itemgetter(1, 2)


def references(parent_keys: bytes, parent_hints: bytes) -> list[Reference]:
    """Read the parents of a claim from its last two columns."""
    count = len(parent_keys) // _KEY_STRIDE - 1
    if count <= 0:
        return []
    if len(parent_hints) != _ARRAY_HEADER_BYTES + _HINT_STRIDE * count:
        return _uneven_references(parent_keys, parent_hints, count)
    found: list[Reference] = []
    key_at, hint_at = _FIRST_KEY, _FIRST_KEY
    for _ in range(count):
        if parent_hints[hint_at - 4 : hint_at] != _HASH_LENGTH:
            return _uneven_references(parent_keys, parent_hints, count)
        found.append(
            (
                parent_keys[key_at : key_at + _KEY_BYTES],
                parent_hints[hint_at : hint_at + HASH_BYTES],
            )
        )
        key_at += _KEY_STRIDE
        hint_at += _HINT_STRIDE
    return found


def _uneven_references(parent_keys: bytes, parent_hints: bytes, count: int) -> list[Reference]:
    """Read parents some of which have no hint, or one of another size."""
    found: list[Reference] = []
    at = _ARRAY_HEADER_BYTES
    for slot in range(count):
        (size,) = _LENGTH.unpack_from(parent_hints, at)
        at += _LENGTH.size
        hint = parent_hints[at : at + HASH_BYTES] if size == HASH_BYTES else None
        at += max(size, 0)
        start = _FIRST_KEY + slot * _KEY_STRIDE
        found.append((parent_keys[start : start + _KEY_BYTES], hint))
    return found


@dataclass(frozen=True, slots=True)
class HintQuery:
    """What does the hint of a reference name? ``hash`` is its 32 bytes, ``key`` that of its ID.

    The ID itself stands in parent ``slot`` of the claim at ``child`` (key, timestamp, hash), or,
    where ``child`` is None, in entry ``slot`` of the request.
    """

    key: bytes
    hash: bytes
    child: Child | None
    slot: int


@dataclass(frozen=True, slots=True)
class Hinted:
    """The message that a hint names: a claim of the same key, or one whose payload is opaque."""

    claim: Claim
    readable: bool


HintAnswers = Mapping[tuple[bytes, bytes], Hinted | None]
"""(key, hash) of each `HintQuery` -> what the hint names, None where that is nothing of use."""


@dataclass(frozen=True, slots=True)
class Window:
    """Claims of the channel before a position, newest first, ``limit`` at most."""

    before: SyncId
    limit: int


@dataclass(frozen=True, slots=True)
class Read:
    """What to read: every claimant of ``keys``, what ``hints`` name, and in advance either a
    ``window`` of the channel or up to ``ahead`` keys that are reached from ``keys`` by parents.
    """

    keys: Sequence[bytes]
    hints: Sequence[HintQuery] = ()
    window: Window | None = None
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a `Read`.

    ``claims`` hold all claimants (`CROWD` per key at most, the lowest) of every key in ``asked``
    and of every further key that occurs in them. ``reached`` is the position of the lowest row of
    the window, None when the window came to the channel's beginning.
    """

    asked: Sequence[bytes]
    claims: Sequence[Claim]
    hinted: HintAnswers
    reached: SyncId | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """What a reference selects; ``cut``: there are more claimants than are returned."""

    claims: Sequence[Claim]
    cut: bool = False


_UNREAD: Final = object()


class Claims:
    """What was read and is not used up: complete sets of claimants by key, and hints."""

    def __init__(self) -> None:
        self.bytes = 0
        self._sets: dict[bytes, Claim | list[Claim] | None] = {}
        self._hinted: dict[tuple[bytes, bytes], Hinted | None] = {}

    def add(self, answer: Answer) -> None:
        """Take in an answer; its sets replace what is known of the same keys."""
        sets = _sets(answer.claims)
        self._sets.update(dict.fromkeys(answer.asked))
        self._sets.update(sets)
        self._hinted.update(answer.hinted)
        unclaimed = sum(key not in sets for key in answer.asked)
        rows = len(answer.claims) + unclaimed + len(answer.hinted)
        parents = sum(len(claim[4]) + len(claim[5]) for claim in answer.claims)
        self.bytes += parents + rows * PREFETCHED_CLAIM_BYTES

    def clear(self) -> None:
        """Drop everything; what is still needed must be read again."""
        self._sets.clear()
        self._hinted.clear()
        self.bytes = 0

    def take_sole(self, key: bytes, hint: bytes | None) -> Claim | None:
        """Hand out, and drop, the only claimant of a key, unless the hint names another message."""
        found = self._sets.get(key)
        if type(found) is not tuple or (hint is not None and found[2] != hint):
            return None
        del self._sets[key]
        self.bytes -= PREFETCHED_CLAIM_BYTES + len(found[4]) + len(found[5])
        return found

    def peek(self, key: bytes) -> Claim | None:
        """The only claimant of a key, as far as it is known and the only one."""
        found = self._sets.get(key)
        return found if type(found) is tuple else None

    def is_read(self, key: bytes) -> bool:
        """True when the claimants of a key are known, even if there are none."""
        return key in self._sets

    def lacks_hint(self, key: bytes, hint: bytes) -> bool:
        """True when the claimants of a key are known and what the hint names must still be read."""
        if (key, hint) in self._hinted:
            return False
        found = self._sets.get(key, _UNREAD)
        return found is not _UNREAD and all(claim[2] != hint for claim in _listed(found))

    def is_hint_read(self, key: bytes, hint: bytes) -> bool:
        """True when it is known what the hint names."""
        return (key, hint) in self._hinted

    def hinted(self, key: bytes, hint: bytes) -> Hinted | None:
        """What a hint that was read names."""
        return self._hinted[key, hint]

    def select(self, key: bytes, hint: bytes | None) -> Selection | None:
        """What a reference selects; None when something must be read first."""
        found = self._sets.get(key, _UNREAD)
        if found is _UNREAD:
            return None
        claims = _listed(found)
        beside: tuple[Claim, ...] = ()
        if hint is not None:
            named = next((claim for claim in claims if claim[2] == hint), None)
            if named is not None:
                return Selection((named,))
            if (key, hint) not in self._hinted:
                return None
            hinted = self._hinted[key, hint]
            if hinted is not None and hinted.readable:
                return Selection((hinted.claim,))
            beside = () if hinted is None else (hinted.claim,)
        return Selection((*claims[:MAX_SDS_CLAIMANTS], *beside), len(claims) > MAX_SDS_CLAIMANTS)


def _sets(claims: Sequence[Claim]) -> Mapping[bytes, Claim | list[Claim]]:
    sole = {claim[0]: claim for claim in claims}
    if len(sole) == len(claims):
        return sole
    grouped: dict[bytes, list[Claim]] = {}
    for claim in claims:
        grouped.setdefault(claim[0], []).append(claim)
    return {
        key: group[0] if len(group) == 1 else sorted(group, key=_BY_POSITION)
        for key, group in grouped.items()
    }


def _listed(found: object) -> Sequence[Claim]:
    if isinstance(found, list):
        return found
    return (found,) if isinstance(found, tuple) else ()
