"""`audit`: find the parents that a history lacks, and how far each channel is complete.

A message is identified by its ID in its channel, regardless of the claimant. Its causal past are
its parents and theirs, at any depth; the past is incomplete if something in it is not held. A
parent is held if a message claims its ID in this channel, or if a retrieval hint names a held
message whose payload is not of SDS.

Of an archive whose last audit was recorded, only the channels that have changed since are examined.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.audit.examine import CYCLE, HEAD, INCOMPLETE, ORPHAN, VIOLATION
from store.pipeline.audit.results import SUMS, RecordedAudit, read_recorded, record
from store.pipeline.audit.summary import AuditReport, summarized
from store.pipeline.audit.tables import (
    ALWAYS,
    CLAIMS_READ,
    SUMMED,
    WRITTEN,
    AuditTables,
    History,
    audit_tables,
    checkpointed,
    counts_of,
    require_bounded,
    sums_by_channel,
)
from store.pipeline.columns import empty
from store.pipeline.database import FOREVER
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import SPARK_ERRORS, of_spark
from store.pipeline.files import checked, require_new, require_new_directory, write_text
from store.pipeline.fingerprints import XOR_WORDS
from store.pipeline.message_sets import ArchiveMessages, MessageSet
from store.pipeline.parquet import read_files, write_rows
from store.pipeline.spark import Say, shown, silent

_SUM: Final = ("channel", "day", "count", *XOR_WORDS)
_RECORDED: Final = ("faults", "channels", "references", "conflicts")


@dataclass(frozen=True)
class AuditJob:
    """A range of a set of messages, in nanoseconds, the end exclusive.

    ``output`` is a directory for all findings, ``missing`` a file for the missing IDs, which
    ``storenode sync --ids`` reads; both must not exist. ``record``: the archive beside which the
    results are kept, from which the next audit continues. ``full``: examine everything.
    """

    messages: MessageSet
    low_ns: int = 0
    high_ns: int = FOREVER
    output: str | None = None
    missing: str | None = None
    say: Say = silent
    record: DeltaArchive | None = None
    full: bool = False

    @property
    def is_whole(self) -> bool:
        """True if no time is left out."""
        return (self.low_ns, self.high_ns) == (0, FOREVER)


def audit(session: SparkSession, job: AuditJob) -> AuditReport:
    """Audit a history; change nothing in it."""
    require_outputs(job.output, job.missing)
    total = sum(each.messages for each in job.messages.hours.values())
    is_continued = job.is_whole and job.output is None and not job.full
    changed: set[int] | None = None
    last, commit = None, ""
    try:
        with shown(job.say, "audit", total):
            if isinstance(job.messages, ArchiveMessages):
                archive = job.messages.archive
                commit = archive.commit_digest
                last = read_recorded(session, archive) if is_continued else None
                changed = archive.changed_since(last.commit) if last is not None else None
            if last is None or changed is None:
                sums_, tables = _whole(job)
            else:
                sums_, tables = _continued(job, last, changed)
            result = summarized(job.messages.name, tables)
        if job.output is not None or job.missing is not None:
            with shown(job.say, "write"):
                _write(job, tables)
        if job.record is not None and changed != set():
            record(job.record, {"sums": sums_, **_recorded(tables)}, commit)
    except SPARK_ERRORS as error:
        raise of_spark(error) from error
    result.output, result.missing_file = job.output, job.missing
    return result


def _whole(job: AuditJob) -> tuple[DataFrame, AuditTables]:
    """Examine everything; return the sums by channel and day, and the tables."""
    sums_ = checkpointed(sums_by_channel(job.messages.messages(SUMMED, job.low_ns, job.high_ns)))
    kinds = ALWAYS if job.output is None else ALWAYS | WRITTEN
    history = History(job.messages, job.low_ns, job.high_ns, kinds)
    return sums_, audit_tables(history, require_bounded(sums_))


def _continued(job: AuditJob, last: RecordedAudit, days: set[int]) -> tuple[DataFrame, AuditTables]:
    """Examine the channels that have changed, and keep the other rows of the last audit.

    ``days`` are those whose files have changed since, in which nothing was removed.
    """
    session, before = last.session, last.frame("sums")
    files = last.archive.files(days)
    is_changed = F.col("day").isin(*days) if days else F.lit(False)
    new = (
        checkpointed(sums_by_channel(read_files(session, files, SUMMED)))
        if files
        else empty(session, SUMS)
    )
    sums_ = before.where(~is_changed).unionByName(new)
    names = _changed_channels(before.where(is_changed), new)
    references = last.frame("references")
    if files:
        found = read_files(session, files, ("hash", "channel", "message_id"))
        names = names.unionByName(_affected(references, found))
    changed = checkpointed(names.distinct())
    entries = require_bounded(sums_.join(changed, "channel", "semi"))
    job.say(f"audit: {changed.count():,} channels have changed")
    kept = {name: last.frame(name).join(changed, "channel", "anti") for name in _RECORDED}
    if entries:
        wanted = sums_.join(changed, "channel", "semi").select("day").distinct().collect()
        files = last.archive.files({row["day"] for row in wanted})
        rows = read_files(session, files, CLAIMS_READ).join(changed, "channel", "semi")
        again = _recorded(audit_tables(History(job.messages, rows=rows), entries))
        kept = {name: rows.unionByName(again[name]) for name, rows in kept.items()}
    now = {name: checkpointed(rows) for name, rows in kept.items()}
    tables = AuditTables(
        now["faults"],
        now["channels"],
        now["references"],
        now["conflicts"],
        counts_of(now["channels"]),
    )
    return sums_, tables


def _recorded(tables: AuditTables) -> dict[str, DataFrame]:
    """Return the tables that are recorded, by name."""
    faults = tables.findings.where(F.col("kind").isin(VIOLATION, CYCLE))
    frames = (faults, tables.channels, tables.references, tables.conflicts)
    return dict(zip(_RECORDED, frames, strict=True))


def _changed_channels(old: DataFrame, new: DataFrame) -> DataFrame:
    """Return the channels whose sums by day differ."""
    old, new = old.select(*_SUM), new.select(*_SUM)
    differing = old.exceptAll(new).unionByName(new.exceptAll(old))
    return differing.where(F.col("channel").isNotNull()).select("channel")


def _affected(references: DataFrame, messages: DataFrame) -> DataFrame:
    """Return the channels whose missing parents some messages are, by their ID or by a hint."""
    claimed = messages.where(F.col("channel").isNotNull()).select(
        F.col("message_id").alias("parent")
    )
    by_id = references.join(claimed.distinct(), "parent", "semi")
    plain = messages.where(F.col("channel").isNull()).select(F.col("hash").alias("hint"))
    by_hint = references.join(plain.distinct(), "hint", "semi")
    return by_id.select("channel").unionByName(by_hint.select("channel"))


def require_outputs(output: str | None, missing: str | None) -> None:
    """Raise unless the outputs that are wanted can be written."""
    if output is not None:
        require_new_directory(output, "what is found")
    if missing is not None:
        require_new(Path(missing), "the missing IDs")


def _write(job: AuditJob, tables: AuditTables) -> None:
    if job.output is not None:
        folder = checked(job.output, "The output")
        for name, rows in _tables(tables).items():
            write_rows(rows, f"{folder}/{name}")
    if job.missing is not None:
        lines = (f"{line}\n" for line in _ids(tables.references))
        write_text(Path(job.missing), "The missing IDs", lambda file: file.writelines(lines))


def _tables(tables: AuditTables) -> dict[str, DataFrame]:
    """Return what is written, by the name of its directory."""
    findings = tables.findings
    about = ("channel", "message_id", "lamport", "ts")
    found = {
        "channels": tables.channels,
        "missing": tables.references.withColumnRenamed("parent", "missing_id"),
        "conflicts": tables.conflicts,
    }
    for name, kind in (("incomplete", INCOMPLETE), ("heads", HEAD), ("orphans", ORPHAN)):
        found[name] = findings.where(F.col("kind") == kind).select(*about)
    for name, kind, other in (("violations", VIOLATION, "parent"), ("cycles", CYCLE, "cycle")):
        rows = findings.where(F.col("kind") == kind)
        found[name] = rows.select(*about, F.col("other").alias(other))
    return found


def _ids(references: DataFrame) -> Iterator[str]:
    """Yield missing IDs, each as a line of JSON."""
    each = references.groupBy("channel", "parent").agg(F.min("hint").alias("hint"))
    for row in each.orderBy("channel", "parent").toLocalIterator():
        found = {"channel": row["channel"], "message_id": row["parent"]}
        if row["hint"] is not None:
            found["hint"] = bytes(row["hint"]).hex()
        yield json.dumps(found, ensure_ascii=False)
