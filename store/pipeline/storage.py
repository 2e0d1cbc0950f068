"""Files of an archive as every process opens them, without Spark: by pyarrow on a file system that
the machine has mounted, and on an object store by `store.pipeline.objects`.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from store.pipeline.paths import LOCAL, on_store

_READ_BYTES: Final = 1024 * 1024


class Stored(NamedTuple):
    """A file below a folder: its path within it, and when it was written."""

    path: str
    time_ns: int


def for_reading(path: str) -> pa.NativeFile:
    """Open a file for random access; a local path may have a scheme.

    Raises:
        OSError: it is not there, or cannot be read.
    """
    if on_store(path):
        # Where archives are on mounted file systems, no worker needs it.
        from store.pipeline.objects import RemoteFile  # noqa: PLC0415

        return pa.PythonFile(RemoteFile(path), "r")
    return pa.OSFile(path.removeprefix(LOCAL), "rb")


def for_writing(path: str) -> pa.NativeFile:
    """Open a file that is not there yet; directories are made.

    Raises:
        OSError: it cannot be written.
    """
    if on_store(path):
        from store.pipeline.objects import RemoteSink  # noqa: PLC0415

        return pa.PythonFile(RemoteSink(path), "w")
    local = Path(path.removeprefix(LOCAL))
    local.parent.mkdir(parents=True, exist_ok=True)
    return pa.OSFile(str(local), "wb")


def create(path: str, data: bytes, folders: int = 0) -> None:
    """Write a file that is not there yet, whole or not at all, on the disk before this returns.

    So many ``folders`` above it are synced, too.

    Raises:
        FileExistsError: it is there; of two that write it at once, one sees this.
        OSError: it cannot be written.
    """
    if on_store(path):
        from store.pipeline import objects  # noqa: PLC0415

        objects.create(path, data)
        return
    target = Path(path.removeprefix(LOCAL))
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{uuid.uuid4().hex}")
    try:
        part.write_bytes(data)
        _sync(part)
        os.link(part, target)  # fails if the target exists; delta-rs publishes in the same way
    finally:
        part.unlink(missing_ok=True)
    settle([f"{LOCAL}{target}"], folders)


def chunks(path: str) -> Iterator[bytes]:
    """Yield all of a file in pieces, from an object store in one request.

    Raises:
        OSError: it is not there, or cannot be read.
    """
    if on_store(path):
        from store.pipeline import objects  # noqa: PLC0415

        yield from objects.chunks(path)
        return
    with Path(path.removeprefix(LOCAL)).open("rb") as source:
        while data := source.read(_READ_BYTES):
            yield data


def listed(folder: str) -> list[Stored]:
    """Return the files below a folder, which may not exist.

    Raises:
        OSError: it cannot be read.
    """
    if on_store(folder):
        from store.pipeline import objects  # noqa: PLC0415

        return [
            Stored(name, int(each["last_modified"].timestamp() * 1e9))
            for name, each in objects.listed(folder)
        ]
    found = []
    for each in Path(folder).rglob("*"):
        with suppress(FileNotFoundError):  # deleted meanwhile
            if each.is_file():
                found.append(Stored(str(each.relative_to(folder)), each.stat().st_mtime_ns))
    return found


def delete(folder: str, names: Iterable[str]) -> None:
    """Delete files by their paths within a folder, on the disk before this returns; some may be
    gone already.

    Raises:
        OSError: one cannot be deleted.
    """
    if on_store(folder):
        from store.pipeline import objects  # noqa: PLC0415

        objects.delete(folder, names)
        return
    for name in names:
        Path(folder, name).unlink(missing_ok=True)
    if Path(folder).is_dir():
        sync_folder(Path(folder))


def delete_folder(parent: str, name: str) -> None:
    """Delete a folder and all that is in it.

    Raises:
        OSError: something cannot be deleted.
    """
    if on_store(parent):
        delete(f"{parent}/{name}", [each.path for each in listed(f"{parent}/{name}")])
    else:
        shutil.rmtree(Path(parent, name))


def move_folder(parent: str, name: str, target: str) -> None:
    """Move a folder to another path within the same one; on an object store one file at a time.

    Raises:
        OSError: something cannot be moved.
    """
    if on_store(parent):
        from store.pipeline import objects  # noqa: PLC0415

        objects.move(parent, name, target)
        return
    old, new = Path(parent, name), Path(parent, target)
    old.rename(new)
    sync_folder(old.parent)
    sync_folder(new.parent)


def delta_options(path: str) -> dict[str, str] | None:
    """Return the storage options of delta-rs for a path."""
    if not on_store(path):
        return None
    from store.pipeline import objects  # noqa: PLC0415

    return objects.delta_options(path)


def require_reachable(path: str) -> None:
    """Raise unless the store of a path answers, if it is on one.

    Raises:
        OSError: it does not.
    """
    if on_store(path):
        from store.pipeline import objects  # noqa: PLC0415

        objects.require_reachable(path)


def settle(paths: Iterable[str], folders: int) -> None:
    """Have files, and some folders above each, reach the disk; object stores do so by themselves.

    An hour that is marked as archived may be dropped from its database: by then no loss of power
    must take it from the archive.

    Raises:
        OSError: the disk did not take it.
    """
    files = [Path(path.removeprefix(LOCAL)) for path in paths if path.startswith(LOCAL)]
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
