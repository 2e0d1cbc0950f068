"""The results of jobs: JSON, lines for people, and metrics for Prometheus.

Metrics are a file for the textfile collector of the node exporter.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from store.pipeline.errors import USAGE, PipelineError
from store.pipeline.limits import MAX_LISTED
from storenode.message.limits import NS_PER_S

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class JobReport(ABC):
    """The result of a job: its fields are its JSON.

    Lists named ``hours_...`` are times in nanoseconds, as text in JSON.
    """

    @property
    def sound(self) -> bool:
        """False when the job found a fault, or could not do all that it was asked for."""
        return True

    def as_json(self) -> dict[str, Any]:
        """Return the report for JSON, with at most `MAX_LISTED` entries of each list."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        for name, value in found.items():
            if isinstance(value, list):
                few = value[:MAX_LISTED]
                found[name] = [time_text(ns) for ns in few] if name.startswith("hours_") else few
        return {"sound": self.sound, **found}

    @abstractmethod
    def lines(self) -> list[str]:
        """Return the report as text."""


def moment(ns: int) -> datetime:
    """Return a time in UTC, to the second."""
    return _EPOCH + timedelta(seconds=ns // NS_PER_S)


def time_text(ns: int) -> str:
    """Return a time in UTC as RFC 3339 to the second."""
    return f"{moment(ns):%Y-%m-%dT%H:%M:%SZ}"


_SUCCESS: Final = "storenode_pipeline_last_success_timestamp_seconds"
_MAX_FILE_CHARS: Final = 1024 * 1024


def require_metrics_file(file: Path) -> None:
    """Raise unless a file can be written or replaced."""
    if file.is_dir() or not (file.parent.is_dir() and os.access(file.parent, os.W_OK | os.X_OK)):
        raise PipelineError(
            f"The metrics cannot be written to {file}: name a file in a directory that there is,"
            " and that may be written to.",
            USAGE,
        )


def write_metrics(
    file: Path, job: str, code: int, report: Mapping[str, Any], *, began_s: float, ended_s: float
) -> None:
    """Write the metrics of a job's run in place of those of the run before, whole or not at all.

    ``report`` is for JSON. The time of the last success stays while the job fails.

    Raises:
        OSError: they cannot be written.
    """
    registry = CollectorRegistry()

    def gauge(name: str, about: str, value: float | None) -> None:
        if value is not None:
            Gauge(name, about, ["job"], registry=registry).labels(job).set(value)

    success = ended_s if code == 0 else _last_success(file, job)
    gauge("storenode_pipeline_last_run_timestamp_seconds", "When the job ended.", ended_s)
    gauge(_SUCCESS, "When the job last ended with exit code 0.", success)
    gauge("storenode_pipeline_duration_seconds", "How long the job took.", ended_s - began_s)
    gauge("storenode_pipeline_exit_code", "0: success; 1: failed, or found a fault.", code)
    figures = Gauge(
        "storenode_pipeline_figure",
        "A figure of the job's report, named as in its JSON; of a list its length.",
        ["job", "figure"],
        registry=registry,
    )
    for name, value in _figures(report):
        figures.labels(job, name).set(value)
    write_to_textfile(str(file), registry)


def _figures(report: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a report, and of the reports of several jobs within it."""
    for name, value in report.items():
        if isinstance(value, bool | int | float):
            yield f"{before}{name}", float(value)
        elif isinstance(value, list):
            yield f"{before}{name}", float(len(value))
        elif isinstance(value, dict) and "sound" in value and not before:
            yield from _figures(value, f"{name}_")


def _last_success(file: Path, job: str) -> float | None:
    """Return the time in the file, if it is one of this job."""
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(_MAX_FILE_CHARS)
        found = re.search(rf'^{_SUCCESS}{{job="{job}"}} (\S+)$', text, re.MULTILINE)
        return None if found is None else float(found[1])
    except (OSError, ValueError):
        return None
