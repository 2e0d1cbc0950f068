"""An archive: the messages of a store in Parquet files that are a Delta table.

::

    ARCHIVE/messages/_delta_log/           the log of the table, written by delta-rs
    ARCHIVE/messages/day=…/shard=…/        its files
    ARCHIVE/manifest/                      copies of its commits, see `store.pipeline.manifest`

A commit succeeds only if no other job has committed since this job read the table's state. So the
table holds what its last commit says, whatever is killed, and files that no commit names are not
part of it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import accumulate
from operator import attrgetter
from typing import Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from store.pipeline.columns import ARROW, PARTITIONS
from store.pipeline.errors import USAGE, PipelineError, of_store
from store.pipeline.files import (
    checked,
    create,
    delete,
    delta_options,
    listed,
    on_store,
    require_reachable,
    require_room,
    require_visible,
    settle,
)
from store.pipeline.fingerprints import NOTHING, Fingerprints
from store.pipeline.limits import (
    COMPACT_AT_FILES,
    COMPACT_BELOW_BYTES,
    COMPACT_FILES_AT_ONCE,
    DAY_NS,
    MAX_COMPACTED_BYTES,
    VACUUM_AFTER_HOURS,
)
from store.pipeline.manifest import (
    FIRST_BEFORE,
    Manifest,
    commit_name,
    content,
    encode_metadata,
    read_commits,
    read_manifest,
    write_copy,
)

_COLUMNS: Final = ("path", "partition.day", "partition.shard", "size_bytes", "num_records")


class DataFile(NamedTuple):
    """A file of the table: its path, day since the epoch, shard, size and rows.

    One that a job has written and read back has times and a digest, too.
    """

    path: str
    day: int
    shard: int
    size_bytes: int
    rows: int
    min_ts: int = 0
    max_ts: int = 0
    digest: str = ""


FORMAT_VERSION: Final = "2"
_NAME: Final = "storenode messages"
_FORMAT: Final = "messages of a store node, format "
_CONFIGURATION: Final = {
    # Tombstones stay longer than files, since only files that have one are deleted.
    "delta.logRetentionDuration": f"interval {VACUUM_AFTER_HOURS} hours",
    "delta.deletedFileRetentionDuration": f"interval {4 * VACUUM_AFTER_HOURS} hours",
    # Without it, delta-rs takes columns without bounds for columns without values, and filters of
    # Arrow's datasets on them find nothing, or everything.
    "delta.dataSkippingStatsColumns": "ts",
}
_LOG_FOLDERS: Final = 4
"""Directories above a commit that are synced: log, table, archive, and what that lies in."""


class DeltaArchive:
    """An archive in a directory or on an object store."""

    def __init__(self, path: str) -> None:
        """Check the path; no file is read yet."""
        self.path = checked(path)
        self.messages = f"{self.path}/messages"
        self._log = f"{self.messages}/_delta_log"
        self._table: DeltaTable | None = None
        self._files: list[DataFile] | None = None
        self._manifest: Manifest | None = None
        self._copied = -1

    @property
    def exists(self) -> bool:
        """True if an archive was begun here."""
        with self._translated():
            require_reachable(self.path)
            return bool(DeltaTable.is_deltatable(self.messages, delta_options(self.path)))

    def open(self) -> DeltaArchive:
        """Read the newest state."""
        try:
            require_reachable(self.path)
            self._table = self._delta()
        except TableNotFoundError as error:
            self._require_no_files()
            if self.manifest.digests:
                raise PipelineError(
                    f"{self.path} has a manifest, but the table that it is about,"
                    f" {self.messages}, is gone: put it back from a copy of the archive, or the log"
                    " alone with `storenode pipeline repair`.",
                    USAGE,
                ) from error
            raise PipelineError(
                f"There is no archive in {self.path}: check the path, or make one with"
                " `storenode pipeline archive`.",
                USAGE,
            ) from error
        except DeltaError as error:
            raise PipelineError(
                f"{of_store(self.path, error).sentence} If its log is damaged, `storenode pipeline"
                " repair` restores it."
            ) from error
        except (OSError, ValueError) as error:
            raise of_store(self.path, error) from error
        self._files = self._manifest = None
        self._check()
        return self

    def open_if_readable(self) -> None:
        """Read the newest state, unless the log is missing or damaged."""
        try:
            self._table = self._delta()
        except (DeltaError, OSError, ValueError):
            return
        self._check()

    @property
    def agrees(self) -> bool:
        """True if the log has the commits and files of the manifest, and no others."""
        if self._table is None or self.version != self.manifest.version or self.log_faults():
            return False
        return set(map(self.within, self.files())) == self.manifest.files.keys()

    def require_usable(self) -> None:
        """Raise unless an archive is here, or may be begun."""
        if self.exists:
            self.open()
        else:
            require_room(self.path)
            self._require_no_files()

    def open_for_writing(self) -> DeltaArchive:
        """Begin an archive where there is none, read its state, and complete its manifest.

        A commit of the log that the manifest lacks is copied: a job was killed in between.
        """
        self._require_conditional_writes()
        if not self.exists:
            self._require_no_files()
            if self.manifest.digests:
                raise self._damaged("The log is gone")
            self._begin()
        self.open()
        manifest = self.manifest
        newest = min(self.version, self._copied)
        faults = [*manifest.broken, *self.log_faults([newest]), *self.uncopied_faults()]
        if faults:
            raise self._damaged(faults[0])
        if manifest.version != self.version:
            raise self._damaged(
                f"The newest commit of the log is {self.version}, that of the manifest"
                f" {manifest.version}"
            )
        self.copy_commits()
        return self

    def commit(
        self,
        added: Sequence[DataFile],
        removed: Iterable[DataFile],
        hours: Fingerprints | None = None,
        as_of: tuple[str, int] | None = None,
        *,
        is_new: bool = True,
    ) -> None:
        """Add files to the table and remove others, all or none, and copy the commit.

        Args:
            added: files that were read back.
            removed: files of the table.
            hours: what the archive then holds of the hours that change.
            as_of: a store ID, and the commit position up to which it is then archived.
            is_new: False if the added files hold what the removed ones do.
        """
        require_visible(each.path for each in added)
        version = self.version
        digests = {self.within(each): each.digest for each in added}
        metadata = encode_metadata(self.manifest.before, digests, hours or {}, as_of)
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(self.within(each), is_new, _now_ms()) for each in removed
        ]
        actions += [self._add_action(each, is_new=is_new) for each in added]
        properties = CommitProperties(custom_metadata=metadata, max_commit_retries=0)
        with self._translated():
            self._opened.create_write_transaction(
                actions,
                "append",
                Schema.from_arrow(ARROW),
                list(PARTITIONS),
                commit_properties=properties,
            )
            self._opened.update_incremental()
        self._files = None
        self._settle_log(version + 1)
        # Files of another job that are in the state by now were never looked at here.
        if self.version != version + 1:
            raise self._conflict()
        self.manifest.add(commit_name(version + 1), self._read_commit(version + 1))
        self.copy_commits()

    def _add_action(self, file: DataFile, *, is_new: bool) -> AddAction:
        stats = {
            "numRecords": file.rows,
            "minValues": {"ts": file.min_ts},
            "maxValues": {"ts": file.max_ts},
            "nullCount": {"ts": 0},
        }
        path = self.within(file)
        values = {"day": path[4:14], "shard": str(file.shard)}
        return AddAction(path, file.size_bytes, values, _now_ms(), is_new, json.dumps(stats))

    def log_faults(self, versions: Iterable[int] | None = None) -> list[str]:
        """Return a line for each commit of the log that is another than in the manifest.

        ``versions`` are the commits to compare; None: all that the log still has.
        """
        digests = self.manifest.digests
        there = self._logged_versions() if versions is None else versions
        return [
            f"{commit_name(version)} is another commit than in the log"
            for version in there
            if 0 <= version < len(digests)
            and sha256(self._read_commit(version)).hexdigest() != digests[version]
        ]

    def uncopied_faults(self) -> list[str]:
        """Return a line if the manifest lacks commits that the log has.

        A job that is killed between a commit and its copy leaves one commit without.
        """
        first = self._copied + 1
        return [f"{commit_name(first)} is missing"] if first < self.manifest.version else []

    def copy_commits(self) -> int:
        """Copy the commits that the manifest lacks; return how many these were."""
        first = self._copied + 1
        for version in range(first, self.manifest.version + 1):
            write_copy(self.manifest.path, version, self._read_commit(version))
            self._copied = version
        return self._copied + 1 - first

    def restore_log(self) -> str | None:
        """Write the commits of the manifest to the log, in place of what there is of it.

        Returns where the old log is now, if there was one.
        """
        aside = None
        with self._translated():
            if names := listed(self._log):
                aside = f"{self.path}/damaged-log-{time.time_ns()}"
                for name in names:
                    create(f"{aside}/{name}", content(f"{self._log}/{name}"), 2)
                delete(self._log, names)
            for name, data in read_commits(self.manifest.path):
                create(f"{self._log}/{name}", data, _LOG_FOLDERS)
        self.open()
        return aside

    def files(self, days: Iterable[int] | None = None) -> list[DataFile]:
        """Return the files of the state that was read, of some days only if they are given."""
        if self._files is None:
            self._files = self._listed()
        if days is None:
            return list(self._files)
        wanted = set(days)
        return [each for each in self._files if each.day in wanted]

    def _listed(self) -> list[DataFile]:
        found = pa.table(self._opened.get_add_actions(flatten=True)).select(_COLUMNS)
        days = found["partition.day"].cast(pa.date32()).cast(pa.int32())
        columns = (each.to_pylist() for each in found.set_column(1, "day", days).columns)
        return [
            DataFile(f"{self.messages}/{unquote(path)}", day, shard, size, rows or 0)
            for path, day, shard, size, rows in zip(*columns, strict=True)
        ]

    def crowded(self) -> list[DataFile]:
        """Return small files that should be compacted to one per directory.

        The directories are the earliest that have `COMPACT_FILES_AT_ONCE` together.
        """
        small: dict[tuple[int, int], list[DataFile]] = {}
        for file in sorted(self.files(), key=attrgetter("size_bytes")):
            if file.size_bytes < COMPACT_BELOW_BYTES:
                small.setdefault((file.day, file.shard), []).append(file)
        chosen: list[DataFile] = []
        for _, files in sorted(small.items()):
            if len(chosen) >= COMPACT_FILES_AT_ONCE:
                break
            if len(files) >= COMPACT_AT_FILES:
                sizes = accumulate(each.size_bytes for each in files)
                pairs = zip(files, sizes, strict=True)
                chosen += [file for file, size in pairs if size <= MAX_COMPACTED_BYTES]
        return chosen

    def files_between(self, low_ns: int, high_ns: int) -> list[DataFile]:
        """Return the files of the days that a range of time touches, the end exclusive."""
        low, high = low_ns // DAY_NS, -(-high_ns // DAY_NS)
        return [each for each in self.files() if low <= each.day < high]

    @property
    def manifest(self) -> Manifest:
        """The manifest, read once, with the commits of the log that continue it."""
        if self._manifest is None:
            found = self._manifest = read_manifest(f"{self.path}/manifest")
            self._copied = found.version
            if self._table is not None and not found.broken:
                for version in range(found.version + 1, self.version + 1):
                    data = self._read_commit(version)
                    if not found.is_next(data):
                        break
                    found.add(commit_name(version), data)
        return self._manifest

    def recorded_hours(self) -> Fingerprints | None:
        """Return what the archive holds by hour, as its commits record it.

        None: the manifest is damaged, or the log has commits that are not those of jobs.
        """
        if self.manifest.broken or self.manifest.version != self.version:
            return None
        return {hour: each for hour, each in self.manifest.stored.items() if each != NOTHING}

    @property
    def version(self) -> int:
        """The number of the newest commit of the state that was read."""
        return int(self._opened.version())

    def changed_since(self, commit: str) -> set[int] | None:
        """Return the days whose files have changed since a commit, given by its digest.

        None: the commits do not say so.
        """
        digests = self.manifest.digests
        if self.recorded_hours() is None or commit not in digests:
            return None
        return set[int]().union(*self.manifest.days[digests.index(commit) + 1 :])

    def within(self, file: DataFile) -> str:
        """Return the path of a file relative to the table."""
        return file.path.removeprefix(f"{self.messages}/")

    def stored(self) -> list[str]:
        """Return the paths of all files with messages, named by a commit or not."""
        with self._translated():
            paths = listed(self.messages)
        return [each for each in paths if each.endswith(".parquet") and each[0] != "_"]

    def vacuum(self) -> int:
        """Delete files that no state of the last `VACUUM_AFTER_HOURS` names; return how many.

        Only files that a commit has named and removed are deleted: others may be all that is left
        of what a lost log had named.
        """
        with self._translated():
            old = self._opened.vacuum(VACUUM_AFTER_HOURS, enforce_retention_duration=False)
            delete(self.messages, old)
        return len(old)

    def _read_commit(self, version: int) -> bytes:
        with self._translated():
            return content(f"{self._log}/{commit_name(version)}")

    def _logged_versions(self) -> list[int]:
        with self._translated():
            names = [each.partition(".") for each in listed(self._log)]
        return sorted(int(name) for name, _, end in names if end == "json" and name.isdigit())

    def _begin(self) -> None:
        """Write the first commit of a log."""
        metadata = encode_metadata(FIRST_BEFORE, {}, {})
        try:
            create_table_with_add_actions(
                self.messages,
                Schema.from_arrow(ARROW),
                [],
                mode="error",
                partition_by=list(PARTITIONS),
                name=_NAME,
                description=f"{_FORMAT}{FORMAT_VERSION}",
                configuration=_CONFIGURATION,
                storage_options=delta_options(self.path),
                commit_properties=CommitProperties(custom_metadata=metadata),
            )
        except (DeltaError, OSError, ValueError) as error:
            if not self.exists:  # otherwise another job was faster
                raise of_store(self.path, error) from error
        self._settle_log(0)

    def _require_conditional_writes(self) -> None:
        """Raise if the store overwrites an existing object on a create-only write.

        Commits and their copies rely on it: some stores accept the condition and ignore it.
        """
        if not on_store(self.path):
            return
        probe = f"{self.path}/probe-{uuid.uuid4().hex}"
        try:
            create(probe, b"\n")
            create(probe, b"\n")
        except FileExistsError:
            return
        except OSError as error:
            raise of_store(self.path, error) from error
        finally:
            with suppress(OSError):
                delete(self.path, [probe.rpartition("/")[2]])
        raise PipelineError(
            f"The store of {self.path} does not support conditional writes (If-None-Match), so two"
            " jobs could overwrite each other's commits: use a newer version of it, or another"
            " store."
        )

    def _require_no_files(self) -> None:
        """Raise if there are files without a log: a new table over them would hide them."""
        files = len(self.stored())
        if files:
            raise PipelineError(
                f"{self.path}/messages holds {files:,} Parquet files, but the log that names them"
                " (_delta_log) is missing or damaged: `storenode pipeline repair` restores it, or"
                " put it back from a copy of the archive. Nothing was changed.",
                USAGE,
            )

    def _delta(self) -> DeltaTable:
        return DeltaTable(self.messages, storage_options=delta_options(self.path))

    @property
    def _opened(self) -> DeltaTable:
        assert self._table is not None, "the archive was not opened"
        return self._table

    def _check(self) -> None:
        text = self._opened.metadata().description or ""
        version = text.removeprefix(_FORMAT)
        if version == text:
            raise PipelineError(
                f"{self.path} holds a Delta table that is no archive of storenode.", USAGE
            )
        # Columns that a newer version has added are ignored.
        names = {field.name for field in self._opened.schema().fields}
        if version != FORMAT_VERSION or not names >= set(ARROW.names):
            raise PipelineError(
                f"The archive in {self.path} has the format {version}, and this version of"
                f" storenode reads {FORMAT_VERSION}: use the version that wrote it, or a newer one."
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except CommitFailedError as error:
            raise self._conflict() from error
        except (DeltaError, OSError, ValueError) as error:
            raise of_store(self.path, error) from error

    def _conflict(self) -> PipelineError:
        return PipelineError(
            f"Another job has written to the archive in {self.path} meanwhile, so this one has"
            " ended; what it had committed stays. Run it again when the other has ended."
        )

    def _damaged(self, fault: str) -> PipelineError:
        return PipelineError(
            f"Log and manifest of the archive in {self.path} do not agree ({fault}): run"
            " `storenode pipeline repair`, or put both back from a copy. Nothing was changed."
        )

    def _settle_log(self, version: int) -> None:
        with self._translated():
            settle([f"{self._log}/{commit_name(version)}"], _LOG_FOLDERS)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
