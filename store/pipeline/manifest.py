"""The manifest of an archive: a copy of every commit of its Delta log, chained by digest.

::

    ARCHIVE/manifest/00000000000000001007.json      the bytes of commit 1007 of the log
    ARCHIVE/manifest/00000000000000000000-00000000000000000999.jsonl      commits 0 to 999

The metadata of a commit has the SHA-256 of the commit before it, the SHA-256 of each file that it
adds, and count and XOR of the hours that it changes, as they are afterwards. So a commit that is
removed or altered breaks the chain, and a file or an hour that is lost is named by the commits that
remain. The log may forget commits; copies are never changed, and only replaced by one file that has
many of them, each as a JSON string in a line of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import numpy as np

from store.pipeline import files
from store.pipeline.errors import PipelineError, of_store
from store.pipeline.fingerprints import NOTHING, Fingerprint, Fingerprints

FIRST_BEFORE: Final = "0" * 64
"""What the first commit has in place of the digest of the commit before it."""

_PREFIX: Final = "storenode."
_BEFORE: Final = f"{_PREFIX}before"
_FILES: Final = f"{_PREFIX}files"
_HOURS: Final = f"{_PREFIX}hours"
_POSITION: Final = f"{_PREFIX}position"
_STORE: Final = f"{_PREFIX}store"
_LOST: Final = f"{_PREFIX}lost"
_REPLACES: Final = f"{_PREFIX}replaces"
_NAME: Final = re.compile(r"\A[0-9]{20}\.json\Z")
_PATH: Final = re.compile(
    r"\Aday=\d{4}-\d\d-\d\d/shard=-?\d{1,9}/[\w.-]+\.(?:zstd\.)?parquet\Z", re.ASCII
)
_ROLLED: Final = re.compile(r"\A([0-9]{20})-([0-9]{20})\.jsonl\Z")
ROLL_AT: Final = 1_000
"""So many copies become one file."""

KEPT_SINGLE: Final = 100
"""The newest copies stay files of their own, which can be signed."""

_UNREADABLE: Final = b"\0"
_FOLDERS: Final = 3
"""Directories above a copy that are synced: the manifest, the archive, and what that lies in."""


class FileRecord(NamedTuple):
    """A file of the table: its day since the epoch, and its SHA-256, None if it is not recorded."""

    day: int
    digest: str | None


@dataclass(frozen=True)
class CommitMetadata:
    """What a commit records besides the actions of Delta Lake.

    ``files`` are the digests of the files that it adds; ``hours`` whole hours as they are after it.
    ``position`` is the commit of the database of the store ``store_id`` up to which all of its
    messages are archived. ``lost``: it removes files that are lost, so ``hours`` are no longer what
    the archive must hold.
    ``replaces``: it begins a manifest in place of one with so many commits.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    hours: Fingerprints = field(default_factory=dict)
    store_id: str | None = None
    position: int | None = None
    lost: bool = False
    replaces: int = 0

    def encoded(self, before: str) -> dict[str, str]:
        """Return the metadata of Delta Lake; ``before`` is the digest of the commit before."""
        rows = [[start, *each] for start, each in sorted(self.hours.items())]
        found = {
            _BEFORE: before,
            _FILES: json.dumps(dict(self.files), separators=(",", ":")),
            _HOURS: json.dumps(rows, separators=(",", ":")),
        }
        if self.store_id is not None and self.position is not None:
            found |= {_STORE: self.store_id, _POSITION: str(self.position)}
        if self.lost:
            found[_LOST] = "true"
        if self.replaces:
            found[_REPLACES] = str(self.replaces)
        return found


@dataclass(frozen=True)
class _Commit:
    added: list[tuple[str, int]]
    removed: list[str]
    before: str | None
    metadata: CommitMetadata


