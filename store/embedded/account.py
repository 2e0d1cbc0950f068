"""The account that Postgres runs under: it refuses to run as root."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from store.embedded.errors import EmbeddedPostgresError

_PREFERRED_NAMES = ("storenode", "_postgres", "nobody", "postgres")
"""In order: an account made for us; accounts that own no files of anybody; and last the account
of a system's own Postgres, whose clusters our server could then read, and the reverse."""


@dataclass(frozen=True)
class Account:
    """User and group of a process; `name` is for messages."""

    uid: int
    gid: int
    name: str


def account_for(cluster: Path) -> Account | None:
    """The account to become for this cluster; None to stay what we are.

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
        return _preferred()
    if owner == 0:
        raise EmbeddedPostgresError(
            f"The database in {cluster} belongs to root, which Postgres refuses to run as: give"
            f" it away with `chown -R {_preferred().name} {cluster}`."
        )
    return _by_uid(owner)


def _owner_of(cluster: Path) -> int | None:
    try:
        return cluster.stat().st_uid
    except FileNotFoundError:
        return None


def _preferred() -> Account:
    for name in _PREFERRED_NAMES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(entry.pw_uid, entry.pw_gid, name)
    raise EmbeddedPostgresError(
        "Postgres refuses to run as root and this machine has no unprivileged account named"
        f" {', '.join(_PREFERRED_NAMES)}: create the account `storenode`."
    )


def _by_uid(uid: int) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(uid, uid, str(uid))
    return Account(uid, entry.pw_gid, entry.pw_name)
