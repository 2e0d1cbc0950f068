"""Writing the manifest of an archive after what was published, and what it was not written after.

An entry follows its commit, so a job that is killed between the two leaves files that no entry
names: the next run writes the entry. The first entry of a new archive comes before all commits with
files, and each commit has the number of entries before it, which tells when a manifest is gone.
What an entry has named once is never given up because it is gone: a file only goes when its day
holds all that the manifest says.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from store.pipeline.contents import over_files
from store.pipeline.errors import SPARK_ERRORS, PipelineError, of_file, of_spark, of_store
from store.pipeline.fingerprints import NOTHING, Fingerprints
from store.pipeline.lake import Lake, LakeFile
from store.pipeline.limits import DAY_NS
from store.pipeline.manifest import Entry, FileNote, Manifest, manifest_of
from store.pipeline.requiring import shortened
from store.pipeline.storage import chunks, move_folder

_DIGESTS: Final = pa.schema([pa.field("path", pa.string()), pa.field("digest", pa.string())])


def record(
    session: SparkSession, lake: Lake, held: Fingerprints, known: Manifest | None = None
) -> Manifest:
    """Write to the manifest what it does not say yet of the state that was read.

    ``held`` is what the archive holds by hour, ``known`` the manifest as it was read before.
    Returns the manifest as it is now.

    Raises:
        PipelineError: the manifest is damaged or cannot be written, a file cannot be read, or
            another job has written.
    """
    manifest = whole_manifest(lake, known, lake.entries_noted if known is None else 0)
    lake.entries = manifest.entries
    new, gone, lost = unsaid(manifest, lake, held)
    if manifest and not new and not gone:
        return manifest
    digests = digests_of(session, new)
    added = {lake.within(each): FileNote(each.day, each.rows, digests[each.path]) for each in new}
    # Where a file is missing, an hour that grew may yet lack what it had.
    days = {each.day for each in new} - lost
    hours = {
        hour: each
        for hour, each in held.items()
        if hour // DAY_NS in days and each.messages > manifest.hours.get(hour, NOTHING).messages
    }
    manifest.append(Entry(lake.version, added, gone, hours))
    lake.entries = manifest.entries
    return manifest


def begin_manifest(lake: Lake) -> None:
    """Begin a new manifest of an archive that is open; what there is of the old one is moved aside.

    Raises:
        PipelineError: the manifest cannot be read, moved or written.
    """
    manifest = manifest_of(lake.path)
    entries = max(manifest.entries, lake.entries_noted)
    try:
        if manifest:
            move_folder(lake.path, "manifest", f"manifest-before-{time.time_ns()}")
    except OSError as error:
        raise of_store(lake.path, error) from error
    Manifest(manifest.path).append(Entry(lake.version, {}, [], {}, after=entries))


def unsaid(
    manifest: Manifest, lake: Lake, held: Fingerprints
) -> tuple[list[LakeFile], list[str], set[int]]:
    """What a manifest does not say of the state that was read: files that are new, and such as
    were replaced; and the days of which files are lost.
    """
    names = lake.listing.names()
    gone = replaced(manifest, names, held)
    known = names.union(gone)
    lost = {note.day for path, note in manifest.files.items() if path not in known}
    new = lake.named(names.difference(manifest.files))
    # Files that a lost commit had replaced are in the table again, until the log is repaired.
    back = {each.path for each in new if each.day in lost and lake.within(each) in manifest.gone}
    return [each for each in new if each.path not in back], gone, lost


def whole_manifest(lake: Lake, known: Manifest | None = None, entries: int = 0) -> Manifest:
    """The manifest of an archive that is to be written to; ``known`` as of `record`.

    Raises:
        PipelineError: its chain is broken, or it had so many ``entries`` and now has fewer.
    """
    manifest = manifest_of(lake.path, known)
    damage = [*manifest.broken, *shortened(manifest, entries)]
    if damage:
        raise PipelineError(
            f"The manifest in {manifest.path} is damaged ({damage[0]}): put the directory back from"
            " a copy. If there is none, check the archive with `storenode pipeline verify`, and"
            " begin a new one with `storenode pipeline archive --new-manifest`. Nothing was"
            " changed."
        )
    return manifest


def replaced(manifest: Manifest, present: set[str], held: Fingerprints) -> list[str]:
    """Files that are gone and whose days hold all the same what the manifest says."""
    gone = [path for path in manifest.files if path not in present]
    days = {manifest.files[path].day for path in gone}
    short = {
        hour // DAY_NS
        for hour, each in manifest.hours.items()
        if hour // DAY_NS in days and held.get(hour) != each
    }
    return [path for path in gone if manifest.files[path].day not in short]


def digests_of(session: SparkSession, files: Sequence[LakeFile]) -> dict[str, str]:
    """The SHA-256 of files, by path, computed by workers.

    Raises:
        PipelineError: one cannot be read.
    """
    if not files:
        return {}
    try:
        rows = over_files(session, _digests, files, _DIGESTS).collect()
    except SPARK_ERRORS as error:
        raise of_spark(error) from error
    return {row["path"]: row["digest"] for row in rows}


def _digests(files: list[LakeFile]) -> Iterator[pa.RecordBatch]:
    rows = [{"path": each.path, "digest": digest_of(each.path)} for each in files]
    yield pa.RecordBatch.from_pylist(rows, _DIGESTS)


def digest_of(path: str) -> str:
    """The SHA-256 of a file as `LakeFile` names it, in hexadecimal digits.

    Raises:
        PipelineError: it cannot be read.
    """
    found = sha256()
    try:
        for data in chunks(path):
            found.update(data)
    except OSError as error:
        raise of_file(path, error) from error
    return found.hexdigest()
