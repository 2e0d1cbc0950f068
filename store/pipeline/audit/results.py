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
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.audit.examine import CHANNELS, CONFLICTS, FINDINGS, REFERENCES
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import PipelineError, of_store
from store.pipeline.files import delete, delta_options, listed
from store.pipeline.fingerprints import XOR_WORDS
from store.pipeline.limits import VACUUM_AFTER_HOURS
from store.pipeline.parquet import read_rows, write_rows

FORMAT: Final = "results of audits, format 5"
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

_COMMIT: Final = "storenode.commit"
_CONFIGURATION: Final = {
    "delta.logRetentionDuration": f"interval {VACUUM_AFTER_HOURS} hours",
    "delta.deletedFileRetentionDuration": f"interval {VACUUM_AFTER_HOURS} hours",
}


@dataclass(frozen=True)
class RecordedAudit:
    """The results of the last audit, of an archive up to the commit with the digest ``commit``."""

    session: SparkSession
    archive: DeltaArchive
    paths: Mapping[str, list[str]]
    commit: str

    def frame(self, name: str) -> DataFrame:
        """Return one of `SCHEMAS`, which workers read."""
        schema = SCHEMAS[name]
        return read_rows(self.session, self.paths.get(name, []), schema.names, schema)


def read_recorded(session: SparkSession, archive: DeltaArchive) -> RecordedAudit | None:
    """Return the last audit; None: there is none that this version has recorded.

    Raises:
        PipelineError: its results are damaged.
    """
    folder = _findings(archive)
    with _reading(folder):
        try:
            table = DeltaTable(folder, storage_options=delta_options(archive.path))
        except TableNotFoundError:
            return None
        (newest,) = table.history(1)
        if table.metadata().description != FORMAT or _COMMIT not in newest:
            return None
        files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        there = set(listed(folder))
        paths: dict[str, list[str]] = {}
        for file in files:
            path = unquote(file["path"])
            if path not in there:
                raise OSError(f"{path} is missing")
            paths.setdefault(file[f"partition.{_RESULT.name}"], []).append(f"{folder}/{path}")
    return RecordedAudit(session, archive, paths, newest[_COMMIT])


def record(archive: DeltaArchive, frames: Mapping[str, DataFrame], commit: str) -> None:
    """Replace the results of the last audit, which workers write.

    ``commit`` is the digest of the newest commit that was audited.
    """
    folder, added = _findings(archive), []
    for name, schema in SCHEMAS.items():
        part, rows = f"{_RESULT.name}={name}", frames[name].select(*schema.names)
        for file in write_rows(rows, f"{folder}/{part}", name=uuid.uuid4().hex):
            path = file["path"].removeprefix(f"{folder}/")
            stats = json.dumps({"numRecords": file["rows"]})
            values = {_RESULT.name: name}
            now_ms = time.time_ns() // 1_000_000
            added.append(AddAction(path, file["size_bytes"], values, now_ms, True, stats))
    properties = CommitProperties(custom_metadata={_COMMIT: commit}, max_commit_retries=0)
    options = delta_options(archive.path)
    with _committing(archive):
        create_table_with_add_actions(
            folder,
            Schema.from_arrow(_FINDINGS),
            added,
            mode="overwrite",
            partition_by=[_RESULT.name],
            name="storenode findings",
            description=FORMAT,
            configuration=_CONFIGURATION,
            storage_options=options,
            commit_properties=properties,
        )
    with _reading(folder):
        written = DeltaTable(folder, storage_options=options)
        old = written.vacuum(VACUUM_AFTER_HOURS, enforce_retention_duration=False)
        delete(folder, old)


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
    with _committing(archive):
        write_deltalake(
            f"{archive.path}/audits",
            rows,
            mode="append",
            name="storenode audits",
            storage_options=delta_options(archive.path),
        )


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


@contextmanager
def _committing(archive: DeltaArchive) -> Iterator[None]:
    try:
        yield
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
