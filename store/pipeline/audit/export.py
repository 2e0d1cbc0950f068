"""The outputs of an audit besides its report: all findings as Parquet, missing IDs as a list."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.audit.findings import CYCLE, HEAD, INCOMPLETE, ORPHAN, VIOLATION
from store.pipeline.audit.tables import AuditTables
from store.pipeline.errors import PipelineError
from store.pipeline.files import require_new, require_new_directory
from store.pipeline.outputs import write_rows

_FOUND: Final = "what is found"
_LISTED: Final = {"incomplete": (INCOMPLETE,), "heads": (HEAD,), "orphans": (ORPHAN,)}
_FAULTS: Final = {"violations": "parent", "cycles": "cycle"}


class AuditOutputs:
    """A directory of Parquet and a file of missing IDs, if they are wanted."""

    def __init__(self, output: str | None, missing: str | None) -> None:
        """Check the paths; nothing is written yet.

        Raises:
            PipelineError: something would be written over, or there is no directory for it.
        """
        self._output = None if output is None else require_new_directory(output, _FOUND)
        self._missing = None if missing is None else Path(missing)
        if self._missing is not None:
            require_new(self._missing, "the missing IDs")

    @property
    def wanted(self) -> bool:
        """True if anything is to be written."""
        return self._output is not None or self._missing is not None

    def write(self, tables: AuditTables) -> None:
        """Write the outputs that are wanted.

        Raises:
            PipelineError: the file cannot be written.
        """
        if self._output is not None:
            for name, rows in _tables(tables).items():
                write_rows(rows, f"{self._output}/{name}")
        if self._missing is not None:
            _write_ids(self._missing, _ids(tables.references))


def _tables(tables: AuditTables) -> dict[str, DataFrame]:
    """Return what is written, by the name of its directory."""
    findings = tables.findings
    about = ("channel", "message_id", "lamport", "ts")
    found = {
        "channels": tables.channels,
        "missing": tables.references.withColumnRenamed("parent", "missing_id"),
        "conflicts": tables.conflicts,
    }
    for name, (kind,) in _LISTED.items():
        found[name] = findings.where(F.col("kind") == kind).select(*about)
    for name, kind in (("violations", VIOLATION), ("cycles", CYCLE)):
        rows = findings.where(F.col("kind") == kind)
        found[name] = rows.select(*about, F.col("other").alias(_FAULTS[name]))
    return found


def _ids(references: DataFrame) -> Iterator[str]:
    """Yield missing IDs, each as a line of JSON."""
    each = references.groupBy("channel", "parent").agg(F.min("hint").alias("hint"))
    for row in each.orderBy("channel", "parent").toLocalIterator():
        found = {"channel": row["channel"], "message_id": row["parent"]}
        if row["hint"] is not None:
            found["hint"] = bytes(row["hint"]).hex()
        yield json.dumps(found, ensure_ascii=False)


def _write_ids(file: Path, lines: Iterator[str]) -> None:
    """Write all lines, or no file."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        try:
            with partial.open("x", encoding="utf-8") as opened:
                opened.writelines(f"{line}\n" for line in lines)
                opened.flush()
                os.fsync(opened.fileno())
            os.link(partial, file)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise PipelineError(
            f"The missing IDs cannot be written to {file} ({error.strerror}): name another file."
        ) from error
