"""The contents of the wheels, the source distributions and the archive of schemas."""

from __future__ import annotations

import email
import re
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from tests.install.environment import ROOT, VERSION, Dist, files_of
from tools.build_dist import copy_sources

LINK = re.compile(r"\]\(([^)]*)\)")
PACKAGES = ("storenode", "storenode_node")
KERNEL = "reconcile/_kernel.abi3.so"
FOLDERS = {"storenode": ".", "storenode_node": "packaging/node"}


def packages(dist: Dist) -> dict[str, tuple[Path, Path]]:
    """Return wheel and source distribution by name."""
    return {
        "storenode": (dist.library, dist.library_source),
        "storenode_node": (dist.node, dist.node_source),
    }


def metadata_of(wheel: Path) -> Message:
    """Return what an index shows of a wheel."""
    (name,) = (name for name in files_of(wheel) if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as file:
        return email.message_from_bytes(file.read(name))


@pytest.mark.parametrize("name", PACKAGES)
def test_the_metadata_say_what_it_is(dist: Dist, name: str) -> None:
    wheel, _ = packages(dist)[name]
    metadata = metadata_of(wheel)
    assert metadata["Version"] == VERSION
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Summary"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    readme = str(metadata.get_payload())
    assert "# storenode" in readme
    assert not [link for link in LINK.findall(readme) if not link.startswith(("https://", "#"))]
    links = {link.partition(",")[0] for link in metadata.get_all("Project-URL", [])}
    assert links == {"Homepage", "Documentation", "Changelog", "Issues", "Source"}
    classifiers = metadata.get_all("Classifier", [])
    assert {"Typing :: Typed", "Programming Language :: Python :: 3.13"} <= set(classifiers)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_wheel_has_the_modules_and_data_of_the_repository(
    dist: Dist, name: str, tmp_path: Path
) -> None:
    """Compare with what git tracks: wheels are made from the source distributions."""
    copy_sources(tmp_path)
    project = tomllib.loads((tmp_path / FOLDERS[name] / "pyproject.toml").read_text())
    listed = project["tool"]["setuptools"]
    wanted: set[str] = set()
    for package in listed["packages"]:
        path = package
        for installed, source in listed["package-dir"].items():
            path = path.replace(installed, source)
        folder = tmp_path / path.replace(".", "/")
        wanted |= {f"{package.replace('.', '/')}/{file.name}" for file in folder.iterdir()}
    assert len(wanted) > 100
    wheel, _ = packages(dist)[name]
    found = files_of(wheel)
    for suffix in (".py", ".pyi", ".proto", ".sql", ".toml", ".typed"):
        assert {each for each in found if each.endswith(suffix)} == {
            each for each in wanted if each.endswith(suffix)
        }


def test_the_wheel_of_the_node_has_what_a_node_reads(dist: Dist) -> None:
    files = files_of(dist.node)
    assert "-cp311-abi3-" in dist.node.name
    assert KERNEL in files
    for package, pattern in (("migrations", "versions/*.py"), ("store/observe", "web/*")):
        inside = {path.relative_to(ROOT) for path in (ROOT / package).glob(pattern)}
        names = {path.as_posix() for path in inside}
        assert {name.replace("migrations/", "store/migrations/") for name in names} <= files
        assert len(names) > 1
    assert not any(name.endswith((".c", ".h")) for name in files)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_source_distribution_has_all_that_it_is_built_from(dist: Dist, name: str) -> None:
    _, source = packages(dist)[name]
    files = files_of(source)
    wanted = {"LICENSE", "README.md", "pyproject.toml"}
    if name == "storenode_node":
        for pattern in (
            "migrations/**/*.py",
            "reconcile/native/*",
            "store/http/web/*",
            "store/observe/web/*",
        ):
            found = {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)}
            assert len(found) > 3
            wanted |= found
    assert wanted <= files
    strangers = ("bench/", "docs/", "proto/storenode/internal/", "sim/", "tests/")
    assert not {name for name in files if name.startswith(strangers)}
    with tarfile.open(source) as archive:
        assert not any(member.issym() or member.islnk() for member in archive.getmembers())


def test_the_wheel_has_the_schemas_of_the_archive(dist: Dist) -> None:
    folder = "storenode/proto/"
    inside = {name.removeprefix(folder) for name in files_of(dist.library) if folder in name}
    assert inside == {name for name in files_of(dist.schemas) if name.endswith(".proto")}
