"""Who claims which SDS message ID: the rules by which a reference finds stored messages.

A stored message *claims* its ID in its channel; nothing keeps several from claiming the same one.
A *reference* (an entry asked for, a head, a parent) names an ID and perhaps, as retrieval hint, a
message hash. It selects:

1. the one claimant that the hint names, wherever it stands among the claimants;
2. else every claimant, lowest (timestamp, hash) first, as many as the node returns for one ID;
   and with them the message that the hint names, if its payload cannot be read as an SDS message
   (an encrypted one is found by its hint only).

Where the caller prefers what is proven (`storenode.sds.proofs`), claimants whose ID proves them
come before all others, in the same order among themselves; and a hint to one that is not proven
selects those that are, and then what it names. So whoever claims an ID, before or after or as a
parent's hint, hides nothing that is proven. Else no claim counts as proven.

A hint to a readable message under another ID or channel selects nothing. What is pruned, or
outside the filter of the call, claims nothing. Source: the node's contract, "SDS".

Claims travel as rows straight from the database: a tuple costs a fraction of an object, and a
walk takes in a hundred thousand of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from struct import Struct
from typing import Any, Final

from store.domain.ports import SyncId
from storenode.message.limits import HASH_BYTES, MAX_SDS_CLAIMANTS

Claim = tuple[bytes, int, bytes, bytes, bytes, bytes, bool]
"""(key of the ID in its channel, timestamp in ns, message hash, message ID, parent keys, hints,
True if it is proven).

Parents' keys and hints are ``uuid[]`` and ``bytea[]`` in Postgres's binary format, read by
`references`.
"""

Found = tuple[bytes, int, bytes, bytes]
"""The first four columns of a claim: what is kept of a message that is to be sent."""

Child = tuple[bytes, int, bytes]
"""(key, timestamp, hash) of a claim: where references stand."""

Reference = tuple[bytes, bytes | None]
"""(key of the ID in its channel, hint): a hint that is no message hash counts as none."""

PREFETCHED_CLAIM_BYTES: Final = 420
"""What a claim costs in memory beside its parents: tuple, values, place in a table."""

_ARRAY_HEADER_BYTES: Final = 20
_KEY_STRIDE: Final = 20
_FIRST_KEY: Final = _ARRAY_HEADER_BYTES + 4
_KEY_BYTES: Final = 16
_LENGTH: Final = Struct(">i")
_Layout = tuple[
    Callable[[bytes], tuple[bytes, ...]], Callable[[bytes], tuple[Any, ...]], int, tuple[int, ...]
]
"""Reads keys; reads sizes and hints by turns; bytes of the hints' array; the sizes expected."""


def usable_hint(hint: bytes | None) -> bytes | None:
    """A hint that can name a message: None unless it has the size of a message hash."""
    return hint if hint is not None and len(hint) == HASH_BYTES else None


def is_proven(claim: Claim) -> bool:
    """Whether a claim is proven, where the caller prefers what is."""
    return claim[6] is True


def rank(claim: Claim) -> tuple[bool, int, bytes]:
    """The order of the claimants of an ID."""
    return claim[6] is not True, claim[1], claim[2]


def parent_bytes(claim: Claim) -> int:
    """About how much memory the parents of a claim take: what hints of the right size would."""
    return 3 * len(claim[4])


def references(parent_keys: bytes, parent_hints: bytes) -> list[Reference]:
    """Read the parents of a claim from its last two columns."""
    layout = _layout(len(parent_keys))
    if layout is None:
        return []
    unpack_keys, unpack_hints, hint_bytes, sizes = layout
    if len(parent_hints) == hint_bytes:
        values = unpack_hints(parent_hints)
        if values[::2] == sizes:
            return list(zip(unpack_keys(parent_keys), values[1::2], strict=True))
    return _uneven_references(parent_keys, parent_hints, len(sizes))


