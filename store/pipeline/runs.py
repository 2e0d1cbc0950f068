"""Folders of files that a job has written and not published yet: each has a marker.

::

    ARCHIVE/unpublished/run-ID      while ARCHIVE/messages/run-ID was never published

The marker goes before the commit that names the files. So what has one may be deleted, and what a
lost log had named is never taken for the rest of a job that was killed.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Collection, Iterable
from typing import Final

from store.pipeline import storage
from store.pipeline.errors import PipelineError
from store.pipeline.limits import VACUUM_AFTER_HOURS
from store.pipeline.paths import on_store

_MARKERS: Final = "unpublished"
_NAME: Final = re.compile(r"\Arun-[0-9a-f]{32}\Z")


def begin_run(archive: str) -> str:
    """The name of a new folder of ``messages``, which is marked as not published.

    Raises:
        OSError: the marker cannot be written.
        PipelineError: the archive is on a store that would let two jobs overwrite each other.
    """
    run = f"run-{uuid.uuid4().hex}"
    marker = f"{archive}/{_MARKERS}/{run}"
    storage.create(marker, b"\n")
    if on_store(archive):
        _require_conditional(marker)
    return run


def _require_conditional(marker: str) -> None:
    """Make sure that a store refuses to write an object twice where it is told to.

    Commits of the log and entries of the manifest rely on it: some stores take the condition and
    do not heed it.
    """
    try:
        storage.create(marker, b"\n")
    except FileExistsError:
        return
    raise PipelineError(
        f"The store of {marker} does not support conditional writes (If-None-Match), so two jobs"
        " could overwrite each other's commits: use a newer version of it, or another store."
    )


def unmark(archive: str, runs: Iterable[str]) -> None:
    """Take the markers of runs away, on the disk before this returns.

    Raises:
        OSError: one cannot be deleted.
    """
    storage.delete(f"{archive}/{_MARKERS}", runs)


def delete_abandoned(archive: str, named: Collection[str]) -> int:
    """Delete files of runs that are marked, and old; returns how many.

    The runs that are ``named`` by the log only lose their marker.

    Raises:
        OSError: something cannot be read or deleted.
    """
    old_ns = time.time_ns() - VACUUM_AFTER_HOURS * 3_600 * 10**9
    deleted = 0
    for run, time_ns in storage.listed(f"{archive}/{_MARKERS}"):
        if not _NAME.match(run) or time_ns > old_ns:
            continue
        files = [] if run in named else storage.listed(f"{archive}/messages/{run}")
        if all(each.time_ns <= old_ns for each in files):
            if files:
                storage.delete_folder(f"{archive}/messages", run)
            unmark(archive, [run])
            deleted += len(files)
    return deleted
