"""The results of the last audit as Delta tables beside the archive.

::

    ARCHIVE/findings/hours/        what was audited: messages of each channel and hour
    ARCHIVE/findings/channels/     each channel's counts and its last complete point
    ARCHIVE/findings/references/   references to parents that are missing
    ARCHIVE/findings/faults/       violations, cycles, and channels not searched for these
    ARCHIVE/findings/conflicts/    IDs that different messages claim
    ARCHIVE/findings/ids/          all IDs, for what later messages say of them
    ARCHIVE/findings/plain/        messages that are none of SDS, for hints that name them

Each table is published by itself, all with the number of their audit: where a job was killed in
between, numbers differ, and the next audit begins anew. ``hours`` are replaced by whole days,
``ids`` and ``plain`` added to, the others replaced as a whole.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias
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
from store.pipeline.results.kept import (
    IDS,
    PLAIN,
    Ids,
    found,
    held,
    merged,
    to_merge,
    voided,
)
from store.pipeline.storage import delete, delta_options, for_reading, for_writing
from store.pipeline.tasks import Batches, spread
from store.pipeline.writing import day_text

FORMAT: Final = "what audits found, format 2"
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
        ("broken_message_id", pa.string()),
        ("broken_lamport", pa.int64()),
        ("unread", pa.bool_()),
    ]
)
"""``broken``: the first incomplete ID. ``unread``: a parent is held as a message that is none of
SDS."""

SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    "channels": CHANNELS,
    "references": REFERENCES.append(_HOUR),
    "faults": pa.schema([each for each in ARROW_FINDINGS if each.name != "data"]),
    "conflicts": CONFLICTS,
}
"""Of the tables that are replaced as a whole."""

_ADDED_TO: Final[Mapping[str, pa.Schema]] = {"ids": IDS, "plain": PLAIN}
_ALL: Final = {"hours": HOURS, **SCHEMAS, **_ADDED_TO}

Place = tuple[str, ...]
"""What a file's directory says: nothing, or of `HOURS` the day and what stands for its files."""

Rows: TypeAlias = DataFrame | pa.Table


class File(NamedTuple):
    """A file of a table: its path within it, what its directory says, and its rows."""

    path: str
    place: Place
    rows: int

    @property
    def number(self) -> int:
        """Of the audit that wrote it."""
        return int(self.path.rpartition("/")[2].split("-", 1)[0])


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
    """The tables of one audit: rows of `SCHEMAS`, and what stands for the files of each day.

    ``rows`` are how many there are of each of `SCHEMAS`; ``files`` those of each table.
    """

    session: SparkSession
    folder: str
    files: Mapping[str, Sequence[File]]

    @property
    def days(self) -> dict[str, str]:
        """What stands for the files of each day."""
        return dict(each.place for each in self.files["hours"])  # type: ignore[misc]

    @property
    def rows(self) -> int:
        """How many rows the tables of `SCHEMAS` have together."""
        return sum(each.rows for name in SCHEMAS for each in self.files[name])

    def table(self, name: str) -> DataFrame:
        """One of `SCHEMAS`, read by workers."""
        work = partial(_read, f"{self.folder}/{name}", SCHEMAS[name])
        return spread(self.session, work, self.files[name], SCHEMAS[name])

    def local(self, name: str) -> pa.Table:
        """The same, read here."""
        schema = SCHEMAS[name]
        return pa.Table.from_batches((rows for _, rows in self._batches(name, schema)), schema)

    def hours(self, days: set[str]) -> pa.Table:
        """The rows of `HOURS` of some days."""
        files = [each for each in self.files["hours"] if each.place[0] in days]
        rows = (part for each in files for part in _read(f"{self.folder}/hours", HOURS, each))
        return pa.Table.from_batches(rows, HOURS)

    def ids(self, digests: pa.Array) -> Ids:
        """What is kept of some IDs."""
        return found(self._batches("ids", IDS), digests)

    def plain(self, words: pa.Array) -> set[int]:
        """Which messages that are none of SDS are kept, by the first words of their hashes."""
        return held((rows for _, rows in self._batches("plain", PLAIN)), words)

    def _batches(self, name: str, schema: pa.Schema) -> Iterator[tuple[int, pa.RecordBatch]]:
        for each in self.files[name]:
            for rows in _read(f"{self.folder}/{name}", schema, each):
                yield each.number, rows


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
        opened = {name: self._open(name) for name in _ALL}
        there = {name: table for name, table in opened.items() if table is not None}
        if len(there) < len(opened) or len({_tag(table) for table in there.values()}) > 1:
            return None
        files = {name: _files(table) for name, table in there.items()}
        return Results(self._session, self._folder, files)

    def write(self, tables: Mapping[str, Sequence[Rows]], days: set[str] | None) -> None:
        """Let results take the place of what is there, and of ``hours`` those of some ``days``,
        with ``ids`` and ``plain`` added to what is there; days None: of all.

        Raises:
            PipelineError: they cannot be written, or another audit has written meanwhile.
        """
        tag = uuid.uuid4().hex
        for name in sorted(_ALL, key=lambda each: each == "hours"):
            self._replace(name, list(tables[name]), tag, days)

    def _replace(self, name: str, sources: list[Rows], tag: str, days: set[str] | None) -> None:
        folder, schema = f"{self._folder}/{name}", _ALL[name]
        by_day = list(_PLACE) if schema is HOURS else None
        table = self._open(name)
        number = 0 if table is None else table.version() + 1
        there = [] if table is None else _files(table)
        gone = [each.path for each in there]
        if days is not None and name == "hours":
            gone = [each.path for each in there if each.place[0] in days]
        elif days is not None and name in _ADDED_TO:
            gone = to_merge([(each.path, each.rows) for each in there])
            if gone:
                old = [each for each in there if each.path in gone]
                sources.append(_merged(folder, schema, old, sources))
        work_out = partial(_written, folder, f"{number:010}-{uuid.uuid4().hex}", schema)
        added = [_added(*row) for each in sources for row in _write(each, work_out, schema)]
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


