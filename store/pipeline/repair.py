"""`repair`: the Delta log of an archive, restored from the copies of its commits.

Copies that the manifest lacks are made from the log first, if it continues them. The files that the
restored log names must be the ones whose digests the commits record. Where files are lost nothing
is changed, unless they are to be left out: then a further commit removes them, and `verify` keeps
naming the hours that are no longer here in full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from store.pipeline.delta import DataFile, DeltaArchive
from store.pipeline.errors import USAGE, PipelineError, spark_errors
from store.pipeline.fingerprints import NOTHING
from store.pipeline.limits import DAY_NS
from store.pipeline.manifest import Manifest, day_of
from store.pipeline.parquet import fingerprints_of, lost_files
from store.pipeline.spark import logged
from store.pipeline.verify import FaultList

_REFUSED: Final = (
    "Nothing was changed: put files or log back from a copy of the archive, or leave out what is"
    " lost with --leave-out-lost."
)


@dataclass
class RepairReport(FaultList):
    """The result of a repair run.

    ``commits_restored`` are in the log again, ``commits_copied`` in the manifest; ``files_removed``
    are lost, and no longer named. ``damaged_log`` is where the old log is. ``refused``: nothing was
    changed because of the faults.
    """

    commits: int = 0
    files: int = 0
    commits_restored: int = 0
    commits_copied: int = 0
    files_removed: int = 0
    damaged_log: str | None = None
    refused: bool = False

    def lines(self) -> list[str]:
        """Return the report as text."""
        found = self.fault_lines()
        if self.refused:
            return [*found, _REFUSED]
        if self.commits_copied:
            found.append(f"Copied {self.commits_copied:,} commits of the log to the manifest.")
        if self.commits_restored:
            found.append(
                f"Restored {self.commits_restored:,} commits of the log, which names"
                f" {self.files:,} files."
            )
        if self.files_removed:
            found.append(f"Removed {self.files_removed:,} lost files from the table.")
        if self.damaged_log is not None:
            found.append(f"The old log is in {self.damaged_log}.")
        return found or ["Log and manifest agree: there is nothing to repair."]


@spark_errors()
def repair(
    session: SparkSession, archive: DeltaArchive, *, leave_out: bool = False
) -> RepairReport:
    """Restore the log of an archive from its manifest.

    ``leave_out``: remove files that are lost instead of changing nothing.
    """
    manifest = require_manifest(archive)
    files = [
        DataFile(f"{archive.messages}/{path}", day_of(path), 0, 0, 0) for path in manifest.files
    ]
    result = RepairReport(commits=manifest.version + 1, files=len(files))
    with logged("repair"):
        faults = lost_files(session, archive, files)
        result.add_files(archive, faults)
        lost = [file for found in faults.values() for file in found]
        result.refused = bool(lost) and not leave_out
        if result.refused:
            return result
        result.commits_copied = archive.copy_commits()
        if not archive.agrees:
            result.commits_restored = manifest.version + 1
            result.damaged_log = archive.restore_log()
        if lost:
            _leave_out(session, archive.open_for_writing(), lost)
            result.files_removed = len(lost)
    return result


def require_manifest(archive: DeltaArchive) -> Manifest:
    """Return the manifest of an archive, whose log may be missing or damaged."""
    archive.open_if_readable()
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
            " back from a copy; or remove it, if the log still has all commits from the first one"
            " on. Nothing was changed."
        )
    return manifest


def _leave_out(session: SparkSession, archive: DeltaArchive, lost: list[DataFile]) -> None:
    """Commit that files are gone, and what is left of the hours of their days."""
    days = {each.day for each in lost}
    paths = {each.path for each in lost}
    kept = [each for each in archive.files(days) if each.path not in paths]
    hours = dict.fromkeys(
        (hour for hour in archive.manifest.stored if hour // DAY_NS in days), NOTHING
    ) | fingerprints_of(session, kept)
    archive.commit([], lost, hours)
