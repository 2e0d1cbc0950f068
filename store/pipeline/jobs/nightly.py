"""`nightly`: archive, verify and audit, one after the other in one Spark session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from store.pipeline.jobs.archive import Archiving, archive
from store.pipeline.jobs.audit import Auditing, audit
from store.pipeline.jobs.verify import Verifying, verify
from store.pipeline.reports import Report
from store.pipeline.sides import LakeSide


@dataclass(frozen=True)
class Night:
    """The reports of the jobs, by name and in their order."""

    reports: dict[str, Report]

    @property
    def sound(self) -> bool:
        """Whether no job found a fault."""
        return all(each.sound for each in self.reports.values())

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON has it: an object for each job."""
        found = {name: each.as_json() for name, each in self.reports.items()}
        return {"sound": self.sound, **found}

    def lines(self) -> list[str]:
        """The same in words."""
        return [f"{name}: {line}" for name, each in self.reports.items() for line in each.lines()]


def nightly(session: SparkSession, job: Archiving, manifest: str | None = None) -> Night:
    """Bring an archive up to date, then verify it against database and manifest, then audit it.

    ``manifest`` is the directory of a copy of the archive's manifest.

    Raises:
        PipelineError: a job cannot go on; those after it have not begun.
    """
    archived = archive(session, job)
    lake, say = job.lake, job.say
    verified = verify(session, Verifying(lake, job.url, say=say, manifest=manifest))
    audited = audit(session, Auditing(LakeSide(session, lake), say=say, record=lake))
    return Night({"archive": archived, "verify": verified, "audit": audited})
