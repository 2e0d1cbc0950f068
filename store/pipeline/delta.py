"""An archive: the messages of a store in Parquet files that are a Delta table.

::

    ARCHIVE/messages/_delta_log/           the log of the table, written by delta-rs
    ARCHIVE/messages/day=…/shard=…/        its files
    ARCHIVE/manifest/00000000000000001007.json      a copy of commit 1007 of the log
    ARCHIVE/manifest/00000000000000000000-00000000000000000999.jsonl      commits 0 to 999

A commit succeeds only if no other job has committed since this job read the table's state. So the
table holds what its last commit says, whatever is killed, and files that no commit names are not
part of it.

The metadata of a commit has the SHA-256 of the commit before it, the SHA-256 of each file that it
adds, and count and XOR of the hours that it changes, as they are afterwards. So a commit that is
removed or altered breaks the chain, and a file or an hour that is lost is named by the commits that
remain. The log may forget commits; copies are never changed, and only replaced by one file that has
many of them, each as a JSON string in a line of its own.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
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
from store.pipeline.fingerprints import NOTHING, Fingerprint, Fingerprints
from store.pipeline.limits import (
    COMPACT_AT_FILES,
    COMPACT_BELOW_BYTES,
    COMPACT_FILES_AT_ONCE,
    DAY_NS,
    MAX_COMPACTED_BYTES,
    MAX_PARQUET_FILES,
    VACUUM_AFTER_HOURS,
)

FIRST_BEFORE: Final = "0" * 64
"""What the first commit has in place of the digest of the commit before it."""

_PREFIX: Final = "storenode."
_BEFORE: Final = f"{_PREFIX}before"
_FILES: Final = f"{_PREFIX}files"
_HOURS: Final = f"{_PREFIX}hours"
_POSITION: Final = f"{_PREFIX}position"
_STORE: Final = f"{_PREFIX}store"
_REPLACES: Final = f"{_PREFIX}replaces"
_COPY: Final = re.compile(r"\A[0-9]{20}\.json\Z")
_PATH: Final = re.compile(
    r"\Aday=\d{4}-\d\d-\d\d/shard=-?\d{1,9}/[\w.-]+\.(?:zstd\.)?parquet\Z", re.ASCII
)
_ROLLED: Final = re.compile(r"\A([0-9]{20})-([0-9]{20})\.jsonl\Z")
ROLL_AT: Final = 1_000
"""So many copies become one file."""

KEPT_SINGLE: Final = 100
"""The newest copies stay files of their own, which can be signed."""

_UNREADABLE: Final = b"\0"
_MALFORMED: Final = (
    *(ValueError, TypeError, LookupError),
    *(AttributeError, ArithmeticError, RecursionError),
)
"""What reading a commit raises that is none."""

_FOLDERS: Final = 3
"""Directories above a copy that are synced: the manifest, the archive, and what that lies in."""


class FileRecord(NamedTuple):
    """A file of the table: its day since the epoch, and its SHA-256, None if it is not recorded."""

    day: int
    digest: str | None


@dataclass(frozen=True)
class CommitMetadata:
    """The metadata that a commit records besides the actions of Delta Lake.

    ``files`` are the digests of the files that it adds; ``hours`` whole hours as they are after it,
    None: those of the days of its files must be read. ``position`` is the commit of the database of
    the store ``store_id`` up to which all of its messages are archived. ``replaces``: it begins a
    manifest in place of one with so many commits.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    hours: Fingerprints | None = field(default_factory=dict)
    store_id: str | None = None
    position: int | None = None
    replaces: int = 0

    def encoded(self, before: str) -> dict[str, str]:
        """Return the metadata of Delta Lake; ``before`` is the digest of the commit before."""
        found = {
            _BEFORE: before,
            _FILES: json.dumps(dict(self.files), separators=(",", ":")),
            _REPLACES: str(self.replaces),
        }
        if self.hours is not None:
            rows = [[start, *each] for start, each in sorted(self.hours.items())]
            found[_HOURS] = json.dumps(rows, separators=(",", ":"))
        if self.store_id is not None and self.position is not None:
            found |= {_STORE: self.store_id, _POSITION: str(self.position)}
        return found


