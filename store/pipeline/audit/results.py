"""The results of the last audit, as a Delta table beside the archive.

::

    ARCHIVE/findings/result=sums/       messages of each channel and day: what was audited
    ARCHIVE/findings/result=channels/   each channel's counts and its last complete point
    ARCHIVE/findings/result=references/ references to parents that are missing
    ARCHIVE/findings/result=faults/     violations and cycles
    ARCHIVE/findings/result=conflicts/  IDs that different messages claim

Each commit replaces the last audit by the next one. Versions of the last week can be read, too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyspark.sql import DataFrame, SparkSession

from store.pipeline.audit.examine import RESULTS
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import PipelineError, of_store
from store.pipeline.files import delete, delta_options, listed
from store.pipeline.fingerprints import XOR_WORDS
from store.pipeline.limits import VACUUM_AFTER_HOURS
from store.pipeline.parquet import read_rows, write_rows

FORMAT: Final = "results of audits, format 6"
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

SCHEMAS: Final[Mapping[str, pa.Schema]] = {**RESULTS, "sums": SUMS}
"""The tables that record the last audit; columns of the other tables are null in each."""

_RESULT: Final = pa.field("result", pa.string(), nullable=False)
_FINDINGS: Final = pa.unify_schemas([pa.schema([_RESULT]), *SCHEMAS.values()])

_COMMIT: Final = "storenode.commit"
_CONFIGURATION: Final = {
    "delta.logRetentionDuration": f"interval {VACUUM_AFTER_HOURS} hours",
    "delta.deletedFileRetentionDuration": f"interval {VACUUM_AFTER_HOURS} hours",
}


def read_recorded(
    session: SparkSession, archive: DeltaArchive
) -> tuple[dict[str, DataFrame], str] | None:
    """Return the last audit, a table for each of `SCHEMAS`, and the digest of the commit it is of.

    None: there is none that this version has recorded.

    Raises:
        PipelineError: its results are damaged.
    """
    folder = f"{archive.path}/findings"
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
    tables = {
        name: read_rows(session, paths.get(name, []), schema.names, schema)
        for name, schema in SCHEMAS.items()
    }
    return tables, newest[_COMMIT]


def record(archive: DeltaArchive, tables: Mapping[str, DataFrame]) -> None:
    """Replace the results of the last audit by ``tables``, see `SCHEMAS`; workers write them."""
    folder, added = f"{archive.path}/findings", []
    for name, schema in SCHEMAS.items():
        part, rows = f"{_RESULT.name}={name}", tables[name].select(*schema.names)
        for file in write_rows(rows, f"{folder}/{part}", schema):
            path = f"{part}/{file['path']}"
            stats = json.dumps({"numRecords": file["rows"]})
            values = {_RESULT.name: name}
            now_ms = time.time_ns() // 1_000_000
            added.append(AddAction(path, file["size_bytes"], values, now_ms, True, stats))
    properties = CommitProperties(
        custom_metadata={_COMMIT: archive.manifest.before}, max_commit_retries=0
    )
    options = delta_options(archive.path)
    try:
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
    except CommitFailedError as error:
        raise PipelineError(
            f"Another audit of {archive.path} has written its results meanwhile: run this one"
            " again when the other has ended."
        ) from error
    except (DeltaError, OSError, ValueError) as error:
        raise of_store(archive.path, error, "results of audits") from error
    with _reading(folder):
        written = DeltaTable(folder, storage_options=options)
        old = written.vacuum(VACUUM_AFTER_HOURS, enforce_retention_duration=False)
        delete(folder, old)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
        sentence = of_store(path, error, "table").sentence
        raise PipelineError(
            f"{sentence} If it is damaged, remove {path}: the next audit examines everything."
        ) from error
