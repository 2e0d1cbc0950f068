"""Asks whether a dependency that the lock file names has a known vulnerability.

    python tools/audit_dependencies.py [LOCK]

The question goes to the package index by pip-audit, for every pinned version with its hash; nothing
is installed. Exit codes: 0 none is known, 1 some are and are listed, 3 the index says nothing about
vulnerabilities, or not of all dependencies, so that nothing is known: pip-audit ends with 0 then.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement

LOCK: Final = Path(__file__).parents[1] / "requirements" / "dev.lock"

CLEAN: Final = 0
VULNERABLE: Final = 1
UNKNOWN: Final = 3

_TIMEOUT_S: Final = 600.0
_NAMED: Final = 5
"""Dependencies that a sentence names; the rest is counted."""

_COMMAND: Final = (
    sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--format", "json",
    "--progress-spinner", "off", "--requirement",
)  # fmt: skip


def audit(lock: Path) -> tuple[int, list[str]]:
    """Return the exit code and the sentence to print."""
    try:
        done = subprocess.run(
            [*_COMMAND, str(lock)], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return UNKNOWN, [_unknown(f"no answer within {_TIMEOUT_S:.0f} s")]
    try:
        report = json.loads(done.stdout)
    except ValueError:
        reason = (done.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1]
        return UNKNOWN, [_unknown(reason)]
    return judge(report, pinned(lock))


def judge(report: dict[str, Any], expected: int) -> tuple[int, list[str]]:
    """Return the verdict on a report of pip-audit about a lock with ``expected`` dependencies."""
    dependencies = report["dependencies"]
    found = list(_vulnerabilities(dependencies))
    unaudited = [each["name"] for each in dependencies if "skip_reason" in each]
    audited = len(dependencies) - len(unaudited)
    if found:
        return VULNERABLE, [*found, f"{len(found)} known vulnerabilities: take newer versions."]
    if unaudited or audited < expected:
        named = ", ".join(unaudited[:_NAMED])
        more = (
            f"{len(unaudited)} were not found there ({named}, ...)" if named else "some are missing"
        )
        return UNKNOWN, [_unknown(f"of {expected} dependencies {audited} were audited; {more}")]
    return CLEAN, [f"No known vulnerability in {audited} dependencies."]


def pinned(lock: Path) -> int:
    """Return the number of dependencies that the lock names for this interpreter and platform."""
    count = 0
    for line in lock.read_text("utf-8").splitlines():
        if line and not line.startswith((" ", "#", "-")):
            try:
                requirement = Requirement(line.rstrip("\\ "))
            except InvalidRequirement:
                continue
            count += requirement.marker is None or requirement.marker.evaluate()
    return count


def _vulnerabilities(dependencies: list[dict[str, Any]]) -> Iterator[str]:
    for each in dependencies:
        for known in each.get("vulns", ()):
            fixed = ", ".join(known.get("fix_versions", ())) or "no version"
            yield f"{each['name']} {each['version']}: {known['id']}, mended in {fixed}"


def _unknown(reason: str) -> str:
    return (
        f"Whether dependencies have known vulnerabilities is not known: {reason}."
        " Run this where the vulnerability service of the package index can be reached."
    )


def main() -> int:
    """Ask, say, and return the exit code."""
    code, sentences = audit(Path(sys.argv[1]) if len(sys.argv) > 1 else LOCK)
    (sys.stdout if code == CLEAN else sys.stderr).write("\n".join(sentences) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