@dataclass(frozen=True)
class _Commit:
    """A parsed commit; without ``before`` it is one of another program.

    ``is_lossy``: messages of the removed files are not in those that it adds.
    """

    added: list[tuple[str, int]]
    removed: list[str]
    is_lossy: bool
    before: str | None
    metadata: CommitMetadata

    @classmethod
    def parse(cls, data: bytes) -> _Commit:
        actions: Sequence[dict[str, Any]] = [json.loads(line) for line in data.splitlines()]
        added = [_added(each["add"]) for each in actions if "add" in each]
        removals = [each["remove"] for each in actions if "remove" in each]
        removed = [unquote(each["path"]) for each in removals]
        is_lossy = any(each.get("dataChange", True) for each in removals)
        info: dict[str, Any] = next(
            (each["commitInfo"] for each in actions if "commitInfo" in each), {}
        )
        files: dict[str, str] = dict(json.loads(info.get(_FILES, "{}")))
        hours = position = None
        if _HOURS in info:
            rows = json.loads(info[_HOURS])
            hours = {int(start): Fingerprint(*map(int, rest)) for start, *rest in rows}
        if _POSITION in info:
            position = int(info[_POSITION])
        replaces = int(info.get(_REPLACES, 0))
        store_id = str(info[_STORE]) if _STORE in info else None
        metadata = CommitMetadata(files, hours, store_id, position, replaces)
        return cls(added, removed, is_lossy, info.get(_BEFORE), metadata)


def _added(action: Mapping[str, Any]) -> tuple[str, int]:
    day = np.datetime64(action["partitionValues"]["day"], "D").astype(np.int64)
    return unquote(action["path"]), int(day)


@dataclass
class Manifest:
    """The sum of all commits of an archive, as their copies in a directory record them.

    ``files`` are those of the newest state, ``removed`` those of earlier ones. ``required`` are the
    hours that the archive must hold, and ``stored`` those of its newest commits, except on
    ``unknown_days``: a commit that does not record hours has changed their files.
    ``digests`` are those of the commits in order, and ``days`` those whose files each has changed;
    None: messages were removed, or nothing is known. ``broken`` has a line for each place where the
    chain is broken, ``foreign`` the commits that another program made. ``positions`` are by store
    those of the newest commit that has one.
    """

    path: str
    files: dict[str, FileRecord] = field(default_factory=dict)
    required: Fingerprints = field(default_factory=dict)
    stored: Fingerprints = field(default_factory=dict)
    unknown_days: set[int] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    digests: list[str] = field(default_factory=list)
    days: list[set[int] | None] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    foreign: list[int] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)
    replaces: int = 0

    @property
    def version(self) -> int:
        """The number of the newest commit; -1: there is none."""
        return len(self.digests) - 1

    @property
    def before(self) -> str:
        """The digest of the newest commit, which the next one records."""
        return self.digests[-1] if self.digests else FIRST_BEFORE

    def append(self, data: bytes) -> None:
        """Write the copy of the next commit, on the disk before this returns."""
        name = commit_name(len(self.digests))
        try:
            create(f"{self.path}/{name}", data, _FOLDERS)
        except FileExistsError as error:
            if _content(f"{self.path}/{name}") != data:
                raise PipelineError(
                    f"Another job has written to {self.path} meanwhile: run this one again when the"
                    " other has ended."
                ) from error
        except OSError as error:
            raise of_store(self.path, error, "manifest") from error
        self.add(name, data)

    def roll(self) -> None:
        """Replace old copies by one file that has them, if there are many."""
        try:
            names = sorted(listed(self.path))
            rolled = _newest_rolled(names)
            copies = [each for each in names if _COPY.match(each)]
            # A job that was killed between the two has left copies that a file has already.
            delete(self.path, [each for each in copies if int(each[:20]) <= rolled])
            old = [each for each in copies if int(each[:20]) > rolled][:-KEPT_SINGLE]
            if len(old) < ROLL_AT:
                return
            texts = (_content(f"{self.path}/{name}").decode() for name in old)
            data = "".join(f"{json.dumps(text)}\n" for text in texts).encode()
            path = f"{self.path}/{old[0][:20]}-{old[-1][:20]}.jsonl"
            create(path, data, _FOLDERS)
            delete(self.path, old)
        except OSError as error:
            raise of_store(self.path, error, "manifest") from error

    def add(self, name: str, data: bytes) -> None:
        """Take in the next commit."""
        expected = commit_name(len(self.digests))
        if name != expected and not self.broken:
            self.broken.append(f"{expected} is missing")
        try:
            commit = _Commit.parse(data)
        except (
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ):
            self.broken.append(f"{name} cannot be read")
            self.days.append(None)
        else:
            if commit.before is None:
                self.foreign.append(len(self.digests))
            elif commit.before != self.before and not self.broken:
                self.broken.append(f"{name} does not follow the commit before it")
            days = self._apply(commit)
            self.days.append(None if commit.is_lossy else days)
        self.digests.append(sha256(data).hexdigest())

    def _apply(self, commit: _Commit) -> set[int]:
        metadata = commit.metadata
        days = set()
        for path in commit.removed:
            known = self.files.pop(path, None)
            self.removed.add(path)
            if known is not None:
                days.add(known.day)
        for path, day in commit.added:
            if not _PATH.match(path):
                self.strange.append(repr(path))
            self.removed.discard(path)
            self.files[path] = FileRecord(day, metadata.files.get(path))
            days.add(day)
        if metadata.hours is None:
            self.unknown_days |= days
            return days
        self.stored |= metadata.hours
        self.required |= {
            hour: each
            for hour, each in metadata.hours.items()
            if each.messages >= self.required.get(hour, NOTHING).messages
        }
        if metadata.store_id is not None and metadata.position is not None:
            self.positions[metadata.store_id] = metadata.position
        self.replaces = self.replaces or metadata.replaces
        return days


