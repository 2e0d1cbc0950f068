"""Files of archives and outputs, on this machine or on an object store.

On object stores the file system of delta-rs for pyarrow reads and writes files; obstore, which is
made of the same library, adds conditional writes. Both get the same settings: credentials come from
the environment, and the roles of machines and pods. So neither the command nor a worker needs
anything of Spark or Hadoop to reach an archive.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow.fs import FileSystem, LocalFileSystem, PyFileSystem

from store.pipeline.errors import USAGE, PipelineError, StoreError, store_error

if TYPE_CHECKING:
    from obstore.store import ObjectStore

STORES: Final = ("s3://", "gs://", "abfss://")
"""The schemes of paths on object stores."""

CHUNK_BYTES: Final = 8 * 1024 * 1024
SMALL_BYTES: Final = 1024 * 1024
"""A smaller object is read in one request."""

_MAX_RETRIES: Final = 5
_TIMEOUTS: Final = {"connect_timeout": "5s", "timeout": "5min"}
_FILE_SCHEME: Final = re.compile(r"\Afile:(?://(?=/))?")
_HADOOP: Final = re.compile(r"\As3[an]://")
_DATABASE: Final = ("postgresql:", "postgres:")
_UNUSABLE: Final = re.compile(r"[][\\%\x00-\x1f\x7f]")
_SCHEME: Final = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*://")
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def checked(path: str, what: str = "An archive") -> str:
    """Return a path without its last slash; a local one is absolute, and has no scheme."""
    if not path or path.startswith(_DATABASE):
        raise PipelineError(f"{what} is a directory, not a database: give its path.", USAGE)
    unusable = _UNUSABLE.search(path)
    if unusable is not None:
        raise PipelineError(
            f"{what} cannot be in {path!r}: choose a path without {unusable[0]!r}.", USAGE
        )
    named = _HADOOP.sub("s3://", _FILE_SCHEME.sub("", path))
    if _SCHEME.match(named) is None:
        return str(Path(named).absolute()).rstrip("/") or "/"
    plain = named.rstrip("/")
    if not on_store(plain) or plain in STORES:
        raise PipelineError(
            f"{what} cannot be in {path!r}: name a directory, or a path in a bucket as"
            " s3://BUCKET/PATH, gs://BUCKET/PATH or"
            " abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH.",
            USAGE,
        )
    return plain


def on_store(path: str) -> bool:
    """Return True if a path that was `checked` is one of an object store."""
    return path.startswith(STORES)


def require_visible(paths: Iterable[str]) -> None:
    """Raise unless this process sees files that workers have written."""
    for path in paths:
        if not on_store(path) and not Path(path).is_file():
            raise PipelineError(
                f"What Spark has written to {path} is not there for this process: name a directory"
                " that both share, or one of an object store. Nothing was published."
            )


def require_new(path: Path, what: str, kind: str = "file") -> None:
    """Raise if something would be overwritten, or if there is no directory to write to."""
    if os.path.lexists(path):
        raise PipelineError(
            f"{path} exists already: name a {kind} that does not, for {what}.", USAGE
        )
    if not path.parent.is_dir():
        raise PipelineError(
            f"There is no directory {path.parent} for {what}: make it, or name another {kind}.",
            USAGE,
        )
    _require_writable(path.parent)


def require_new_directory(path: str, what: str) -> str:
    """Return the path of a directory that is to be written, checked."""
    found = checked(path, "The output")
    if not on_store(found):
        require_new(Path(found), what, "directory")
        return found
    try:
        require_reachable(found)
        exists = bool(listed(found))
    except OSError as error:
        raise PipelineError(f"{found} cannot be read or written: {error.strerror}.") from error
    if exists:
        raise PipelineError(
            f"{found} exists already: name a directory that does not, for {what}.", USAGE
        )
    return found


def require_room(path: str) -> None:
    """Raise unless there is a directory at a path that was `checked`, or can be one."""
    if on_store(path):
        return
    nearest = next(each for each in (Path(path), *Path(path).parents) if os.path.lexists(each))
    if not nearest.is_dir():
        raise PipelineError(
            f"{nearest} is no directory, so an archive cannot be in {path}: name another path.",
            USAGE,
        )
    _require_writable(nearest)


def _require_writable(directory: Path) -> None:
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PipelineError(
            f"Nothing may be written to {directory}: change its permissions, or name another"
            " directory.",
            USAGE,
        )


def for_reading(path: str) -> pa.NativeFile:
    """Open a file for random access.

    Raises:
        OSError: it is not there, or cannot be read.
    """
    if not on_store(path):
        return pa.OSFile(path, "rb")
    import obstore  # noqa: PLC0415 - archives on mounted file systems do not need it
    from obstore.exceptions import NotSupportedError  # noqa: PLC0415

    with _translated(path):
        with suppress(NotSupportedError):  # as on Azure
            tail = obstore.get(_store(path), _key(path), options={"range": {"suffix": SMALL_BYTES}})
            if tail.meta["size"] <= SMALL_BYTES:
                return pa.BufferReader(pa.py_buffer(tail.bytes()))
        system, key = file_system(path)
        return system.open_input_file(key)


def chunks(path: str) -> Iterator[bytes]:
    """Yield all of a file in pieces.

    Raises:
        OSError: it is not there, or cannot be read.
    """
    with _translated(path), for_reading(path) as source:
        while data := source.read(CHUNK_BYTES):
            yield data


def create(path: str, data: bytes | Iterable[bytes], folders: int = 0) -> None:
    """Write a file that is not there yet, whole or not at all, on the disk before this returns.

    ``folders``: the number of folders above it that are synced, too.

    Raises:
        FileExistsError: it is there; of two that write it at once, one gets this.
        OSError: it cannot be written.
    """
    pieces = [data] if isinstance(data, bytes) else data
    if on_store(path):
        import obstore  # noqa: PLC0415

        with _translated(path):
            obstore.put(_store(path), _key(path), b"".join(pieces), mode="create")
        return
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{uuid.uuid4().hex}")  # a killed job may have left one of its process
    try:
        with part.open("xb") as opened:
            opened.writelines(pieces)
        _sync(part)
        os.link(part, target)  # fails if the target exists; delta-rs publishes in the same way
    finally:
        part.unlink(missing_ok=True)
    settle([path], folders)


def write_text(file: Path, what: str, lines: Iterable[str]) -> None:
    """Write a new file of text on this machine, whole or not at all; ``what`` names its content."""
    try:
        create(str(file), (line.encode() for line in lines))
    except OSError as error:
        raise PipelineError(
            f"{what} cannot be written to {file} ({error.strerror}): name another file."
        ) from error


def listed(folder: str) -> list[str]:
    """Return the paths of all files below a folder, which may not exist, relative to it.

    Raises:
        OSError: it cannot be read.
    """
    if on_store(folder):
        import obstore  # noqa: PLC0415

        # Not pyarrow, which also lists a folder's own marker, and asks more often.
        prefix = f"{_key(folder)}/".lstrip("/")
        with _translated(folder):
            found = (each for batch in obstore.list(_store(folder), prefix) for each in batch)
            return [each["path"].removeprefix(prefix) for each in found]
    if not os.path.lexists(folder):
        return []
    folders = os.walk(folder, onerror=_raise)  # `Path.rglob` leaves out what may not be read
    paths = (Path(place, name) for place, _, names in folders for name in names)
    return [str(each.relative_to(folder)) for each in paths if each.is_file()]


def _raise(error: OSError) -> None:
    raise error


def delete(folder: str, names: Iterable[str]) -> None:
    """Delete files by their paths within a folder; some may be gone already.

    Raises:
        OSError: one cannot be deleted.
    """
    if on_store(folder):
        import obstore  # noqa: PLC0415

        keys = [f"{_key(folder)}/{name}".lstrip("/") for name in names]
        with _translated(folder), suppress(FileNotFoundError):
            if keys:
                obstore.delete(_store(folder), keys)
        return
    for name in names:
        Path(folder, name).unlink(missing_ok=True)
    if Path(folder).is_dir():
        _sync_folder(Path(folder))


def settle(paths: Iterable[str], folders: int) -> None:
    """Sync files, and some folders above each, to the disk; object stores do so by themselves.

    An hour that is marked as archived may be dropped from its database, so no loss of power may
    remove it from the archive.

    Raises:
        OSError: the disk did not take it.
    """
    files = [Path(path) for path in paths if not on_store(path)]
    for file in files:
        _sync(file)
    for folder in dict.fromkeys(above for file in files for above in file.parents[:folders]):
        _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    try:
        _sync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot sync directories
            raise


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@lru_cache(8)
def require_reachable(path: str) -> None:
    """Raise unless the object store of a path answers, if it is on one; no minutes are waited.

    Raises:
        OSError: it does not.
    """
    if not on_store(path):
        return
    import obstore  # noqa: PLC0415

    with _translated(path):
        try:
            obstore.list_with_delimiter(_store(path, 1), f"{_key(path)}/".lstrip("/"))
        except FileNotFoundError as error:
            raise store_error(path, "NoSuchBucket") from error


def delta_options(path: str, retries: int = _MAX_RETRIES) -> dict[str, str] | None:
    """Return the storage options of delta-rs for a path."""
    if not on_store(path):
        return None
    found = {**_TIMEOUTS, "max_retries": str(retries), "retry_timeout": "60s"}
    found["allow_http"] = "true"  # of an endpoint that was named so; the usual ones have TLS
    if path.startswith("s3://"):
        named = [os.environ[name] for name in _ENDPOINTS if os.environ.get(name)]
        if named:
            found["aws_endpoint_url"] = named[0]
    return found


def _root(path: str) -> str:
    parts = urlsplit(path, allow_fragments=False)
    return f"{parts.scheme}://{parts.netloc}"


def _key(path: str) -> str:
    return path.removeprefix(_root(path)).strip("/")


def file_system(path: str) -> tuple[FileSystem, str]:
    """Return the file system of pyarrow for a path, and the path within it."""
    if not on_store(path):
        return LocalFileSystem(), path
    return _opened_file_system(_root(path), tuple((delta_options(path) or {}).items())), _key(path)


@lru_cache(8)
def _opened_file_system(root: str, options: tuple[tuple[str, str], ...]) -> PyFileSystem:
    from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415

    return PyFileSystem(DeltaStorageHandler(root, dict(options)))


def _store(path: str, retries: int = _MAX_RETRIES) -> ObjectStore:
    return _opened_store(_root(path), tuple((delta_options(path, retries) or {}).items()))


@lru_cache(8)
def _opened_store(root: str, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    from datetime import timedelta  # noqa: PLC0415

    from obstore.store import from_url  # noqa: PLC0415

    given = dict(options)
    config: Any = {name: value for name, value in given.items() if name.startswith("aws_")}
    client: Any = {**_TIMEOUTS, "allow_http": True}
    retries = int(given["max_retries"])
    found: ObjectStore = from_url(
        root,
        config=config or None,
        client_options=client,
        retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=60)},
    )
    return found


@contextmanager
def _translated(path: str) -> Iterator[None]:
    """Raise the errors of an object store as errors of the system."""
    if not on_store(path):
        yield
        return
    from obstore.exceptions import (  # noqa: PLC0415
        AlreadyExistsError,
        BaseError,
        PreconditionError,
    )

    try:
        yield
    except StoreError:
        raise
    except (AlreadyExistsError, PreconditionError) as error:
        raise FileExistsError(errno.EEXIST, "File exists", path) from error
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "No such object", path) from error
    except (BaseError, OSError) as error:
        raise store_error(path, str(error)) from error
