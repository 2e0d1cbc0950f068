"""SDS message IDs in stored messages: the rules by which a reference selects messages.

A stored message *claims* its ID in its channel; several messages may claim the same ID. A
*reference* (an entry of a request, a head, a parent) names an ID and perhaps, as retrieval hint, a
message hash. It selects:

1. the one claimant that the hint names, wherever it stands among the claimants;
2. else every claimant, lowest (timestamp, hash) first, as many as the node returns for one ID;
   and with them the message that the hint names, if its payload cannot be read as an SDS message
   (an encrypted one is found by its hint only).

Where the caller prefers proven messages (`storenode.sds.proofs`), claimants whose ID proves them
come before all others, in the same order among themselves; and a hint to one that is not proven
selects those that are, and then the message that it names. So a forged claim, before or after or as
a parent's hint, hides no proven message. Else no claim counts as proven.

A hint to a readable message under another ID or channel selects nothing. Pruned messages, and those
outside the filter of the call, claim nothing. Source: the node's contract, "SDS".

Claims travel as rows straight from the database: a tuple costs a fraction of an object, and a
walk takes in a hundred thousand of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from store.domain.ports import HistoryEntry, SdsLookup
from storenode.message.limits import HASH_BYTES
from storenode.sds.codec import decode, sds_key
from storenode.sds.limits import SDS_KEY_BYTES
from storenode.sds.proofs import ID_BYTES

Claim = tuple[bytes, int, bytes, bytes, bytes, bytes, bool]
"""(key of the ID in its channel, timestamp in ns, message hash, message ID, parent keys, hints,
True if it is proven).

Parents' keys and hints are ``uuid[]`` and ``bytea[]`` in Postgres's binary format, read by
`references`.
"""

Child = tuple[bytes, int, bytes]
"""(key, timestamp, hash) of a claim: where references stand."""

Reference = tuple[bytes, bytes | None]
"""(key of the ID in its channel, hint): a hint that is no message hash counts as none."""

CLAIM_BYTES: Final = 420
"""Memory of a claim without its parents: tuple, values, entry of a table."""

PARENT_BYTES: Final = 3
"""Memory of a claim's parents for each byte of their keys."""

_ARRAY_HEADER_BYTES: Final = 20
_LENGTH: Final = Struct(">i")
_KEY_STRIDE: Final = _LENGTH.size + SDS_KEY_BYTES


def usable_hint(hint: bytes | None) -> bytes | None:
    """Return a hint that has the size of a message hash, else None."""
    return hint if hint is not None and len(hint) == HASH_BYTES else None


def rank(claim: Claim) -> tuple[bool, int, bytes]:
    """Return the sort key of the claimants of an ID."""
    return not claim[6], claim[1], claim[2]


def references(parent_keys: bytes, parent_hints: bytes) -> list[Reference]:
    """Read the parents of a claim from its columns."""
    found: list[Reference] = []
    at = _ARRAY_HEADER_BYTES
    for start in range(_ARRAY_HEADER_BYTES + _LENGTH.size, len(parent_keys), _KEY_STRIDE):
        (size,) = _LENGTH.unpack_from(parent_hints, at)
        at += _LENGTH.size
        hint = parent_hints[at : at + HASH_BYTES] if size == HASH_BYTES else None
        at += max(size, 0)
        found.append((parent_keys[start : start + SDS_KEY_BYTES], hint))
    return found


