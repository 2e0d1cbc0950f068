"""A parent for a run of tests that ends every process which the run leaves behind.

Run as a program, with the command of the run. On Linux it adopts the orphans of the run
(prctl(2), PR_SET_CHILD_SUBREAPER), also those in sessions of their own, such as the nodes of a
demo whose process was killed. When the command has ended, by itself or by Ctrl-C, it ends what is
left and exits with the code of the command.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import psutil

PATIENCE_S: Final = 10.0
"""The time that a process may take to end before it is killed."""

_PR_SET_CHILD_SUBREAPER: Final = 36


def run(command: Sequence[str]) -> int:
    """Run a command, end what it leaves behind, and return its exit code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A signal that comes before the wait for it is kept until then.
    awaited = (signal.SIGTERM, signal.SIGCHLD)
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    # The terminal sends Ctrl-C to the command too, which reports and exits.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main = os.posix_spawnp(
        command[0], list(command), os.environ, setsigmask=(), setsigdef=[signal.SIGINT]
    )
    ended: dict[int, int] = {}
    while main not in ended:
        if signal.sigwait(awaited) == signal.SIGTERM:
            os.kill(main, signal.SIGTERM)
        else:
            ended |= _reap()
    if left := _end_descendants():
        print(f"Ended what the tests left behind: {'; '.join(left)}", file=sys.stderr)  # noqa: T201
    code = os.waitstatus_to_exitcode(ended[main])
    return code if code >= 0 else 128 - code


def _end_descendants() -> list[str]:
    """End all descendants, and return their command lines."""
    left: dict[int, str] = {}
    for ending in (signal.SIGTERM, signal.SIGKILL):
        deadline_s = time.monotonic() + PATIENCE_S
        while (running := _running()) and time.monotonic() < deadline_s:
            for process in running:
                # It may end by itself, or with its parent, meanwhile.
                with suppress(psutil.NoSuchProcess):
                    left[process.pid] = f"{process.pid} {process.name()}"
                    process.send_signal(ending)
            time.sleep(0.05)
    return list(left.values())


def _reap() -> dict[int, int]:
    """Return the wait statuses of the children that have ended, by process ID."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            ended[child[0]] = child[1]
    return ended


def _running() -> list[psutil.Process]:
    """Return the descendants that have not ended; those that have are reaped."""
    _reap()
    running = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if each.status() != psutil.STATUS_ZOMBIE:
                running.append(each)
    return running


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
