"""Paths of archives and other outputs: directories of this machine, or of an object store.

Spark takes a path without a scheme for one of its default file system, and `*`, `?`, `{` and `}` in
it for a pattern; delta-rs takes it for a local one, as it is. Both are told the same here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from store.pipeline.errors import USAGE, PipelineError

LOCAL: Final = "file://"
STORES: Final = ("s3://", "gs://", "abfss://")
"""How paths on object stores begin."""

_FILE_SCHEME: Final = re.compile(r"\Afile:(?://(?=/))?")
_DATABASE: Final = ("postgresql:", "postgres:")
_PATTERN: Final = re.compile(r"[{}*?]")
_UNUSABLE: Final = re.compile(r"[][\\%\x00-\x1f\x7f]")
_SCHEME: Final = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*://")
_HADOOP: Final = re.compile(r"\As3[an]://")
"""What Hadoop calls S3: archives were named so before."""


def checked(path: str, what: str = "An archive") -> str:
    """Return a path without its last slash; a local one is absolute, and has no scheme.

    Raises:
        PipelineError: it is empty, a database's URL, of another scheme than `STORES`, or has
            characters that delta-rs takes for others or gives up on; ``what`` is it for the
            sentence.
    """
    if not path or path.startswith(_DATABASE):
        raise PipelineError(f"{what} is a directory, not a database: give its path.", USAGE)
    unusable = _UNUSABLE.search(path)
    if unusable is not None:
        raise PipelineError(
            f"{what} cannot be in {path!r}: choose a path without {unusable[0]!r}.", USAGE
        )
    named = spelled(_FILE_SCHEME.sub("", path))
    scheme = _SCHEME.match(named)
    if scheme is None:
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


def spelled(path: str) -> str:
    """Return a path with the one spelling of its store."""
    return _HADOOP.sub("s3://", path)


def spellings(path: str) -> list[str]:
    """Return all the names that a path may have been noted by."""
    others = ("s3a", "s3n") if path.startswith("s3://") else ()
    return [path, *(f"{other}{path.removeprefix('s3')}" for other in others)]


def on_store(path: str) -> bool:
    """Return True if a path that was `checked` is one of an object store."""
    return path.startswith(STORES)


def require_visible(path: str, files: Iterable[str]) -> None:
    """Raise unless this process sees files that Spark has written below a path.

    Raises:
        PipelineError: the path is one of this machine, and what Spark wrote there is elsewhere.
    """
    if not path.startswith("/"):
        return
    for each in files:
        if not Path(path, each).is_file():
            raise PipelineError(
                f"What Spark has written to {path} is not there for this process: name a directory"
                " that both share, or one of an object store. Nothing was published."
            )


def require_new(path: Path, what: str, kind: str = "file") -> None:
    """Raise if something would be overwritten, or if there is no directory to write to.

    ``what`` is to be written, as a ``kind`` of thing: both are for the sentence.

    Raises:
        PipelineError: something is there, or no directory, or it cannot be written to.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise PipelineError(
            f"{path} cannot be written ({error.strerror}): name another {kind} for {what}.", USAGE
        ) from error
    else:
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
    """Return the path of a directory that Spark is to write, checked like `require_new`.

    One of an object store is passed over: Spark must be asked.

    Raises:
        PipelineError: as `checked` and `require_new`.
    """
    found = checked(path, "The output")
    if found.startswith("/"):
        require_new(Path(found), what, "directory")
    return found


def require_room(path: str, what: str = "an archive") -> None:
    """Raise unless there is a directory at a path, or can be one; ``path`` was `checked`.

    Raises:
        PipelineError: the path, or one that it lies in, is a file or cannot be written to.
    """
    if not path.startswith("/"):
        return
    nearest = next(each for each in (Path(path), *Path(path).parents) if os.path.lexists(each))
    if not nearest.is_dir():
        raise PipelineError(
            f"{nearest} is no directory, so {what} cannot be in {path}: name another path.", USAGE
        )
    _require_writable(nearest)


def _require_writable(directory: Path) -> None:
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PipelineError(
            f"Nothing may be written to {directory}: change its permissions, or name another"
            " directory.",
            USAGE,
        )


def for_spark(path: str) -> str:
    """Return a path that was `checked`, with a scheme."""
    return LOCAL + path if path.startswith("/") else path


def literally(path: str) -> str:
    """Escape a path for a reader of Spark that would take it for a pattern."""
    return _PATTERN.sub(r"\\\g<0>", path)
