"""Selection of the test folders that a change can be checked without.

A folder of `FILTERS` is left out if neither it nor one of its prefixes has changed since the merge
base with `main`. Every other folder always runs. All run if there is no merge base or nothing has
changed, as on `main` itself, and if a file of `SHARED` has changed. A filter approximates what can
affect the tests; `.ci/run --long` runs everything once a week and before a release.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
MAIN: Final = ("origin/main", "main")

SHARED: Final = (
    *(".ci/", "Makefile", "pyproject.toml", "requirements/", "tests/conftest.py", "tests/support/"),
    *("tests/vectors/", "tools/affected_tests.py"),
)
"""Prefixes of files on which all tests depend."""

PUBLIC: Final = ("proto/", "storenode/wire/", "store/http/", "store/rpc/", "store/serving/")
"""Prefixes of what a client in another language sees."""

PROCESSES: Final = ("store/cli/", "store/config/", "store/embedded/", "store/runtime/")
"""Prefixes of what starts and ends a node."""

FILTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "tests/browser": (
        *("README.md", "docs/", "mkdocs.yml", "tools/site/"),
        *(*PUBLIC, "store/gateway/", "store/observe/", "store/pipeline/"),
    ),
    "tests/deploy/test_composition.py": (
        *("deploy/", "store/db/", "store/observe/", "tests/deploy/composition/"),
        *PROCESSES,
    ),
    "tests/deploy/test_runbooks.py": (
        *("deploy/", "docs/runbooks/", "migrations/", "store/db/", "store/gateway/"),
        *("store/observe/", "store/pipeline/", "store/sync/", "tests/deploy/runbooks/"),
        *PROCESSES,
    ),
    "tests/embedded": ("store/embedded/",),
    "tests/faults/test_attacks.py": (
        *("chaos/", "reconcile/", "store/domain/", "store/gateway/", "store/gossip/"),
        *("store/sync/", *PUBLIC, *PROCESSES),
    ),
    "tests/faults/test_soak.py": (
        *("chaos/", "store/db/", "store/gossip/", "store/sync/", "storenode/"),
        *PROCESSES,
    ),
    "tests/install": (
        *("packaging/", "proto/", "reconcile/native/", "setup.py", "store/embedded/"),
        *("store/cli/", "storenode/", "tools/"),
    ),
    "tests/integration/clients": (*PUBLIC, "docs/", "examples/"),
    "tests/integration/chaos": ("chaos/", "storenode/", *PROCESSES),
    "tests/integration/examples": ("docs/", "examples/", "storenode/"),
    "tests/integration/javascript": (*PUBLIC, "store/gateway/", "storenode/sds/"),
    # What store.pipeline imports.
    "tests/integration/pipeline": (
        *("docs/", "examples/", "migrations/", "reconcile/", "store/db/", "store/domain/"),
        *("store/messages/", "store/pipeline/", "storenode/"),
    ),
    # What the simulator imports.
    "tests/sim": (
        *("reconcile/", "sim/", "store/domain/", "store/gateway/", "store/gossip/"),
        *("store/messages/", "store/sync/", "storenode/common/", "storenode/message/"),
        *("storenode/sds/", "storenode/wire/"),
    ),
}


def unaffected(changed: Iterable[str]) -> list[str]:
    """Return the paths of `FILTERS` that a change of these files leaves out."""
    files = list(changed)
    if not files or any(file.startswith(SHARED) for file in files):
        return []
    return [
        tests
        for tests, prefixes in FILTERS.items()
        if not any(file.startswith((tests, *prefixes)) for file in files)
    ]


def changed_files(root: Path = ROOT) -> list[str]:
    """Return the files that differ from the merge base with `main`, none if there is no base."""
    for main in MAIN:
        base = _git(root, "merge-base", "HEAD", main)
        if base is not None:
            differing = _git(root, "diff", "--name-only", "--no-renames", base.strip()) or ""
            new = _git(root, "ls-files", "--others", "--exclude-standard") or ""
            return [*differing.splitlines(), *new.splitlines()]
    return []


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.stdout if ended.returncode == 0 else None


if __name__ == "__main__":
    sys.stdout.writelines(f"{tests}\n" for tests in unaffected(changed_files()))