def _merged(
    folder: str, schema: pa.Schema, files: Sequence[File], sources: Sequence[Rows]
) -> pa.Table:
    """The rows of some files, without what the ``sources`` that come with them void."""
    old = ((each.number, rows) for each in files for rows in _read(folder, schema, each))
    if schema is not IDS:
        return pa.Table.from_batches((rows for _, rows in old), schema)
    void = [name for each in sources if isinstance(each, pa.Table) for name in voided(each)]
    return merged(old, void)


def _tag(table: DeltaTable) -> str | None:
    return next((each[_TAG] for each in table.history(_HISTORY) if _TAG in each), None)


def _files(table: DeltaTable) -> list[File]:
    """The files of a table, in the order in which audits wrote them."""
    found = pa.table(table.get_add_actions(flatten=True))
    paths = [unquote(path) for path in found["path"].to_pylist()]
    rows = found["num_records"].to_pylist()
    places: list[Place] = [()] * len(paths)
    if "partition.day" in found.column_names:
        days = found["partition.day"].cast(pa.date32()).cast(pa.int32()).to_pylist()
        places = list(zip(map(day_text, days), found["partition.files"].to_pylist(), strict=True))
    files = map(File, paths, places, rows)
    return sorted(files, key=lambda each: (each.number, each.path))


def _read(folder: str, schema: pa.Schema, file: File) -> Batches:
    path, place, _ = file
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


def _write(rows: Rows, work: Callable[[Batches], Batches], schema: pa.Schema) -> list[list[Any]]:
    """Have files written, by workers if it is they who have the rows; `_ADDED` of each."""
    if isinstance(rows, pa.Table):
        ordered = rows.sort_by("day") if schema is HOURS else rows
        done = pa.Table.from_batches(work(iter(ordered.select(schema.names).to_batches())), _ADDED)
        return [list(row.values()) for row in done.to_pylist()]
    if schema is HOURS:
        rows = rows.repartition("day").sortWithinPartitions("day", "channel", "start_ns")
    made = rows.select(*schema.names).mapInArrow(work, from_arrow_schema(_ADDED))
    return [list(row) for row in made.collect()]


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