def read_manifest(path: str) -> Manifest:
    """Read the manifest in a directory; an empty one if there is none."""
    found = Manifest(path)
    for name, data in read_commits(path):
        found.add(name, data)
    return found


def read_commits(path: str) -> Iterator[tuple[str, bytes]]:
    """Yield the commits of the manifest in a directory: the name of each in the log, its bytes."""
    try:
        names = sorted(listed(path))
        last = -1
        for match in filter(None, map(_ROLLED.match, names)):
            first, last = int(match[1]), int(match[2])
            try:
                lines = _content(f"{path}/{match[0]}").splitlines()
                commits = [json.loads(line).encode() for line in lines]
            except (ValueError, AttributeError, RecursionError):
                commits = []
            if len(commits) != last + 1 - first:
                commits.append(_UNREADABLE)
            for version, data in enumerate(commits, first):
                yield commit_name(version), data
        for name in names:
            if _COPY.match(name) and int(name[:20]) > last:
                yield name, _content(f"{path}/{name}")
    except OSError as error:
        raise of_store(path, error, "manifest") from error


def _newest_rolled(names: Iterable[str]) -> int:
    """Return the newest commit in a file of many; -1: there is none."""
    return max((int(match[2]) for match in map(_ROLLED.match, names) if match), default=-1)


def _content(path: str) -> bytes:
    return b"".join(chunks(path))


def commit_name(version: int) -> str:
    """Return the file name of a commit, in the log and in the manifest."""
    return f"{version:020}.json"


def short_hours(wanted: Fingerprints, stored: Fingerprints) -> list[int]:
    """Return the hours that lack something: they have fewer messages, or as many others."""
    return sorted(
        hour
        for hour, each in wanted.items()
        if stored.get(hour, NOTHING).messages <= each.messages and stored.get(hour) != each
    )


_COLUMNS: Final = ("path", "partition.day", "partition.shard", "size_bytes", "num_records")
_NAMES: Final = ("path", "day", "shard", "size_bytes", "rows")


class DataFile(NamedTuple):
    """A file of the table: its path, day since the epoch, shard, size and rows."""

    path: str
    day: int
    shard: int
    size_bytes: int
    rows: int


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


