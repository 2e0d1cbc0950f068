"""The table of the audits of an archive, by channel and over time.

::

    ARCHIVE/audits/     a Delta table: a row for each audit and channel, and one for all channels

It is for dashboards; no job reads it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.beside import AUDITS_TABLE, is_begun, location_of
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import of_store

MAX_CHANNELS: Final = 10_000
"""So many channels of one audit have a row, the least complete ones."""

_COUNTS: Final = ("messages", "missing", "incomplete", "orphans", "violations", "cycles")
_TIME: Final = pa.timestamp("us", "UTC")
AUDITS: Final = pa.schema(
    [
        pa.field("audited_at", _TIME, nullable=False),
        pa.field("channel", pa.string()),
        *(pa.field(name, pa.int64(), nullable=False) for name in _COUNTS),
        pa.field("complete_to", _TIME),
    ]
)
"""``channel`` null: all channels together. ``complete_to`` is the time of the last complete point:
up to there nothing is missing; null: from nowhere on, or of all channels.
"""


def note_audit(archive: DeltaArchive, channels: DataFrame, counts: Mapping[str, int]) -> None:
    """Append the result of an audit: ``channels`` as `CHANNELS`, and the ``counts`` of all.

    Raises:
        PipelineError: it cannot be written.
    """
    ordered = channels.orderBy(F.desc(F.col("missing") + F.col("incomplete")), "channel").select(
        "channel", *_COUNTS, "point_ts"
    )
    worst = ordered.limit(MAX_CHANNELS).toArrow()
    everything = pa.Table.from_pylist([{name: counts[name] for name in _COUNTS}], worst.schema)
    found = pa.concat_tables([everything, worst])
    now = pa.scalar(time.time_ns() // 1_000, pa.int64()).cast(_TIME)
    micros = pc.divide(found["point_ts"], 1_000).cast(_TIME)
    columns = [pa.repeat(now, len(found)), *(found[name] for name in ("channel", *_COUNTS)), micros]
    table = pa.table(columns, schema=AUDITS)
    is_begun(archive, AUDITS_TABLE)
    path, options = location_of(archive, AUDITS_TABLE)
    try:
        write_deltalake(
            path, table, mode="append", name="storenode audits", storage_options=options
        )
    except (DeltaError, OSError, ValueError) as error:
        raise of_store(path, error, "table of audits") from error
