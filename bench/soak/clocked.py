"""``storenode`` with a clock that can be set: ``python clocked.py OFFSET_FILE ARGUMENT…``.

The file holds by how many nanoseconds the clock is wrong, as 8 bytes, big-endian; whoever changes
them sets the clock of the running process. It is the clock that Python's `time` tells, which is the
only one that a node reads. Its monotonic clock and its database's clock are right, as where
somebody has set the clock of the node's machine, and the database is on another.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import sys
import time
from pathlib import Path

BYTES = 8
_PR_SET_PDEATHSIG = 1
_NS_PER_S = 1_000_000_000


def wear(path: Path) -> None:
    """Replace the clock of this process; before anything else is imported that reads it."""
    with path.open("rb") as file:
        offset = mmap.mmap(file.fileno(), BYTES, prot=mmap.PROT_READ)
    right_ns = time.time_ns

    def time_ns() -> int:
        return right_ns() + int.from_bytes(offset[:BYTES], "big", signed=True)

    time.time_ns = time_ns
    time.time = lambda: time_ns() / _NS_PER_S


def set_offset(path: Path, offset_ns: int) -> None:
    """Set the clock of the process that wears the file."""
    with path.open("r+b") as file:
        file.write(offset_ns.to_bytes(BYTES, "big", signed=True))


def end_with_parent() -> None:
    """Have the kernel end this process with the one that started it, where it can (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def main() -> None:
    """Run the command."""
    end_with_parent()
    wear(Path(sys.argv.pop(1)))
    from storenode.cli.main import main as storenode  # noqa: PLC0415 - the clock comes first

    sys.argv[0] = "storenode"
    storenode()


if __name__ == "__main__":
    main()
