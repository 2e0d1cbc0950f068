"""`audit`: what does a history refer to that it does not hold, and how far is it complete?

A message is known by its ID in its channel, whoever claims it. Its causal past is what its parents
lead to, at any depth; the past is incomplete when something in it is not held. What counts as held
is what a node would answer with: a message that claims the ID in this channel, or, where nobody
does, the one that a retrieval hint names if its payload cannot be read.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.audits import note_audit
from store.pipeline.causal.audited import audited, channels_of
from store.pipeline.causal.claims import Claims
from store.pipeline.causal.conflicts import conflicting
from store.pipeline.causal.missing import elsewhere, held_outside, held_unread, references_to
from store.pipeline.causal.reported import Audited, Tables, reported
from store.pipeline.causal.rounds import settled
from store.pipeline.causal.rows import (
    BLOCK,
    CLAIMED,
    CLAIMS,
    CYCLE,
    HEAD,
    INCOMPLETE,
    MISSING,
    ORPHAN,
    VIOLATION,
    Kinds,
)
from store.pipeline.causal.written import Outputs
from store.pipeline.database import FOREVER
from store.pipeline.errors import SPARK_ERRORS, of_spark
from store.pipeline.lake import Lake
from store.pipeline.progress import Say, shown, silent
from store.pipeline.sides import DatabaseSide, LakeSide, Side

_READ: Final = (*CLAIMS, "sender", "hash")
_OUTSIDE: Final = ("ts", "channel", "message_id", "lamport")
LOOKED_FOR: Final = frozenset({BLOCK, MISSING, VIOLATION, CYCLE, CLAIMED, ORPHAN})
"""The kinds of findings that every audit looks for."""

_WRITTEN: Final = frozenset({INCOMPLETE, HEAD})


@dataclass(frozen=True)
class Auditing:
    """What to audit: a range of a side, in nanoseconds, the end exclusive.

    ``output`` is a directory for everything that is found, ``missing`` a file for the IDs that are
    missing, which ``storenode sync --ids`` reads; both must not exist.
    ``record``: the archive, to add what is found to its table of audits.
    """

    side: Side
    low_ns: int = 0
    high_ns: int = FOREVER
    output: str | None = None
    missing: str | None = None
    say: Say = silent
    record: Lake | None = None


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
            with shown(session, job.say, "audit", total):
                tables = _Audit(stack, job).tables()
                result = reported(job.side.name, tables)
            if outputs.wanted:
                with shown(session, job.say, "write"):
                    outputs.write(tables)
            if job.record is not None:
                note_audit(job.record, tables.channels)
            result.output, result.missing_file = job.output, job.missing
            return result
    except SPARK_ERRORS as error:
        raise of_spark(error) from error


class _Audit:
    def __init__(self, stack: ExitStack, job: Auditing) -> None:
        self._job = job
        claims = self._messages(_READ).where(F.col("channel").isNotNull())
        if isinstance(job.side, DatabaseSide):
            # It is gone through several times, and a database should be read once.
            claims = claims.persist(StorageLevel.DISK_ONLY)
            stack.callback(claims.unpersist)
        self._claims = claims
        files = job.side.files(job.low_ns, job.high_ns) if isinstance(job.side, LakeSide) else None
        self._read = Claims(claims, files, job.low_ns, job.high_ns)
        self._kinds: Kinds = LOOKED_FOR | (_WRITTEN if job.output else frozenset())

    def tables(self) -> Tables:
        """Go through everything."""
        findings = self._findings(None)
        references = self._references(findings)
        if not references.isEmpty():
            outside = self._outside(references)
            if outside is not None and not (outside := settled(outside)).isEmpty():
                findings = self._findings(outside)
                references = self._references(findings)
        known = elsewhere(references, self._claims)
        located = references.join(known, ["channel", "parent"], "left")
        return Tables(
            findings,
            settled(channels_of(findings)),
            settled(located),
            settled(self._conflicts(findings)),
        )

    def _findings(self, outside: DataFrame | None) -> DataFrame:
        return settled(audited(self._read, self._kinds, outside, self._job.say))

    def _references(self, findings: DataFrame) -> DataFrame:
        missing = findings.where(F.col("kind") == MISSING)
        return settled(references_to(missing, self._claims))

    def _outside(self, references: DataFrame) -> DataFrame | None:
        """What is missing in the range and held all the same; None: nothing can be."""
        job = self._job
        found: list[DataFrame] = []
        if not references.where(F.col("hint").isNotNull()).isEmpty():
            messages = job.side.messages(("ts", "hash", "channel"), 0, FOREVER)
            found.append(held_unread(references, messages))
        for low_ns, high_ns in ((0, job.low_ns), (job.high_ns, FOREVER)):
            if low_ns < high_ns:
                claims = job.side.messages(_OUTSIDE, low_ns, high_ns)
                found.append(held_outside(references, claims))
        return reduce(DataFrame.unionByName, found) if found else None

    def _conflicts(self, findings: DataFrame) -> DataFrame:
        claimed = findings.where(F.col("kind") == CLAIMED)
        names = ("ts", "h0", "hash", "payload")
        if claimed.isEmpty():
            return conflicting(claimed, self._messages(names).limit(0))
        return conflicting(claimed, self._messages(names))

    def _messages(self, names: tuple[str, ...]) -> DataFrame:
        return self._job.side.messages(names, self._job.low_ns, self._job.high_ns)
