"""The account that Postgres runs under: it refuses to run as root.

As root, a new cluster gets a user ID that nothing else on the machine uses. Other processes of the
account could reach the cluster, whatever its modes, through `/proc/PID/fd` of the server.
"""

import hashlib
import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store.embedded.errors import EmbeddedPostgresError

NAME: Final = "storenode"
"""An account of this name is used where there is one: it was made for this."""

UNUSED_IDS: Final[Sequence[int]] = range(60_578, 61_184)
"""Left free by distributions, by systemd and by subordinate IDs, and mapped in containers.

Source: systemd, "Users, Groups, UIDs and GIDs on systemd Systems".
"""


@dataclass(frozen=True)
class Account:
    """User and group of a process; `name` is for messages."""

    uid: int
    gid: int
    name: str


def account_for(cluster: Path) -> Account | None:
    """Return the account to become for this cluster; None to stay what we are.

    As root, a cluster that exists decides by its owner, as Postgres demands that it runs as it.

    Raises:
        EmbeddedPostgresError: The cluster belongs to somebody else, or no account is left.
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
            f" it away with `chown -R {_new_account(cluster).name} {cluster}`."
        )
    return _by_uid(owner)


def has_name(uid: int) -> bool:
    """Return True if the system knows a name for a user ID."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _owner_of(cluster: Path) -> int | None:
    try:
        return cluster.stat().st_uid
    except FileNotFoundError:
        return None


def _new_account(cluster: Path) -> Account:
    try:
        entry = pwd.getpwnam(NAME)
    except KeyError:
        return _by_uid(_unused_id(cluster.parent))
    return Account(entry.pw_uid, entry.pw_gid, NAME)


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


def _by_uid(uid: int) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(uid, uid, str(uid))
    return Account(uid, entry.pw_gid, entry.pw_name)
