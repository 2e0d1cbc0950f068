"""An archive: the messages of a store in Parquet files that are a Delta table.

::

    ARCHIVE/messages/_delta_log/           the log of the table, written by delta-rs
    ARCHIVE/messages/day=…/shard=…/        its files
    ARCHIVE/manifest/                      copies of the commits, see `store.pipeline.manifest`

A commit succeeds only if no other job has committed since this job read the table's state. So the
table holds what its last commit says, whatever is killed, and files that no commit names are not
part of it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Final, NamedTuple, TypeVar

from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from store.pipeline.columns import ARROW, PARTITIONS
from store.pipeline.errors import USAGE, PipelineError, of_store
from store.pipeline.files import (
    checked,
    chunks,
    create,
    delete,
    delta_options,
    listed,
    move_folder,
    on_store,
    require_reachable,
    require_room,
    require_visible,
    settle,
)
from store.pipeline.fingerprints import Fingerprints
from store.pipeline.limits import DAY_NS, MAX_PARQUET_FILES, VACUUM_AFTER_HOURS
from store.pipeline.listing import Listing, Row
from store.pipeline.manifest import (
    FIRST_BEFORE,
    CommitMetadata,
    Manifest,
    commit_name,
    read_commits,
    read_manifest,
)

T = TypeVar("T")

FORMAT_VERSION: Final = "2"
_NAME: Final = "storenode messages"
_FORMAT: Final = "messages of a store node, format "
_CONFIGURATION: Final = {
    # Of the log as long as of the files: a follower reads commits every minute. Tombstones stay
    # longer than files, since only files that have one are deleted.
    "delta.logRetentionDuration": f"interval {VACUUM_AFTER_HOURS} hours",
    "delta.deletedFileRetentionDuration": f"interval {4 * VACUUM_AFTER_HOURS} hours",
    # Without it, delta-rs takes columns without bounds for columns without values, and filters of
    # Arrow's datasets on them find nothing, or everything.
    "delta.dataSkippingStatsColumns": "ts",
}
_LOG_FOLDERS: Final = 4
"""Directories above a commit that are synced: log, table, archive, and what that lies in."""


class DataFile(NamedTuple):
    """A file of the table: its path, day since the epoch, shard, size and rows."""

    path: str
    day: int
    shard: int
    size_bytes: int
    rows: int

    @property
    def sort_key(self) -> tuple[int, int, str]:
        """The key that sorts files by time: day, shard, path."""
        return self.day, self.shard, self.path


class WrittenFile(NamedTuple):
    """A file that a job has written and read back; ``path`` is relative to the table."""

    path: str
    day: int
    shard: int
    size_bytes: int
    rows: int
    min_ts: int
    max_ts: int
    digest: str

    def add_action(self, *, is_new: bool) -> AddAction:
        """Return the Delta `add` action; ``is_new``: its messages were not in the table before."""
        stats = {
            "numRecords": self.rows,
            "minValues": {"ts": self.min_ts},
            "maxValues": {"ts": self.max_ts},
            "nullCount": {"ts": 0},
        }
        day, shard = (part.split("=", 1)[1] for part in self.path.split("/")[:2])
        values = {"day": day, "shard": shard}
        return AddAction(self.path, self.size_bytes, values, _now_ms(), is_new, json.dumps(stats))


class DeltaArchive:
    """An archive in a directory or on an object store."""

    def __init__(self, path: str) -> None:
        """Check the path; no file is read yet.

        Raises:
            PipelineError: the path is none, see `store.pipeline.files.checked`.
        """
        self.path = checked(path)
        self.messages = self._folder = f"{self.path}/messages"
        self._log = f"{self._folder}/_delta_log"
        self._table: DeltaTable | None = None
        self._listing: Listing | None = None
        self._manifest: Manifest | None = None

    @property
    def exists(self) -> bool:
        """True if an archive was begun here.

        Raises:
            PipelineError: the store of the archive does not answer.
        """
        try:
            require_reachable(self.path)
            return bool(DeltaTable.is_deltatable(self._folder, self._options))
        except (DeltaError, OSError, ValueError) as error:
            if on_store(self.path):
                raise of_store(self.path, error) from error
            return False

    def open(self) -> DeltaArchive:
        """Read the newest state.

        Raises:
            PipelineError: there is no archive, or something that is none.
        """
        try:
            require_reachable(self.path)
            self._table = self._delta()
        except TableNotFoundError as error:
            self._require_no_files()
            if self.manifest.digests:
                raise PipelineError(
                    f"{self.path} has a manifest, but the table that it is about,"
                    f" {self._folder}, is gone: put it back from a copy of the archive, or the log"
                    " alone with `storenode pipeline repair`.",
                    USAGE,
                ) from error
            raise PipelineError(
                f"There is no archive in {self.path}: check the path, or make one with"
                " `storenode pipeline archive`.",
                USAGE,
            ) from error
        except (DeltaError, OSError, ValueError) as error:
            raise of_store(self.path, error) from error
        self._listing = self._manifest = None
        self._check()
        return self

    def renew(self) -> DeltaArchive:
        """Read what was committed since the state was read."""
        try:
            self._opened.update_incremental()
        except (DeltaError, OSError, ValueError) as error:
            raise of_store(self.path, error) from error
        self._listing = None
        return self

    def open_if_readable(self) -> bool:
        """Read the newest state and return True, unless the log is missing or damaged.

        Raises:
            PipelineError: something else is there, or an archive of another version.
        """
        try:
            self._table = self._delta()
        except (DeltaError, OSError, ValueError):
            return False
        self._check()
        return True

    def require_usable(self) -> None:
        """Raise unless an archive is here, or may be begun.

        Raises:
            PipelineError: something else is here, or an archive that cannot be read.
        """
        if self.exists:
            self.open()
        else:
            require_room(self.path)
            self._require_no_files()

    def open_for_writing(self) -> DeltaArchive:
        """Begin an archive where there is none, read its state, and complete its manifest.

        Commits of the log that the manifest lacks are copied: a job was killed in between.

        Raises:
            PipelineError: the path cannot be written to, or log or manifest have lost commits.
        """
        self._require_conditional_writes()
        if not self.exists:
            self._require_no_files()
            manifest = read_manifest(f"{self.path}/manifest")
            if manifest.digests:
                raise self._behind(-1, manifest.version)
            self._begin([], CommitMetadata())
        self.open()
        manifest = self.manifest
        newest = min(self.version, manifest.version)
        faults = [*manifest.broken, *self.log_faults(manifest, [newest])]
        if faults:
            raise PipelineError(
                f"The manifest in {manifest.path} is damaged ({faults[0]}): put the directory back"
                " from a copy. If there is none, check the archive with `storenode pipeline"
                " verify`, and begin a new one with `storenode pipeline archive --new-manifest`."
                " Nothing was changed."
            )
        if manifest.version > self.version:
            raise self._behind(self.version, manifest.version)
        self._copy_commits()
        return self

    def begin_manifest(self, written: Sequence[WrittenFile], hours: Fingerprints) -> None:
        """Begin log and manifest anew from the present state, and move the old ones aside.

        ``written`` are all files that the log names, ``hours`` what they hold.

        Raises:
            PipelineError: something cannot be moved or written.
        """
        old = self.manifest
        replaces = max(old.replaces, 0) + max(len(old.digests), self.version + 1)
        files = {each.path: each.digest for each in written}
        try:
            self._move_aside("messages/_delta_log", "log-before")
            self._move_aside("manifest", "manifest-before")
        except OSError as error:
            raise of_store(self.path, error) from error
        self._begin(written, CommitMetadata(files, hours, replaces=replaces))
        self.open()
        self._copy_commits()

    def commit(
        self,
        added: Sequence[WrittenFile],
        removed: Iterable[DataFile],
        metadata: CommitMetadata,
        *,
        is_new: bool = True,
    ) -> None:
        """Add files to the table and remove others, all or none, and copy the commit.

        Raises:
            PipelineError: another job has committed since the state was read, this process does
                not see the files, or nothing can be written.
        """
        require_visible(self.path, [f"messages/{each.path}" for each in added])
        version = self.version
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(self.within(each), not added or is_new, _now_ms()) for each in removed
        ]
        actions += [each.add_action(is_new=is_new) for each in added]
        properties = CommitProperties(
            custom_metadata=metadata.encoded(self.manifest.before), max_commit_retries=0
        )
        self._translated(
            lambda: self._opened.create_write_transaction(
                actions,
                "append",
                Schema.from_arrow(ARROW),
                list(PARTITIONS),
                commit_properties=properties,
            )
        )
        self.renew()
        self._settle_log(version + 1)
        # Files of another job that are in the state by now were never looked at here.
        if self.version != version + 1:
            raise self._conflict()
        self._copy_commits()

    def log_faults(self, manifest: Manifest, versions: Iterable[int] | None = None) -> list[str]:
        """Return a line for each commit of the log that is another than in the manifest.

        ``versions`` are the commits to compare; None: all that the log still has.
        """
        there = self._logged_versions() if versions is None else list(versions)
        found = [
            f"{commit_name(version)} is another commit than in the log"
            for version in there
            if 0 <= version <= manifest.version
            and sha256(self._read_commit(version)).hexdigest() != manifest.digests[version]
        ]
        # A job that is killed between a commit and its copy leaves one commit without.
        if manifest.version < 0 < self.version:
            found.append(f"{commit_name(0)} is missing")
        return found

    def restore_log(self, manifest: Manifest) -> str | None:
        """Write the commits of a manifest to the log, in place of what there is of it.

        Returns where the old log is now, if there was one.

        Raises:
            PipelineError: something cannot be moved or written.
        """
        try:
            aside = self._move_aside("messages/_delta_log", "damaged-log")
            for name, data in read_commits(manifest.path):
                create(f"{self._log}/{name}", data, _LOG_FOLDERS)
        except OSError as error:
            raise of_store(self.path, error) from error
        self.open()
        return aside

    def files(self, days: Iterable[int] | None = None) -> list[DataFile]:
        """Return the files of the state that was read, of some days only if they are given.

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

    def files_between(self, low_ns: int, high_ns: int) -> list[DataFile]:
        """Return the files of the days that a range of time touches, the end exclusive."""
        low, high = low_ns // DAY_NS, -(-high_ns // DAY_NS)
        return [each for each in self.files() if low <= each.day < high]

    def crowded(self) -> list[DataFile]:
        """Return small files that should be compacted to one per directory, see `Listing`."""
        return self._as_files(self.listing.crowded())

    @property
    def listing(self) -> Listing:
        """The files of the state that was read."""
        if self._listing is None:
            self._listing = Listing(self._opened)
        return self._listing

    @property
    def manifest(self) -> Manifest:
        """The manifest, read once."""
        if self._manifest is None:
            self._manifest = read_manifest(f"{self.path}/manifest")
        return self._manifest

    @property
    def version(self) -> int:
        """The number of the newest commit of the state that was read."""
        return int(self._opened.version())

    @property
    def changed_ns(self) -> int:
        """The time of the newest commit of the state that was read."""
        (entry,) = self._opened.history(1)
        return int(entry["timestamp"]) * 1_000_000

    def within(self, file: DataFile) -> str:
        """Return the path of a file relative to the table."""
        return file.path.removeprefix(f"{self.messages}/")

    def stored(self) -> list[str]:
        """Return the paths of all Parquet files below the table, whether a commit names them or
        not.

        Raises:
            PipelineError: they cannot be listed.
        """
        try:
            return [path for path in listed(self._folder) if path.endswith(".parquet")]
        except OSError as error:
            raise of_store(self.path, error) from error

    def vacuum(self) -> int:
        """Delete files that no state of the last `VACUUM_AFTER_HOURS` names; return how many.

        Only files that a commit has named and removed are deleted: others may be all that is left
        of what a lost log had named.
        """
        old = self._translated(
            lambda: self._opened.vacuum(VACUUM_AFTER_HOURS, enforce_retention_duration=False)
        )
        try:
            delete(self._folder, old)
        except OSError as error:
            raise of_store(self.path, error) from error
        return len(old)

    def _copy_commits(self) -> None:
        """Copy the commits to the manifest that it lacks."""
        for version in range(self.manifest.version + 1, self.version + 1):
            self.manifest.append(self._read_commit(version))
            if self.manifest.broken:
                raise PipelineError(
                    f"The manifest in {self.manifest.path} is damaged"
                    f" ({self.manifest.broken[0]}): put the directory back from a copy."
                )

    def _read_commit(self, version: int) -> bytes:
        try:
            return b"".join(chunks(f"{self._log}/{commit_name(version)}"))
        except OSError as error:
            raise of_store(self.path, error) from error

    def _logged_versions(self) -> list[int]:
        try:
            names = [each.partition(".") for each in listed(self._log)]
        except OSError as error:
            raise of_store(self.path, error) from error
        return sorted(int(name) for name, _, end in names if end == "json" and name.isdigit())

    def _begin(self, written: Sequence[WrittenFile], metadata: CommitMetadata) -> None:
        """Write the first commit of a log."""
        try:
            create_table_with_add_actions(
                self._folder,
                Schema.from_arrow(ARROW),
                [each.add_action(is_new=True) for each in written],
                mode="error",
                partition_by=list(PARTITIONS),
                name=_NAME,
                description=f"{_FORMAT}{FORMAT_VERSION}",
                configuration=_CONFIGURATION,
                storage_options=self._options,
                commit_properties=CommitProperties(custom_metadata=metadata.encoded(FIRST_BEFORE)),
            )
        except (DeltaError, OSError, ValueError) as error:
            if written or not self.exists:  # otherwise another job was faster
                raise of_store(self.path, error) from error
        self._table = self._delta()
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

    def _move_aside(self, name: str, kind: str) -> str | None:
        """Move a directory of the archive to a new name; return its path, None if it is empty."""
        if not listed(f"{self.path}/{name}"):
            return None
        aside = f"{kind}-{time.time_ns()}"
        move_folder(self.path, name, aside)
        return f"{self.path}/{aside}"

    def _as_files(self, rows: Iterable[Row]) -> list[DataFile]:
        return [DataFile(f"{self.messages}/{path}", *rest) for path, *rest in rows]

    @property
    def _options(self) -> dict[str, str] | None:
        return delta_options(self.path)

    def _delta(self) -> DeltaTable:
        return DeltaTable(self._folder, storage_options=self._options)

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

    def _translated(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except CommitFailedError as error:
            raise self._conflict() from error
        except (DeltaError, OSError, ValueError) as error:
            raise of_store(self.path, error) from error

    def _conflict(self) -> PipelineError:
        return PipelineError(
            f"Another job has written to the archive in {self.path} meanwhile, so this one has"
            " ended; what it had committed stays. Run it again when the other has ended."
        )

    def _behind(self, logged: int, copied: int) -> PipelineError:
        return PipelineError(
            f"The log of the archive in {self.path} has lost commits: its newest is {logged}, and"
            f" that of the manifest {copied}. Run `storenode pipeline repair` first."
        )

    def _settle_log(self, version: int) -> None:
        try:
            settle([f"{self.messages}/_delta_log/{commit_name(version)}"], _LOG_FOLDERS)
        except OSError as error:
            raise of_store(self.path, error) from error


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
