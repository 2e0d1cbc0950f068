"""`repair`: the Delta log of an archive, made anew from its files and its manifest.

The manifest says which files the table must name. A file is named again if it is the one that its
entry has the digest of; and only if the hours of its day then hold what the manifest says, and no
message twice. Where that does not agree nothing is changed. A log that cannot be read is moved
aside, one that can be gets one commit more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from pyspark.sql import Row, SparkSession

from store.pipeline.actions import Written
from store.pipeline.appending import read_back
from store.pipeline.contents import fingerprints_of, known_hours
from store.pipeline.errors import SPARK_ERRORS, USAGE, PipelineError, of_spark
from store.pipeline.fingerprints import Fingerprints, collected
from store.pipeline.jobs.verify import (
    FILE,
    HOUR,
    TWICE,
    UNREADABLE,
    Fault,
    fault_lines,
    fault_of,
    faults_as_json,
    file_checks,
    spans_of,
)
from store.pipeline.lake import Lake, LakeFile
from store.pipeline.limits import DAY_NS, HOUR_NS
from store.pipeline.manifest import Entry, FileNote, Manifest, lacking
from store.pipeline.progress import Say, shown, silent
from store.pipeline.recording import replaced, whole_manifest
from store.pipeline.repeated import Span, repeated
from store.pipeline.requiring import CHANGED_FILE, LOST_HOUR, shortfalls

STRANGE: Final = "entry of the manifest does not name a file of an archive"

_PATH: Final = re.compile(
    r"\Arun-[0-9a-f]{32}/day=(\d{4}-\d\d-\d\d)/shard=(-?\d{1,9})/[\w.-]+\.parquet\Z", re.ASCII
)


@dataclass
class Repaired:
    """What a run did, or would do when ``dry_run``.

    The log was made anew if ``anew``; ``added`` files with ``messages`` are named again, and
    ``removed`` ones no longer, since others have taken their place. ``left_out`` says that files
    with ``faults`` were left out; without it, faults are why nothing was changed.
    """

    anew: bool
    added: int = 0
    messages: int = 0
    removed: int = 0
    faults: list[Fault] = field(default_factory=list)
    aside: str | None = None
    left_out: bool = False
    dry_run: bool = False

    @property
    def sound(self) -> bool:
        """Whether the log names again all that the manifest does."""
        return not self.faults

    @property
    def refused(self) -> bool:
        """Whether nothing is changed because of the faults."""
        return bool(self.faults) and not self.left_out

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return {
            "sound": self.sound,
            "refused": self.refused,
            "log_made_anew": self.anew,
            "files_added": self.added,
            "messages_added": self.messages,
            "files_removed": self.removed,
            "damaged_log": self.aside,
            "faults": faults_as_json(self.faults),
            "dry_run": self.dry_run,
        }

    def lines(self) -> list[str]:
        """The same in words."""
        told = fault_lines(self.faults)
        if self.refused:
            twice = any(each.kind == TWICE for each in self.faults)
            rest = "." if twice else ", or leave out what is lost with --leave-out-lost."
            how = f"Nothing was changed: put files or log back from a copy of the archive{rest}"
            return [*told, how]
        if not (self.anew or self.added or self.removed):
            return [*told, "The log names every file of the manifest: there is nothing to repair."]
        verb = "Would make" if self.dry_run else "Made"
        what = f"{verb} the log anew" if self.anew else f"{verb} a commit in the log"
        told.append(
            f"{what}: {self.added:,} files with {self.messages:,} messages are named again,"
            f" {self.removed:,} no longer."
        )
        if self.aside is not None:
            told.append(f"The damaged log is in {self.aside}.")
        return told


@dataclass(frozen=True)
class Repairing:
    """Which archive; ``leave_out`` files that are lost instead of refusing to go on."""

    lake: Lake
    leave_out: bool = False
    dry_run: bool = False
    say: Say = silent


def repair(session: SparkSession, job: Repairing) -> Repaired:
    """Have the log of an archive name what its manifest does.

    Raises:
        PipelineError: as `manifest_to_repair_by`; something else is there, the archive cannot be
            read or written, or another job has written to it.
    """
    return _Repair(session, job, manifest_to_repair_by(job.lake)).run()


def manifest_to_repair_by(lake: Lake) -> Manifest:
    """The manifest of an archive.

    Raises:
        PipelineError: there is none, or it is damaged.
    """
    manifest = whole_manifest(lake)
    if not manifest:
        raise PipelineError(
            f"There is no manifest in {lake.path}, so nothing says what its log must name: put the"
            " directory `manifest`, or the log, back from a copy.",
            USAGE,
        )
    return manifest


class _Repair:
    def __init__(self, session: SparkSession, job: Repairing, manifest: Manifest) -> None:
        self._session = session
        self._job = job
        self._lake = job.lake
        self._manifest = manifest
        anew = not job.lake.open_if_readable()
        named = {} if anew else {job.lake.within(each): each for each in job.lake.files()}
        here = {each.path for each in job.lake.stored()} if named else set()
        self._present = {path: each for path, each in named.items() if path in here}
        self._lost = {path: each for path, each in named.items() if path not in here}
        self._result = Repaired(anew, left_out=job.leave_out, dry_run=job.dry_run)

    def run(self) -> Repaired:
        result = self._result
        new = self._new()
        added, gone = self._agreeing(new)
        result.added, result.removed = len(added), len(gone)
        result.messages = sum(each.rows for each in added.values())
        if not result.refused and not result.dry_run:
            self._write(gone, self._written(added))
        return result

    def _new(self) -> dict[str, LakeFile]:
        """The files of the manifest that the log lacks, and has no others for; and those that it
        names and that are gone.
        """
        present, manifest = self._present, self._manifest
        named = present.keys() | self._lost.keys()
        held = {} if self._result.anew else known_hours(self._session, self._lake, keep=False)
        others = set(replaced(manifest, named, held)) if named else set()
        missing = {
            path: note
            for path, note in manifest.files.items()
            if path not in present and path not in others
        }
        new = {path: note for path, note in missing.items() if _is_one(path, note)}
        self._note(STRANGE, sorted(map(repr, missing.keys() - new.keys())))
        return {path: _lake_file(self._lake, path, note) for path, note in new.items()}

    def _agreeing(self, new: Mapping[str, LakeFile]) -> tuple[dict[str, LakeFile], list[LakeFile]]:
        """The new files that are what the manifest says, and those whose place they take.

        Their days must then hold what the manifest says, and each message once.
        """
        days = {each.day for each in (*new.values(), *self._lost.values())}
        here = {path: each for path, each in self._present.items() if each.day in days}
        rows = self._checked({**here, **new})
        bad = self._bad(new, here, rows)
        # What took the place of these files is lost itself: they stay.
        kept = {new[path].day for path in bad if path in new}
        gone = {
            path: each
            for path, each in here.items()
            if path in self._manifest.gone and each.day not in kept
        } | self._lost
        files = {
            path: each
            for path, each in {**here, **new}.items()
            if path not in bad and path not in gone
        }
        held = self._held(rows, files, all_of_them=not bad and not gone)
        self._check_hours(days, held)
        read = [row for row in rows if row["kind"] == FILE and row["path"] in files]
        self._check_once(held, spans_of(read, files))
        added = {path: each for path, each in files.items() if path in new}
        return added, list(gone.values())

    def _bad(
        self, new: Mapping[str, LakeFile], here: Mapping[str, LakeFile], rows: list[Row]
    ) -> set[str]:
        """Files that cannot be read, and new ones that are not those of the manifest."""
        digests = {row["path"]: row["where"][0] for row in rows if row["kind"] == FILE}
        unreadable = sorted((new.keys() | here.keys()) - digests.keys())
        wanted = self._manifest.files
        changed = sorted(
            path for path in new.keys() & digests.keys() if digests[path] != wanted[path].digest
        )
        self._note(UNREADABLE, sorted({*unreadable, *self._lost}))
        self._note(CHANGED_FILE, changed)
        return {*unreadable, *changed}

    def _checked(self, files: Mapping[str, LakeFile]) -> list[Row]:
        ordered = sorted(files.values(), key=LakeFile.place)
        with shown(self._session, self._job.say, "repair", sum(each.rows for each in ordered)):
            return file_checks(self._session, ordered, ())

    def _check_hours(self, days: set[int], held: Fingerprints) -> None:
        wanted = {
            hour: each for hour, each in self._manifest.hours.items() if hour // DAY_NS in days
        }
        if lacking(wanted, held):
            self._note(LOST_HOUR, shortfalls(wanted, held, "in the manifest"))

    def _held(
        self, rows: list[Row], files: Mapping[str, LakeFile], *, all_of_them: bool
    ) -> Fingerprints:
        """What files hold by hour: read again, unless they are all that ``rows`` are about."""
        if all_of_them:
            return collected(row for row in rows if row["kind"] == HOUR)
        return fingerprints_of(self._session, list(files.values()), HOUR_NS)

    def _check_once(self, held: Fingerprints, files: list[Span]) -> None:
        """A message that is there twice is never left: no file of it can be told to be the one."""
        found = repeated(self._session, held, files)
        if found:
            self._note(TWICE, (text for row in found for text in row["where"]))
            self._result.left_out = False

    def _note(self, kind: str, where: Iterable[str]) -> None:
        self._result.faults += fault_of(kind, where)

    def _written(self, added: Mapping[str, LakeFile]) -> list[Written]:
        try:
            rows = {path: each.rows for path, each in added.items()}
            return read_back(self._session, self._lake, rows)[0] if rows else []
        except SPARK_ERRORS as error:
            raise of_spark(error) from error

    def _write(self, gone: list[LakeFile], written: list[Written]) -> None:
        result, manifest = self._result, self._manifest
        if result.anew:
            result.aside = self._lake.create_from(written)
        elif gone or written:
            self._lake.replace(gone, written)
        if result.anew or self._lake.version < manifest.version:
            manifest.append(Entry(self._lake.version, {}, [], {}, repaired=True))


def _is_one(path: str, note: FileNote) -> bool:
    match = _PATH.match(path)
    return match is not None and match[1] == str(np.datetime64(note.day, "D")) and note.rows >= 0


def _lake_file(lake: Lake, path: str, note: FileNote) -> LakeFile:
    match = _PATH.match(path)
    assert match is not None
    return LakeFile(f"{lake.messages}/{path}", note.day, int(match[2]), 0, note.rows)
