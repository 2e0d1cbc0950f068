"""Processor seconds of the tests, by folder and file, with a ceiling that only falls.

A plugin of pytest. Each process that runs tests measures itself and all of its descendants whenever
it goes from one file to the next, and times a fixed loop, which shows how fast the machine is at
that moment. ``--processor-time FILE`` compares the total with the sum of FILE's ceilings for the
folders that were run, and fails above it; on a machine slower than the one of the ceilings the
total is scaled down by the loop. ``--lower-processor-time`` lowers each ceiling to what was
measured and a tenth.
"""

from __future__ import annotations

import statistics
import time
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.terminal import TerminalReporter

from bench.pipeline.cpu import tree_cpu_s
from tools.rooms import lower_ceilings

SLOWEST: Final = 10
HEADROOM: Final = 1.1
"""A ceiling is this multiple of what was measured when it was set."""
START: Final = "(start and collection)"
_LOOP_STEPS: Final = 100_000


def time_loop_s() -> float:
    """Return the processor seconds of a fixed loop of this interpreter."""
    began_s = time.process_time()
    sum(step * step for step in range(_LOOP_STEPS))
    return time.process_time() - began_s


def read_ceilings(file: Path) -> tuple[float, dict[str, int]]:
    """Read the reference time of the loop, and the ceilings by folder, in seconds.

    Raises:
        pytest.UsageError: the file is missing or malformed.
    """
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
        loop_s = float(document.pop("loop_s"))
        return loop_s, {name: int(table["seconds"]) for name, table in document.items()}
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise pytest.UsageError(f"{file} has no ceilings of processor time: {error!r}") from error


def add_up(files: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each folder."""
    folders: defaultdict[str, float] = defaultdict(float)
    for path, seconds in files.items():
        folders["/".join(path.split("/")[:2]) if path != START else START] += seconds
    return folders


def judge(files: Mapping[str, float], loop_s: float, file: Path) -> str | None:
    """Compare the measured seconds of files with the ceilings.

    Returns:
        A sentence that says what is wrong, None if the total is below the ceiling.
    """
    reference_s, ceilings = read_ceilings(file)
    folders = add_up(files)
    if unknown := sorted(folders.keys() - ceilings.keys()):
        return f"{file} has no ceiling for {', '.join(unknown)}: add one"
    ceiling_s = sum(ceilings[folder] for folder in folders)
    total_s = sum(folders.values()) / max(1.0, loop_s / reference_s)
    if total_s <= ceiling_s:
        return None
    return (
        f"the tests took {total_s:,.0f} processor seconds, the ceiling is {ceiling_s:,}: "
        f"make the slowest files cheaper"
    )


def lower(text: str, files: Mapping[str, float], loop_s: float) -> str:
    """Return the text of the ceilings, each lowered to the measured seconds and a tenth."""
    if loop_s > HEADROOM * float(tomllib.loads(text)["loop_s"]):
        return text  # measured on a slower machine
    folders = add_up(files).items()
    measured = {name: {"seconds": round(HEADROOM * seconds)} for name, seconds in folders}
    return lower_ceilings(text, measured)


class ProcessorTime:
    """The plugin: measures in each process that runs tests, and reports in the first."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._file: str = START
        self._seen_s = 0.0
        self._files: defaultdict[str, float] = defaultdict(float)
        self._loops_s: list[float] = []
        self._is_worker = hasattr(config, "workerinput")
        self._problem: str | None = None

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Measure if another file begins."""
        if self._is_worker or not self._config.getoption("numprocesses", None):
            path = nodeid.partition("::")[0]
            if path != self._file:
                self._measure()
                self._file = path

    def pytest_testnodedown(self, node: Any) -> None:  # noqa: ANN401 - of a plugin without types
        """Add what a process has measured."""
        measured = getattr(node, "workeroutput", {}).get("processor_time")
        if measured is not None:
            for path, seconds in measured["files"].items():
                self._files[path] += seconds
            self._loops_s += measured["loops_s"]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Report the figures; in the first process write and compare them."""
        if self._is_worker:
            self._measure()
            output = {"files": dict(self._files), "loops_s": self._loops_s}
            self._config.workeroutput["processor_time"] = output  # type: ignore[attr-defined]
            return
        if not self._config.getoption("numprocesses", None):
            self._measure()
        ceilings = self._config.getoption("processor_time")
        if ceilings is None or not self._files:
            return
        loop_s = statistics.median(self._loops_s)
        file = Path(ceilings)
        if self._config.getoption("lower_processor_time"):
            text = lower(file.read_text(encoding="utf-8"), self._files, loop_s)
            file.write_text(text, encoding="utf-8")
        self._problem = judge(self._files, loop_s, file)
        if self._problem is not None and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Print the table of folders and the slowest files."""
        if self._config.getoption("processor_time") is None or not self._files:
            return
        write = terminalreporter.write_line
        terminalreporter.write_sep("=", "processor seconds")
        for table, rows in ((add_up(self._files), None), (self._files, SLOWEST)):
            for name, seconds in sorted(table.items(), key=lambda item: -item[1])[:rows]:
                write(f"{seconds:>9,.1f}  {name}")
            write("")
        loop_ms = 1_000 * statistics.median(self._loops_s)
        write(f"{sum(self._files.values()):>9,.1f}  in all; the loop took {loop_ms:.1f} ms")
        if self._problem is not None:
            write(self._problem, red=True)

    def _measure(self) -> None:
        """Count what was used since the last measurement for the file that ran."""
        used_s = tree_cpu_s()
        self._files[self._file] += max(0.0, used_s - self._seen_s)
        self._loops_s.append(time_loop_s())
        self._seen_s = tree_cpu_s()