@dataclass
class Manifest:
    """All commits of an archive taken together, as their copies in a directory record them.

    ``files`` are those of the newest state, ``removed`` those of earlier ones. ``required`` are the
    hours that the archive must hold, and ``held`` those that it holds by its newest commits, except
    on ``unknown_days``: a program that does not record hours has changed their files.
    ``digests`` are those of the commits in order. ``broken`` has a line for each place where the
    chain is broken, ``foreign`` the commits that another program made. ``positions`` are by store
    those of the newest commit that has one.
    """

    path: str
    files: dict[str, FileRecord] = field(default_factory=dict)
    required: Fingerprints = field(default_factory=dict)
    held: Fingerprints = field(default_factory=dict)
    unknown_days: set[int] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    digests: list[str] = field(default_factory=list)
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
        """Write the copy of the next commit, on the disk before this returns.

        Raises:
            PipelineError: it cannot be written, or another job has written another one.
        """
        name = commit_name(len(self.digests))
        try:
            files.create(f"{self.path}/{name}", data, _FOLDERS)
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
        """Replace old copies by one file that has them, if there are many.

        Raises:
            PipelineError: it cannot be written.
        """
        try:
            names = sorted(each for each in files.listed(self.path) if _NAME.match(each))
            old = names[:-KEPT_SINGLE]
            if len(old) < ROLL_AT:
                return
            texts = (_content(f"{self.path}/{name}").decode() for name in old)
            data = "".join(f"{json.dumps(text)}\n" for text in texts).encode()
            path = f"{self.path}/{old[0][:20]}-{old[-1][:20]}.jsonl"
            files.create(path, data, _FOLDERS)
            files.delete(self.path, old)
        except OSError as error:
            raise of_store(self.path, error, "manifest") from error

    def add(self, name: str, data: bytes) -> None:
        """Take in the next commit."""
        expected = commit_name(len(self.digests))
        if name != expected and not self.broken:
            self.broken.append(f"{expected} is missing")
        try:
            commit = _parsed(data)
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
            self.broken.append(f"{name} cannot be read")
        else:
            if commit.before is None:
                self.foreign.append(len(self.digests))
            elif commit.before != self.before and not self.broken:
                self.broken.append(f"{name} does not follow the commit before it")
            self._apply(commit)
        self.digests.append(sha256(data).hexdigest())

    def _apply(self, commit: _Commit) -> None:
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
        if commit.before is None:
            self.unknown_days |= days
            return
        self.held |= metadata.hours
        if not metadata.lost:
            self.required |= {
                hour: each
                for hour, each in metadata.hours.items()
                if each.messages >= self.required.get(hour, NOTHING).messages
            }
        if metadata.store_id is not None and metadata.position is not None:
            self.positions[metadata.store_id] = metadata.position
        self.replaces = self.replaces or metadata.replaces


def read_manifest(path: str) -> Manifest:
    """Read the manifest in a directory; an empty one if there is none.

    Raises:
        PipelineError: the directory cannot be read.
    """
    found = Manifest(path)
    for name, data in read_commits(path):
        found.add(name, data)
    return found


def read_commits(path: str) -> Iterator[tuple[str, bytes]]:
    """Yield the commits of the manifest in a directory: the name of each in the log, its bytes.

    Raises:
        PipelineError: the directory cannot be read.
    """
    try:
        names = sorted(files.listed(path))
        last = -1
        for match in filter(None, map(_ROLLED.match, names)):
            first, last = int(match[1]), int(match[2])
            try:
                lines = _content(f"{path}/{match[0]}").splitlines()
                commits = [json.loads(line).encode() for line in lines]
            except (ValueError, AttributeError, RecursionError):
                commits = []
            commits += [_UNREADABLE] * (last + 1 - first - len(commits))
            for version, data in enumerate(commits, first):
                yield commit_name(version), data
        for name in names:
            if _NAME.match(name) and int(name[:20]) > last:
                yield name, _content(f"{path}/{name}")
    except OSError as error:
        raise of_store(path, error, "manifest") from error


def _content(path: str) -> bytes:
    return b"".join(files.chunks(path))


def commit_name(version: int) -> str:
    """Return the file name of a commit, in the log and in the manifest."""
    return f"{version:020}.json"


def short_hours(wanted: Fingerprints, held: Fingerprints) -> list[int]:
    """Return the hours that lack something: they have fewer messages, or as many others."""
    return sorted(
        hour
        for hour, each in wanted.items()
        if held.get(hour, NOTHING).messages <= each.messages and held.get(hour) != each
    )


def _parsed(data: bytes) -> _Commit:
    actions: Sequence[dict[str, Any]] = [json.loads(line) for line in data.splitlines()]
    added = [_added(each["add"]) for each in actions if "add" in each]
    removed = [unquote(each["remove"]["path"]) for each in actions if "remove" in each]
    infos = (each["commitInfo"] for each in actions if "commitInfo" in each)
    info: dict[str, Any] = next(infos, {})
    before = info.get(_BEFORE)
    files = json.loads(info.get(_FILES, "{}"))
    hours = {
        int(start): Fingerprint(*map(int, rest))
        for start, *rest in json.loads(info.get(_HOURS, "[]"))
    }
    position = info.get(_POSITION)
    metadata = CommitMetadata(
        {str(path): str(digest) for path, digest in files.items()},
        hours,
        info.get(_STORE),
        None if position is None else int(position),
        info.get(_LOST) == "true",
        int(info.get(_REPLACES, 0)),
    )
    return _Commit(added, removed, before, metadata)


def _added(action: Mapping[str, Any]) -> tuple[str, int]:
    day = np.datetime64(action["partitionValues"]["day"], "D").astype(np.int64)
    return unquote(action["path"]), int(day)
