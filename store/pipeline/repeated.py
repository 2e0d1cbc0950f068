"""Messages that an archive's files hold more than once, in whichever directories.

They have one timestamp, so a task looks at some hours, in all files that have messages of them; and
an hour of too many messages is shared by several tasks, by a word of the hash. That word finds
nearly nothing, which then is compared in full.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Row, SparkSession

from store.pipeline.errors import SPARK_ERRORS, of_spark
from store.pipeline.files import batches_of
from store.pipeline.fingerprints import Fingerprints, numbers_of
from store.pipeline.limits import HOUR_NS, MAX_LISTED, MAX_PORTION_ROWS
from store.pipeline.tasks import in_portions, spread

_FOUND: Final = pa.schema([pa.field("count", pa.int64()), pa.field("where", pa.list_(pa.string()))])
_WORD: Final = "h0"


class Span(NamedTuple):
    """A file, and the first and the last hour that it has messages of."""

    path: str
    first_ns: int
    last_ns: int


class _Look(NamedTuple):
    """Where one task looks: hours from ``low_ns`` up to ``high_ns``, exclusive, in some files, and
    of these messages those whose word modulo ``parts`` is ``part``.
    """

    low_ns: int
    high_ns: int
    files: list[str]
    part: int
    parts: int


def repeated(session: SparkSession, held: Fingerprints, files: Sequence[Span]) -> list[Row]:
    """Rows of how many messages are there several times (``count``), and some of them (``where``).

    ``held`` is what some ``files`` hold by hour.

    Raises:
        PipelineError: a file cannot be read.
    """
    try:
        return spread(session, _found, _looks(session, held, files), _FOUND).collect()
    except SPARK_ERRORS as error:
        raise of_spark(error) from error


def _looks(session: SparkSession, held: Fingerprints, files: Sequence[Span]) -> list[_Look]:
    rows = {hour: each.messages for hour, each in held.items()}
    paths = np.array([each.path for each in files], object)
    first = np.array([each.first_ns for each in files], np.int64)
    last = np.array([each.last_ns for each in files], np.int64)
    looks = []
    for hours in in_portions(session, sorted(held), rows.__getitem__):
        within = sorted(paths[(first <= hours[-1]) & (last >= hours[0])].tolist())
        # Each part reads all of the files: a portion that is up to a half too large is one.
        parts = max(1, round(sum(rows[hour] for hour in hours) / MAX_PORTION_ROWS))
        ends = hours[0], hours[-1] + HOUR_NS
        looks += [_Look(*ends, within, part, parts) for part in range(parts)]
    return looks


def _found(look: _Look) -> Iterator[pa.RecordBatch]:
    read = [numbers_of(rows[_WORD]) for rows in _rows(look, ("ts", _WORD))]
    words = np.sort(np.concatenate([np.zeros(0, np.int64), *read]))
    alike = np.unique(words[1:][words[1:] == words[:-1]])
    if not len(alike):
        return
    table = pa.Table.from_batches(_rows(look, ("ts", "hash", _WORD), alike))
    counted = table.group_by(["ts", "hash"]).aggregate([([], "count_all")])
    several = counted.filter(pc.greater(counted["count_all"], 1)).sort_by("ts")
    if several.num_rows:
        where = [
            f"{(row['hash'] or b'').hex()} at {row['ts']}: {row['count_all']} times"
            for row in several.slice(0, MAX_LISTED).to_pylist()
        ]
        yield pa.record_batch([pa.array([several.num_rows]), pa.array([where])], schema=_FOUND)


def _rows(
    look: _Look, names: Sequence[str], alike: NDArray[np.int64] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows to be looked at, or those of them with some words."""
    for path in look.files:
        for rows in batches_of(path, names, look.low_ns, look.high_ns):
            ts, words = numbers_of(rows["ts"]), numbers_of(rows[_WORD])
            wanted = (ts >= look.low_ns) & (ts < look.high_ns)
            if look.parts > 1:
                wanted &= words % look.parts == look.part
            if alike is not None:
                wanted &= np.isin(words, alike)
            yield rows.filter(pa.array(wanted))
