"""The data directory of an embedded Postgres: its files, its lock, its reserve, and its cluster.

<data_dir>/postgres/           the cluster, owned by the account that Postgres runs under
<data_dir>/postgres.json       the password of the role `storenode`; 0600
<data_dir>/postgres.log[.1]    the output of the server, bounded
<data_dir>/reserve             disk space that is kept back for when the disk is full
<data_dir>/postgres.new-*/     a cluster in the making; what a crash leaves of it is removed
<data_dir>/storenode.lock      held as long as a supervisor uses the directory
"""

import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from store.embedded.binaries import Installation, named_user
from store.embedded.process import (
    ON_LINUX,
    EmbeddedPostgresError,
    Launch,
    command_line,
    give_to_owner_of,
    sync_directory,
    write_private,
)

RESERVE_BYTES: Final = 64 * 1024 * 1024
RESERVE_SHARE: Final = 8
"""The reserve is at most this part of the disk: a few files of the log of Postgres."""

_MAX_PID_FILE_BYTES: Final = 4096
_MAX_PID: Final = 2**31 - 1
ROLE = "storenode"
DATABASE = "storenode"
_STATUS_LINE = 7
_PORT_LINE = 3


def libpq_url(password: str, port: int) -> str:
    """Return the URL of the role `storenode` for a server on the loopback interface."""
    return f"postgresql://{ROLE}:{password}@127.0.0.1:{port}/{DATABASE}"


class PidFile(NamedTuple):
    """The lines of postmaster.pid that matter (LOCK_FILE_LINE_* in Postgres's `pidfile.h`)."""

    pid: int
    port: int | None
    status: str


