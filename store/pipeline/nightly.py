"""`nightly`: archive, verify and audit, one after the other in one Spark session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from store.pipeline.archive import ArchiveJob, archive
from store.pipeline.audit.audit import AuditJob, audit
from store.pipeline.message_sets import ArchiveMessages
from store.pipeline.reports import JobReport
from store.pipeline.verify import VerifyJob, verify


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

    ``manifest`` is the directory of a copy of the archive's manifest.
    """
    archived = archive(session, job)
    found, say = job.archive, job.say
    verified = verify(session, VerifyJob(found, job.url, say=say, manifest=manifest))
    audited = audit(session, AuditJob(ArchiveMessages(session, found), say=say, record=found))
    return NightlyReport({"archive": archived, "verify": verified, "audit": audited})
