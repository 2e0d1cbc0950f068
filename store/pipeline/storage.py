"""Files of an archive as workers open them, without Spark: by pyarrow on a file system that the
machine has mounted, and anywhere else by delta-rs, which takes its settings from the environment.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow.fs import PyFileSystem

from store.pipeline.paths import for_delta

_LOCAL: Final = "file://"
_KNOWN_STORES: Final = 8
"""Stores whose connections are kept open by a worker."""


def for_reading(path: str) -> pa.NativeFile:
    """A file as `store.pipeline.lake.LakeFile` names it, for random access.

    Raises:
        OSError: it is not there, or cannot be read.
    """
    if path.startswith(_LOCAL):
        return pa.OSFile(path.removeprefix(_LOCAL), "rb")
    root, rest = _parts(path)
    return pa.PythonFile(_store(root).open_input_file(rest), "r")


def for_writing(path: str) -> pa.NativeFile:
    """A file that is not there yet, as for `for_reading`; directories are made.

    Raises:
        OSError: it cannot be written.
    """
    if path.startswith(_LOCAL):
        local = Path(path.removeprefix(_LOCAL))
        local.parent.mkdir(parents=True, exist_ok=True)
        return pa.OSFile(str(local), "wb")
    root, rest = _parts(path)
    return pa.PythonFile(_Sink(_store(root).open_output_stream(rest, None)), "w")


def folder_at(path: str) -> PyFileSystem:
    """The folder at a path that was `checked`, to list it and to delete in it; by delta-rs."""
    from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415 - see `_store`

    return PyFileSystem(DeltaStorageHandler(for_delta(path)))


def settle(paths: Iterable[str], folders: int) -> None:
    """Have files, and some folders above each, reach the disk; object stores do so by themselves.

    An hour that is marked as archived may be dropped from its database: by then no loss of power
    must take it from the archive.

    Raises:
        OSError: the disk did not take it.
    """
    files = [Path(path.removeprefix(_LOCAL)) for path in paths if path.startswith(_LOCAL)]
    for file in files:
        _sync(file)
    for folder in dict.fromkeys(above for file in files for above in file.parents[:folders]):
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Have what a folder names reach the disk.

    Raises:
        OSError: the disk did not take it.
    """
    try:
        _sync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems have no such call for folders
            raise


def _sync(place: Path) -> None:
    opened = os.open(place, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


class _Sink:
    """A file of delta-rs, which takes bytes, where pyarrow has buffers."""

    def __init__(self, held: Any) -> None:  # noqa: ANN401 - the class has no types
        self._held = held

    @property
    def closed(self) -> bool:
        return bool(self._held.closed)

    def write(self, data: pa.Buffer) -> int:
        return int(self._held.write(bytes(data)))

    def flush(self) -> None:
        self._held.flush()

    def close(self) -> None:
        self._held.close()


def _parts(path: str) -> tuple[str, str]:
    """The root of a store, as delta-rs calls it, and the rest of a path."""
    parts = urlsplit(for_delta(path), allow_fragments=False)
    return f"{parts.scheme}://{parts.netloc}/", parts.path.lstrip("/")


@lru_cache(_KNOWN_STORES)
def _store(root: str) -> Any:  # noqa: ANN401 - the class has no types
    # Where archives are on mounted file systems, no worker needs it.
    from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415

    return DeltaStorageHandler(root)._handler
