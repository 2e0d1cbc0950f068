"""An answer from its pieces to bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from reconcile import kernel
from reconcile.algorithm.answer import FingerprintPieces, SetPieces, assemble
from reconcile.codec import Payload, encode
from reconcile.codec.emit import payload_head


@dataclass(frozen=True, slots=True)
class Written:
    """What pieces come to.

    Attributes:
        ranges: how many.
        items: in all sets.
        payload: encoded; empty without ranges, None if there are more of either than allowed.
    """

    ranges: int
    items: int
    payload: bytes | None


def compose(
    cluster: int,
    shards: tuple[int, ...],
    fingerprints: list[FingerprintPieces],
    sets: list[SetPieces],
    allowed: tuple[int, int],
) -> Written:
    """Put pieces together and encode them.

    Args:
        cluster: sent with the payload.
        shards: likewise.
        fingerprints: pieces in several orders of making.
        sets: likewise.
        allowed: how many ranges and items a payload may have.
    """
    if kernel.compiled is not None:
        written = _composed(
            kernel.compiled, payload_head(cluster, shards), fingerprints, sets, allowed
        )
        if written is not None:
            return written
    ranges = assemble(fingerprints, sets)
    count, items = len(ranges), len(ranges.items)
    if count > allowed[0] or items > allowed[1]:
        return Written(count, items, None)
    return Written(count, items, encode(Payload(cluster, shards, ranges)))


def _composed(
    own: kernel.Kernel,
    head: bytes,
    fingerprints: list[FingerprintPieces],
    sets: list[SetPieces],
    allowed: tuple[int, int],
) -> Written | None:
    """The same by compiled code; None if a bound has a hash."""
    prints = tuple((*_columns(some), some.fingerprints) for some in fingerprints)
    groups = tuple(
        (*_columns(some), some.counts, some.items.timestamps, some.items.hashes, some.reconciled)
        for some in sets
    )
    found = own.compose(head, prints, groups, *allowed)
    if found is None:
        return None
    ranges, items, payload = found
    fits = ranges <= allowed[0] and items <= allowed[1]
    return Written(ranges, items, payload if fits else None)


def _columns(pieces: FingerprintPieces | SetPieces) -> tuple[NDArray[Any], ...]:
    lower, upper = pieces.lower, pieces.upper
    return pieces.keys, lower.timestamps, lower.hashes, upper.timestamps, upper.hashes
