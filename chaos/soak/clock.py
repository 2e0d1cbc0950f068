"""``storenode`` with a clock that can be set: ``python clock.py OFFSET_FILE ARGUMENT…``.

The file holds the error of the clock in nanoseconds, as 8 bytes, big-endian; writing it sets the
clock of the running process. Only Python's `time.time` and `time.time_ns` change, which are the
ones that a node reads. Its monotonic clock and its database's clock are right, as on a machine
whose clock was set, with the database on another one.
"""

from __future__ import annotations

import mmap
import sys
import time
from pathlib import Path

BYTES = 8
_NS_PER_S = 1_000_000_000


def replace_clock(path: Path) -> None:
    """Replace the clock of this process, before anything else is imported that reads it."""
    with path.open("rb") as file:
        offset = mmap.mmap(file.fileno(), BYTES, prot=mmap.PROT_READ)
    real_ns = time.time_ns

    def time_ns() -> int:
        return real_ns() + int.from_bytes(offset[:BYTES], "big", signed=True)

    time.time_ns = time_ns
    time.time = lambda: time_ns() / _NS_PER_S


def set_offset(path: Path, offset_ns: int) -> None:
    """Set the clock of the process that was started with the file."""
    with path.open("r+b") as file:
        file.write(offset_ns.to_bytes(BYTES, "big", signed=True))


def main() -> None:
    """Run the command."""
    replace_clock(Path(sys.argv.pop(1)))
    from storenode.cli.main import main as storenode  # noqa: PLC0415 - the clock comes first

    sys.argv[0] = "storenode"
    storenode()


if __name__ == "__main__":
    main()
