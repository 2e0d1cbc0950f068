"""The account that Postgres runs under: it refuses to run as root.

As root, a new cluster gets a user ID that nothing else on the machine uses. Other processes of the
account could reach the cluster, whatever its modes, through `/proc/PID/fd` of the server.
"""

import contextlib
import ctypes.util
import hashlib
import os
import pwd
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from store.embedded.errors import EmbeddedPostgresError

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
    owner = _owner_of(cluster)
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
    with tempfile.TemporaryDirectory(prefix="storenode-user-", dir=_open_directory()) as directory:
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


def _open_directory() -> str | None:
    """Return a directory for temporary files that every account can reach; None if none is known.

    That of this process may be below a folder of root's alone.
    """
    for name in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108 - the folder gets a name of its own
        path = Path(name).resolve()
        if path.is_dir() and all(each.stat().st_mode & 0o001 for each in (path, *path.parents)):
            return name
    return None


def _owner_of(cluster: Path) -> int | None:
    try:
        return cluster.stat().st_uid
    except FileNotFoundError:
        return None


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
        try:
            found.add(process.stat().st_uid)
        except OSError:
            continue
    return found


def _by_uid(uid: int) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return pwd.struct_passwd((str(uid), "x", uid, uid, "", "/", "/bin/false"))
