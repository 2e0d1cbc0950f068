"""`audit`: what does a history refer to that it does not hold, and how far is it complete?

A message is known by its ID in its channel, whoever claims it. Its causal past is what its parents
lead to, at any depth; the past is incomplete when something in it is not held. What counts as held
is what a node would answer with: a message that claims the ID in this channel, or, where nobody
does, the one that a retrieval hint names if its payload cannot be read.

Of an archive whose last audit was recorded, only channels that have changed since are gone through
(`store.pipeline.results`).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from pyspark.sql import SparkSession

from store.pipeline.audits import note_audit
from store.pipeline.causal.gone_through import WRITTEN, GoneThrough, Range
from store.pipeline.causal.reported import Audited, reported
from store.pipeline.causal.written import Outputs
from store.pipeline.claims import Tried, try_claims
from store.pipeline.database import FOREVER
from store.pipeline.errors import SPARK_ERRORS, of_spark
from store.pipeline.lake import Lake
from store.pipeline.progress import Say, shown, silent
from store.pipeline.results.again import Again
from store.pipeline.sides import LakeSide, Side


@dataclass(frozen=True)
class Auditing:
    """What to audit: a range of a side, in nanoseconds, the end exclusive.

    ``output`` is a directory for everything that is found, ``missing`` a file for the IDs that are
    missing, which ``storenode sync --ids`` reads; both must not exist.
    ``record``: the archive, to add what is found to its table of audits, and to let the next audit
    go on from there. ``full``: go through everything, whatever an audit has found before.
    ``against``: the archive of another store, to try the claims about that store by.
    """

    side: Side
    low_ns: int = 0
    high_ns: int = FOREVER
    output: str | None = None
    missing: str | None = None
    say: Say = silent
    record: Lake | None = None
    full: bool = False
    against: LakeSide | None = None

    @property
    def everything(self) -> bool:
        """Whether no time is left out."""
        return (self.low_ns, self.high_ns) == (0, FOREVER)


def audit(session: SparkSession, job: Auditing) -> Audited:
    """Audit a history; nothing of it is changed.

    Raises:
        PipelineError: it cannot be read, an output exists already or cannot be written.
    """
    outputs = Outputs(job.output, job.missing)
    outputs.require_absent(session)
    total = sum(each.messages for each in job.side.fingerprints("hour", None).values())
    try:
        with ExitStack() as stack:
            again = _again(stack, job)
            with shown(session, job.say, "audit", total):
                if again is None:
                    also = frozenset[str]() if job.output is None else WRITTEN
                    tables = GoneThrough(stack, _range(job), also=also).tables()
                else:
                    tables = again.tables(recorded=job.record is not None)
                result = reported(job.side.name, tables)
            if outputs.wanted:
                with shown(session, job.say, "write"):
                    outputs.write(tables)
            if job.record is not None:
                note_audit(job.record, tables.channels, tables.counts)
                if again is not None:
                    again.record(tables)
            result.output, result.missing_file = job.output, job.missing
            result.claims = _tried(job)
            result.pasts = tables.channels
            return result
    except SPARK_ERRORS as error:
        raise of_spark(error) from error


def _range(job: Auditing) -> Range:
    return Range(job.side, job.low_ns, job.high_ns, job.say)


def _tried(job: Auditing) -> Tried:
    """How the claims of the past fare; those of a part of an archive, or a database, are none."""
    side, against = job.side, job.against
    if not (isinstance(side, LakeSide) and job.everything):
        return Tried()
    other = None if against is None else (against.lake, against.fingerprints("hour", None))
    return try_claims(side.lake, side.fingerprints("hour", None), other)


def _again(stack: ExitStack, job: Auditing) -> Again | None:
    """How to go on from the last audit; None where that does not help."""
    whole = job.everything and job.output is None
    if not (whole and isinstance(job.side, LakeSide)) or (job.full and job.record is None):
        return None
    return Again(stack, job.side, job.say, full=job.full)
