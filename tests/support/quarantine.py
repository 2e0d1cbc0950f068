"""Quarantined tests: their failures are reported, but do not fail the run before a date.

A plugin of pytest. The file holds one table per test:

    [[test]]
    id = "tests/faults/test_disk_full.py::test_something"
    reason = "Why it fails, and what will mend it."
    until = 2030-01-31

`until` is the last day, in UTC. After it a failure of the test fails the run again. An entry whose
test does not exist fails every run that collects the test's file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.terminal import TerminalReporter

FILE: Final = Path(__file__).parents[1] / "quarantine.toml"
OUTCOME: Final = "quarantined"

_KEYS: Final[Mapping[str, type]] = {"id": str, "reason": str, "until": date}


@dataclass(frozen=True)
class Entry:
    """One test, why its failures are expected, and the last day on which they are."""

    nodeid: str
    reason: str
    until: date

    @property
    def path(self) -> str:
        """Its file, relative to the root of the repository."""
        return self.nodeid.partition("::")[0]

    def __str__(self) -> str:
        return f"{OUTCOME} until {self.until}: {self.reason}"


def parse(text: str) -> dict[str, Entry]:
    """The entries of a file by node ID.

    Raises:
        ValueError: with one sentence: it is not TOML, or an entry lacks a value or has others.
    """
    document = tomllib.loads(text)
    tables = document.pop("test", [])
    if document or not isinstance(tables, list):
        raise ValueError("only tables [[test]] are known")
    entries = [_entry(table) for table in tables]
    if len({entry.nodeid for entry in entries}) < len(entries):
        raise ValueError("a test is named twice")
    return {entry.nodeid: entry for entry in entries}


def _entry(table: object) -> Entry:
    if not isinstance(table, dict) or table.keys() != _KEYS.keys():
        raise ValueError(f"a table [[test]] must have exactly {', '.join(_KEYS)}: {table}")
    for key, kind in _KEYS.items():
        # Exactly: a date and time is a date to isinstance.
        if type(table[key]) is not kind or not table[key]:
            raise ValueError(f"{key} must be a {kind.__name__} and not empty: {table}")
    return Entry(table["id"], table["reason"], table["until"])


def load(file: Path) -> dict[str, Entry]:
    """The entries of a file by node ID.

    Raises:
        pytest.UsageError: it is malformed.
    """
    try:
        return parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"{file}: {error}") from error


class Quarantine:
    """The plugin."""

    def __init__(self, file: Path, root: Path) -> None:
        self._file = file
        self._root = root
        self._entries = load(file)
        self._today = datetime.now(UTC).date()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: Sequence[pytest.Item]
    ) -> None:
        """Report entries whose tests do not exist as errors of the collection."""
        # A run of single tests does not know the others of their files.
        partial = config.getoption("lf", default=False) or any("::" in arg for arg in config.args)
        known = {_function(item) for item in items} | {item.nodeid for item in items}
        collected = {nodeid.partition("::")[0] for nodeid in known}
        for entry in self._entries.values():
            gone = not (self._root / entry.path).is_file()
            if gone or (not partial and entry.path in collected and entry.nodeid not in known):
                message = f"{self._file.name} names a test that does not exist: {entry.nodeid}"
                session.ihook.pytest_collectreport(
                    report=pytest.CollectReport(entry.nodeid, "failed", message, [])
                )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Let a failure of a quarantined test count as expected."""
        report = yield
        entry = self._entries.get(item.nodeid) or self._entries.get(_function(item))
        if report.failed and entry is not None:
            if self._today <= entry.until:
                report.outcome = "skipped"
                report.wasxfail = str(entry)
                setattr(report, OUTCOME, True)
            else:
                report.sections.append(("quarantine", f"The test was {entry}"))
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> tuple[str, str, tuple[str, Mapping[str, bool]]] | None:
        """Count such failures by themselves."""
        if not hasattr(report, OUTCOME):
            return None
        return OUTCOME, "Q", (OUTCOME.upper(), {"yellow": True})

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Show them with their reasons, as long as other failures."""
        reports: list[Any] = terminalreporter.getreports(OUTCOME)
        if reports:
            terminalreporter.write_sep("=", "QUARANTINED FAILURES", yellow=True)
        for report in reports:
            terminalreporter.write_sep("_", report.nodeid, yellow=True)
            terminalreporter.write_line(report.wasxfail)
            report.toterminal(terminalreporter._tw)


def _function(item: pytest.Item) -> str:
    """The node ID without the parameters of this case: an entry may name all cases at once."""
    return item.nodeid.partition("[")[0]
