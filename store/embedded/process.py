"""Postgres programs: their launch, their output, and a look at foreign processes."""

import os
import platform
import pwd
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Final, NamedTuple


class EmbeddedPostgresError(Exception):
    """A failure of the embedded Postgres: what failed, where, and what to do, in one sentence."""


MAX_LOG_BYTES: Final = 16 * 1024 * 1024
"""The size at which postgres.log becomes postgres.log.1, whose predecessor is dropped."""

MAX_TAIL_BYTES: Final = 16 * 1024
"""The latest output of a server, kept in memory to explain an exit."""

MAX_REASON_CHARS: Final = 400
"""The longest excerpt of a program's output that an error message repeats."""

LOG_READ_BYTES: Final = 64 * 1024
TOOL_TIMEOUT_S: Final = 120.0
"""The longest run of initdb or of a single-user session."""

POLL_INTERVAL_S: Final = 0.02
"""The interval of looks at a server that starts, a process that is not a child, a wish to stop."""

_AS_ACCOUNT: Final = """\
import os, sys
uid, gid, *command = sys.argv[1:]
os.setgroups([int(gid)]), os.setgid(int(gid)), os.setuid(int(uid))
try: os.execv(command[0], command)
except OSError as error: sys.exit(f"FATAL:  cannot run {command[0]}: {error}")
"""
"""Becomes an account after exec. `Popen` would fork for it, with all handlers of libraries."""

ON_LINUX = platform.system() == "Linux"
"""True if /proc exists, which shows processes and reaches directories."""
DISK_IS_FULL = ("No space left on device", "Disk quota exceeded", "Disc quota", "wrote only")
"""The messages for a full disk in English, the language in which all programs are run here."""
_COMPLAINT_MARKS = ("PANIC:", "FATAL:", "error:", "ERROR:")
_PREFIX = re.compile(f".*?({'|'.join(_COMPLAINT_MARKS)})\\s*")


class ProgramFailedError(Exception):
    """A Postgres program failed; the text is its own last complaint, without a full stop."""


class Launch(NamedTuple):
    """A way to start a program: its account, its working directory, and further variables.

    One that runs to its end is killed, with those that it has started, once ``stopped`` is set.
    """

    account: pwd.struct_passwd | None = None
    directory: Path | None = None
    environment: Mapping[str, str] = MappingProxyType({})
    stopped: threading.Event = threading.Event()

    @property
    def path(self) -> str:
        """The path by which the program reaches its working directory.

        Parents of it may be closed to another account: a data directory in root's home works, and
        no modes are changed.
        """
        return str(self.directory) if self.account is None or not ON_LINUX else "/proc/self/cwd"

    def popen(self, command: Sequence[str], *, stdin: int) -> subprocess.Popen[bytes]:
        """Start a program.

        Raises:
            OSError: It cannot be executed.
        """
        become: list[str] = []
        if (account := self.account) is not None:
            # -I and -S keep the environment and site packages out of what runs as root.
            become = [sys.executable, "-I", "-S", "-c", _AS_ACCOUNT]
            become += [str(account.pw_uid), str(account.pw_gid)]
        # Without what would change how Postgres starts, prints or dates.
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))}
        return subprocess.Popen(  # noqa: S603 - paths of our own choice, no shell
            [*become, *command],
            cwd=self.directory,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**kept, "LC_ALL": "C", "TZ": "UTC", **self.environment},
            umask=0o077,
            # A group of its own: Ctrl-C in a terminal is for the node, which drains first.
            start_new_session=True,
        )

    def run(
        self, command: Sequence[str], *, stdin: str = "", timeout_s: float = TOOL_TIMEOUT_S
    ) -> str:
        """Run a program to its end and return what it printed.

        Raises:
            ProgramFailedError: It failed, was stopped, or took longer than `timeout_s`.
        """
        try:
            child = self.popen(command, stdin=subprocess.PIPE)
        except OSError as error:
            raise ProgramFailedError(f"cannot run {command[0]}: {error}") from error
        output, unsent, end_s = None, stdin.encode(), time.monotonic() + timeout_s
        while output is None:
            try:
                output, _ = child.communicate(unsent, timeout=min(timeout_s, POLL_INTERVAL_S))
            except subprocess.TimeoutExpired:
                unsent = b""
                if self.stopped.is_set() or time.monotonic() >= end_s:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.communicate()
                    late = f"{command[0]} did not end within {timeout_s:g} s"
                    raise ProgramFailedError(late) from None
        text = output.decode(errors="replace")
        if child.returncode != 0:
            raise ProgramFailedError(complaint(text))
        return text


