"""Folders of files that a job has written and not published yet: each has a marker.

::

    ARCHIVE/unpublished/run-ID      while ARCHIVE/messages/run-ID was never published

The marker goes before the commit that names the files. So what has one may be deleted, and what a
lost log had named is never taken for the rest of a job that was killed.
"""

from __future__ import annotations

import re
import shutil
import time
import uuid
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from pyarrow.fs import FileInfo, FileSelector, FileType

from store.pipeline.limits import VACUUM_AFTER_HOURS
from store.pipeline.paths import for_spark
from store.pipeline.storage import folder_at, for_writing, sync_folder

_MARKERS: Final = "unpublished"
_NAME: Final = re.compile(r"\Arun-[0-9a-f]{32}\Z")


def begin_run(archive: str) -> str:
    """The name of a new folder of ``messages``, which is marked as not published.

    Raises:
        OSError: the marker cannot be written.
    """
    run = f"run-{uuid.uuid4().hex}"
    with for_writing(for_spark(f"{archive}/{_MARKERS}/{run}")) as sink:
        sink.write(b"\n")
    return run


def unmark(archive: str, runs: Iterable[str]) -> None:
    """Take the markers of runs away, on the disk before this returns.

    Raises:
        OSError: one cannot be deleted.
    """
    for run in runs:
        if archive.startswith("/"):
            Path(archive, _MARKERS, run).unlink(missing_ok=True)
            continue
        markers = folder_at(f"{archive}/{_MARKERS}")
        if markers.get_file_info(run).type != FileType.NotFound:
            markers.delete_file(run)
    if archive.startswith("/") and Path(archive, _MARKERS).is_dir():
        sync_folder(Path(archive, _MARKERS))


def delete_abandoned(archive: str, named: Collection[str]) -> int:
    """Delete files of runs that are marked, and old; returns how many.

    The runs that are ``named`` by the log only lose their marker.

    Raises:
        OSError: something cannot be read or deleted.
    """
    if archive.startswith("/") and not Path(archive, _MARKERS).is_dir():
        return 0
    old_ns = time.time_ns() - VACUUM_AFTER_HOURS * 3_600 * 10**9
    deleted = 0
    for marker in _listed(f"{archive}/{_MARKERS}"):
        run = marker.base_name
        if not _NAME.match(run) or _time_ns(marker) > old_ns:
            continue
        files = [] if run in named else _listed(f"{archive}/messages/{run}")
        if all(_time_ns(each) <= old_ns for each in files):
            if files:
                _delete_folder(f"{archive}/messages", run)
            unmark(archive, [run])
            deleted += len(files)
    return deleted


def _delete_folder(parent: str, name: str) -> None:
    if parent.startswith("/"):
        shutil.rmtree(Path(parent, name))
    else:
        folder_at(parent).delete_dir(name)


def _listed(folder: str) -> list[FileInfo]:
    """The files below a folder, which may not exist."""
    if folder.startswith("/") and not Path(folder).is_dir():
        return []
    found = folder_at(folder).get_file_info(FileSelector("", allow_not_found=True, recursive=True))
    return [each for each in found if each.type == FileType.File]


def _time_ns(file: FileInfo) -> int:
    return int(file.mtime_ns)
