"""The manifest of an archive: a chain of entries that says what every publication brought.

::

    ARCHIVE/manifest/00000000000000000001.json      one entry, one line of JSON

An entry names the files that came and went, with their SHA-256, and the hours that grew, with count
and XOR. It has the SHA-256 of the entry before it, so that an entry that is removed or changed
breaks the chain. The Delta log says what an archive holds; the manifest, or a copy of its directory
kept elsewhere, says what it must hold. Entries are never changed or removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple

from store.pipeline import storage
from store.pipeline.errors import PipelineError, of_store
from store.pipeline.fingerprints import NOTHING, Fingerprint, Fingerprints

_NAME: Final = re.compile(r"\A[0-9]{20}\.json\Z")
_FOREVER: Final = 2**63 - 1
_FIRST_BEFORE: Final = "0" * 64
_FOLDERS: Final = 3
"""Above an entry: the manifest, the archive, and what that lies in."""


class FileNote(NamedTuple):
    """What an entry says of a file: day since the epoch, rows, SHA-256 in hexadecimal digits."""

    day: int
    rows: int
    digest: str


@dataclass(frozen=True)
class Entry:
    """What one publication changed; ``version`` is that of the Delta table after it.

    Paths are relative to the table. ``hours`` are whole hours as they were afterwards.
    ``repaired`` says that the log was made anew, so that versions before it no longer count.
    ``after``: the first of a manifest that stands in place of one with so many entries.
    """

    version: int
    added: Mapping[str, FileNote]
    removed: Iterable[str]
    hours: Fingerprints
    repaired: bool = False
    after: int = 0

    def line(self, number: int, before: str) -> bytes:
        """What is written as entry ``number``; ``before`` is the digest of the one before it."""
        told = {
            "number": number,
            "before": before,
            "version": self.version,
            "added": [[path, *note] for path, note in sorted(self.added.items())],
            "removed": sorted(self.removed),
            "hours": [[start, *each] for start, each in sorted(self.hours.items())],
        }
        if self.repaired:
            told["repaired"] = True
        if self.after:
            told["after"] = self.after
        return json.dumps(told, separators=(",", ":")).encode() + b"\n"


@dataclass
class Manifest:
    """All entries of a directory taken together.

    ``files`` and ``hours`` are what the archive must hold, ``gone`` are files that it held before,
    ``version`` is the newest one of its table that an entry knows, and ``digests`` are those of the
    entries in order. ``broken`` says where the chain is not whole, in a line each. ``after``: it
    stands in place of one with so many entries.
    """

    path: str
    files: dict[str, FileNote] = field(default_factory=dict)
    hours: Fingerprints = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    version: int = -1
    digests: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    after: int = 0

    def __bool__(self) -> bool:
        """Whether there is one at all."""
        return bool(self.digests)

    @property
    def entries(self) -> int:
        """How many there are, with those of the one in whose place it stands."""
        return self.after + len(self.digests)

    def append(self, entry: Entry) -> None:
        """Write an entry behind the last one, on the disk before this returns.

        Raises:
            PipelineError: it cannot be written, or another job has written one.
        """
        number = len(self.digests) + 1
        data = entry.line(number, self.digests[-1] if self.digests else _FIRST_BEFORE)
        try:
            storage.create(f"{self.path}/{_name(number)}", data, _FOLDERS)
        except FileExistsError as error:
            raise PipelineError(
                f"Another job has written to {self.path} meanwhile: run this one again when the"
                " other has ended."
            ) from error
        except OSError as error:
            raise of_store(self.path, error, "manifest") from error
        self._add(entry, data)

    def continues(self, other: Manifest) -> bool:
        """Whether all entries of another manifest are the first ones here."""
        return self.digests[: len(other.digests)] == other.digests

    def _add(self, entry: Entry, data: bytes) -> None:
        self.files.update(entry.added)
        for path in entry.removed:
            self.files.pop(path, None)
        self.gone.difference_update(entry.added)
        self.gone.update(entry.removed)
        self.hours.update(entry.hours)
        self.version = entry.version if entry.repaired else max(self.version, entry.version)
        self.after = self.after or entry.after
        self.digests.append(sha256(data).hexdigest())

    def _read(self, name: str, data: bytes) -> None:
        before = self.digests[-1] if self.digests else _FIRST_BEFORE
        try:
            number, named, entry = _parsed(data)
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
            self.broken.append(f"{name} cannot be read")
            self.digests.append(sha256(data).hexdigest())
            return
        if _name(number) != name or named != before:
            self.broken.append(f"{name} does not follow the entry before it")
        self._add(entry, data)


def read_manifest(path: str, known: Manifest | None = None) -> Manifest:
    """Read the manifest in a directory; without one, or without the directory, an empty one.

    ``known`` is what was read of the same directory before: only what was written behind that is
    read, and added to it, if its last entry is there as it was.

    Raises:
        PipelineError: the directory cannot be read.
    """
    found = Manifest(path)
    try:
        names = sorted(each.path for each in storage.listed(path) if _NAME.match(each.path))
        if known is not None and _begins(known, names):
            found, names = known, names[len(known.digests) :]
        for name in names:
            if int(name[:20]) != len(found.digests) + 1 and not found.broken:
                found.broken.append(f"{_name(len(found.digests) + 1)} is missing")
            found._read(name, b"".join(storage.chunks(f"{path}/{name}")))
    except OSError as error:
        raise of_store(path, error, "manifest") from error
    return found


def _begins(known: Manifest, names: list[str]) -> bool:
    """Whether files are those of a manifest that is whole, and perhaps more."""
    count = len(known.digests)
    if known.broken or not count or names[count - 1 : count] != [_name(count)]:
        return False
    last = b"".join(storage.chunks(f"{known.path}/{_name(count)}"))
    return sha256(last).hexdigest() == known.digests[-1]


def _name(number: int) -> str:
    return f"{number:020}.json"


def manifest_of(archive: str, known: Manifest | None = None) -> Manifest:
    """The manifest of an archive at a path that was `checked`; ``known`` as of `read_manifest`."""
    return read_manifest(f"{archive}/manifest", known)


def lacking(wanted: Fingerprints, held: Fingerprints) -> list[int]:
    """Hours of which something is missing: fewer messages, or as many others; ascending."""
    return sorted(
        hour
        for hour, each in wanted.items()
        if held.get(hour, NOTHING).messages <= each.messages and held.get(hour) != each
    )


def _parsed(data: bytes) -> tuple[int, str, Entry]:
    told: dict[str, Any] = json.loads(data)
    added = {
        str(path): FileNote(int(day), int(rows), str(digest))
        for path, day, rows, digest in told["added"]
    }
    hours = {
        int(start): Fingerprint(int(count), int(x0), int(x1), int(x2), int(x3))
        for start, count, x0, x1, x2, x3 in told["hours"]
    }
    if not all(0 <= start <= _FOREVER for start in hours):
        raise ValueError("an hour is out of range")
    removed = [str(path) for path in told["removed"]]
    version, after = int(told["version"]), int(told.get("after", 0))
    entry = Entry(version, added, removed, hours, told.get("repaired") is True, after)
    return int(told["number"]), str(told["before"]), entry