class Watchdog:
    """A process that sends another one SIGINT, a fast shutdown, when this process has died.

    It is a shell that reads from a pipe whose only writing end this process holds. Postgres itself
    would run on, and would take a child of its own for one of its processes.
    """

    def __init__(self, pid: int) -> None:
        self._shell = subprocess.Popen(  # noqa: S603 - a number is the only argument
            ["/bin/sh", "-c", 'read -r line || kill -INT "$0"', str(pid)],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """Send it away when what it watches has ended: its ID may be reused."""
        if self._shell.returncode is None:
            self._shell.communicate(b"\n")


def ignore_libpq_variables() -> None:
    """Remove what would change how libpq connects, in this process and those that it starts.

    An embedded server is reached by its URL alone: variables such as `PGSSLMODE`, `PGSERVICE` or
    `PGHOSTADDR` are meant for servers that others run.
    """
    for name in [each for each in os.environ if each.startswith("PG")]:
        del os.environ[name]


def is_full_disk(reason: str) -> bool:
    """Return True if a program complains about a disk without space."""
    return any(text in reason for text in DISK_IS_FULL)


def complaint(output: str) -> str:
    """Return the line of a program's output that says why it failed, in a bounded length."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    # What else goes wrong on a full disk only follows from it.
    full = [line for line in lines if is_full_disk(line)]
    latest = lines[::-1]
    marked = [line for mark in _COMPLAINT_MARKS for line in latest if mark in line]
    line = next(iter([*full, *marked, *latest]), "it ended without a word")
    return _PREFIX.sub("", line)[:MAX_REASON_CHARS]


def command_line(pid: int) -> list[str] | None:
    """Return the command line of a process, by words; None when it has ended.

    It is the one property that identifies processes and that root may read of any of them, also in
    a container without CAP_SYS_PTRACE. A process that has ended but was not waited for has none.
    """
    if ON_LINUX:
        try:
            raw = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return None
        return raw.decode(errors="replace").split("\0") if raw else None
    listed = subprocess.run(  # noqa: S603 - a number is the only argument
        ["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    return listed.stdout.split() or None


class OutputPump:
    """Moves a server's output into a log file of bounded size, and keeps the end of it.

    The pipe ends when the last process of that server is gone, which `join` waits for.
    """

    def __init__(self, source: IO[bytes], log: Path) -> None:
        self._source = source
        self._log = log
        self._tail = bytearray()
        self._lock = threading.Lock()
        self.bytes_read = 0
        self._thread = threading.Thread(target=self._run, name="postgres-log", daemon=True)
        self._thread.start()

    def complaint(self) -> str:
        """Return the line of the latest output that says why the server failed."""
        with self._lock:
            return complaint(self._tail.decode(errors="replace"))

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the output; False when something still holds it open."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        with self._source:
            while chunk := os.read(self._source.fileno(), LOG_READ_BYTES):
                with self._lock:
                    self.bytes_read += len(chunk)
                    self._tail += chunk
                    del self._tail[:-MAX_TAIL_BYTES]
                self._write(chunk)

    def _write(self, chunk: bytes) -> None:
        # A full disk must not stop the reading: a server whose output blocks would hang.
        try:
            if self._log.exists() and self._log.stat().st_size + len(chunk) > MAX_LOG_BYTES:
                self._log.replace(self._log.with_name(self._log.name + ".1"))
            fd = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(fd, "ab") as out:
                give_to_owner_of(self._log.parent, fd)
                out.write(chunk)
        except OSError:
            return


def write_private(path: Path, text: str) -> None:
    """Replace a file durably: after a crash it is the old one or the new one, and complete."""
    fd, name = tempfile.mkstemp(prefix=f"{path.name}-", dir=path.parent)
    try:
        with os.fdopen(fd, "w") as file:
            give_to_owner_of(path.parent, fd)
            file.write(text)
            file.flush()
            os.fsync(fd)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Write the names in a directory to the disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def give_to_owner_of(directory: Path, fd: int) -> None:
    """Let a file that root writes belong to whom its directory belongs, who may come next."""
    if os.geteuid() == 0:
        about = directory.stat()
        os.fchown(fd, about.st_uid, about.st_gid)
