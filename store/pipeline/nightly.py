"""`nightly`: archive, verify and audit, one after the other in one Spark session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from store.pipeline.archive import ArchiveJob, archive
from store.pipeline.audit.audit import AuditJob, audit
from store.pipeline.errors import FAILED, PipelineError
from store.pipeline.message_sets import ArchiveMessages
from store.pipeline.reports import JobReport
from store.pipeline.verify import VerifyJob, verify


@dataclass
class RefusedReport(JobReport):
    """The report of a job that has ended with an error."""

    error: str

    @property
    def sound(self) -> bool:
        """False: the job did not do what it was asked for."""
        return False

    def lines(self) -> list[str]:
        """Return the sentence of the error."""
        return [self.error]


@dataclass
class NightlyReport(JobReport):
    """The reports of the jobs, by name and in their order."""

    reports: dict[str, JobReport]

    @property
    def sound(self) -> bool:
        """True if no job found a fault."""
        return all(each.sound for each in self.reports.values())

    def as_json(self) -> dict[str, Any]:
        """Return an object for each job, for JSON."""
        found = {name: each.as_json() for name, each in self.reports.items()}
        return {"sound": self.sound, **found}

    def lines(self) -> list[str]:
        """Return the reports in words."""
        return [f"{name}: {line}" for name, each in self.reports.items() for line in each.lines()]


def nightly(session: SparkSession, job: ArchiveJob, manifest: str | None = None) -> NightlyReport:
    """Update an archive, then verify it against database and manifest, then audit it.

    ``manifest`` is the directory of a copy of the archive's manifest. What one job has found is
    reported also if the next one cannot do its work, such as reading a damaged file.
    """
    found, say = job.archive, job.say
    reports: dict[str, JobReport] = {"archive": archive(session, job)}
    checks: dict[str, Callable[[], JobReport]] = {
        "verify": lambda: verify(session, VerifyJob(found, job.url, say=say, manifest=manifest)),
        "audit": lambda: audit(
            session, AuditJob(ArchiveMessages(session, found), say=say, record=found)
        ),
    }
    for name, check in checks.items():
        try:
            reports[name] = check()
        except PipelineError as error:
            if error.code != FAILED:
                raise
            reports[name] = RefusedReport(error.sentence)
    return NightlyReport(reports)
