"""What is needed to repeat a failed test, as a section of its report.

A plugin of pytest. Seeds need no line of their own: those of the simulator and of the tests of
faults follow from the test's ID, hypothesis prints a blob, and all are in the captured output.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Final

import pytest

TITLE: Final = "to repeat"

_VARIABLES: Final = ("HYPOTHESIS_PROFILE", "TEST_POSTGRES_BIN", "JAVA_HOME", "TMPDIR")


def keep_logs(source: Path, tmp_path: Path) -> None:
    """Copy the logs of a directory that is about to be removed to one that pytest keeps."""
    for log in source.rglob("*.log"):
        kept = tmp_path / "logs" / log.relative_to(source)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, kept)


class Repeat:
    """The plugin."""

    def __init__(self) -> None:
        self._started_s: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note when a test begins."""
        self._started_s = {nodeid: time.time()}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the section to the report of a failure."""
        report = yield
        if report.failed:
            report.sections.append((TITLE, "\n".join(self._lines(item))))
        return report

    def _lines(self, item: pytest.Item) -> Sequence[str]:
        variables = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
        # make and the shell it calls each take one level of quotes away.
        alone = shlex.quote(f"ARGS={shlex.quote(item.nodeid)}".replace("$", "$$"))
        lines = [
            shlex.join(variables) + " " * bool(variables) + f"make test {alone}",
            f"It ran in {_process(item.config)}",
        ]
        directory = _base(item.config)
        if directory is not None:
            lines.append(f"Logs of nodes and Postgres are kept below {directory}; since its start:")
            lines += [f"  {path}" for path in _logs(directory, self._started_s[item.nodeid])]
        return lines


def _process(config: pytest.Config) -> str:
    """Return which process of which run."""
    inputs = getattr(config, "workerinput", None)
    if inputs is None:
        return f"the only process of {shlex.join(sys.orig_argv)}"
    name, count = inputs["workerid"], inputs["workercount"]
    return f"process {name} of {count} of python {shlex.join(inputs['mainargv'])}"


def _base(config: pytest.Config) -> Path | None:
    """Return the parent of this process's temporary directories, None if no test used one."""
    made: Path | None = getattr(config, "_tmp_path_factory")._basetemp  # noqa: B009
    return made


def _logs(directory: Path, since_s: float) -> list[Path]:
    return [path for path in sorted(directory.rglob("*.log")) if path.stat().st_mtime >= since_s]
