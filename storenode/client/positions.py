"""Positions of readers that are kept between runs: in a file, in SQLite, or by the application."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from storenode.client.errors import PositionError
from storenode.common.errors import ArgumentError

MAX_POSITION_BYTES: Final = 4_096
"""The size of a position; a larger file holds something else."""

LOCK_TIMEOUT_S: Final = 30.0
"""The longest wait for other writers of a SQLite file."""


@runtime_checkable
class Position(Protocol):
    """An object that keeps a position: what `save` was last given is what `load` returns.

    Both are called in a thread, one at a time for each stream. A class that processes messages
    in a database may save the position in the same transaction.
    """

    def load(self) -> bytes | None:
        """Return the position; None if none was saved."""

    def save(self, cursor: bytes) -> None:
        """Save a position durably."""


Resume = str | Path | tuple[str | Path, str] | Position
"""A place for a position: a file, a name in a SQLite file, or an object of the application."""


class FilePosition:
    """A position in a file, which is replaced in one step: a kill leaves the old or the new one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def load(self) -> bytes | None:
        """Return the position; None if there is no file.

        Raises:
            PositionError: The file cannot be read, is empty, or is too large.
        """
        try:
            with self._path.open("rb") as file:
                cursor = file.read(MAX_POSITION_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error("read", error) from error
        if len(cursor) > MAX_POSITION_BYTES:
            raise PositionError(f"The file {self} is not a position: choose another file.")
        if not cursor:
            raise PositionError(
                f"The file {self} is empty, its position lost: delete it to begin without one."
            )
        return cursor

    def save(self, cursor: bytes) -> None:
        """Replace the file.

        Raises:
            PositionError: It cannot be written.
        """
        scratch = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        try:
            with scratch.open("wb") as file:
                file.write(cursor)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(self._path)
        except OSError as error:
            with suppress(OSError):
                scratch.unlink()
            raise self._error("written", error) from error

    def _error(self, what: str, error: OSError) -> PositionError:
        return PositionError(
            f"The position in {self} cannot be {what} ({error.strerror}): make the file writable "
            "for this user, or choose another one."
        )


class SqlitePosition:
    """A position under a name in a SQLite file, in the table ``storenode_positions``."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name

    def __str__(self) -> str:
        return f"{self._path}, name {self._name!r}"

    def load(self) -> bytes | None:
        """Return the position; None if there is none of this name.

        Raises:
            PositionError: The file cannot be used.
        """
        chosen = "select cursor from storenode_positions where name = ?"
        with self._database() as database:
            row = database.execute(chosen, (self._name,)).fetchone()
        return None if row is None else bytes(row[0])

    def save(self, cursor: bytes) -> None:
        """Write the position.

        Raises:
            PositionError: The file cannot be used.
        """
        with self._database() as database:
            database.execute(
                "insert into storenode_positions (name, cursor) values (?, ?)"
                " on conflict (name) do update set cursor = excluded.cursor",
                (self._name, cursor),
            )

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._path, timeout=LOCK_TIMEOUT_S)) as file, file:
                file.execute(
                    "create table if not exists storenode_positions"
                    " (name text primary key, cursor blob not null)"
                )
                yield file
        except (sqlite3.Error, UnicodeEncodeError) as error:
            raise PositionError(
                f"The position in {self} cannot be used ({error}): check the file, or choose "
                "another."
            ) from error


def position_of(resume: Resume) -> Position:
    """Return the position that an argument ``resume`` names.

    Raises:
        ArgumentError: It names none.
    """
    match resume:
        case str() | Path() if Path(resume).name and "\0" not in str(resume):
            return FilePosition(Path(resume))
        case (str() | Path() as path, str() as name) if "\0" not in str(path):
            return SqlitePosition(Path(path), name)
        case Position():
            return resume
    raise ArgumentError(
        f"resume={resume!r} is not a place for a position: give a path, a path and a name for "
        "SQLite, or an object with load() and save()."
    )
