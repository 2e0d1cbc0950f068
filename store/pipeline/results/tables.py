"""The results of the last audit as Delta tables beside the archive.

::

    ARCHIVE/findings/hours/        what was audited: messages of each channel and hour
    ARCHIVE/findings/channels/     each channel's counts and its last complete point
    ARCHIVE/findings/references/   references to parents that are missing
    ARCHIVE/findings/faults/       violations, cycles, and channels not searched for these
    ARCHIVE/findings/conflicts/    IDs that different messages claim

Workers write and read the files. Each table is published by itself, all with the number of their
audit: where a job was killed in between, numbers differ, and the next audit begins anew. ``hours``
are replaced by whole days, the others as a whole.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from store.pipeline.causal.packed import runs
from store.pipeline.causal.reported import CONFLICTS, REFERENCES
from store.pipeline.causal.rows import ARROW_FINDINGS, COUNTS
from store.pipeline.errors import PipelineError, of_store
from store.pipeline.files import rows_and_bytes
from store.pipeline.fingerprints import XOR_WORDS
from store.pipeline.limits import VACUUM_AFTER_HOURS
from store.pipeline.storage import delete, delta_options, for_reading, for_writing
from store.pipeline.tasks import Batches, spread
from store.pipeline.writing import day_text

FORMAT: Final = "what audits found, format 1"
"""Results of another format are passed over: the next audit begins anew."""

_TAG: Final = "storenode.audit"
_HISTORY: Final = 4
_KEPT: Final = {
    "delta.logRetentionDuration": f"interval {VACUUM_AFTER_HOURS} hours",
    "delta.deletedFileRetentionDuration": f"interval {VACUUM_AFTER_HOURS} hours",
    # Nothing is said of the bounds of columns, and readers must not take that for no values.
    "delta.dataSkippingNumIndexedCols": "0",
}
_HOUR: Final = pa.field("hour", pa.timestamp("us", "UTC"))

HOURS: Final = pa.schema(
    [
        ("day", pa.date32()),
        ("channel", pa.string()),
        ("start_ns", pa.int64()),
        _HOUR,
        ("messages", pa.int64()),
        *((word, pa.int64()) for word in XOR_WORDS),
        ("files", pa.string()),
    ]
)
"""``channel`` null: messages that are none of SDS. ``files`` stands for the files of the day, by
which a day is known again."""

CHANNELS: Final = pa.schema(
    [
        ("channel", pa.string()),
        *((name, pa.int64()) for name in (*COUNTS, "missing", "cycles")),
        ("point_message_id", pa.string()),
        ("point_lamport", pa.int64()),
        ("point_ts", pa.int64()),
        ("unread", pa.bool_()),
    ]
)
"""``unread``: a parent is held as a message that is none of SDS."""

SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    "channels": CHANNELS,
    "references": REFERENCES.append(_HOUR),
    "faults": ARROW_FINDINGS,
    "conflicts": CONFLICTS,
}
"""Of the tables that are replaced as a whole."""

Place = tuple[str, ...]
"""What a file's directory says: nothing, or of `HOURS` the day and what stands for its files."""

