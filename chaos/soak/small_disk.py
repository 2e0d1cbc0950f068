"""A file system of its own, of a few MiB, which can be filled without harm to anybody else."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Final

# An unprivileged user gets the right to mount in a user namespace, and keeps its ID, since Postgres
# does not run as root.
_ROOT: Final = os.geteuid() == 0
_UNSHARE: Final = ["unshare", "--mount", *([] if _ROOT else ["--map-current-user", "--keep-caps"])]
READ_ONLY: Final = [*_UNSHARE, "sh", "-c", 'mount -t tmpfs -o ro tmpfs "$0" && exec "$@"']
"""A prefix for a directory and a command: runs it where that directory is empty and read-only."""

_ENTER: Final = ["nsenter", "--mount", *([] if _ROOT else ["--user", "--preserve-credentials"])]
_TRIES: Final = 100
_MOUNT: Final = 'mount -t tmpfs -o size="$1"m,mode=755 tmpfs "$0" && echo mounted && exec cat'


class SmallDisk:
    """A disk in memory, mounted on an existing directory, for programs started with `enter`.

    It lasts until `close`, or the end of the process that made it, whatever becomes of them.

    Raises:
        OSError: This machine does not permit to mount it.
    """

    def __init__(self, directory: Path, size_mib: int) -> None:
        self._directory = directory
        # Its standard input ends with this process, and it with that.
        self._holder = subprocess.Popen(
            [*_UNSHARE, "sh", "-c", _MOUNT, str(directory), str(size_mib)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"mounted\n":
            reason = self._holder.communicate()[1].decode().strip()
            raise OSError(reason or "the command ended without a word")

    def enter(self, command: list[str]) -> list[str]:
        """Return the same command where the disk is mounted; it begins in the root directory."""
        return [*_ENTER, f"--target={self._holder.pid}", *command]

    @property
    def path(self) -> Path:
        """The file system, as this process gets at it."""
        return Path(f"/proc/{self._holder.pid}/root{self._directory}")

    def fill(self, left_bytes: int) -> None:
        """Take all space but this; there may be less already."""
        with self._ballast.open("ab") as file:
            for tries_left in reversed(range(_TRIES)):
                about = os.statvfs(self.path)
                size = file.tell() + about.f_bavail * about.f_frsize - left_bytes
                if size <= 0:
                    return
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
                except OSError as error:
                    # Others have written since we looked, and so there is less to take.
                    if error.errno != errno.ENOSPC or not tries_left:
                        raise
                else:
                    return

    def free(self) -> None:
        """Remove what takes the space."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the mount, once no process uses it."""
        self._holder.kill()
        self._holder.communicate()

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"
