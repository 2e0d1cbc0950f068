"""`nightly`: archive, verify and audit, one after the other in one Spark session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from store.pipeline.archive import ArchiveJob, archive
from store.pipeline.audit.audit import audit_recorded
from store.pipeline.errors import FAILED, PipelineError
from store.pipeline.message_sets import ArchiveMessages
from store.pipeline.reports import JobReport
from store.pipeline.verify import VerifyJob, verify


@dataclass
class NightlyReport(JobReport):
    """The reports of the jobs, by name and in their order, and the errors that others ended with.

    What one job has found is reported also if the next one cannot do its work, such as reading a
    damaged file.
    """

    reports: dict[str, JobReport]
    errors: dict[str, str]

    @property
    def sound(self) -> bool:
        """True if no job found a fault, or failed."""
        return not self.errors and all(each.sound for each in self.reports.values())

    def as_json(self) -> dict[str, Any]:
        """Return an object for each job, for JSON."""
        found = {name: each.as_json() for name, each in self.reports.items()}
        failed = {name: {"sound": False, "error": text} for name, text in self.errors.items()}
        return {"sound": self.sound, **found, **failed}

    def lines(self) -> list[str]:
        """Return the reports as text, and then the errors."""
        lines = [f"{name}: {line}" for name, each in self.reports.items() for line in each.lines()]
        return lines + [f"{name}: {text}" for name, text in self.errors.items()]


def nightly(session: SparkSession, job: ArchiveJob, manifest: str | None = None) -> NightlyReport:
    """Update an archive, then verify it against database and manifest, then audit it.

    ``manifest`` is the directory of a copy of the archive's manifest.
    """
    found = job.archive
    result = NightlyReport({"archive": archive(session, job)}, {})
    checks: dict[str, Callable[[], JobReport]] = {
        "verify": lambda: verify(
            session, VerifyJob(found, job.url, manifest=manifest, connections=job.connections)
        ),
        "audit": lambda: audit_recorded(ArchiveMessages(session, found)),
    }
    for name, check in checks.items():
        try:
            result.reports[name] = check()
        except PipelineError as error:
            if error.code != FAILED:
                raise
            result.errors[name] = error.sentence
    return result
