"""The result of an audit of the dependencies: silence is never taken for an answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tools import audit_dependencies
from tools.audit_dependencies import CLEAN, LOCK, UNKNOWN, VULNERABLE, audit, judge, pinned

GOOD = {"name": "one", "version": "1.0", "vulns": []}
BAD = {"name": "two", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}
SKIPPED = {"name": "three", "skip_reason": "Dependency not found"}


@pytest.mark.parametrize(
    ("dependencies", "expected", "code"),
    [
        ([GOOD], 1, CLEAN),
        ([GOOD, BAD], 2, VULNERABLE),
        ([BAD, SKIPPED], 2, VULNERABLE),
        ([GOOD, SKIPPED], 2, UNKNOWN),
        ([SKIPPED], 1, UNKNOWN),
        ([GOOD], 2, UNKNOWN),
        ([], 1, UNKNOWN),
    ],
)
def test_a_dependency_that_was_not_audited_is_not_clean(
    dependencies: list[dict[str, Any]], expected: int, code: int
) -> None:
    assert judge({"dependencies": dependencies}, expected)[0] == code


def test_a_vulnerability_is_named_with_what_mends_it() -> None:
    _, (first, last) = judge({"dependencies": [BAD]}, 1)
    assert first == "two 2.0: PYSEC-1, mended in 2.1"
    assert "1 known" in last


def test_the_lock_is_counted(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text(
        "a==1 \\\n    --hash=sha256:00\n# a remark\n"
        "b[x]==2 ; python_version < '3' \\\n    --hash=sha256:00\nc==3\n"
    )
    assert pinned(lock) == 2
    assert pinned(LOCK) > 100


def test_whatever_pip_audit_says_without_a_report_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = "import sys; sys.stderr.write('no route to host'); sys.exit(1)"
    monkeypatch.setattr(audit_dependencies, "_COMMAND", (sys.executable, "-c", says))
    code, (sentence,) = audit(tmp_path / "lock")
    assert (code, "no route to host" in sentence) == (UNKNOWN, True)
