"""The results of the last audit, as Delta tables beside the archive.

::

    ARCHIVE/findings/sums/         messages of each channel and day: what was audited
    ARCHIVE/findings/channels/     each channel's counts and its last complete point
    ARCHIVE/findings/references/   references to parents that are missing
    ARCHIVE/findings/faults/       violations and cycles
    ARCHIVE/findings/conflicts/    IDs that different messages claim

The commits of one audit have the same number, so results that a killed job wrote in part are
ignored: the next audit examines everything.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pyspark.sql import DataFrame, SparkSession

from store.pipeline.audit.findings import CHANNELS, CONFLICTS, FINDINGS, REFERENCES
from store.pipeline.columns import empty
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import PipelineError, of_store
from store.pipeline.fingerprints import XOR_WORDS
from store.pipeline.limits import VACUUM_AFTER_HOURS
from store.pipeline.paths import LOCAL
from store.pipeline.storage import delete, delta_options

FORMAT: Final = "results of audits, format 3"
"""Results of another format are ignored."""

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
"""The tables; that of sums is written last."""

_AUDIT: Final = "storenode.audit"
_DAYS: Final = "storenode.days"
_HISTORY: Final = 4
_CONFIGURATION: Final = {
    "delta.logRetentionDuration": f"interval {VACUUM_AFTER_HOURS} hours",
    "delta.deletedFileRetentionDuration": f"interval {VACUUM_AFTER_HOURS} hours",
}


@dataclass(frozen=True)
class RecordedAudit:
    """The tables of one audit; ``days`` are digests of the files that it audited, by day."""

    session: SparkSession
    tables: Mapping[str, DeltaTable]
    days: Mapping[int, str]

    def frame(self, name: str) -> DataFrame:
        """Return one of `SCHEMAS`."""
        return as_frame(self.session, self._read(name), SCHEMAS[name])

    def _read(self, name: str) -> pa.Table:
        schema, table = SCHEMAS[name], self.tables[name]
        try:
            return table.to_pyarrow_table(columns=schema.names).cast(schema)
        except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
            path = table.table_uri.removeprefix(LOCAL).rstrip("/")
            raise _unreadable(path, error) from error


def as_frame(session: SparkSession, table: pa.Table, schema: pa.Schema) -> DataFrame:
    """Return an Arrow table as a DataFrame, also if it is empty."""
    return session.createDataFrame(table) if len(table) else empty(session, schema)


def read_recorded(session: SparkSession, archive: DeltaArchive) -> RecordedAudit | None:
    """Return the last audit; None: there is none, or it was killed while it wrote its results.

    Raises:
        PipelineError: the tables cannot be read.
    """
    tables, audits, days = {}, set(), "{}"
    for name in SCHEMAS:
        table = _open(archive, name)
        if table is None:
            return None
        info = next((each for each in table.history(_HISTORY) if _AUDIT in each), {})
        audits.add(info.get(_AUDIT))
        days = info.get(_DAYS, "{}")
        tables[name] = table
    if len(audits) > 1 or None in audits:
        return None
    known = {int(day): str(digest) for day, digest in json.loads(days).items()}
    return RecordedAudit(session, tables, known)


def record(archive: DeltaArchive, frames: Mapping[str, DataFrame], days: Mapping[int, str]) -> None:
    """Replace the results of the last audit.

    Raises:
        PipelineError: they cannot be written, or another audit has written meanwhile.
    """
    audit = uuid.uuid4().hex
    for name, schema in SCHEMAS.items():
        path, options = f"{archive.path}/findings/{name}", delta_options(archive.path)
        table = _open(archive, name)
        metadata = {_AUDIT: audit, _DAYS: json.dumps(dict(days))}
        try:
            write_deltalake(
                path if table is None else table,
                frames[name].select(*schema.names).toArrow().cast(schema),
                mode="overwrite",
                schema_mode="overwrite",
                name=f"storenode {name}",
                description=FORMAT,
                configuration=_CONFIGURATION,
                storage_options=options,
                commit_properties=CommitProperties(custom_metadata=metadata, max_commit_retries=0),
            )
            written = DeltaTable(path, storage_options=options)
            old = written.vacuum(VACUUM_AFTER_HOURS, enforce_retention_duration=False)
            delete(path, old)
        except CommitFailedError as error:
            raise PipelineError(
                f"Another audit of {archive.path} has written its results meanwhile: run this one"
                " again when the other has ended."
            ) from error
        except (DeltaError, OSError, ValueError) as error:
            raise of_store(path, error, "table") from error


def _open(archive: DeltaArchive, name: str) -> DeltaTable | None:
    path = f"{archive.path}/findings/{name}"
    try:
        table = DeltaTable(path, storage_options=delta_options(archive.path))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    return table if table.metadata().description == FORMAT else None


def _unreadable(path: str, error: Exception) -> PipelineError:
    sentence = of_store(path, error, "table").sentence
    return PipelineError(
        f"{sentence} If it is damaged, remove {path}: the next audit examines everything."
    )