class DataDir:
    """The paths of a data directory and the small files in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cluster = path / "postgres"
        self.pid_path = self.cluster / "postmaster.pid"
        self._access_file = path / "postgres.json"
        self.log = path / "postgres.log"
        self._lock_file = path / "storenode.lock"
        self._lock_fd: int | None = None

    def prepare(self, *, make: bool = True) -> None:
        """Create the directory if need be, or only try if that is possible.

        Raises:
            EmbeddedPostgresError: It cannot be made or written, or it is a cluster by itself.
        """
        try:
            if make:
                # Elsewhere than on Linux, Postgres under another account must get through by name.
                self.path.mkdir(mode=0o700 if ON_LINUX else 0o711, parents=True, exist_ok=True)
                # Others could replace files in it. Another user's is a volume for this node alone.
                found = self.path.stat()
                if found.st_uid == os.geteuid() and found.st_mode & stat.S_IWOTH:
                    self.path.chmod(stat.S_IMODE(found.st_mode) & ~stat.S_IWOTH)
            base = next(each for each in (self.path, *self.path.parents) if each.exists())
            tempfile.TemporaryFile(dir=base).close()
        except OSError as error:
            raise EmbeddedPostgresError(
                f"The data directory {self.path} cannot be used ({error.strerror}): make it a"
                " directory that this user can write, or name another with --data-dir."
            ) from error
        if (self.path / "PG_VERSION").exists():
            raise EmbeddedPostgresError(
                f"{self.path} is itself a Postgres cluster, which a node does not touch: name an"
                " empty directory with --data-dir."
            )

    def lock(self) -> None:
        """Take the directory for this process.

        Raises:
            EmbeddedPostgresError: Another supervisor has it, or the lock's file cannot be used.
        """
        with self._lock_errors():
            fd = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                while not _is_granted(fd):
                    # Commands that ask `is_locked` share it for a moment; nobody else does.
                    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(fd)
                raise EmbeddedPostgresError(
                    f"The data directory {self.path} is in use by process {holder}: stop that node,"
                    " or name another directory with --data-dir."
                ) from None
            self._lock_fd = fd
            give_to_owner_of(self.path, fd)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)

    def is_locked(self) -> bool:
        """Return True if a supervisor uses the directory; raises as `lock`."""
        if not os.access(self._lock_file, os.F_OK):
            return False
        with self._lock_errors(), self._lock_file.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @contextmanager
    def _lock_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise EmbeddedPostgresError(
                f"{self._lock_file} cannot be used ({error.strerror}): let the user that runs the"
                " node read and write it."
            ) from error

    def unlock(self) -> None:
        """Release the directory; the file stays, since removing a lock file races."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def cluster_major(self) -> int | None:
        """Return the major version of the cluster; None when there is no cluster yet.

        Raises:
            EmbeddedPostgresError: The place of the cluster holds something else.
        """
        try:
            text = (self.cluster / "PG_VERSION").read_text("ascii", errors="replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            is_directory = self.cluster.is_dir()
            if any(self.cluster.iterdir()) if is_directory else self.cluster.exists():
                raise EmbeddedPostgresError(
                    f"{self.cluster} exists and is not a Postgres cluster: move it away, or name"
                    " another data directory with --data-dir."
                ) from None
            return None
        except OSError as error:
            raise EmbeddedPostgresError(
                f"The database in {self.cluster} cannot be read by user ID {os.geteuid()}"
                f" ({error.strerror}): run the node as the user that made it."
            ) from error
        if not text.isdigit():
            raise EmbeddedPostgresError(
                f"{self.cluster / 'PG_VERSION'} says {text[:20]!r} instead of a version of"
                " Postgres: restore the directory from a backup or remove it."
            )
        return int(text)

    def read_password(self) -> str | None:
        """Return the saved password; None if there is none that can be read."""
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            return str(json.loads(self._access_file.read_text())["password"])
        return None

    def write_password(self, password: str) -> None:
        """Save the password for the owner's eyes only, whole or not at all."""
        write_private(self._access_file, json.dumps({"password": password}))

    def pid_file(self) -> PidFile | None:
        """Read postmaster.pid; None if there is none or it is half written."""
        try:
            with self.pid_path.open("rb") as file:
                lines = file.read(_MAX_PID_FILE_BYTES).decode(errors="replace").split("\n")
            pid = abs(int(lines[0]))
            if pid > _MAX_PID:
                return None
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        port = lines[_PORT_LINE].strip() if len(lines) > _PORT_LINE else ""
        status = lines[_STATUS_LINE].strip() if len(lines) > _STATUS_LINE else ""
        return PidFile(pid, int(port) if port.isdigit() else None, status)

    def last_port(self) -> int | None:
        """Return the port of the cluster's previous server, as Postgres has noted it."""
        try:
            options = (self.cluster / "postmaster.opts").read_text(errors="replace")
        except OSError:
            return None
        found = re.search(r'"port=(\d{1,5})"', options)
        return int(found[1]) if found else None

    def mark(self) -> str:
        """Return the setting that identifies this cluster's server by its command line."""
        about = self.cluster.stat()
        return f"storenode.cluster={about.st_dev}:{about.st_ino}"

    def is_served_by(self, pid: int) -> bool:
        """Return True if a supervisor started that process as a server on this cluster."""
        return self.mark() in (command_line(pid) or ())


def _is_granted(lock_fd: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def keep_reserve(data_dir: Path) -> None:
    """Keep disk space back where the disk has twice as much.

    Postgres does not start without space for its log, and then nothing can be dropped that would
    free some: ``storenode db prune`` releases the reserve first.

    Raises:
        OSError: The disk has no space after all, or cannot be written.
    """
    path, usage = data_dir / "reserve", shutil.disk_usage(data_dir)
    size = min(RESERVE_BYTES, usage.total // RESERVE_SHARE)
    if path.exists() or usage.free < 2 * size:
        return
    # Under another name until it is whole: a part of it would be taken for it.
    begun = path.with_suffix(".new")
    try:
        with begun.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        begun.replace(path)
    finally:
        begun.unlink(missing_ok=True)


def release_reserve(data_dir: Path) -> int:
    """Remove the reserve if the disk has less free than that; return the bytes it had.

    Raises:
        OSError: It cannot be removed.
    """
    path = data_dir / "reserve"
    if not path.exists() or shutil.disk_usage(data_dir).free >= (size := path.stat().st_size):
        return 0
    path.unlink(missing_ok=True)
    return size


_SUPERUSER = "postgres"
_PASSWORD_BYTES = 24
"""Written as digits, which neither SQL nor a URL needs to quote."""

_HBA = f"""\
# Written by storenode: its own role, in its own database, from this machine, with a password.
# The superuser cannot log in; single-user mode is its only way in.
host {DATABASE} {ROLE} 127.0.0.1/32 scram-sha-256
"""


def make_cluster(data: DataDir, launch: Launch, programs: Installation) -> None:
    """Make the cluster, its role and its database, all of it or nothing.

    It grows in a directory of its own and moves into its place when it is whole and on disk, so
    that a crash at any moment leaves either no cluster or a good one. Its role has no rights
    beyond its database but to look at statistics and to ask for a checkpoint.

    Raises:
        ProgramFailedError: initdb or the session that makes the role failed.
        OSError: The data directory does not take it.
    """
    password = secrets.token_hex(_PASSWORD_BYTES)
    cluster = Path(tempfile.mkdtemp(prefix="postgres.new-", dir=data.path))
    # New in Postgres 15: the role for checkpoints; in 17: one call that writes all files out.
    granted = "pg_monitor, pg_checkpoint" if programs.major >= 15 else "pg_monitor"
    at_once = ["--sync-method=syncfs"] if ON_LINUX and programs.major >= 17 else []
    try:
        if (account := launch.account) is not None:
            os.chown(cluster, account.pw_uid, account.pw_gid)
        with named_user(account) as variables:
            inside = launch._replace(directory=cluster, environment=variables)
            initdb = [programs.program("initdb"), f"--pgdata={inside.path}"]
            command = [*initdb, f"--username={_SUPERUSER}", "--encoding=UTF8", "--locale=C"]
            inside.run([*command, "--data-checksums", "--auth=reject", "--no-sync"])
            _run_sql(
                inside,
                programs,
                f"CREATE ROLE {ROLE} LOGIN PASSWORD '{password}';\n"
                f"GRANT {granted} TO {ROLE};\n"
                f"CREATE DATABASE {DATABASE} OWNER {ROLE};\n",
                "fsync=off",
            )
            (cluster / "pg_hba.conf").write_text(_HBA)
            inside.run([*initdb, "--sync-only", *at_once])
        # The password first: a cluster without one would be of no use.
        data.write_password(password)
        cluster.rename(data.cluster)
        sync_directory(data.path)
    finally:
        shutil.rmtree(cluster, ignore_errors=True)


def reset_password(data: DataDir, launch: Launch, programs: Installation) -> str:
    """Set a new password for the role of a stopped cluster, when the saved one is lost.

    Raises:
        ProgramFailedError: The cluster does not start in single-user mode.
    """
    password = secrets.token_hex(_PASSWORD_BYTES)
    with named_user(launch.account) as variables:
        inside = launch._replace(directory=data.cluster, environment=variables)
        _run_sql(inside, programs, f"ALTER ROLE {ROLE} PASSWORD '{password}';\n")
    data.write_password(password)
    return password


def remove_leftovers(data: DataDir) -> None:
    """Remove what a crash left of a cluster in the making; the lock must be held."""
    for path in data.path.glob("postgres.new-*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in data.path.glob("postgres.json-*"):
        path.unlink(missing_ok=True)


def _run_sql(inside: Launch, programs: Installation, sql: str, *settings: str) -> None:
    # A statement that fails must neither be passed over nor be logged with its password.
    usual = "exit_on_error=on", "log_min_error_statement=panic", "password_encryption=scram-sha-256"
    command = [programs.program("postgres"), "--single", "-D", inside.path]
    command += [part for each in (*usual, *settings) for part in ("-c", each)]
    inside.run([*command, "postgres"], stdin=sql)