_PLACE: Final = ("day", "files")
_ADDED: Final = pa.schema(
    [
        ("path", pa.string()),
        ("place", pa.list_(pa.string())),
        ("size_bytes", pa.int64()),
        ("rows", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Results:
    """The tables of one audit: rows of `SCHEMAS` and of `HOURS`, and what stands for the files of
    each day.
    """

    tables: Mapping[str, DataFrame]
    hours: DataFrame
    days: Mapping[str, str]


class ResultTables:
    """The tables of an archive at a path that was `checked`."""

    def __init__(self, session: SparkSession, archive: str) -> None:
        self._session = session
        self._archive = archive
        self._folder = f"{archive}/findings"
        self._options = delta_options(archive)

    def read(self) -> Results | None:
        """What the last audit wrote; None: there is none, or it was killed while it wrote.

        Raises:
            PipelineError: the tables cannot be read.
        """
        opened = {name: self._open(name) for name in ("hours", *SCHEMAS)}
        found = {name: table for name, table in opened.items() if table is not None}
        if len(found) < len(opened) or len({_tag(table) for table in found.values()}) > 1:
            return None
        paths = {name: _paths(table) for name, table in found.items()}
        days = {day: files for _, (day, files) in paths["hours"]}
        tables = {name: self._rows(name, SCHEMAS[name], paths[name]) for name in SCHEMAS}
        return Results(tables, self._rows("hours", HOURS, paths["hours"]), days)

    def write(
        self, tables: Mapping[str, DataFrame], hours: DataFrame, days: set[str] | None
    ) -> None:
        """Let results take the place of what is there, and of ``hours`` those of some ``days``;
        None: of all.

        Raises:
            PipelineError: they cannot be written, or another audit has written meanwhile.
        """
        tag = uuid.uuid4().hex
        for name, schema in SCHEMAS.items():
            self._replace(name, tables[name], schema, tag)
        self._replace("hours", hours, HOURS, tag, days)

    def _replace(
        self,
        name: str,
        rows: DataFrame,
        schema: pa.Schema,
        tag: str,
        days: set[str] | None = None,
    ) -> None:
        folder = f"{self._folder}/{name}"
        by_day = list(_PLACE) if schema is HOURS else None
        if by_day is not None:
            rows = rows.repartition("day").sortWithinPartitions("day", "channel", "start_ns")
        table = self._open(name)
        work = partial(_written, folder, uuid.uuid4().hex, schema)
        named = rows.select(*schema.names)
        done = named.mapInArrow(work, from_arrow_schema(_ADDED)).collect()
        added = [_added(*row) for row in done]
        about = CommitProperties(custom_metadata={_TAG: tag}, max_commit_retries=0)
        try:
            if table is None:
                create_table_with_add_actions(
                    folder,
                    Schema.from_arrow(schema),
                    added,
                    mode="overwrite",  # one of another format may be there
                    partition_by=by_day,
                    name=f"storenode {name}",
                    description=FORMAT,
                    configuration=_KEPT,
                    storage_options=self._options,
                    commit_properties=about,
                )
                return
            gone = [path for path, place in _paths(table) if days is None or place[0] in days]
            now_ms = time.time_ns() // 1_000_000
            actions: list[AddAction | RemoveAction] = [
                RemoveAction(path, True, now_ms) for path in gone
            ]
            table.create_write_transaction(
                [*actions, *added],
                "append",
                Schema.from_arrow(schema),
                by_day,
                commit_properties=about,
            )
            delete(folder, table.vacuum(VACUUM_AFTER_HOURS, enforce_retention_duration=False))
        except CommitFailedError as error:
            raise PipelineError(
                f"Another audit of {self._archive} has written its results meanwhile: run this one"
                " again when the other has ended."
            ) from error
        except (DeltaError, OSError, ValueError) as error:
            raise of_store(folder, error, "table") from error

    def _open(self, name: str) -> DeltaTable | None:
        folder = f"{self._folder}/{name}"
        try:
            table = DeltaTable(folder, storage_options=self._options)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError, ValueError) as error:
            raise _unreadable(folder, "", error) from error
        return table if table.metadata().description == FORMAT else None

    def _rows(self, name: str, schema: pa.Schema, paths: list[tuple[str, Place]]) -> DataFrame:
        folder = f"{self._folder}/{name}"
        work = partial(_read, folder, schema)
        return spread(self._session, work, paths, schema)


def _tag(table: DeltaTable) -> str | None:
    return next((each[_TAG] for each in table.history(_HISTORY) if _TAG in each), None)


def _paths(table: DeltaTable) -> list[tuple[str, Place]]:
    """The files of a table, with the place of each."""
    found = pa.table(table.get_add_actions(flatten=True))
    paths = [unquote(path) for path in found["path"].to_pylist()]
    if "partition.day" not in found.column_names:
        return [(path, ()) for path in paths]
    days = found["partition.day"].cast(pa.date32()).cast(pa.int32()).to_pylist()
    places = zip(map(day_text, days), found["partition.files"].to_pylist(), strict=True)
    return list(zip(paths, places, strict=True))


def _read(folder: str, schema: pa.Schema, file: tuple[str, Place]) -> Batches:
    path, place = file
    names = [name for name in schema.names if not place or name not in _PLACE]
    try:
        with for_reading(f"{folder}/{path}") as source, pq.ParquetFile(source) as opened:
            for batch in opened.iter_batches(columns=names, use_threads=False):
                held = {name: batch[name] for name in names}
                for name, text in zip(_PLACE, place, strict=bool(place)):
                    value = pa.scalar(text, pa.string()).cast(schema.field(name).type)
                    held[name] = pa.repeat(value, len(batch))
                columns = [held[each.name].cast(each.type) for each in schema]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise _unreadable(folder, f"/{path}", error) from error


def _unreadable(folder: str, within: str, error: Exception) -> PipelineError:
    told = of_store(f"{folder}{within}", error, "table").sentence
    return PipelineError(f"{told} If it is damaged, remove {folder}: the next audit begins anew.")


def _written(folder: str, run: str, schema: pa.Schema, batches: Batches) -> Batches:
    """Write what a task has to a file, or to one for each place as they follow each other."""
    placed = set(_PLACE) <= set(schema.names)
    kept = pa.schema([each for each in schema if not (placed and each.name in _PLACE)])
    for place, parts in groupby(_parts(batches, placed=placed), itemgetter(0)):
        path = f"{run}-{uuid.uuid4().hex}.parquet"
        if place:
            path = f"day={place[0]}/{path}"
        rows = 0
        with (
            for_writing(f"{folder}/{path}") as sink,
            pq.ParquetWriter(sink, kept, compression="zstd") as file,
        ):
            for _, part in parts:
                columns = [part[each.name].cast(each.type) for each in kept]
                file.write_batch(pa.RecordBatch.from_arrays(columns, schema=kept))
                rows += len(part)
        size = rows_and_bytes(f"{folder}/{path}")[1]
        yield pa.record_batch([[path], [list(place)], [size], [rows]], schema=_ADDED)


def _parts(batches: Batches, *, placed: bool) -> Iterator[tuple[Place, pa.RecordBatch]]:
    """What is not empty, with its place; rows of a day are next to each other."""
    for batch in batches:
        if not len(batch):
            continue
        if not placed:
            yield (), batch
            continue
        days = batch["day"].cast(pa.int32()).to_numpy()
        for low, high in runs(days):
            yield (
                (day_text(int(days[low])), batch["files"][low].as_py()),
                batch.slice(low, high - low),
            )


def _added(path: str, place: list[str], size_bytes: int, rows: int) -> AddAction:
    values = dict(zip(_PLACE, place, strict=bool(place)))
    now_ms = time.time_ns() // 1_000_000
    return AddAction(path, size_bytes, values, now_ms, True, json.dumps({"numRecords": rows}))
