"""Pins what the two distributions need, with hashes, one file for each use of the repository.

`python tools/lock.py` keeps the versions that are pinned already where they still fit;
`--upgrade` takes the newest. `requirements/dev.lock` has everything but the tools of the
documentation; the others are parts of it, `requirements/docs.lock` with those tools besides.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = (ROOT, ROOT / "packaging" / "node")
OWN = re.compile(r"storenode(-node)?\b")
EVERYTHING = "dev"
EXTRAS: dict[str, tuple[str, ...]] = {
    EVERYTHING: ("demo", "embedded", "gateway", "pipeline", "postgres"),
    "run": ("embedded",),
    "node": ("embedded", "gateway"),
    "demo": ("demo", "embedded"),
    "gateway": ("gateway",),
    "pipeline": ("embedded", "pipeline"),
    "docs": (),
}
"""The extras that each file adds to the library and the node."""
GROUPS: dict[str, str] = {EVERYTHING: "dev", "docs": "docs"}
"""The dependency groups that some files add: tools, which no release contains."""


def main() -> int:
    """Write the files; the exit code is that of the resolver."""
    parser = argparse.ArgumentParser(description="Pins dependencies with hashes.")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    upgrade = parser.parse_args().upgrade
    for level in EXTRAS:
        code = compile_lock(level, upgrade=upgrade)
        if code != 0:
            return code
    return 0


def compile_lock(level: str, *, upgrade: bool) -> int:
    """Resolve one file; the others take the versions of the first one where it has them."""
    lock = lock_file(level)
    command = [
        str(Path(sysconfig.get_path("scripts"), "uv")),
        *("pip", "compile", "--quiet", "--universal", "--python-version", "3.11"),
        *("--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"),
        *("--no-emit-find-links", "--output-file", str(lock)),
    ]
    if level != EVERYTHING:
        command += ["--constraint", str(lock_file(EVERYTHING))]
    if upgrade:
        command.append("--upgrade")
    with tempfile.TemporaryDirectory() as scratch:
        wanted = Path(scratch, "wanted.txt")
        wanted.write_text("\n".join(requirements(level)) + "\n", encoding="utf-8")
        return subprocess.run([*command, str(wanted)], cwd=ROOT, check=False).returncode


def lock_file(level: str) -> Path:
    """Return the path of the pins of a level."""
    return ROOT / "requirements" / f"{level}.lock"


def requirements(level: str) -> list[str]:
    """Return the requirements of a level, as the two projects declare them."""
    found: set[str] = set()
    for folder in PROJECTS:
        document = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        found.update(document["build-system"]["requires"], of_extras(document, EXTRAS[level]))
        found.update(document["project"]["dependencies"])
        found.update(document.get("dependency-groups", {}).get(GROUPS.get(level, ""), ()))
    return sorted(each for each in found if not OWN.match(each))


def of_extras(document: dict[str, Any], extras: tuple[str, ...]) -> list[str]:
    """Return the requirements of some extras of a project; an unknown extra adds none."""
    optional = document["project"]["optional-dependencies"]
    return [each for extra in extras for each in optional.get(extra, ())]


if __name__ == "__main__":
    sys.exit(main())
