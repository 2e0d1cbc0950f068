"""Turns itself into a Postgres program that cannot outlive the process that wants it.

Run as a script with a JSON object and a command line. It is a process of its own, and imports
nothing of this package, so that a node with many threads never runs Python code between fork and
exec, and so that a node that runs as root never lends its privileges to Postgres, which refuses
them (Postgres documentation, section "The PostgreSQL User Account").

Options: `parent` is the process ID that must still be the parent; `uid` and `gid` are the account
to become, or null to stay; `watch_fd` is the reading end of a pipe whose only writing end the
parent holds, or null where the kernel can signal the death of a parent. A byte in that pipe
dismisses the watchdog, its bare end means that the parent died.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1
_CANNOT_LAUNCH_STATUS = 126
_MAX_INHERITED_FD = 1024


def die_with_parent(parent: int) -> None:
    """Request SIGINT, a fast shutdown, from the kernel when the parent's thread ends (prctl(2)).

    The setting is lost when the user ID changes, so this comes after that.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        raise ProcessLookupError("the parent process ended before its server began")


def leave_watchdog(watch_fd: int) -> None:
    """Leave a process behind that sends this one SIGINT when the pipe closes.

    It is a grandchild, because Postgres would take a direct child for one of its own, and holds
    nothing else of the parent's open.
    """
    target = os.getpid()
    child = os.fork()
    if child != 0:
        os.waitpid(child, 0)
        os.set_inheritable(watch_fd, False)
        return
    try:
        if os.fork() == 0:
            os.setsid()
            os.dup2(watch_fd, 0)
            os.closerange(1, _MAX_INHERITED_FD)
            if not os.read(0, 1):
                os.kill(target, signal.SIGINT)
    finally:
        os._exit(0)


def main(options: dict[str, Any], command: list[str]) -> None:
    """Execute the program of `command`, or print on standard error why that is impossible."""
    # A shell's background jobs ignore SIGINT; until Postgres handles it, it must end this process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        if options["uid"] is not None:
            # All groups first, since that needs the privileges of root.
            os.setgroups([options["gid"]])
            os.setgid(options["gid"])
            os.setuid(options["uid"])
        os.umask(0o077)
        if options["watch_fd"] is None:
            die_with_parent(options["parent"])
        else:
            leave_watchdog(options["watch_fd"])
        os.execv(command[0], command)  # noqa: S606 - no shell is the point
    except OSError as error:
        sys.stderr.write(f"FATAL:  cannot run {command[0]}: {error}\n")
        sys.exit(_CANNOT_LAUNCH_STATUS)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
