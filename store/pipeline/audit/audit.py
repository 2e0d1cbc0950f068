"""`audit`: find the parents that a history lacks, and how far each channel is complete.

A message is identified by its ID in its channel, regardless of the claimant. Its causal past are
its parents and theirs, at any depth; the past is incomplete if something in it is not held. A
parent is held if a message claims its ID in this channel.

The results of a night are recorded beside the archive; the next night examines only the channels
that have changed since.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.audit.results import read_recorded, record
from store.pipeline.audit.summary import AuditReport, summarized
from store.pipeline.audit.tables import (
    CLAIMS_READ,
    SUMMED,
    AuditTables,
    audit_tables,
    checkpointed,
    parents_outside,
    sizes_of,
    sums_by_channel,
)
from store.pipeline.database import ALL, Range
from store.pipeline.errors import spark_errors
from store.pipeline.files import write_text
from store.pipeline.fingerprints import XOR_WORDS
from store.pipeline.message_sets import ArchiveMessages, DatabaseMessages, MessageSet
from store.pipeline.parquet import read_files
from store.pipeline.spark import logged

_SUM: Final = ("channel", "day", "count", *XOR_WORDS)
_OUTSIDE: Final = ("ts", "channel", "message_id", "lamport")


@spark_errors()
def audit(messages: MessageSet, *, bounds: Range = ALL, missing: Path | None = None) -> AuditReport:
    """Audit a range of a history; change nothing in it.

    ``bounds`` are times in nanoseconds, the end exclusive. ``missing`` is a new file for the
    missing IDs, which ``storenode sync --ids`` reads.
    """
    with logged("audit", messages.count):
        sums_ = _sums(messages, bounds)
        tables = _audited(messages, bounds, sums_)
        result = summarized(messages.name, tables, sums_)
    if missing is not None:
        lines = (f"{line}\n" for line in _ids(tables["references"]))
        write_text(missing, "The missing IDs", lines)
        result.missing_file = str(missing)
    return result


@spark_errors()
def audit_recorded(messages: ArchiveMessages) -> AuditReport:
    """Audit an archive as a whole and record the results in it.

    Only the channels that have changed since the last recorded audit are examined.
    """
    archive = messages.archive
    with logged("audit", messages.count):
        last, commit = read_recorded(messages.session, archive) or (None, "")
        days = archive.changed_since(commit)
        if last is None or days is None:
            sums_ = _sums(messages)
            tables = {**_audited(messages, ALL, sums_), "sums": sums_}
        elif days:
            tables = _continued(messages, last, days)
        else:
            return summarized(messages.name, last, last["sums"])
        result = summarized(messages.name, tables, tables["sums"])
        record(archive, tables)
    return result


def _sums(messages: MessageSet, bounds: Range = ALL) -> DataFrame:
    return checkpointed(sums_by_channel(messages.messages(SUMMED, bounds)))


def _audited(messages: MessageSet, bounds: Range, sums_: DataFrame) -> AuditTables:
    """Examine the messages of a range; their parents may be outside of it."""
    read, (low_ns, high_ns) = messages.messages, bounds
    large, entries = sizes_of(sums_)
    claims = _without(large, read(CLAIMS_READ, bounds).where(F.col("channel").isNotNull()))
    if isinstance(messages, DatabaseMessages):
        # They are used several times, and a database should be read once.
        claims = checkpointed(claims)
    ranges = [(low, high) for low, high in ((0, low_ns), (high_ns, ALL[1])) if low < high]
    outside = None
    if ranges:
        others = reduce(DataFrame.unionByName, (read(_OUTSIDE, each) for each in ranges))
        outside = parents_outside(claims, others)
    return audit_tables(messages, claims, entries, outside)


def _without(channels: list[Row], claims: DataFrame) -> DataFrame:
    return claims.where(~F.col("channel").isin([row["channel"] for row in channels]))


def _continued(messages: ArchiveMessages, last: AuditTables, days: set[int]) -> AuditTables:
    """Examine the channels that have changed, and keep the other rows of the last audit.

    ``days`` are those whose files have changed since.
    """
    archive, before = messages.archive, last["sums"]
    is_changed = F.col("day").isin(*days)
    new = checkpointed(sums_by_channel(read_files(messages.session, archive.files(days), SUMMED)))
    sums_ = before.where(~is_changed).unionByName(new)
    old, fresh = before.where(is_changed).select(*_SUM), new.select(*_SUM)
    differing = old.exceptAll(fresh).unionByName(fresh.exceptAll(old))
    changed = checkpointed(
        differing.where(F.col("channel").isNotNull()).select("channel").distinct()
    )
    again = sums_.join(changed, "channel", "semi")
    large, entries = sizes_of(again)
    wanted = {row["day"] for row in again.select("day").distinct().collect()}
    claims = read_files(messages.session, archive.files(wanted), CLAIMS_READ)
    claims = _without(large, claims.join(changed, "channel", "semi"))
    found = audit_tables(messages, claims, entries)

    tables = {
        name: checkpointed(last[name].join(changed, "channel", "anti").unionByName(rows))
        for name, rows in found.items()
    }
    return {**tables, "sums": sums_}


def _ids(references: DataFrame) -> Iterator[str]:
    """Yield missing IDs, each as a line of JSON."""
    each = references.groupBy("channel", "parent").agg(F.min("hint").alias("hint"))
    for row in each.orderBy("channel", "parent").toLocalIterator():
        found = {"channel": row["channel"], "message_id": row["parent"]}
        if row["hint"] is not None:
            found["hint"] = bytes(row["hint"]).hex()
        yield json.dumps(found, ensure_ascii=False)
