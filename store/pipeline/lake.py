"""An archive: the messages of a store in Parquet files, published as a Delta table.

::

    ARCHIVE/messages/                      the Delta table, partitioned by day and shard
    ARCHIVE/messages/run-ID/day=…/shard=…  what one job wrote; part of the table once published
    ARCHIVE/hours/                         a Delta table: what the table above holds, by hour
    ARCHIVE/manifest/                      what it must hold, see `store.pipeline.manifest`
    ARCHIVE/unpublished/                   runs that are under way, see `store.pipeline.runs`

Workers write and read the files (`store.pipeline.storage`), delta-rs writes the log. A job
publishes in one commit, which succeeds only if nobody else has published since the job read the
table's state. So whatever is killed, the table holds what the last commit says, and files that
none names are nobody's. ``hours`` is derived from the messages: a row counts as long as the files
of its day are those that it was computed from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from store.pipeline.actions import Written, addition, day_of, removal, run_of
from store.pipeline.columns import ARROW, PARTITIONS
from store.pipeline.errors import USAGE, PipelineError, of_store
from store.pipeline.fingerprints import XOR_WORDS, Fingerprint, Fingerprints
from store.pipeline.limits import (
    DAY_NS,
    MAX_PARQUET_FILES,
    VACUUM_AFTER_HOURS,
)
from store.pipeline.listing import Listing, Row
from store.pipeline.paths import checked, for_spark, on_store, require_room, require_visible
from store.pipeline.runs import begin_run, delete_abandoned, unmark
from store.pipeline.storage import (
    Stored,
    delta_options,
    listed,
    move_folder,
    require_reachable,
    settle,
)

FORMAT_VERSION: Final = "1"
_NAME: Final = "storenode messages"
_FORMAT: Final = "messages of a store node, format "
_KEPT: Final = {
    "delta.logRetentionDuration": f"interval {VACUUM_AFTER_HOURS} hours",
    "delta.deletedFileRetentionDuration": f"interval {4 * VACUUM_AFTER_HOURS} hours",
}
"""Of the log as long as of the files: who follows commits every minute. The log remembers which
files have gone for longer than they stay, since only those are deleted that it knows of."""

_STATISTICS: Final = "delta.dataSkippingStatsColumns"
"""Without it, delta-rs takes columns whose bounds the log does not have for ones without a value,
and filters of Arrow's datasets on them find nothing, or everything.
"""

_NOTE: Final = "storenode."
_ENTRIES: Final = f"{_NOTE}entries"
"""In a commit: how many entries the manifest had before it, which cannot be fewer later."""

_HISTORY: Final = 100
"""Commits that are searched for that: others than those of jobs do not have it."""

_LOG_FOLDERS: Final = 4
"""Above a file of the log: the log, the table, the archive, and what that lies in."""

_HOURS: Final = pa.schema(
    [
        pa.field("start_ns", pa.int64(), nullable=False),
        pa.field("day", pa.int64(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        *(pa.field(word, pa.int64(), nullable=False) for word in XOR_WORDS),
        pa.field("files", pa.string(), nullable=False),
    ]
)


class LakeFile(NamedTuple):
    """A file of the table: where it is for Spark, its directory, its size and number of rows."""

    path: str
    day: int
    shard: int
    size_bytes: int
    rows: int

    @property
    def key(self) -> tuple[int, int]:
        """Day (since the epoch) and shard."""
        return self.day, self.shard

    def place(self) -> tuple[int, int, str]:
        """By which files are in the order of time."""
        return self.day, self.shard, self.path

    def size(self) -> int:
        """In messages."""
        return self.rows


class Lake:
    """One archive, in a directory or on an object store."""

    def __init__(self, path: str) -> None:
        """No file is looked at yet.

        Raises:
            PipelineError: the path is none, see `store.pipeline.paths.checked`.
        """
        self.path = checked(path)
        self.messages = for_spark(f"{self.path}/messages")
        self._log = f"{self.path}/messages"
        self._hours = f"{self.path}/hours"
        self._table: DeltaTable | None = None
        self._listing: Listing | None = None
        self._digests: dict[int, str] | None = None
        self.entries: int | None = None
        """How many entries the manifest has, for what is published from now on to say so."""

    @property
    def exists(self) -> bool:
        """Whether an archive was begun there.

        Raises:
            PipelineError: the store of the archive does not answer.
        """
        return self._is_table(self._log)

    def open(self, version: int | None = None) -> Lake:
        """Read the newest state, or that of an earlier commit.

        Raises:
            PipelineError: there is no archive, or something that is none.
        """
        try:
            require_reachable(self.path)
            self._table = self._delta(self._log, version)
        except TableNotFoundError as error:
            self._require_no_files()
            self._require_no_manifest()
            raise PipelineError(
                f"There is no archive in {self.path}: check the path, or make one with"
                " `storenode pipeline archive`.",
                USAGE,
            ) from error
        except (DeltaError, OSError, ValueError) as error:
            raise of_store(self.path, error) from error
        self._listing = self._digests = None
        self._check()
        return self

    def renew(self) -> Lake:
        """Read the newest state again: only what was committed since, where that is possible.

        Raises:
            PipelineError: as `open`.
        """
        before = None if self._table is None else self.version
        if before is not None:
            self._go_on()
        if before is None or not self._opened.history(1):  # the log is not the one that it was
            return self.open()
        if self.version != before:
            self._digests = None
        return self

    def _go_on(self) -> None:
        """Read what was committed since the state was read."""
        try:
            self._opened.update_incremental()
        except (DeltaError, OSError, ValueError) as error:
            raise of_store(self.path, error) from error
        self._listing = None

    def require_usable(self) -> None:
        """Make sure that an archive is here, or may be begun.

        Raises:
            PipelineError: something else is here, or an archive that cannot be read.
        """
        if self.exists:
            self.open()
        else:
            require_room(self.path)
            self._require_no_files()

    def create(self) -> Lake:
        """Begin an archive where there is none, and read its state.

        Raises:
            PipelineError: the path cannot be written to, or an archive there has lost its log.
        """
        if self.exists:
            return self.open()._with_statistics()
        self._require_no_files()
        return self._begin([])

    def _with_statistics(self) -> Lake:
        """Tell readers which statistics the log has, where an earlier version has not."""
        if _STATISTICS not in self._opened.metadata().configuration:
            self._commit(lambda: self._opened.alter.set_table_properties({_STATISTICS: "ts"}))
        return self

    def _begin(self, written: Sequence[Written]) -> Lake:
        """Write the first commit of the log, and read the state."""
        try:
            create_table_with_add_actions(
                self._log,
                Schema.from_arrow(ARROW),
                [addition(each, new=True) for each in written],
                mode="error",
                partition_by=list(PARTITIONS),
                name=_NAME,
                description=f"{_FORMAT}{FORMAT_VERSION}",
                configuration={**_KEPT, _STATISTICS: "ts"},
                storage_options=self._options,
            )
        except (DeltaError, OSError, ValueError) as error:
            if written or not self.exists:  # else another job was faster
                raise of_store(self.path, error) from error
        self.open()
        self._settle_log(0)
        return self

    def open_if_readable(self) -> bool:
        """Read the newest state, unless the log is missing or damaged; whether it was read.

        Raises:
            PipelineError: something else is there, or an archive of another version.
        """
        try:
            self._table = self._delta(self._log)
        except (DeltaError, OSError, ValueError):
            return False
        self._check()
        return True

    def create_from(self, written: Sequence[Written]) -> str | None:
        """Make a log anew that names some files of the table, in place of one that is missing or
        damaged; returns where the damaged one is now, if there was one.

        Raises:
            PipelineError: it cannot be moved or written.
        """
        self._require_ready(written)
        aside = self._move_log()
        self._begin(written)
        return aside

    def _move_log(self) -> str | None:
        try:
            if not listed(f"{self._log}/_delta_log"):
                return None
            aside = f"damaged-log-{time.time_ns()}"
            move_folder(self.path, "messages/_delta_log", aside)
        except OSError as error:
            raise of_store(self.path, error) from error
        return f"{self.path}/{aside}"

    def stored(self) -> list[Stored]:
        """What there is in the folder of the table, whether the log names it or not.

        Raises:
            PipelineError: it cannot be listed.
        """
        try:
            return listed(self._log)
        except OSError as error:
            raise of_store(self.path, error) from error

    def _require_no_manifest(self) -> None:
        try:
            entries = len(listed(f"{self.path}/manifest"))
        except OSError as error:
            raise of_store(self.path, error) from error
        if entries:
            raise PipelineError(
                f"{self.path} has a manifest, but the table that it is about, {self.path}/messages,"
                " is gone: put it back from a copy of the archive. `storenode pipeline archive`"
                " begins it anew with what the database still holds.",
                USAGE,
            )

    def _require_no_files(self) -> None:
        """A table made anew over the files of a lost log would in time delete them all."""
        files = sum(each.path.endswith(".parquet") for each in self.stored())
        if files:
            raise PipelineError(
                f"{self.path}/messages holds {files:,} Parquet files, but the log that names them"
                " (_delta_log) is missing or damaged: `storenode pipeline repair` makes it anew, or"
                " put it back from a copy of the archive. Nothing was changed.",
                USAGE,
            )

    def files(self, days: Iterable[int] | None = None) -> list[LakeFile]:
        """The files of the state that was read, of some days only if they are given.

        Raises:
            PipelineError: there are more than `MAX_PARQUET_FILES`.
        """
        found = self.listing
        if len(found) > MAX_PARQUET_FILES:
            raise PipelineError(
                f"The archive has {len(found)} files, and at most {MAX_PARQUET_FILES} can be read"
                " at once: split it by time."
            )
        return self._as_files(found.rows(None if days is None else set(days)))

    def named(self, names: set[str]) -> list[LakeFile]:
        """The files of the state that was read at some paths within the table."""
        return self._as_files(self.listing.named(names) if names else ())

    def _as_files(self, rows: Iterable[Row]) -> list[LakeFile]:
        return [LakeFile(f"{self.messages}/{path}", *rest) for path, *rest in rows]

    @property
    def listing(self) -> Listing:
        """The files of the state that was read."""
        if self._listing is None:
            self._listing = Listing(self._opened)
        return self._listing

    def publish(self, written: Sequence[Written], note: Mapping[str, str]) -> None:
        """Add files to the table, all or none.

        Raises:
            PipelineError: somebody else has published since the state was read, or this process
                does not see the files.
        """
        self._require_ready(written)
        self._write(
            [addition(each, new=True) for each in written],
            {f"{_NOTE}{name}": text for name, text in note.items()},
            {day_of(each) for each in written},
        )

    def begin_run(self) -> str:
        """The name of a new folder in the table, for files that are to be published.

        Raises:
            PipelineError: nothing can be written.
        """
        try:
            return begin_run(self.path)
        except (DeltaError, OSError, ValueError) as error:
            raise of_store(self.path, error) from error

    def end_run(self, *runs: str) -> None:
        """Say that the files of runs, if there are any, may be named by the log from now on.

        Raises:
            PipelineError: nothing can be written.
        """
        try:
            unmark(self.path, runs)
        except (DeltaError, OSError, ValueError) as error:
            raise of_store(self.path, error) from error

    def _require_ready(self, written: Sequence[Written]) -> None:
        require_visible(self.path, [f"messages/{each.path}" for each in written])
        self.end_run(*{run_of(each.path) for each in written})

    @property
    def version(self) -> int:
        """Number of the newest commit of the state that was read."""
        return int(self._opened.version())

    @property
    def entries_noted(self) -> int:
        """How many entries the manifest had by the newest commits; 0: they do not say."""
        for limit in (1, _HISTORY):
            for each in self._opened.history(limit):
                if _ENTRIES in each:
                    return int(each[_ENTRIES])
        return 0

    @property
    def changed_ns(self) -> int:
        """When the state that was read was committed."""
        (entry,) = self._opened.history(1)
        return int(entry["timestamp"]) * 1_000_000

    def within(self, file: LakeFile) -> str:
        """The path of a file in the table."""
        return file.path.removeprefix(f"{self.messages}/")

    def _write(
        self, actions: list[AddAction | RemoveAction], note: dict[str, str], days: set[int]
    ) -> None:
        """Commit; what stands for the files changes of some days only."""
        before, digests = self.version, self._digests
        if self.entries is not None:
            note = {**note, _ENTRIES: str(self.entries)}
        self._commit(
            lambda: self._opened.create_write_transaction(
                actions,
                "append",
                Schema.from_arrow(ARROW),
                list(PARTITIONS),
                commit_properties=CommitProperties(
                    custom_metadata=note,
                    max_commit_retries=0,
                ),
            )
        )
        # Files of another job that are in the state by now were never looked at here.
        if self.version != before + 1:
            raise self._conflict()
        if digests is not None:
            kept = {day: each for day, each in digests.items() if day not in days}
            self._digests = kept | self.listing.digests(days)

    def replace(self, gone: Iterable[LakeFile], written: Sequence[Written]) -> None:
        """Let files take the place of others that hold the same messages, all or none.

        Raises:
            PipelineError: somebody else has published since the state was read.
        """
        self._require_ready(written)
        old = list(gone)
        actions: list[AddAction | RemoveAction] = [removal(self.within(each)) for each in old]
        days = {each.day for each in old} | {day_of(each) for each in written}
        self._write([*actions, *(addition(each, new=False) for each in written)], {}, days)

    def crowded(self) -> list[LakeFile]:
        """Small files that should be made one per directory, since it has so many of their size.

        Files of about the same size are taken together, so that no message is written again with
        every few that come: a few times in all, see `COMPACTION_STEPS`.
        """
        return self._as_files(self.listing.crowded())

    def vacuum(self) -> int:
        """Delete files that the log has named and no state of the last `VACUUM_AFTER_HOURS` names,
        and as old ones of jobs that were killed; how many.

        What else lies in the table stays: it may be all that is left of what a lost log had named.
        """
        found: list[str] = []
        self._commit(
            lambda: found.extend(
                self._opened.vacuum(
                    VACUUM_AFTER_HOURS, dry_run=False, enforce_retention_duration=False, full=False
                )
            )
        )
        named = {run_of(path) for path in self.listing.paths.to_pylist()}
        try:
            if self._is_table(self._hours):
                hours = self._delta(self._hours)
                found += hours.vacuum(
                    VACUUM_AFTER_HOURS, dry_run=False, enforce_retention_duration=False, full=True
                )
            return len(found) + delete_abandoned(self.path, named)
        except (DeltaError, OSError, ValueError) as error:
            raise of_store(self.path, error) from error

    def hours(self) -> Fingerprints:
        """What the table holds by hour, of the days for which that is known."""
        if not self._is_table(self._hours):
            return {}
        digests = self.digests()
        rows = self._delta(self._hours).to_pyarrow_table().to_pylist()
        return {
            row["start_ns"]: Fingerprint(row["count"], *(row[word] for word in XOR_WORDS))
            for row in rows
            if digests.get(row["day"]) == row["files"]
        }

    def unknown_days(self, hours: Fingerprints) -> list[int]:
        """Days whose hours must be computed from the files anew, as ``hours`` has them not."""
        return sorted(self.digests().keys() - {start // DAY_NS for start in hours})

    def note_hours(self, days: Iterable[int], hours: Fingerprints) -> None:
        """Keep what the hours of some days are, as computed from the state that was read."""
        wanted = sorted(days)
        if not wanted:
            return
        digests = self.digests()
        rows = [
            {
                "start_ns": start,
                "day": start // DAY_NS,
                "files": digests[start // DAY_NS],
                "count": each.messages,
                **dict(zip(XOR_WORDS, each[1:], strict=True)),
            }
            for start, each in sorted(hours.items())
            if start // DAY_NS in digests and start // DAY_NS in set(wanted)
        ]
        table = pa.Table.from_pylist(rows, _HOURS)
        listed_days = ", ".join(map(str, wanted))
        try:
            if self._is_table(self._hours):
                write_deltalake(
                    self._hours,
                    table,
                    mode="overwrite",
                    predicate=f"day in ({listed_days})",
                    storage_options=self._options,
                )
            else:
                write_deltalake(
                    self._hours,
                    table,
                    name="storenode hours",
                    configuration=_KEPT,
                    storage_options=self._options,
                )
        except CommitFailedError as error:
            raise self._conflict() from error
        except (DeltaError, OSError, ValueError) as error:
            raise of_store(self.path, error) from error

    def digests(self) -> Mapping[int, str]:
        """By day since the epoch, what stands for the set of its files."""
        if self._digests is None:
            self._digests = self.listing.digests()
        return self._digests

    @property
    def _options(self) -> dict[str, str] | None:
        """What delta-rs needs to reach the archive."""
        return delta_options(self.path)

    def _delta(self, path: str, version: int | None = None) -> DeltaTable:
        return DeltaTable(path, version, storage_options=self._options)

    def _is_table(self, path: str) -> bool:
        try:
            require_reachable(self.path)
            return bool(DeltaTable.is_deltatable(path, self._options))
        except (DeltaError, OSError, ValueError) as error:
            if on_store(path):
                raise of_store(self.path, error) from error
            return False

    @property
    def _opened(self) -> DeltaTable:
        assert self._table is not None, "the archive was not opened"
        return self._table

    def _check(self) -> None:
        found = self._opened.metadata()
        text = found.description or ""
        version = text.removeprefix(_FORMAT)
        if version == text:
            raise PipelineError(
                f"{self.path} holds a Delta table that is no archive of storenode.", USAGE
            )
        # Columns that a newer version has added are passed over.
        names = {field.name for field in self._opened.schema().fields}
        if version != FORMAT_VERSION or not names >= set(ARROW.names):
            raise PipelineError(
                f"The archive in {self.path} has the format {version}, and this version of"
                f" storenode reads {FORMAT_VERSION}: use the version that wrote it, or a newer one."
            )

    def _commit(self, action: Callable[[], object]) -> None:
        """Do what makes commits, see that they reach the disk, and read the state anew."""
        before = self._opened.version()
        try:
            action()
        except CommitFailedError as error:
            raise self._conflict() from error
        except (DeltaError, OSError, ValueError) as error:
            raise of_store(self.path, error) from error
        self._go_on()
        self._digests = None
        self._settle_log(before + 1)

    def _conflict(self) -> PipelineError:
        """The sentence for two jobs that write to the archive at once."""
        return PipelineError(
            f"Another job has written to the archive in {self.path} meanwhile, so this one has"
            " ended; what it had published stays. Run it again when the other has ended."
        )

    def _settle_log(self, first: int) -> None:
        """Have the commits from one version on reach the disk."""
        versions = range(first, self._opened.version() + 1)
        entries = (f"{self.messages}/_delta_log/{version:020}.json" for version in versions)
        try:
            settle(entries, _LOG_FOLDERS)
        except OSError as error:
            raise of_store(self.path, error) from error
