"""Servers of root and of users without privileges, in directories of their owners."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from store.embedded import (
    EmbeddedPostgres,
    EmbeddedPostgresError,
    EmbeddedSettings,
    binaries,
)
from tests.embedded.helpers import (
    AS_ROOT,
    NAMELESS,
    insert,
    node,
    open_directory,
    unprivileged,
    values,
)


def _private_installation(below: Path) -> binaries.Installation:
    """Return the programs as they are in an environment below a directory of mode 0700."""
    source = binaries.choose(None)
    package = source.bin_dir.parents[1]
    ignored = shutil.ignore_patterns("include", "*.a")
    for tree in (source.bin_dir.parent, package.with_name(package.name + ".libs")):
        if tree.is_dir():
            target = below / "private" / tree.relative_to(package.parent)
            shutil.copytree(tree, target, ignore=ignored, symlinks=True)
    bin_dir = below / "private" / source.bin_dir.relative_to(package.parent)
    (below / "private").chmod(0o700)
    return binaries.Installation(bin_dir, source.version, movable=True)


def test_everything_below_a_private_directory_works(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_directory() as base:
        hidden = _private_installation(base)
        copies = base / "copies"
        copies.mkdir()
        monkeypatch.setattr(binaries, "choose", lambda _major: hidden)
        monkeypatch.setattr(binaries, "_PRIVATE_COPY_BASES", (str(copies),))
        parents = [base / "private", base, *base.parents]
        modes = [each.stat().st_mode for each in parents]
        with EmbeddedPostgres(EmbeddedSettings(base / "private" / "data")) as server:
            insert(server.url, 1)
        assert [each.stat().st_mode for each in parents] == modes
        assert len([*copies.glob("storenode/*")]) == (1 if AS_ROOT else 0)


def test_programs_are_copied_only_where_root_alone_can_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copied: list[Path] = []
    monkeypatch.setattr(binaries, "_copy_into_place", lambda _tree, target: copied.append(target))
    shared, linked, good = (tmp_path / each for each in ("shared", "linked", "good"))
    (shared / "storenode").mkdir(parents=True)
    (shared / "storenode").chmod(0o777)
    linked.mkdir()
    (linked / "storenode").symlink_to(shared)
    good.mkdir()
    source = binaries.choose(None)
    for refused in (tmp_path / "absent", shared, linked):
        assert binaries._copied_below(refused, source) is None
    assert copied == []
    found = binaries._copied_below(good, source)
    assert found is not None
    assert found.bin_dir.is_relative_to(copied[0])


def test_a_node_whose_user_has_no_passwd_entry_has_its_own_database() -> None:
    options = unprivileged()
    with open_directory() as base:
        uid = options.get("uid", os.geteuid())
        assert isinstance(uid, int)
        os.chown(base, uid, -1)
        with node(base / "data", **options) as running:
            insert(running.said["url"], 1)
            assert running.stop() == 0
        assert {path.stat().st_uid for path in base.rglob("*")} == {uid}
        # Whoever has the rights may serve it in between; what that makes is its owner's too.
        for name in ("postgres.json", "postgres.log", "storenode.lock"):
            (base / "data" / name).unlink()
        with EmbeddedPostgres(EmbeddedSettings(base / "data")) as server:
            assert values(server.url) == [1]
        assert {path.stat().st_uid for path in base.rglob("*")} == {uid}


def test_the_servers_account_is_the_owner_of_the_cluster(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = data_dir / "postgres"
    owner = cluster.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    chosen = binaries.account_for(cluster)
    assert chosen is not None
    assert chosen.pw_uid == owner != 0
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(EmbeddedPostgresError, match=f"belongs to user ID {owner}"):
        binaries.account_for(cluster)


def test_a_cluster_of_roots_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(EmbeddedPostgresError, match="chown -R"):
        binaries.account_for(Path("/usr"))


def test_root_gives_each_new_cluster_a_user_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(binaries, "NAME", "no-such-account")
    first, second = (
        binaries.account_for(Path(each)) for each in ("/nonexistent/a/postgres", "/gone/b/postgres")
    )
    assert first is not None
    assert second is not None
    assert first.pw_uid != second.pw_uid
    assert {first.pw_uid, second.pw_uid} <= set(binaries.UNUSED_IDS)
    assert not binaries.has_name(first.pw_uid)
    monkeypatch.setattr(binaries, "has_name", lambda uid: uid == first.pw_uid)
    assert binaries.account_for(Path("/nonexistent/a/postgres")) != first
    monkeypatch.setattr(binaries, "_ids_of_processes", lambda: set(binaries.UNUSED_IDS))
    with pytest.raises(EmbeddedPostgresError, match="create the account `no-such-account`"):
        binaries.account_for(Path("/nonexistent"))
    monkeypatch.setattr(binaries, "find_nss_wrapper", lambda: None)
    shared = binaries.account_for(Path("/nonexistent"))
    assert shared is not None
    assert shared.pw_name == "nobody"


def test_the_files_that_name_a_user_can_be_read_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(binaries, "find_nss_wrapper", lambda: "libnss_wrapper.so")
    with binaries.named_user(binaries._by_uid(NAMELESS)) as variables:
        path = Path(variables["NSS_WRAPPER_PASSWD"])
        assert path.stat().st_mode & 0o004
        assert all(each.stat().st_mode & 0o001 for each in path.parents)


def test_a_user_without_a_name_and_nss_wrapper_is_refused_with_both_remedies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(binaries, "find_nss_wrapper", lambda: None)
    with (
        pytest.raises(EmbeddedPostgresError, match=rf"User ID {NAMELESS} has no name") as refusal,
        binaries.named_user(binaries._by_uid(NAMELESS)),
    ):
        pass
    assert "libnss-wrapper" in str(refusal.value)
    assert "/etc/passwd" in str(refusal.value)
