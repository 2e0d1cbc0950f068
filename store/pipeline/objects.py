"""Object stores: the few calls that an archive needs of them, by obstore.

obstore and delta-rs are made of the same library, and get the same settings here: credentials come
from the environment, the roles of machines and pods, and static keys of ``~/.aws``. So neither the
command nor a worker needs anything of Spark or Hadoop to reach an archive.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotSupportedError, PreconditionError
from obstore.store import from_url

from store.pipeline.errors import StoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from obstore import ObjectMeta
    from obstore.store import ObjectStore, S3Config

_KNOWN_STORES: Final = 8
"""Stores whose connections are kept open by a process."""

TAIL_BYTES: Final = 1024 * 1024
"""What is fetched first of a file, from its end: its footer, and small files as a whole."""

CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Bytes of one part of a large file that is read from its beginning to its end, or written."""

_CONNECT_TIMEOUT: Final = "5s"
_TIMEOUT: Final = "5min"
_RETRY_TIMEOUT_S: Final = 60
_MAX_RETRIES: Final = 5
_S3: Final = "s3://"
_GOOGLE: Final = "gs://"
_GOOGLE_ACCOUNTS: Final = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")
_AZURE_EMULATOR: Final = "AZURE_STORAGE_USE_EMULATOR"
_AZURE_ENDPOINTS: Final = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
"""What obstore and delta-rs read by themselves."""

_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_ROLES: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables that say which credentials are wanted: then ``~/.aws`` is not looked at."""

_PROFILE: Final[Mapping[str, tuple[str, ...]]] = {
    "aws_access_key_id": _ROLES,
    "aws_secret_access_key": _ROLES,
    "aws_session_token": _ROLES,
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "endpoint_url": _ENDPOINTS,
}
"""What is taken from a profile, each unless one of these variables is set."""


class RemoteFile:
    """An object, for random access, as `pyarrow.PythonFile` takes it."""

    def __init__(self, path: str) -> None:
        """Open it; nothing is sent yet.

        Raises:
            OSError: it is not there, or cannot be read.
        """
        self._path = path
        self._place = 0
        self.closed = False
        with _told(path):
            store, key = _located(path)
            try:
                found = obstore.get(store, key, options={"range": {"suffix": TAIL_BYTES}})
            except NotSupportedError:  # as on Azure
                size = obstore.head(store, key)["size"]
                start = max(0, size - TAIL_BYTES)
                found = obstore.get(store, key, options={"range": (start, size)})
            self._size = found.meta["size"]
            self._tail = bytes(found.bytes())
        self._tail_at = self._size - len(self._tail)

    def read(self, size: int = -1) -> bytes:
        """Read bytes, as of a file."""
        low = self._place
        high = self._size if size < 0 else min(self._size, low + size)
        if low >= high:
            return b""
        self._place = high
        if low >= self._tail_at:
            return self._tail[low - self._tail_at : high - self._tail_at]
        with _told(self._path):
            store, key = _located(self._path)
            return bytes(obstore.get_range(store, key, start=low, end=high))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position, as of a file."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        """Return the position, as of a file."""
        return self._place

    def close(self) -> None:
        """Close it, as of a file."""
        self.closed = True


class RemoteSink:
    """A new object, which is there once it is closed, as `pyarrow.PythonFile` takes it."""

    def __init__(self, path: str) -> None:
        """Open it; nothing is sent yet.

        Raises:
            OSError: the store cannot be opened.
        """
        self._path = path
        self.closed = False
        with _told(path):
            store, key = _located(path)
            self._held = obstore.open_writer(store, key, buffer_size=CHUNK_BYTES)

    def write(self, data: pa.Buffer) -> int:
        """Write bytes, as of a file."""
        with _told(self._path):
            return self._held.write(memoryview(data).cast("B"))

    def flush(self) -> None:
        """Parts are sent when they are full."""

    def close(self) -> None:
        """Close it, as of a file."""
        if not self.closed:
            self.closed = True
            with _told(self._path):
                self._held.close()


def create(path: str, data: bytes) -> None:
    """Write an object unless it is there, which the store decides.

    Raises:
        FileExistsError: it is there.
        OSError: it cannot be written.
    """
    with _told(path):
        store, key = _located(path)
        obstore.put(store, key, data, mode="create")


def chunks(path: str) -> Iterator[bytes]:
    """Yield all of an object in one request, in pieces.

    Raises:
        OSError: it is not there, or cannot be read.
    """
    with _told(path):
        store, key = _located(path)
        for each in obstore.get(store, key).stream(min_chunk_size=CHUNK_BYTES):
            yield bytes(each)


def listed(folder: str) -> Iterator[tuple[str, ObjectMeta]]:
    """Yield the objects below a folder: the path of each within it, and its metadata.

    Raises:
        OSError: it cannot be read.
    """
    with _told(folder):
        store, key = _located(folder)
        for batch in obstore.list(store, _within(key)):
            for each in batch:
                yield each["path"].removeprefix(_within(key)), each


def delete(folder: str, names: Iterable[str]) -> None:
    """Delete objects by their paths within a folder; some may be gone already.

    Raises:
        OSError: one cannot be deleted.
    """
    store, key = _located(folder)
    found = [f"{_within(key)}{name}" for name in names]
    if found:
        with _told(folder):
            try:
                obstore.delete(store, found)
            except FileNotFoundError:
                return


def move(parent: str, name: str, target: str) -> None:
    """Move all objects of a folder to another path within the same one, one by one.

    Raises:
        OSError: one cannot be moved; some may have been.
    """
    store, key = _located(parent)
    for path, _ in list(listed(f"{parent}/{name}")):
        with _told(f"{parent}/{name}/{path}"):
            obstore.rename(store, f"{_within(key)}{name}/{path}", f"{_within(key)}{target}/{path}")


@lru_cache(_KNOWN_STORES)
def require_reachable(folder: str) -> None:
    """Raise unless a store answers, and lists what is below a folder.

    Raises:
        OSError: it does not; asked once again, not for minutes as while a job is under way.
    """
    root, key = _split(folder)
    with _told(folder):
        try:
            obstore.list_with_delimiter(_opened(root, 1), _within(key))
        except FileNotFoundError as error:
            raise StoreError(folder, "NoSuchBucket") from error


def settings(path: str) -> dict[str, str]:
    """Return what a store is opened with besides its environment, as delta-rs takes it, too."""
    if not path.startswith(_S3):
        return {}
    found = {
        name if name.startswith("aws_") else f"aws_{name}": text
        for name, text in _profile().items()
        if not any(each in os.environ for each in _PROFILE[name])
    }
    named = [os.environ[name] for name in _ENDPOINTS if os.environ.get(name)]
    if named:
        found["aws_endpoint_url"] = named[0]
    return found


def delta_options(path: str) -> dict[str, str]:
    """Return the same with the timeouts of this module, for delta-rs."""
    given = settings(path)
    clear = {"allow_http": "true"} if _in_clear(path, given) else {}
    patience = {"max_retries": str(_MAX_RETRIES), "retry_timeout": f"{_RETRY_TIMEOUT_S}s"}
    return {
        **given,
        **clear,
        **patience,
        "connect_timeout": _CONNECT_TIMEOUT,
        "timeout": _TIMEOUT,
    }


def _in_clear(path: str, given: Mapping[str, str]) -> bool:
    """Return True if an endpoint was named for a path's store that is reached without TLS."""
    if path.startswith(_S3):
        named = [given.get("aws_endpoint_url", "")]
    elif path.startswith(_GOOGLE):
        named = [
            _google_endpoint(os.environ[name]) for name in _GOOGLE_ACCOUNTS if name in os.environ
        ]
    else:
        named = [os.environ.get(name, "") for name in _AZURE_ENDPOINTS]
        if os.environ.get(_AZURE_EMULATOR, "").lower() in {"1", "true", "on", "yes", "y"}:
            return True
    return any(url.startswith("http://") for url in named)