class WrittenFile(NamedTuple):
    """A file that a job has written and read back; ``path`` is relative to the table."""

    path: str
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
        """Check the path; no file is read yet."""
        self.path = checked(path)
        self.messages = f"{self.path}/messages"
        self._log = f"{self.messages}/_delta_log"
        self._table: DeltaTable | None = None
        self._files: list[DataFile] | None = None
        self._manifest: Manifest | None = None

    @property
    def exists(self) -> bool:
        """True if an archive was begun here."""
        try:
            require_reachable(self.path)
            return bool(DeltaTable.is_deltatable(self.messages, self._options))
        except (DeltaError, OSError, ValueError) as error:
            if on_store(self.path):
                raise of_store(self.path, error) from error
            return False

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
        except (DeltaError, OSError, ValueError) as error:
            raise of_store(self.path, error) from error
        self._files = self._manifest = None
        self._check()
        return self

    def renew(self) -> DeltaArchive:
        """Read what was committed since the state was read."""
        with self._translated():
            self._opened.update_incremental()
        self._files = None
        return self

    def open_if_readable(self) -> bool:
        """Read the newest state and return True, unless the log is missing or damaged."""
        try:
            self._table = self._delta()
        except (DeltaError, OSError, ValueError):
            return False
        self._check()
        return True

    def require_usable(self) -> None:
        """Raise unless an archive is here, or may be begun."""
        if self.exists:
            self.open()
        else:
            require_room(self.path)
            self._require_no_files()

    def open_for_writing(self) -> DeltaArchive:
        """Begin an archive where there is none, read its state, and complete its manifest.

        Commits of the log that the manifest lacks are copied: a job was killed in between.
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
        """
        old = self.manifest
        replaces = max(old.replaces, 0) + max(len(old.digests), self.version + 1)
        files = {each.path: each.digest for each in written}
        with self._translated():
            self._move_aside("messages/_delta_log", "log-before")
            self._move_aside("manifest", "manifest-before")
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
        """Add files to the table and remove others, all or none, and copy the commit."""
        require_visible(self.path, [f"messages/{each.path}" for each in added])
        version = self.version
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(self.within(each), not added or is_new, _now_ms()) for each in removed
        ]
        actions += [each.add_action(is_new=is_new) for each in added]
        properties = CommitProperties(
            custom_metadata=metadata.encoded(self.manifest.before), max_commit_retries=0
        )
        with self._translated():
            self._opened.create_write_transaction(
                actions,
                "append",
                Schema.from_arrow(ARROW),
                list(PARTITIONS),
                commit_properties=properties,
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
        """
        with self._translated():
            aside = self._move_aside("messages/_delta_log", "damaged-log")
            for name, data in read_commits(manifest.path):
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
        if len(found) > MAX_PARQUET_FILES:
            raise PipelineError(
                f"The archive has {len(found)} files, and at most {MAX_PARQUET_FILES} can be read"
                " at once: split it by time."
            )
        found = found.rename_columns(_NAMES)
        days = found["day"].cast(pa.date32()).cast(pa.int32()).to_pylist()
        names = ("path", "shard", "size_bytes", "rows")
        columns = (found[name].to_pylist() for name in names)
        rows = zip(days, *columns, strict=True)
        return [
            DataFile(f"{self.messages}/{unquote(path)}", day, shard, size, rows or 0)
            for day, path, shard, size, rows in rows
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
        """The manifest, read once."""
        if self._manifest is None:
            self._manifest = read_manifest(f"{self.path}/manifest")
        return self._manifest

    @property
    def version(self) -> int:
        """The number of the newest commit of the state that was read."""
        return int(self._opened.version())

    @property
    def commit_digest(self) -> str:
        """The digest of the newest commit of that state of which there is a copy."""
        digests = self.manifest.digests[: self.version + 1]
        return digests[-1] if digests else FIRST_BEFORE

    def changed_since(self, commit: str) -> set[int] | None:
        """Return the days whose files have changed since a commit, given by its digest.

        None: the commits do not say so, or messages were removed since.
        """
        manifest, found = self.manifest, set[int]()
        if manifest.version != self.version or manifest.broken or commit not in manifest.digests:
            return None
        for days in manifest.days[manifest.digests.index(commit) + 1 :]:
            if days is None:
                return None
            found |= days
        return found

    @property
    def changed_ns(self) -> int:
        """The time of the newest commit of the state that was read."""
        (entry,) = self._opened.history(1)
        return int(entry["timestamp"]) * 1_000_000

    def within(self, file: DataFile) -> str:
        """Return the path of a file relative to the table."""
        return file.path.removeprefix(f"{self.messages}/")

    def stored(self) -> list[str]:
        """Return the paths of all Parquet files below the table, named by a commit or not."""
        with self._translated():
            return [path for path in listed(self.messages) if path.endswith(".parquet")]

    def vacuum(self) -> int:
        """Delete files that no state of the last `VACUUM_AFTER_HOURS` names; return how many.

        Only files that a commit has named and removed are deleted: others may be all that is left
        of what a lost log had named.
        """
        with self._translated():
            old = self._opened.vacuum(VACUUM_AFTER_HOURS, enforce_retention_duration=False)
            delete(self.messages, old)
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
        with self._translated():
            return _content(f"{self._log}/{commit_name(version)}")

    def _logged_versions(self) -> list[int]:
        with self._translated():
            names = [each.partition(".") for each in listed(self._log)]
        return sorted(int(name) for name, _, end in names if end == "json" and name.isdigit())

    def _begin(self, written: Sequence[WrittenFile], metadata: CommitMetadata) -> None:
        """Write the first commit of a log."""
        try:
            create_table_with_add_actions(
                self.messages,
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

    @property
    def _options(self) -> dict[str, str] | None:
        return delta_options(self.path)

    def _delta(self) -> DeltaTable:
        return DeltaTable(self.messages, storage_options=self._options)

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

    def _behind(self, logged: int, copied: int) -> PipelineError:
        return PipelineError(
            f"The log of the archive in {self.path} has lost commits: its newest is {logged}, and"
            f" that of the manifest {copied}. Run `storenode pipeline repair` first."
        )

    def _settle_log(self, version: int) -> None:
        with self._translated():
            settle([f"{self._log}/{commit_name(version)}"], _LOG_FOLDERS)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
