"""What is installed, and what the lock file promises."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from setuptools import find_packages

from tests.layering.sources import PACKAGES, ROOT

PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;]+)(?: ; [^\\]+)? \\$", re.MULTILINE)
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def lock_text() -> str:
    return (ROOT / "requirements.lock").read_text(encoding="utf-8")


def declared() -> list[Requirement]:
    config = project()
    texts = [*config["build-system"]["requires"], *config["project"]["dependencies"]]
    for extra in config["project"]["optional-dependencies"].values():
        texts.extend(extra)
    return [Requirement(text) for text in texts]


def discovered() -> list[str]:
    finder = project()["tool"]["setuptools"]["packages"]["find"]
    packages: list[str] = find_packages(str(ROOT / finder["where"][0]), include=finder["include"])
    return packages


def test_only_the_rooms_are_packages() -> None:
    assert sorted({package.split(".")[0] for package in discovered()}) == PACKAGES


def test_every_folder_with_code_is_a_package() -> None:
    folders = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert folders == set(discovered())


def test_packages_are_marked_as_typed() -> None:
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").is_file(), package


def test_proto_holds_schemas_only() -> None:
    assert {path.suffix for path in (ROOT / "proto").rglob("*") if path.is_file()} == {".proto"}


def test_proto_cannot_be_imported_from_an_installation(tmp_path: Path) -> None:
    probe = "import importlib.util as u; spec = u.find_spec('proto'); print(spec and spec.origin)"
    found = subprocess.run(
        [sys.executable, "-c", probe], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert str(ROOT / "proto") not in found.stdout


def test_the_lock_meets_every_declared_requirement() -> None:
    pins = {canonicalize_name(name): version for name, version in PIN.findall(lock_text())}
    for requirement in declared():
        pinned = pins.get(canonicalize_name(requirement.name))
        assert pinned is not None, f"{requirement} is not locked: run `make lock`"
        assert requirement.specifier.contains(pinned, prereleases=True), (
            f"{requirement} is locked at {pinned}: run `make lock`"
        )


def test_the_lock_names_versions_and_hashes_and_no_place() -> None:
    lines = [line for line in lock_text().splitlines() if line and not line.startswith("#")]
    assert all(PIN.match(line) or HASH.match(line) for line in lines)
    assert "/" not in lock_text()


def test_the_lock_gives_every_pin_a_hash() -> None:
    blocks = PIN.split(lock_text())[1:]
    for name, hashes in zip(blocks[0::3], blocks[2::3], strict=True):
        assert "--hash=sha256:" in hashes, name