def _google_endpoint(file: str) -> str:
    """Return the endpoint that a service account's file names, if it does."""
    try:
        told = json.loads(Path(file).read_text(encoding="utf-8"))
        return str(told.get("gcs_base_url", ""))
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""  # what is wrong with it the store's library says


def _profile() -> dict[str, str]:
    """Static keys, region and endpoint of the profile that ``AWS_PROFILE`` names."""
    home = Path.home() / ".aws"
    name = os.environ.get("AWS_PROFILE", "default")
    places = (
        (os.environ.get("AWS_CONFIG_FILE", home / "config"), {name, f"profile {name}"}),
        (os.environ.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials"), {name}),
    )
    found: dict[str, str] = {}
    for file, sections in places:
        with suppress(FileNotFoundError):
            parsed = _parsed(str(file), Path(file).stat().st_mtime_ns)
            for section in sections & parsed.keys():
                found |= parsed[section]
    return found


@lru_cache
def _parsed(file: str, time_ns: int) -> dict[str, dict[str, str]]:  # noqa: ARG001 - the key
    """Return the settings of each profile in a file.

    Raises:
        OSError: it cannot be read.
    """
    parser = ConfigParser(interpolation=None)
    try:
        with Path(file).open(encoding="utf-8") as opened:
            parser.read_file(opened)
    except (ConfigParserError, UnicodeDecodeError) as error:
        raise StoreError(file, f"it cannot be read ({error})") from error
    return {
        name: {each: text for each, text in section.items() if each in _PROFILE}
        for name, section in parser.items()
    }


def _split(path: str) -> tuple[str, str]:
    """Return the root of a store, and the rest of a path."""
    parts = urlsplit(path, allow_fragments=False)
    return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")


def _within(key: str) -> str:
    """Return the prefix of the keys of all objects in a folder."""
    return f"{key}/" if key else ""


def _located(path: str) -> tuple[ObjectStore, str]:
    root, key = _split(path)
    return _opened(root, _MAX_RETRIES), key


def _opened(root: str, retries: int) -> ObjectStore:
    given = settings(root)
    return _store(root, retries, tuple(sorted(given.items())), _in_clear(root, given))


@lru_cache(_KNOWN_STORES)
def _store(
    root: str,
    retries: int,
    given: tuple[tuple[str, str], ...],
    clear: bool,
) -> ObjectStore:
    patience = timedelta(seconds=_RETRY_TIMEOUT_S)
    return from_url(
        root,
        config=cast("S3Config", dict(given)) if given else None,
        client_options={
            "connect_timeout": _CONNECT_TIMEOUT,
            "timeout": _TIMEOUT,
            "allow_http": clear,
        },
        retry_config={"max_retries": retries, "retry_timeout": patience},
    )


@contextmanager
def _told(path: str) -> Iterator[None]:
    """Raise what a store says as errors of the system."""
    try:
        yield
    except (AlreadyExistsError, PreconditionError) as error:
        raise FileExistsError(errno.EEXIST, "File exists", path) from error
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "No such object", path) from error
    except BaseError as error:
        raise StoreError(path, str(error)) from error
