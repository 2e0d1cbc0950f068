"""Making a cluster, and the single-user sessions that need no password."""

import os
import pwd
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from store.embedded.account import named_user
from store.embedded.binaries import Installation
from store.embedded.datadir import DATABASE, ROLE, Credentials, DataDir, child_view, new_password

_SUPERUSER = "postgres"
_HBA = f"""\
# Written by storenode: its own role, in its own database, from this machine, with a password.
# The superuser cannot log in; single-user mode is its only way in.
host {DATABASE} {ROLE} 127.0.0.1/32 scram-sha-256
"""
_CHECKPOINT_ROLE_SINCE = 15


def make_cluster(data: DataDir, account: pwd.struct_passwd | None, binaries: Installation) -> None:
    """Make the cluster, its role and its database, all of it or nothing.

    It grows in a directory of its own and moves into its place when it is whole and on disk, so
    that a crash at any moment leaves either no cluster or a good one. Its role has no rights
    beyond its database but to look at statistics and to ask for a checkpoint.

    Raises:
        ProgramFailedError: initdb or the session that makes the role failed.
        OSError: The data directory does not take it.
    """
    remove_leftovers(data)
    access = Credentials(new_password())
    staging = Path(tempfile.mkdtemp(prefix="postgres.new-", dir=data.path))
    try:
        if account is not None:
            os.chown(staging, account.pw_uid, account.pw_gid)
        _initdb(staging, account, binaries)
        _run_sql(staging / "cluster", account, binaries, _setup_sql(access, binaries.major))
        (staging / "cluster" / "pg_hba.conf").write_text(_HBA)
        # The password first: a cluster without one would be of no use.
        data.write_access(access)
        (staging / "cluster").rename(data.cluster)
        _sync(data.path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def reset_password(
    data: DataDir, account: pwd.struct_passwd | None, binaries: Installation
) -> Credentials:
    """Set a new password for the role of a stopped cluster, when the saved one is lost.

    Raises:
        ProgramFailedError: The cluster does not start in single-user mode.
    """
    access = Credentials(new_password())
    sql = f"ALTER ROLE {ROLE} PASSWORD '{access.password}';\n"
    _run_sql(data.cluster, account, binaries, sql)
    data.write_access(access)
    return access


def remove_leftovers(data: DataDir) -> None:
    """Remove what a crash left of a cluster in the making; the lock must be held."""
    for path in data.path.glob("postgres.new-*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in data.path.glob("postgres.json-*"):
        path.unlink(missing_ok=True)


def _initdb(staging: Path, account: pwd.struct_passwd | None, binaries: Installation) -> None:
    with child_view(staging, account) as (launch, path), named_user(account) as variables:
        replace(launch, environment=variables).run(
            [
                binaries.program("initdb"),
                f"--pgdata={path}/cluster",
                f"--username={_SUPERUSER}",
                "--encoding=UTF8",
                "--locale=C",
                "--data-checksums",
                "--auth=reject",
            ]
        )


def _setup_sql(access: Credentials, major: int) -> str:
    granted = "pg_monitor, pg_checkpoint" if major >= _CHECKPOINT_ROLE_SINCE else "pg_monitor"
    return (
        f"CREATE ROLE {ROLE} LOGIN PASSWORD '{access.password}';\n"
        f"GRANT {granted} TO {ROLE};\n"
        f"CREATE DATABASE {DATABASE} OWNER {ROLE};\n"
    )


def _run_sql(
    cluster: Path, account: pwd.struct_passwd | None, binaries: Installation, sql: str
) -> None:
    with child_view(cluster, account) as (launch, path), named_user(account) as variables:
        command = [binaries.program("postgres"), "--single", "-D", path]
        # A statement that fails must neither be passed over nor be logged with its password.
        for setting in (
            "exit_on_error=on",
            "log_min_error_statement=panic",
            "password_encryption=scram-sha-256",
        ):
            command += ["-c", setting]
        replace(launch, environment=variables).run([*command, "postgres"], stdin=sql)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