@dataclass(frozen=True, slots=True)
class HintQuery:
    """A question for the message that the hint of a reference names.

    ``hash`` is the hint, ``key`` that of the reference's ID. The ID itself is that of parent
    ``slot`` of the claim at ``child``; where ``child`` is None, of entry ``slot`` of the request.
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
"""(key, hash) of each `HintQuery` -> the message, None where the hint names none of use."""


@dataclass(frozen=True, slots=True)
class ClaimQuery:
    """A read: every claimant of ``keys``, and the messages that ``hints`` name.

    With them claimants of up to ``ahead`` further keys, which are reached from these by parents.
    """

    keys: Sequence[bytes]
    hints: Sequence[HintQuery] = ()
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """The answer to a `ClaimQuery`.

    ``claims`` are the claimants of the keys in ``asked``, those of a key in their order: the first
    ones, and one more than are returned for an ID, which shows that there are more. ``asked`` may
    be a part of the keys of the query, with its first key; the rest is to be asked for again.
    """

    asked: Sequence[bytes]
    claims: Sequence[Claim]
    hinted: HintAnswers


Selection = tuple[Sequence[Claim], bool]
"""The messages that a reference selects, and True if an ID has more claimants than are returned."""


class ClaimCache:
    """The claimants and hints that were read: complete sets by key, in the order of claimants."""

    def __init__(self, claimants: int) -> None:
        self.sets: dict[bytes, list[Claim]] = {}
        self.hinted: dict[tuple[bytes, bytes], Hinted | None] = {}
        self.read_bytes = 0
        """The estimated memory of what was added."""
        self._claimants = claimants

    def add(self, answer: ClaimAnswer) -> None:
        """Add an answer; sets that were read before stay as they are."""
        fresh: dict[bytes, list[Claim]] = {key: [] for key in answer.asked if key not in self.sets}
        for claim in answer.claims:
            group = fresh.get(claim[0])
            if group is not None:
                group.append(claim)
        self.sets.update(fresh)
        self.hinted.update(answer.hinted)
        rows = len(answer.asked) + len(answer.claims) + len(answer.hinted)
        # As if all hints of parents were hashes.
        parents = PARENT_BYTES * sum(len(claim[4]) for claim in answer.claims)
        self.read_bytes += rows * CLAIM_BYTES + parents

    def select(self, key: bytes, hint: bytes | None) -> Selection | None:
        """Return the messages that a reference selects; None if something must be read first."""
        found = self.sets.get(key)
        if found is None:
            return None
        most = self._claimants
        opaque: tuple[Claim, ...] = ()
        if hint is not None:
            named = next((claim for claim in found if claim[2] == hint), None)
            if named is None:
                if (key, hint) not in self.hinted:
                    return None
                hinted = self.hinted[key, hint]
                if hinted is not None and hinted.readable:
                    named = hinted.claim
                elif hinted is not None:
                    opaque = (hinted.claim,)
            if named is not None:
                proven = () if named[6] else [claim for claim in found[:most] if claim[6]]
                return (*proven, named), False
        return (*found[:most], *opaque), len(found) > most


class Lookup:
    """A ``GetSdsMessages`` request; ``step`` until it returns None.

    Every entry is a reference. The selected messages come in the order of the entries, each once
    per ID; an entry that selects nothing is missing, with its hint as it was given. Entries are
    unproven that select no proven message although their ID could be a proof. The answer is
    truncated when an ID has more claimants than ``claimants``, which are returned at most.
    """

    def __init__(self, request: SdsLookup) -> None:
        self.messages: list[Claim] = []
        self.missing: list[HistoryEntry] = []
        self.unproven: list[HistoryEntry] = []
        self.truncated = False
        self._entries = request.entries
        self._references = [
            (sds_key(request.channel_id, entry.message_id), usable_hint(entry.retrieval_hint))
            for entry in request.entries
        ]
        self._claims = ClaimCache(request.claimants)

    def step(self, answer: ClaimAnswer | None = None) -> ClaimQuery | None:
        """Process the answer; return the next read, None when the result is complete."""
        if answer is not None:
            self._claims.add(answer)
        keys = {key: None for key, _ in self._references if key not in self._claims.sets}
        if keys:
            return ClaimQuery(tuple(keys))
        hints = {
            (key, hint): HintQuery(key, hint, None, slot)
            for slot, (key, hint) in enumerate(self._references)
            if hint is not None and self._claims.select(key, hint) is None
        }
        if hints:
            return ClaimQuery((), tuple(hints.values()))
        self._finish()
        return None

    def _finish(self) -> None:
        sent: set[tuple[bytes, bytes]] = set()
        for entry, (key, hint) in zip(self._entries, self._references, strict=True):
            selection = self._claims.select(key, hint)
            assert selection is not None, "a reference is resolved before it was read"
            claims, is_cut = selection
            self.truncated |= is_cut
            if not claims:
                self.missing.append(entry)
            elif len(entry.message_id) == ID_BYTES and not any(claim[6] for claim in claims):
                self.unproven.append(entry)
            for claim in claims:
                if (key, claim[2]) not in sent:
                    sent.add((key, claim[2]))
                    self.messages.append(claim)


class RequestedEntries:
    """The entries that another node was asked for, to check its answer against."""

    def __init__(self, channel_id: bytes, entries: Sequence[HistoryEntry]) -> None:
        self._channel_id = channel_id
        self._ids = {entry.message_id for entry in entries}
        self._hints = {entry.retrieval_hint for entry in entries}

    def selects(self, payload: bytes, message_hash: Callable[[], bytes]) -> bool:
        """Return True if a payload claims one of the IDs, or is opaque and named by a hint."""
        metadata = decode(payload)
        if metadata is None:
            return message_hash() in self._hints
        return metadata.channel_id == self._channel_id and metadata.message_id in self._ids


def name_of(payload: bytes, message_hash: bytes) -> bytes:
    """Return the ID that a message claims, or its hash where it claims none."""
    metadata = decode(payload)
    return message_hash if metadata is None else metadata.message_id
