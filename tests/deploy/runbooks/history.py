"""The metrics of nodes, stretched over hours, and the alerts of Prometheus.

A scrape stands for as many minutes as a case says, so that no test waits for a window of an alert.
Prometheus's own engine evaluates the expressions once a case has ended; `for` is left to the tests
of the rules.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPException
from itertools import accumulate
from pathlib import Path
from typing import Final

import yaml

from tests.deploy.tools import DEPLOY, run
from tests.integration.run.helpers import get

RULES: Final = DEPLOY / "prometheus/rules/storenode.yml"
BEGINS_MIN: Final = 5 * 24 * 60
"""The time of the first scrape: promtool's time begins at zero, and some states are days old."""

_SAMPLE: Final = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)(?: \S+)?")
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_TIMES: Final = ("timestamp_seconds", "start_time_seconds")


@cache
def rules() -> Mapping[str, str]:
    """Return the expression of each alert, and of each recorded series, by name."""
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    every = [rule for group in groups for rule in group["rules"]]
    found: dict[str, str] = {}
    for rule in every:
        name = rule.get("alert") or rule["record"]
        found[name] = f"{found[name]} or {rule['expr']}" if name in found else rule["expr"]
    return found


def _named_in(expression: str) -> set[str]:
    names = set(_NAME.findall(expression))
    for name in names & rules().keys():
        names |= _named_in(rules()[name])
    return names


@dataclass
class History:
    """Scrapes, each with the number of minutes for which it stands."""

    directory: Path
    job: str = "storenode"
    expected: list[bool] = field(default_factory=list)
    _periods: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    def lasts(self, minutes: int, *targets: str, expected: bool) -> None:
        """Read the metrics of some HOST:PORT, as the job, for ``minutes`` from now on.

        ``expected``: whether the alert is to be true at their end.
        """
        begins_s = 60 * (BEGINS_MIN + self._minutes)
        taken: dict[str, float] = {}
        for target in targets:
            taken |= _scraped(self.job, target, begins_s)
        self._periods.append((minutes, taken))
        self.expected.append(expected)

    def check(self, alert: str) -> None:
        """Hold the expression of an alert to what was expected at the end of each period."""
        expression = rules()[alert]
        names = _named_in(expression)
        ends = accumulate(minutes for minutes, _ in self._periods)
        test = {
            "interval": "1m",
            "input_series": self._series(names),
            "promql_expr_test": [
                {
                    "expr": f"count({expression}) >= bool 1 or vector(0)",
                    "eval_time": f"{BEGINS_MIN + end - 1}m",
                    "exp_samples": [{"labels": "{}", "value": int(expected)}],
                }
                for end, expected in zip(ends, self.expected, strict=True)
            ],
        }
        # To record series takes promtool a pass through all of the time.
        recorded = [{"record": name, "expr": rules()[name]} for name in names & rules().keys()]
        groups = {"groups": [{"name": "recorded", "rules": recorded}]} if recorded else {}
        path = self._write(
            "test",
            {
                "rule_files": [str(self._write("recorded", groups))],
                "evaluation_interval": "5m",
                "tests": [test],
            },
        )
        run("promtool", "test", "rules", str(path))

    @property
    def _minutes(self) -> int:
        return sum(minutes for minutes, _ in self._periods)

    def _series(self, names: set[str]) -> list[dict[str, str]]:
        every = sorted({series for _, taken in self._periods for series in taken})
        return [
            {"series": series, "values": self._values(series)}
            for series in every
            if series.partition("{")[0] in names
        ]

    def _values(self, series: str) -> str:
        parts = [f"_x{BEGINS_MIN}"]
        for minutes, taken in self._periods:
            value = taken.get(series)
            # As Prometheus does, a series that a scrape lacks is marked as ended.
            parts.append(f"stale _x{minutes - 1}" if value is None else f"{value!r}x{minutes - 1}")
        return " ".join(parts)

    def _write(self, name: str, content: Mapping[str, object] | Sequence[object]) -> Path:
        path = self.directory / f"{name}.yml"
        path.write_text(yaml.safe_dump(content), "utf-8")
        return path


def _scraped(job: str, target: str, begins_s: float) -> dict[str, float]:
    labels = f'job="{job}",instance="{target}"'
    try:
        text = get(target, "/metrics")[1]
    except (OSError, HTTPException):
        return {f"up{{{labels}}}": 0.0}
    # Moments are as long before the period as they were before the scrape.
    shift_s = begins_s - time.time()
    taken = {f"up{{{labels}}}": 1.0}
    for line in map(_SAMPLE.fullmatch, text.splitlines()):
        if line is None:
            continue
        name, own, value = line[1], line[2], float(line[3])
        if name.endswith(_TIMES) and value > 0:
            value += shift_s
        taken[f"{name}{{{labels}{',' + own if own else ''}}}"] = value
    return taken
