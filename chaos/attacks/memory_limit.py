"""A limit on the memory of a process and its children, as a container has it.

It uses control groups of Linux, of either version, and needs root. When a group exceeds its limit,
the kernel kills one of its processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/fs/cgroup")


class LimitError(Exception):
    """The system cannot make such a limit."""


@dataclass(frozen=True, slots=True)
class Group:
    """A control group; ``program`` before a command line runs it in the group."""

    path: Path

    @property
    def program(self) -> tuple[str, ...]:
        """A shell that joins the group and becomes the command."""
        return ("/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.path / "cgroup.procs"))

    @property
    def most_bytes(self) -> int:
        """The most memory that the group had, with cached files."""
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            if (self.path / name).exists():
                return int((self.path / name).read_text())
        return 0


@contextmanager
def memory_limit(limit_bytes: int) -> Iterator[Group]:
    """Make a group whose processes have this much memory together.

    Raises:
        LimitError: this user or system cannot make one.
    """
    unified = (_ROOT / "cgroup.controllers").exists()
    path = (_ROOT if unified else _ROOT / "memory") / f"storenode-hostile-{os.getpid()}"
    bound = path / ("memory.max" if unified else "memory.limit_in_bytes")
    try:
        path.mkdir()
        bound.write_text(str(limit_bytes))
    except OSError as error:
        if path.is_dir():
            path.rmdir()
        raise LimitError(
            f"a control group with bounded memory cannot be made at {path} ({error.strerror}): run "
            "as root, on Linux"
        ) from None
    try:
        yield Group(path)
    finally:
        path.rmdir()
