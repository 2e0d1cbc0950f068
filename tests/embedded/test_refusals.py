"""Refusals, whose sentences say what to do."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from store.embedded import (
    EmbeddedPostgres,
    EmbeddedPostgresError,
    EmbeddedSettings,
    binaries,
    running_url,
)
from store.embedded.datadir import DataDir
from tests.embedded.helpers import AS_ROOT, node, open_directory, unprivileged, values


def _refusal(data_dir: Path, **settings: object) -> str:
    server = EmbeddedPostgres(EmbeddedSettings(data_dir, **settings))  # type: ignore[arg-type]
    with pytest.raises(EmbeddedPostgresError) as caught:
        server.start()
    assert server.pid is None
    return str(caught.value)


def test_a_second_node_is_refused_with_the_process_that_has_the_directory(data_dir: Path) -> None:
    with node(data_dir) as running:
        assert f"in use by process {running.process.pid}" in _refusal(data_dir)
        assert values(running.said["url"]) == [1]
    with EmbeddedPostgres(EmbeddedSettings(data_dir)) as server:
        assert f"in use by process {os.getpid()}" in _refusal(data_dir)
        assert values(server.url) == [1]


def test_a_setting_that_postgres_refuses_is_named_and_leaves_the_directory_free(
    data_dir: Path,
) -> None:
    broken = _refusal(data_dir, extra={"shared_buffers": "plenty"})
    assert 'invalid value for parameter "shared_buffers": "plenty"' in broken
    assert str(data_dir / "postgres.log") in broken
    assert not DataDir(data_dir).is_locked()


@pytest.mark.parametrize("name", ["port", "listen_addresses", "Unix_Socket_Directories"])
def test_a_setting_that_is_the_supervisors_is_refused(tmp_path: Path, name: str) -> None:
    assert f"{name} of the embedded Postgres is managed" in _refusal(tmp_path, extra={name: "1"})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("13\n", ("made by Postgres 13 and only", "pg_upgrade")),
        ("eighteen", ("says 'eighteen' instead of a version",)),
    ],
)
def test_a_cluster_of_a_version_that_is_not_installed_or_of_none(
    data_dir: Path, version: str, words: tuple[str, ...]
) -> None:
    (data_dir / "postgres" / "PG_VERSION").write_text(version)
    said = _refusal(data_dir)
    assert all(each in said for each in words)


def test_a_cluster_of_an_older_version_keeps_its_programs() -> None:
    assert binaries.choose(16).major == 16 < binaries.choose(None).major


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Take the package with the programs away, and leaves one directory to search."""

    def take_away(path: str) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
        monkeypatch.setattr(binaries, "SYSTEM_PATTERNS", ())
        monkeypatch.setenv("PATH", path)

    return take_away


def test_without_programs_it_says_what_to_install(
    tmp_path: Path, no_wheel: Callable[[str], None]
) -> None:
    no_wheel(str(tmp_path))
    said = _refusal(tmp_path / "data")
    assert "pip install 'storenode[embedded]'" in said
    assert "--database-url" in said
    assert not (tmp_path / "data" / "postgres").exists()


def test_programs_on_the_path_are_the_second_choice(no_wheel: Callable[[str], None]) -> None:
    wheel = binaries.choose(None)
    no_wheel(str(wheel.bin_dir))
    found = binaries.choose(None)
    assert (found.bin_dir, wheel.movable, found.movable) == (wheel.bin_dir, True, False)


def test_a_place_that_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = _refusal(tmp_path / "file")
    assert f"{tmp_path / 'file'} cannot be used" in said
    assert "--data-dir" in said


def test_a_directory_that_this_user_cannot_write() -> None:
    with open_directory() as directory:
        directory.chmod(0o555)
        with node(directory / "below", **unprivileged()) as running:
            assert "below cannot be used (Permission denied)" in running.said["error"]
        directory.chmod(0o755)


def test_a_foreign_cluster_is_not_touched(made_once: Path) -> None:
    said = _refusal(made_once / "postgres")
    assert "itself a Postgres cluster" in said
    assert not (made_once / "postgres" / "storenode.lock").exists()


@pytest.mark.parametrize("content", ["directory", "file"])
def test_foreign_content_in_the_place_of_the_cluster_is_not_touched(
    tmp_path: Path, content: str
) -> None:
    place = tmp_path / "postgres"
    if content == "directory":
        place.mkdir()
        (place / "letter.txt").write_text("dear")
    else:
        place.write_text("dear")
    assert "is not a Postgres cluster: move it away" in _refusal(tmp_path)
    assert place.exists()


def test_the_password_is_not_for_others_to_ask() -> None:
    with open_directory() as directory:
        data = directory / "data"
        with EmbeddedPostgres(EmbeddedSettings(data)):
            data.chmod(0)
            if not AS_ROOT:
                with pytest.raises(EmbeddedPostgresError, match="not readable"):
                    running_url(data)
            with node(data, **unprivileged()) as running:
                assert "Permission denied" in running.said["error"]
            data.chmod(0o700)
