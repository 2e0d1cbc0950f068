"""The results of audits, as Delta tables beside the archive.

::

    ARCHIVE/audits/                     a row for each audit and channel, and one for all channels
    ARCHIVE/findings/result=sums/       messages of each channel and day: what was audited
    ARCHIVE/findings/result=channels/   each channel's counts and its last complete point
    ARCHIVE/findings/result=references/ references to parents that are missing
    ARCHIVE/findings/result=faults/     violations and cycles
    ARCHIVE/findings/result=conflicts/  IDs that different messages claim

``audits`` is only appended to, and no job can compute it again. ``findings`` is one table, of which
each commit replaces the last audit by the next one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.audit.examine import CHANNELS, CONFLICTS, FINDINGS, REFERENCES
from store.pipeline.columns import empty
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import PipelineError, of_store
from store.pipeline.files import delete, delta_options, listed
from store.pipeline.fingerprints import XOR_WORDS
from store.pipeline.limits import VACUUM_AFTER_HOURS

FORMAT: Final = "results of audits, format 4"
"""Results of another format are ignored."""

MAX_CHANNELS: Final = 10_000
"""The least complete channels of one audit have a row in ``audits``."""

SUMS: Final = pa.schema(
    [
        ("channel", pa.string()),
        ("day", pa.int32()),
        ("count", pa.int64()),
        *((word, pa.int64()) for word in XOR_WORDS),
        ("entries", pa.int64()),
    ]
)
"""``channel`` is null for messages without SDS; ``day`` is since the epoch."""

SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    "channels": CHANNELS,
    "references": REFERENCES,
    "faults": FINDINGS,
    "conflicts": CONFLICTS,
    "sums": SUMS,
}
"""The results of the last audit; a result has nulls in the columns of the others."""

_RESULT: Final = pa.field("result", pa.string(), nullable=False)
_FINDINGS: Final = pa.unify_schemas([pa.schema([_RESULT]), *SCHEMAS.values()])

_COUNTS: Final = ("messages", "missing", "incomplete", "orphans", "violations", "cycles")
_TIME: Final = pa.timestamp("us", "UTC")
_AUDITS: Final = pa.schema(
    [
        pa.field("audited_at", _TIME, nullable=False),
        pa.field("channel", pa.string()),
        *(pa.field(name, pa.int64(), nullable=False) for name in _COUNTS),
        pa.field("complete_to", _TIME),
    ]
)
"""``channel`` null: all channels together. ``complete_to`` is the time of the last complete point:
up to there nothing is missing; null: from nowhere on, or of all channels."""

_DAYS: Final = "storenode.days"
_CONFIGURATION: Final = {
    "delta.logRetentionDuration": f"interval {VACUUM_AFTER_HOURS} hours",
    "delta.deletedFileRetentionDuration": f"interval {VACUUM_AFTER_HOURS} hours",
}


@dataclass(frozen=True)
class RecordedAudit:
    """The results of the last audit; ``days`` are digests of the files that it audited, by day."""

    session: SparkSession
    table: DeltaTable
    path: str
    days: Mapping[int, str]

    def frame(self, name: str) -> DataFrame:
        """Return one of `SCHEMAS`."""
        schema, only = SCHEMAS[name], [(_RESULT.name, "=", name)]
        with _reading(self.path):
            found = self.table.to_pyarrow_table(partitions=only, columns=schema.names).cast(schema)
        return self.session.createDataFrame(found) if len(found) else empty(self.session, schema)


def read_recorded(session: SparkSession, archive: DeltaArchive) -> RecordedAudit | None:
    """Return the last audit; None: there is none that this version has recorded."""
    table = _open_findings(archive)
    if table is None or table.metadata().description != FORMAT:
        return None
    (newest,) = table.history(1)
    if _DAYS not in newest:
        return None
    days = {int(day): str(digest) for day, digest in json.loads(newest[_DAYS]).items()}
    return RecordedAudit(session, table, _findings(archive), days)


def record(archive: DeltaArchive, frames: Mapping[str, DataFrame], days: Mapping[int, str]) -> None:
    """Replace the results of the last audit."""
    path, table = _findings(archive), _open_findings(archive)
    results = []
    for name, schema in SCHEMAS.items():
        rows = frames[name].select(*schema.names).toArrow().cast(schema)
        results.append(rows.add_column(0, _RESULT, pa.repeat(name, len(rows))))
    _write(
        archive,
        path if table is None else table,
        pa.concat_tables(results, promote_options="default").cast(_FINDINGS),
        "overwrite",
        schema_mode="overwrite",
        partition_by=[_RESULT.name],
        name="storenode findings",
        description=FORMAT,
        configuration=_CONFIGURATION,
        commit_properties=CommitProperties(
            custom_metadata={_DAYS: json.dumps(dict(days))}, max_commit_retries=0
        ),
    )
    with _reading(path):
        written = DeltaTable(path, storage_options=delta_options(archive.path))
        old = written.vacuum(VACUUM_AFTER_HOURS, enforce_retention_duration=False)
        delete(path, old)


def note_audit(archive: DeltaArchive, channels: DataFrame, counts: Mapping[str, int]) -> None:
    """Append the result of an audit to ``audits``; ``channels`` are as `CHANNELS`."""
    ordered = channels.orderBy(F.desc(F.col("missing") + F.col("incomplete")), "channel")
    worst = ordered.select("channel", *_COUNTS, "point_ts").limit(MAX_CHANNELS).toArrow()
    everything = pa.Table.from_pylist([{name: counts[name] for name in _COUNTS}], worst.schema)
    found = pa.concat_tables([everything, worst])
    now = pa.scalar(time.time_ns() // 1_000, pa.int64()).cast(_TIME)
    micros = pc.divide(found["point_ts"], 1_000).cast(_TIME)
    columns = [pa.repeat(now, len(found)), *(found[name] for name in ("channel", *_COUNTS)), micros]
    _stored_audits(archive)
    rows = pa.table(columns, schema=_AUDITS)
    _write(archive, f"{archive.path}/audits", rows, "append", name="storenode audits")


def damage(archive: DeltaArchive) -> list[str]:
    """Return a sentence for each thing that is wrong with ``audits``."""
    path = f"{archive.path}/audits"
    try:
        here = _stored_audits(archive)
        options = delta_options(archive.path)
        named = DeltaTable(path, storage_options=options).file_uris() if here else []
    except PipelineError as error:
        return [error.sentence]
    except (DeltaError, OSError, ValueError) as error:
        return [of_store(path, error, "table of audits").sentence]
    gone = sum(each.rsplit("/", 1)[-1] not in here for each in named)
    return [f"{path} lacks {gone:,} of the {len(named):,} files of its log"] if gone else []


def _stored_audits(archive: DeltaArchive) -> set[str]:
    """Return the files of ``audits`` and of its log."""
    path = f"{archive.path}/audits"
    try:
        found = set(listed(path))
    except OSError as error:
        raise of_store(path, error, "table of audits") from error
    files = sum(each.endswith(".parquet") for each in found)
    if files and not any(each.startswith("_delta_log/") for each in found):
        raise PipelineError(
            f"{path} holds {files:,} Parquet files, but the log that names them (_delta_log) is"
            " missing or damaged: put it back from a copy of the archive, or move the directory"
            " away, and the next job begins a new table."
        )
    return found


def _findings(archive: DeltaArchive) -> str:
    return f"{archive.path}/findings"


def _open_findings(archive: DeltaArchive) -> DeltaTable | None:
    path = _findings(archive)
    with _reading(path):
        try:
            return DeltaTable(path, storage_options=delta_options(archive.path))
        except TableNotFoundError:
            return None


def _write(
    archive: DeltaArchive,
    table: str | DeltaTable,
    rows: pa.Table,
    mode: Literal["append", "overwrite"],
    **options: Any,  # noqa: ANN401 - of write_deltalake
) -> None:
    try:
        write_deltalake(
            table, rows, mode=mode, storage_options=delta_options(archive.path), **options
        )
    except CommitFailedError as error:
        raise PipelineError(
            f"Another audit of {archive.path} has written its results meanwhile: run this one"
            " again when the other has ended."
        ) from error
    except (DeltaError, OSError, ValueError) as error:
        raise of_store(archive.path, error, "results of audits") from error


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
        sentence = of_store(path, error, "table").sentence
        raise PipelineError(
            f"{sentence} If it is damaged, remove {path}: the next audit examines everything."
        ) from error
