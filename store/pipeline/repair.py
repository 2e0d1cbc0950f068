"""`repair`: the Delta log of an archive, restored from the copies of its commits.

The files that the restored log names must be the ones whose digests the commits record. Where files
are lost nothing is changed, unless they are to be left out: then a further commit removes them, and
`verify` keeps naming the hours that are no longer here in full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from store.pipeline.delta import CommitMetadata, DataFile, DeltaArchive, Manifest
from store.pipeline.errors import USAGE, PipelineError
from store.pipeline.parquet import file_digests
from store.pipeline.spark import Say, shown, silent
from store.pipeline.verify import CHANGED_FILE, UNREADABLE, FaultList

_REFUSED: Final = (
    "Nothing was changed: put files or log back from a copy of the archive, or leave out what is"
    " lost with --leave-out-lost."
)
STRANGE: Final = "commit of the manifest names a file that is none of an archive"


@dataclass
class RepairReport(FaultList):
    """The result of a repair run, or a forecast of it if it was a ``dry_run``.

    ``commits_restored`` are in the log again; ``files_removed`` are lost, and no longer named.
    ``damaged_log`` is where the old log is. ``refused``: nothing was changed because of the faults.
    """

    commits: int = 0
    files: int = 0
    commits_restored: int = 0
    files_removed: int = 0
    damaged_log: str | None = None
    refused: bool = False
    dry_run: bool = False

    def lines(self) -> list[str]:
        """Return the report in words."""
        found = self.fault_lines()
        if self.refused:
            return [*found, _REFUSED]
        if not (self.commits_restored or self.files_removed):
            return [
                *found,
                "The log has every commit of the manifest: there is nothing to repair.",
            ]
        verb = "Would restore" if self.dry_run else "Restored"
        found.append(
            f"{verb} {self.commits_restored:,} commits of the log, which names {self.files:,}"
            " files."
        )
        if self.files_removed:
            verb = "Would remove" if self.dry_run else "Removed"
            found.append(f"{verb} {self.files_removed:,} lost files from the table.")
        if self.damaged_log is not None:
            found.append(f"The old log is in {self.damaged_log}.")
        return found


@dataclass(frozen=True)
class RepairJob:
    """An archive; ``leave_out``: remove files that are lost instead of changing nothing."""

    archive: DeltaArchive
    leave_out: bool = False
    dry_run: bool = False
    say: Say = silent


def repair(session: SparkSession, job: RepairJob) -> RepairReport:
    """Restore the log of an archive from its manifest."""
    archive, manifest = job.archive, require_manifest(job.archive)
    is_readable = archive.open_if_readable()
    damaged = not is_readable or bool(archive.log_faults(manifest))
    is_short = damaged or archive.version < manifest.version
    result = RepairReport(
        commits=manifest.version + 1, files=len(manifest.files), dry_run=job.dry_run
    )
    result.commits_restored = manifest.version + 1 if is_short else 0
    files = {
        path: DataFile(f"{archive.messages}/{path}", each.day, 0, 0, 0)
        for path, each in manifest.files.items()
    }
    with shown(job.say, "repair"):
        lost = _lost_files(session, manifest, files, result)
    result.files_removed = len(lost)
    result.refused = bool(manifest.strange) or (bool(lost) and not job.leave_out)
    if result.refused or job.dry_run:
        return result
    if is_short:
        result.damaged_log = archive.restore_log(manifest)
    if lost:
        archive.open_for_writing().commit([], lost, CommitMetadata(hours=None))
    return result


def require_manifest(archive: DeltaArchive) -> Manifest:
    """Return the manifest of an archive."""
    manifest = archive.manifest
    if not manifest.digests:
        raise PipelineError(
            f"There is no manifest in {archive.path}, so nothing says what its log must name: put"
            " the directory `manifest`, or the log, back from a copy.",
            USAGE,
        )
    if manifest.broken:
        raise PipelineError(
            f"The manifest in {manifest.path} is damaged ({manifest.broken[0]}): put the directory"
            " back from a copy. Nothing was changed."
        )
    return manifest


def _lost_files(
    session: SparkSession,
    manifest: Manifest,
    files: Mapping[str, DataFile],
    result: RepairReport,
) -> list[DataFile]:
    """Return the files that cannot be read, or are others than the commits record."""
    result.add(STRANGE, manifest.strange)
    if manifest.strange:
        return []
    digests = file_digests(session, files.values())
    gone = sorted(path for path, each in files.items() if each.path not in digests)
    changed = sorted(
        path
        for path, each in files.items()
        if each.path in digests and manifest.files[path].digest not in {None, digests[each.path][1]}
    )
    result.add(UNREADABLE, gone)
    result.add(CHANGED_FILE, changed)
    return [files[path] for path in (*gone, *changed)]
