"""What an archive must hold by its manifest, or by a copy of it, against what it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from store.pipeline.errors import USAGE, PipelineError
from store.pipeline.fingerprints import NOTHING, Fingerprints
from store.pipeline.limits import DAY_NS
from store.pipeline.manifest import FileNote, Manifest, lacking, read_manifest
from store.pipeline.paths import checked
from store.pipeline.reports import time_text

LOST_HOUR: Final = "hour of the manifest is no longer here in full"
LOST_FILE: Final = "file of the manifest is not in the table"
CHANGED_FILE: Final = "file is not the one that the manifest names"
LOST_COMMIT: Final = "commit of the manifest is missing from the log"
BROKEN_MANIFEST: Final = "manifest is damaged"
CUT_MANIFEST: Final = "manifest does not begin as its copy does"

Faults = Iterator[tuple[str, list[str]]]
"""Kinds of faults, and what has each."""


@dataclass(frozen=True)
class Held:
    """What an archive was found to hold: the files of its table, hours, and its newest commit.

    ``digests`` are those of the files that were read and could be. ``entries``: so many the
    manifest had by the log, if not more.
    """

    paths: set[str]
    digests: Mapping[str, str]
    hours: Fingerprints
    version: int
    entries: int = 0


@dataclass(frozen=True)
class Required:
    """The manifest of an archive, and a copy of it if one was given."""

    own: Manifest
    copy: Manifest | None

    def faults(self, held: Held, covers: Callable[[int], bool]) -> Faults:
        """What is wrong on the days (since the epoch) that ``covers`` is true of."""
        every = [each for each in (self.copy, self.own) if each is not None]
        broken = [f"{each.path}/{line}" for each in every for line in each.broken]
        yield BROKEN_MANIFEST, broken + shortened(self.own, held.entries)
        yield CUT_MANIFEST, self._cut()
        # Where the archive's own goes on from the copy, the copy has nothing more to say.
        checked_ones = [self.own] if self.copy is None or not self._cut() else every
        newest = max(each.version for each in checked_ones)
        if newest > held.version:
            yield LOST_COMMIT, [f"{newest}: the newest commit of the log is {held.version}"]
        files: dict[str, FileNote] = {}
        hours: Fingerprints = {}
        for each in checked_ones:
            files |= {path: note for path, note in each.files.items() if covers(note.day)}
            hours |= {
                hour: wanted
                for hour, wanted in each.hours.items()
                if covers(hour // DAY_NS) and wanted.messages >= hours.get(hour, NOTHING).messages
            }
        yield LOST_FILE, sorted(path for path in files if path not in held.paths)
        yield CHANGED_FILE, _changed(files, held.digests)
        yield LOST_HOUR, shortfalls(hours, held.hours, "in the manifest")

    def note(self, held: Held) -> str:
        """What there is to check by."""
        if not self.own and held.entries:
            return "The manifest of the archive is gone."
        if not self.own:
            return (
                "The archive has no manifest, so what was removed from it cannot be found by it"
                " alone: the next `storenode pipeline archive` begins one."
            )
        newer = len(held.paths - self.own.files.keys())
        told = f"The manifest has {len(self.own.digests):,} entries; {newer:,} files are not in it."
        if self.own.after:
            told += f" It was begun in place of one with {self.own.after:,}."
        return told

    def _cut(self) -> list[str]:
        copy, own = self.copy, self.own
        if copy is None or own.continues(copy):
            return []
        pairs = zip_longest(own.digests, copy.digests)
        first = next(number for number, (one, other) in enumerate(pairs, 1) if one != other)
        return [
            f"entry {first:,} of {len(copy.digests):,} in {copy.path}"
            + (" is not here" if first > len(own.digests) else " is another here")
        ]


def required(own: Manifest, copy: str | None) -> Required:
    """What an archive must hold by its ``own`` manifest and by the ``copy`` in a directory.

    Raises:
        PipelineError: there is no manifest in that directory, or it cannot be read.
    """
    if copy is None:
        return Required(own, None)
    found = read_manifest(checked(copy, "The copy of a manifest"))
    if not found:
        raise PipelineError(
            f"There is no manifest in {found.path}: name a copy of the directory `manifest` of an"
            " archive.",
            USAGE,
        )
    return Required(own, found)


def shortened(manifest: Manifest, entries: int) -> list[str]:
    """Whether a manifest has fewer entries than the log says that it had, in a line."""
    if manifest.entries >= entries:
        return []
    return [f"{manifest.path} has {manifest.entries:,} entries, and had {entries:,} by the log"]


def shortfalls(wanted: Fingerprints, held: Fingerprints, where: str) -> list[str]:
    """The hours that lack something of what is wanted; ``where`` names what wants it."""
    return [
        f"{time_text(hour)}: {held.get(hour, NOTHING).messages:,} messages,"
        f" {wanted[hour].messages:,} {where}"
        for hour in lacking(wanted, held)
    ]


def _changed(files: Mapping[str, FileNote], digests: Mapping[str, str]) -> list[str]:
    found: Iterable[str] = files.keys() & digests.keys()
    return sorted(path for path in found if files[path].digest != digests[path])