@cache
def _layout(key_bytes: int) -> _Layout | None:
    """How to read arrays whose keys take so many bytes, if each hint is a hash."""
    count = key_bytes // _KEY_STRIDE - 1
    if count <= 0:
        return None
    keys = Struct(f">{_ARRAY_HEADER_BYTES}x" + count * f"4x{_KEY_BYTES}s")
    hints = Struct(f">{_ARRAY_HEADER_BYTES}x" + count * f"i{HASH_BYTES}s")
    return keys.unpack, hints.unpack, hints.size, count * (HASH_BYTES,)


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
    """Claims of the channel before a position, newest first, about ``limit``.

    ``following``: how many are probably wanted after those, 0 if that cannot be said.
    ``complete``: with every further claimant of their keys; else just as they are stored.
    """

    before: SyncId
    limit: int
    following: int = 0
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Read:
    """What to read: every claimant of ``keys``, what ``hints`` name, and in advance either a
    ``window`` of the channel or up to ``ahead`` keys that are reached from ``keys`` by parents;
    which keys of ``contested`` have several claimants.
    """

    keys: Sequence[bytes]
    hints: Sequence[HintQuery] = ()
    window: Window | None = None
    ahead: int = 0
    contested: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a `Read`.

    ``claims`` hold all claimants (the first in their order, one more per key than are returned at
    most, which shows that there are more) of every key in ``asked`` and of every further key that
    occurs in them; those of a window that is not complete come newest first. ``reached`` is the
    position of the lowest row of the window, None when it came to the channel's beginning.
    """

    asked: Sequence[bytes]
    claims: Sequence[Claim]
    hinted: HintAnswers
    reached: SyncId | None = None
    contested: frozenset[bytes] = frozenset()


FIRST_GROUP: Final = -16
"""From here down, numbers stand for groups: all claimants of one ID, which many messages refer to.
"""

HEADS: Final = -1
"""The number that stands for the request, where a message's number is expected."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a reference stands: in parent ``slot`` of message ``node``, or among the heads."""

    node: int
    slot: int

    @property
    def is_head(self) -> bool:
        """True for an entry of the request."""
        return self.node == HEADS


class Pause:
    """The step has used up its share of time; nothing is needed to go on."""


class Done:
    """The result is complete."""


class GiveUp:
    """The result cannot be found in this way."""


PAUSE: Final = Pause()
DONE: Final = Done()
GIVE_UP: Final = GiveUp()


@dataclass(frozen=True, slots=True)
class Selection:
    """What a reference selects; ``cut``: there are more claimants than are returned.

    The first ``shared`` are what every reference to the ID selects whose hint is of no use.
    """

    claims: Sequence[Claim]
    cut: bool = False
    shared: int = 0


_UNREAD: Final = object()


class Claims:
    """What was read and is not used up: complete sets of claimants by key, and hints."""

    def __init__(self, claimants: int = MAX_SDS_CLAIMANTS) -> None:
        """``claimants`` are returned for one key at most."""
        self._claimants = claimants
        self._bytes = 0
        self._sets: dict[bytes, Claim | list[Claim] | None] = {}
        self._hinted: dict[tuple[bytes, bytes], Hinted | None] = {}

    def add(self, answer: Answer) -> int:
        """Take in an answer; its sets replace what is known of the same keys. Its size in bytes."""
        sets = _sets(answer.claims)
        self._sets.update(dict.fromkeys(answer.asked))
        self._sets.update(sets)
        self._hinted.update(answer.hinted)
        rows = len(answer.asked) + len(answer.claims) + len(answer.hinted)
        size = rows * PREFETCHED_CLAIM_BYTES + sum(map(parent_bytes, answer.claims))
        self._bytes += size
        return size

    def limit(self, most_bytes: int) -> None:
        """Drop everything if it takes more memory; what is needed then must be read again."""
        if self._bytes <= most_bytes:
            return
        # Until here what was used up is still counted.
        rows = len(self._hinted) + len(self._sets)
        claims = (claim for found in self._sets.values() for claim in _listed(found))
        self._bytes = rows * PREFETCHED_CLAIM_BYTES + sum(map(parent_bytes, claims))
        if self._bytes > most_bytes // 2:
            self.clear()

    def clear(self) -> None:
        """Drop everything."""
        self._sets.clear()
        self._hinted.clear()
        self._bytes = 0

    def take_sole(self, key: bytes, hint: bytes | None) -> Claim | None:
        """Hand out, and drop, the only claimant of a key, unless the hint names another message."""
        found = self._sets.get(key)
        if type(found) is not tuple or (hint is not None and found[2] != hint):
            return None
        del self._sets[key]
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
                return Selection(self._with_proven(named, claims))
            if (key, hint) not in self._hinted:
                return None
            hinted = self._hinted[key, hint]
            if hinted is not None and hinted.readable:
                return Selection(self._with_proven(hinted.claim, claims))
            beside = () if hinted is None else (hinted.claim,)
        most = self._claimants
        shared = min(len(claims), most)
        return Selection((*claims[:most], *beside), len(claims) > most, shared)

    def _with_proven(self, named: Claim, claims: Sequence[Claim]) -> Sequence[Claim]:
        """What a hint names, behind the proven claimants where it is none of them."""
        if is_proven(named):
            return (named,)
        return (*filter(is_proven, claims[: self._claimants]), named)


def _sets(claims: Sequence[Claim]) -> Mapping[bytes, Claim | list[Claim]]:
    sole = {claim[0]: claim for claim in claims}
    if len(sole) == len(claims):
        return sole
    grouped: dict[bytes, list[Claim]] = {}
    for claim in claims:
        grouped.setdefault(claim[0], []).append(claim)
    return {
        key: group[0] if len(group) == 1 else sorted(group, key=rank)
        for key, group in grouped.items()
    }


def _listed(found: object) -> Sequence[Claim]:
    if isinstance(found, list):
        return found
    return (found,) if isinstance(found, tuple) else ()
