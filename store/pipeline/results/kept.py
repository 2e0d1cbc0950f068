"""What is kept of all IDs of an archive, so that a message of today is judged without its past.

Files are only added. Those of an audit have its number in their names: what an audit says of an ID
adds to what earlier ones said, but for channels that it went through again as a whole (`BEGUN`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.pipeline.causal.rows import DIGEST_BYTES, KEPT
from store.pipeline.tasks import Batches

IDS: Final = KEPT.append(pa.field("mark", pa.int8()))
"""``mark``: one of the following."""

NODE: Final = 0
NAMED: Final = 1
"""So many more ``children`` of an ID that an earlier audit found."""

BEGUN: Final = 2
"""What earlier audits kept of the channel is void; the digest is zero."""

PLAIN: Final = pa.schema([("h0", pa.int64())])
"""Messages that are none of SDS, by the first word of their hashes."""

MERGED_AT: Final = 16
MERGED_ROWS: Final = 1_000_000
"""The newest files become one where there are so many with at most so many rows."""

_ZERO: Final = bytes(DIGEST_BYTES)


class Known(NamedTuple):
    """An ID that is held: its clock as a signed number, and of how many others it is a parent."""

    lamport: int | None
    incomplete: bool
    children: int


Ids = dict[tuple[str, bytes], Known]
"""By channel and digest."""


def marked(kept: pa.Table, mark: int) -> pa.Table:
    """`KEPT` as `IDS`."""
    return kept.append_column("mark", pa.array(np.full(len(kept), mark, np.int8)))


def begun(channels: Iterable[str]) -> pa.Table:
    """The rows that void what was kept of some channels."""
    rows = [(each, _ZERO, None, False, 0, BEGUN) for each in channels]
    return pa.Table.from_pylist([dict(zip(IDS.names, row, strict=True)) for row in rows], IDS)


def found(numbered: Iterable[tuple[int, pa.RecordBatch]], digests: pa.Array) -> Ids:
    """What is kept of some IDs, in whatever channel; batches of `IDS` with the numbers of audits.

    All rows are looked at, and only those that are wanted are held.
    """
    wanted = pa.concat_arrays([digests, pa.array([_ZERO], digests.type)])
    rows: list[tuple[int, Sequence[tuple[str, bytes, int | None, bool, int, int]]]] = []
    since: dict[str, int] = {}
    for number, batch in numbered:
        hits = batch.filter(pc.is_in(batch["digest"], value_set=wanted))
        rows.append((number, list(zip(*(each.to_pylist() for each in hits), strict=True))))
        for channel, *_, mark in rows[-1][1]:
            if mark == BEGUN:
                since[channel] = max(since.get(channel, 0), number)
    known: Ids = {}
    named: dict[tuple[str, bytes], int] = {}
    for number, some in rows:
        for channel, digest, lamport, incomplete, children, mark in some:
            key = channel, digest
            if mark == BEGUN or number < since.get(channel, 0):
                continue
            if mark == NAMED:
                named[key] = named.get(key, 0) + children
            else:
                known[key] = Known(lamport, incomplete, children)
    for key, more in named.items():
        known[key] = known[key]._replace(children=known[key].children + more)
    return known


def held(batches: Batches, words: pa.Array) -> set[int]:
    """Which first words of hashes are kept, in batches of `PLAIN`."""
    hits = (pc.unique(each["h0"].filter(pc.is_in(each["h0"], value_set=words))) for each in batches)
    return {word for some in hits for word in some.to_pylist()}


def to_merge(files: Sequence[tuple[str, int]]) -> list[str]:
    """Which files should be made one, in order; ``files`` are in order, with their rows."""
    newest: list[str] = []
    rows = 0
    for path, count in reversed(files):
        if (rows := rows + count) > MERGED_ROWS:
            break
        newest.append(path)
    return newest[::-1] if len(newest) >= MERGED_AT else []


def voided(rows: pa.Table) -> list[str]:
    """The channels that `IDS` begin anew."""
    found: list[str] = pc.unique(rows.filter(pc.equal(rows["mark"], BEGUN))["channel"]).to_pylist()
    return found


def merged(numbered: Iterable[tuple[int, pa.RecordBatch]], void: Iterable[str] = ()) -> pa.Table:
    """`IDS` of some audits, of which the first comes first, without what is void.

    ``void`` are channels that the audit begins anew whose number the result will have.
    """
    parts = list(numbered)
    since: dict[str, int] = {}
    for number, batch in parts:
        since |= dict.fromkeys(voided(pa.Table.from_batches([batch])), number)
    since |= dict.fromkeys(void, 1 + max((number for number, _ in parts), default=0))
    kept = [_since(batch, [each for each, first in since.items() if number < first])
            for number, batch in parts]  # fmt: skip
    return pa.Table.from_batches(kept, IDS)


def _since(batch: pa.RecordBatch, void: Sequence[str]) -> pa.RecordBatch:
    if not void:
        return batch
    return batch.filter(
        pc.invert(pc.is_in(batch["channel"], value_set=pa.array(void, pa.string())))
    )
