"""The manifest of an archive: a copy of each commit of its Delta log, chained by digest.

::

    ARCHIVE/manifest/00000000000000001007.json      a copy of commit 1007 of the log

The metadata of a commit has the SHA-256 of the commit before it, the SHA-256 of each file that it
adds, and count and XOR of the hours that it changes, as they are afterwards. So a commit that is
removed or altered breaks the chain, and a file or an hour that is lost is named by the commits that
remain. The log may forget commits; copies are never changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import numpy as np

from store.pipeline.errors import PipelineError, of_store
from store.pipeline.files import chunks, create, listed
from store.pipeline.fingerprints import NOTHING, Fingerprint, Fingerprints

FIRST_BEFORE: Final = "0" * 64
"""The digest that the first commit has in place of that of a commit before it."""

_READERS: Final = 16
"""Copies that are read at a time, since an object store takes a while for each."""

_BEFORE: Final = "storenode.before"
_FILES: Final = "storenode.files"
_HOURS: Final = "storenode.hours"
_POSITION: Final = "storenode.position"
_STORE: Final = "storenode.store"
_COPY: Final = re.compile(r"\A[0-9]{20}\.json\Z")
_PATH: Final = re.compile(
    r"\Aday=\d{4}-\d\d-\d\d/shard=-?\d{1,9}/[\w.-]+\.(?:zstd\.)?parquet\Z", re.ASCII
)
_MALFORMED: Final = (
    *(ValueError, TypeError, LookupError),
    *(AttributeError, ArithmeticError, RecursionError),
)
"""The exceptions that reading a malformed commit raises."""

_EPOCH: Final = date(1970, 1, 1).toordinal()
_FOLDERS: Final = 3
"""Directories above a copy that are synced: the manifest, the archive, and what that lies in."""


class _Commit(NamedTuple):
    """A parsed commit; ``added`` has the digests of files, ``as_of`` a store and its position."""

    added: dict[str, str]
    removed: list[str]
    before: str
    hours: Fingerprints
    as_of: tuple[str, int] | None


def encode_metadata(
    before: str,
    digests: Mapping[str, str],
    hours: Fingerprints,
    as_of: tuple[str, int] | None = None,
) -> dict[str, str]:
    """Return the metadata of a commit besides the actions of Delta Lake.

    Args:
        before: the digest of the commit before.
        digests: those of the files that it adds, by path in the table.
        hours: what the archive holds after it of the hours that it changes.
        as_of: a store ID, and the position of its database up to which all is archived.
    """
    rows = [[start, *each] for start, each in sorted(hours.items())]
    found = {
        _BEFORE: before,
        _FILES: json.dumps(dict(digests), separators=(",", ":")),
        _HOURS: json.dumps(rows, separators=(",", ":")),
    }
    if as_of is not None:
        found |= {_STORE: as_of[0], _POSITION: str(as_of[1])}
    return found


def day_of(path: str) -> int:
    """Return the day since the epoch of a file, given by its path in the table."""
    return date.fromisoformat(path[4:14]).toordinal() - _EPOCH


def _parse(data: bytes) -> _Commit:
    actions: Sequence[dict[str, Any]] = [json.loads(line) for line in data.splitlines()]
    info: dict[str, Any]
    (info,) = (each["commitInfo"] for each in actions if "commitInfo" in each)
    digests = json.loads(info[_FILES])
    rows = np.array(json.loads(info[_HOURS]), np.int64).tolist()
    hours = {start: Fingerprint(*rest) for start, *rest in rows}
    paths = [unquote(each["add"]["path"]) for each in actions if "add" in each]
    for path in paths:
        if not _PATH.match(path):
            raise ValueError(path)
        day_of(path)
    added = {path: str(digests[path]) for path in paths}
    removed = [unquote(each["remove"]["path"]) for each in actions if "remove" in each]
    as_of = (str(info[_STORE]), int(info[_POSITION])) if _POSITION in info else None
    return _Commit(added, removed, str(info[_BEFORE]), hours, as_of)


@dataclass
class Manifest:
    """The sum of all commits of an archive.

    ``files`` are the digests of the newest state's, ``removed`` the files of earlier ones.
    ``required`` are the hours that the archive must hold, and ``stored`` those of its newest
    commits. ``digests`` are those of the commits in order, and ``days`` those whose files each has
    changed. ``broken`` has a line for each commit that does not continue the chain. ``positions``
    are by store those of the newest commit that has one.
    """

    path: str
    files: dict[str, str] = field(default_factory=dict)
    required: Fingerprints = field(default_factory=dict)
    stored: Fingerprints = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    digests: list[str] = field(default_factory=list)
    days: list[set[int]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """The number of the newest commit; -1: there is none."""
        return len(self.digests) - 1

    @property
    def before(self) -> str:
        """The digest of the newest commit, which the next one records."""
        return self.digests[-1] if self.digests else FIRST_BEFORE

    def is_next(self, data: bytes) -> bool:
        """Return True if a commit continues the chain."""
        try:
            return _parse(data).before == self.before
        except _MALFORMED:
            return False

    def add(self, name: str, data: bytes) -> None:
        """Take in the next commit."""
        expected = commit_name(len(self.digests))
        if name != expected and not self.broken:
            self.broken.append(f"{expected} is missing")
        self.days.append(set())
        try:
            commit = _parse(data)
        except _MALFORMED:
            self.broken.append(f"{name} is no commit of an archive")
        else:
            if commit.before != self.before and not self.broken:
                self.broken.append(f"{name} does not follow the commit before it")
            self._apply(commit)
        self.digests.append(sha256(data).hexdigest())

    def _apply(self, commit: _Commit) -> None:
        gone = self.files.keys() & commit.removed
        self.days[-1].update(map(day_of, [*gone, *commit.added]))
        for path in gone:
            del self.files[path]
        self.removed.update(commit.removed)
        self.removed -= commit.added.keys()
        self.files |= commit.added
        self.stored |= commit.hours
        self.required |= {
            hour: each
            for hour, each in commit.hours.items()
            if each.messages >= self.required.get(hour, NOTHING).messages
        }
        if commit.as_of is not None:
            store_id, position = commit.as_of
            self.positions[store_id] = position


def write_copy(path: str, version: int, data: bytes) -> None:
    """Write the copy of a commit to a manifest, on the disk before this returns."""
    copy = f"{path}/{commit_name(version)}"
    try:
        create(copy, data, _FOLDERS)
    except FileExistsError as error:
        if content(copy) != data:
            raise PipelineError(
                f"Another job has written to {path} meanwhile: run this one again when the other"
                " has ended."
            ) from error
    except OSError as error:
        raise of_store(path, error, "manifest") from error


def read_manifest(path: str) -> Manifest:
    """Read the manifest in a directory; an empty one if there is none."""
    found = Manifest(path)
    for name, data in read_commits(path):
        found.add(name, data)
    return found


def read_commits(path: str) -> Iterator[tuple[str, bytes]]:
    """Yield the copies in the directory of a manifest: the name of each in the log, its bytes."""
    try:
        names = sorted(name for name in listed(path) if _COPY.match(name))
        with ThreadPoolExecutor(_READERS) as pool:
            for start in range(0, len(names), _READERS):
                few = names[start : start + _READERS]
                copies = pool.map(content, [f"{path}/{name}" for name in few])
                yield from zip(few, copies, strict=True)
    except OSError as error:
        raise of_store(path, error, "manifest") from error


def content(path: str) -> bytes:
    """Return all of a file.

    Raises:
        OSError: it is not there, or cannot be read.
    """
    return b"".join(chunks(path))


def commit_name(version: int) -> str:
    """Return the file name of a commit, in the log and in the manifest."""
    return f"{version:020}.json"
