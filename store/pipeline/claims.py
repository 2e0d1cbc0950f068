"""What a store was said to hold in common with others, kept beside its archive and tried later.

::

    ARCHIVE/claims/     a Delta table: a row for each claim, and one for each time they were kept

A claim is a statement of equality (`store.domain.coverage`) that still held, and agreed with the
archive, when an archiving job had ended. Two things try it later:

1. The archive. It held exactly the claimed messages and removes none, so it must hold as many or
   more; where as many, with the same XOR. Late messages and restores add, retention takes nothing.
2. An archive of the other store. What was claimed must be in it if it was brought up to date before
   and after, an hour from the claim for clocks that differ, if the horizon of that store was not
   beyond the start of the span the second time, and its database had the same past both times:
   no restored backup and no promoted standby.

Everything else is not tried: no claim is called untrue because somebody may have lost or dropped
what was true.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from numpy.typing import NDArray

from store.pipeline.beside import CLAIMS_TABLE, is_begun, location_of
from store.pipeline.database import Stated
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import of_store
from store.pipeline.fingerprints import XOR_WORDS, Fingerprints
from store.pipeline.limits import HOUR_NS, MAX_LISTED
from store.pipeline.reports import time_text

CLOCKS_NS: Final = HOUR_NS
"""By how much the clocks of two stores, and of their archiving jobs, may differ."""

_SAME: Final = ["store_id", "other_store_id", "start_ns", "end_ns", "messages", *XOR_WORDS]
CLAIMS: Final = pa.schema(
    [
        pa.field("recorded_ns", pa.int64(), nullable=False),
        pa.field("store_id", pa.string(), nullable=False),
        pa.field("other_store_id", pa.string()),
        pa.field("start_ns", pa.int64(), nullable=False),
        pa.field("end_ns", pa.int64(), nullable=False),
        pa.field("compared_ns", pa.int64()),
        pa.field("keyed", pa.bool_()),
        pa.field("messages", pa.int64(), nullable=False),
        *(pa.field(word, pa.int64()) for word in XOR_WORDS),
        pa.field("past", pa.string()),
    ]
)
"""A claim: ``store_id`` and ``other_store_id`` both held these ``messages``, with this XOR, as of
``compared_ns``. ``other_store_id`` null: at ``recorded_ns`` the archive held all that the store
held from ``start_ns``, its horizon, on; ``past`` stands for the past of its database, null where it
cannot be told. Times are in nanoseconds.
"""

_Numbers = NDArray[np.int64]


@dataclass
class ClaimResults:
    """How claims fared: how many are ``kept``, how many another archive could try, and what was
    found ``untrue``, of which at most `MAX_LISTED` are ``listed``.
    """

    kept: int = 0
    against: int | None = None
    untrue: int = 0
    listed: list[dict[str, Any]] = field(default_factory=list)

    def add(self, claims: pa.Table, held: Sums, where: str) -> None:
        """Try claims by what a place holds."""
        messages, words = held.of(_numbers(claims, "start_ns"), _numbers(claims, "end_ns"))
        claimed = np.stack([_numbers(claims, word) for word in XOR_WORDS], axis=1)
        wanted = _numbers(claims, "messages")
        other = (words != claimed).any(axis=1)
        wrong = np.flatnonzero((messages < wanted) | ((messages == wanted) & other))
        self.untrue += len(wrong)
        some = wrong[: MAX_LISTED - len(self.listed)]
        self.listed += [
            {
                "store": row["other_store_id"],
                "from": time_text(row["start_ns"]),
                "to": time_text(row["end_ns"]),
                "as_of": time_text(row["compared_ns"]),
                "messages": row["messages"],
                "held": int(messages[place]),
                "archive": where,
            }
            for place, row in zip(some.tolist(), claims.take(some).to_pylist(), strict=True)
        ]

    def lines(self) -> Iterator[str]:
        """Yield the results in words."""
        if self.against is not None:
            yield f"claims that the other archive could try: {self.against:,} of {self.kept:,}"
        if not self.untrue:
            return
        yield f"claims of the past that are not borne out: {self.untrue:,}"
        for each in self.listed:
            held = (
                f"holds {each['held']:,}"
                if each["held"] != each["messages"]
                else "holds as many, but not the same"
            )
            yield (
                f"  {each['store']} was found to hold the same {each['messages']:,} messages from"
                f" {each['from']} to {each['to']}, as of {each['as_of']}; {each['archive']} {held}"
            )
        if self.untrue > len(self.listed):
            yield f"  and {self.untrue - len(self.listed):,} more"


class Sums:
    """Count and XOR of any range of whole hours."""

    def __init__(self, hours: Fingerprints) -> None:
        rows = np.array([(start, *each) for start, each in sorted(hours.items())], np.int64)
        rows = rows.reshape(-1, 2 + len(XOR_WORDS))
        self._starts = rows[:, 0]
        before = np.zeros((1, rows.shape[1] - 1), np.int64)
        self._counts = np.concatenate([before[:, 0], np.cumsum(rows[:, 1])])
        xors = np.bitwise_xor.accumulate(rows[:, 2:], axis=0) if len(rows) else rows[:, 2:]
        self._xors = np.concatenate([before[:, 1:], xors])

    def of(self, starts: _Numbers, ends: _Numbers) -> tuple[_Numbers, _Numbers]:
        """Return the counts of ranges, and their XORs as rows of words."""
        first, last = np.searchsorted(self._starts, [starts, ends])
        return self._counts[last] - self._counts[first], self._xors[last] ^ self._xors[first]


def keep_claims(archive: DeltaArchive, stated: Stated, horizon_ns: int, held: Fingerprints) -> int:
    """Keep what a database states and its archive agrees with, and that it was looked for.

    ``stated`` was read before, and ``horizon_ns`` after, the archive took in all that the database
    held; ``held`` is by hour what it holds since. A claim that says the same as one that is there
    is not added again. Returns how many were added.

    Raises:
        PipelineError: the table cannot be read or written.
    """
    sums = Sums(held)
    claims = _agreed(_claims(stated), sums)
    kept = read_claims(archive).select(_SAME)
    claims = claims.join(kept, _SAME, join_type="left anti").select(CLAIMS.names)
    end_ns = max(stated.time_ns, horizon_ns)
    counts, _ = sums.of(np.array([horizon_ns]), np.array([end_ns]))
    about = {
        "recorded_ns": stated.time_ns,
        "store_id": stated.store_id,
        "start_ns": horizon_ns,
        "end_ns": end_ns,
        "messages": int(counts[0]),
        "past": stated.past,
    }
    _append(archive, pa.concat_tables([claims.cast(CLAIMS), pa.Table.from_pylist([about], CLAIMS)]))
    return int(claims.num_rows)


def read_claims(archive: DeltaArchive) -> pa.Table:
    """Return the rows of `CLAIMS`; none if no job has kept any.

    Raises:
        PipelineError: the table cannot be read.
    """
    if not is_begun(archive, CLAIMS_TABLE):
        return CLAIMS.empty_table()
    path, options = location_of(archive, CLAIMS_TABLE)
    try:
        return DeltaTable(path, storage_options=options).to_pyarrow_table().cast(CLAIMS)
    except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
        raise of_store(path, error, "table of claims") from error


def try_claims(
    archive: DeltaArchive, held: Fingerprints, against: tuple[DeltaArchive, Fingerprints] | None
) -> ClaimResults:
    """Try the claims of an archive by what it holds by hour, and by another archive.

    Raises:
        PipelineError: a table of claims cannot be read.
    """
    rows = read_claims(archive)
    claims = rows.filter(pc.is_valid(rows["other_store_id"]))
    tried = ClaimResults(claims.num_rows)
    tried.add(claims, Sums(held), archive.path)
    if against is not None:
        other, hours = against
        some = claims.filter(pa.array(_answerable(claims, read_claims(other)), pa.bool_()))
        tried.against = some.num_rows
        tried.add(some, Sums(hours), other.path)
    return tried


def _claims(stated: Stated) -> pa.Table:
    rows = stated.rows
    names = ("other_store_id", "start_ns", "end_ns", "compared_ns", "keyed", "messages")
    words = np.frombuffer(b"".join(row[-1] for row in rows), "<i8").reshape(-1, len(XOR_WORDS))
    columns = {
        **{name: [row[place] for row in rows] for place, name in enumerate(names)},
        **{word: words[:, place] for place, word in enumerate(XOR_WORDS)},
        "recorded_ns": [stated.time_ns] * len(rows),
        "store_id": [stated.store_id] * len(rows),
        "past": [None] * len(rows),
    }
    return pa.table([pa.array(columns[each.name], each.type) for each in CLAIMS], schema=CLAIMS)


def _agreed(claims: pa.Table, held: Sums) -> pa.Table:
    messages, words = held.of(_numbers(claims, "start_ns"), _numbers(claims, "end_ns"))
    agree = messages == _numbers(claims, "messages")
    for place, word in enumerate(XOR_WORDS):
        agree &= words[:, place] == _numbers(claims, word)
    return claims.filter(pa.array(agree))


def _answerable(claims: pa.Table, others: pa.Table) -> list[bool]:
    """Return which claims an archive with such rows must bear out."""
    by_store: dict[str, list[_Recorded]] = {}
    about = others.filter(pc.is_null(others["other_store_id"])).sort_by("recorded_ns")
    for row in about.select(["store_id", *_Recorded._fields]).to_pylist():
        by_store.setdefault(row.pop("store_id"), []).append(_Recorded(**row))
    wanted = claims.select(["other_store_id", "start_ns", "compared_ns", "recorded_ns"])
    return [
        _enclosed(each, by_store.get(each["other_store_id"], [])) for each in wanted.to_pylist()
    ]


class _Recorded(NamedTuple):
    """That an archive was brought up to date, from a horizon on."""

    recorded_ns: int
    start_ns: int
    past: str | None


def _enclosed(claim: Mapping[str, Any], recorded: Sequence[_Recorded]) -> bool:
    """Was the other archive brought up to date before and after, without a loss in between?

    ``recorded`` ascends.
    """
    when = itemgetter(0)
    before = bisect_right(recorded, claim["compared_ns"] - CLOCKS_NS, key=when) - 1
    after = bisect_left(recorded, claim["recorded_ns"] + CLOCKS_NS, key=when)
    if before < 0 or after == len(recorded):
        return False
    last, first = recorded[before], recorded[after]
    same_past = last.past is not None and last.past == first.past
    return same_past and first.start_ns <= claim["start_ns"]


def _numbers(table: pa.Table, name: str) -> _Numbers:
    numbers: _Numbers = table[name].to_numpy()
    return numbers


def _append(archive: DeltaArchive, rows: pa.Table) -> None:
    path, options = location_of(archive, CLAIMS_TABLE)
    try:
        write_deltalake(path, rows, mode="append", name="storenode claims", storage_options=options)
    except (DeltaError, OSError, ValueError) as error:
        raise of_store(path, error, "table of claims") from error
