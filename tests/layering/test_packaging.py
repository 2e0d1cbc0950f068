"""What is installed, and what the lock file promises."""

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from setuptools import find_packages

from reconcile import kernel
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


# The digest of `reconcile/native`, for the version of it that `reconcile.kernel` takes. A change of
# the source needs a new version in both, or a file that was built earlier would be used with it.
KERNEL = (2, "0cce0ea48988895410961628d8f9eba988dd01ba788483a41ff12381629c6db3")


def test_a_change_of_the_compiled_source_has_a_version_of_its_own() -> None:
    digest = hashlib.sha256()
    for path in sorted((ROOT / "reconcile" / "native").iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    header = (ROOT / "reconcile" / "native" / "kernel.h").read_text(encoding="utf-8")
    assert f"#define KERNEL_VERSION {kernel.VERSION}\n" in header
    assert (kernel.VERSION, digest.hexdigest()) == KERNEL, (
        "raise VERSION in reconcile/kernel.py and KERNEL_VERSION in kernel.h, and note both here"
    )


def test_a_file_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    built = SimpleNamespace(VERSION=kernel.VERSION)
    monkeypatch.setattr(kernel, "_built", built)
    assert kernel.usable() is built
    for other in (None, SimpleNamespace(), SimpleNamespace(VERSION=kernel.VERSION - 1)):
        monkeypatch.setattr(kernel, "_built", other)
        assert kernel.usable() is None


@pytest.mark.parametrize("compiler", [None, "/bin/false"])
def test_the_project_is_built_with_and_without_a_compiler(
    compiler: str | None, tmp_path: Path
) -> None:
    environment = dict(os.environ) if compiler is None else os.environ | {"CC": compiler}
    command = [sys.executable, "setup.py", "--quiet", "build_ext"]
    folders = ["--build-lib", str(tmp_path / "lib"), "--build-temp", str(tmp_path / "temp")]
    done = subprocess.run(
        [*command, *folders], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    built = list(tmp_path.glob("lib/reconcile/_kernel.*"))
    if compiler is not None:
        assert not built
    elif built:  # else there is no compiler here, or there are no headers
        assert version_of(built[0].parent) == kernel.VERSION


def version_of(folder: Path) -> int:
    """What a compiled kernel says when it is imported by itself."""
    code = "import _kernel; print(_kernel.VERSION)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    return int(done.stdout)
