"""What an audit writes besides its report: everything as Parquet, and the missing IDs as a list."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from pipeline.causal.reported import Tables
from pipeline.causal.rows import CYCLE, HEAD, INCOMPLETE, ORPHAN, VIOLATION
from pipeline.contents import is_there
from pipeline.errors import USAGE, PipelineError
from pipeline.paths import checked, for_spark

_LISTED: Final = {"incomplete": (INCOMPLETE,), "heads": (HEAD,), "orphans": (ORPHAN,)}
_FAULTS: Final = {"violations": "parent", "cycles": "cycle"}


class Outputs:
    """A directory of Parquet and a file of missing IDs, as far as they are wanted."""

    def __init__(self, session: SparkSession, output: str | None, missing: str | None) -> None:
        self._session = session
        self._output = None if output is None else checked(output, "The output")
        self._missing = None if missing is None else Path(missing)

    @property
    def wanted(self) -> bool:
        """Whether anything is to be written."""
        return self._output is not None or self._missing is not None

    def require_absent(self) -> None:
        """Make sure that nothing would be written over.

        Raises:
            PipelineError: something is there, or there is no directory for the file.
        """
        if self._output is not None and is_there(self._session, self._output):
            raise PipelineError(
                f"{self._output} exists already: name a directory that does not, for what is"
                " found.",
                USAGE,
            )
        file = self._missing
        if file is not None and (file.is_symlink() or file.exists()):
            raise PipelineError(
                f"{file} exists already: name a file that does not, for the missing IDs.", USAGE
            )
        if file is not None and not file.parent.is_dir():
            raise PipelineError(
                f"There is no directory {file.parent} for the missing IDs: make it, or name"
                " another file.",
                USAGE,
            )

    def write(self, tables: Tables) -> None:
        """Write what is wanted.

        Raises:
            PipelineError: the file cannot be written.
        """
        if self._output is not None:
            for name, rows in _tables(tables).items():
                rows.write.mode("append").parquet(for_spark(f"{self._output}/{name}"))
        if self._missing is not None:
            _write_ids(self._missing, _ids(tables.references))


def _tables(tables: Tables) -> dict[str, DataFrame]:
    """What is written, by the directory's name."""
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
    """Missing IDs, each as a line of JSON."""
    each = references.groupBy("channel", "parent").agg(F.min("hint").alias("hint"))
    for row in each.orderBy("channel", "parent").toLocalIterator():
        found = {"channel": row["channel"], "message_id": row["parent"]}
        if row["hint"] is not None:
            found["hint"] = bytes(row["hint"]).hex()
        yield json.dumps(found, ensure_ascii=False)


def _write_ids(file: Path, lines: Iterator[str]) -> None:
    """Write the lines, all of them or no file."""
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
