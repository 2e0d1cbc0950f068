"""Messages into an archive: written, read back, committed, all or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.pipeline.columns import NAMES
from store.pipeline.database import State
from store.pipeline.delta import DataFile, DeltaArchive, WrittenFile
from store.pipeline.errors import SPARK_ERRORS, PipelineError, of_spark
from store.pipeline.files import require_visible
from store.pipeline.fingerprints import NOTHING, Fingerprints, collected
from store.pipeline.limits import DAY_NS, HOUR_NS, MIN_PORTION_ROWS
from store.pipeline.manifest import CommitMetadata
from store.pipeline.parquet import write_files
from store.pipeline.progress import Say, shown, silent
from store.pipeline.scan import (
    KEY,
    PATH,
    file_digests,
    fingerprints_of,
    read_files,
    shuffle_partitions,
    start_of,
    sums,
)


def known_hours(session: SparkSession, archive: DeltaArchive) -> Fingerprints:
    """Return what an archive holds by hour, as its commits record it.

    Days that another program has changed are read.
    """
    manifest = archive.manifest
    unknown = manifest.unknown_days
    if manifest.version < archive.version or manifest.broken:
        unknown = {each.day for each in archive.files()}
    hours = {
        hour: each for hour, each in manifest.held.items() if hour // DAY_NS not in unknown
    } | fingerprints_of(session, archive.files(unknown), HOUR_NS)
    return {hour: each for hour, each in hours.items() if each != NOTHING}


class ArchiveWriter:
    """Adds messages to an archive that is open for writing.

    ``held`` is what the archive holds by hour; ``messages`` and ``files`` count what was committed.
    """

    def __init__(self, session: SparkSession, archive: DeltaArchive, say: Say = silent) -> None:
        self._session = session
        self._archive = archive
        self._say = say
        self.held = known_hours(session, archive)
        self.messages = 0
        self.files = 0
        self._read_back: set[int] = set()

    def append(
        self,
        rows: DataFrame,
        hours: Iterable[int],
        state: State,
        *,
        is_last: bool,
        messages: int = 0,
        what: str = "archive",
    ) -> None:
        """Commit those messages of some hours that the archive does not hold, all or none.

        ``is_last``: with them, everything up to the position of ``state`` is archived. Progress
        names ``what``, with about so many ``messages``.

        Raises:
            PipelineError: they could not be read or written, or somebody else has committed.
        """
        partial = [hour for hour in hours if hour in self.held]
        new = rows if not partial else self._without_held(rows, partial)
        with shown(self._session, self._say, what, messages):
            written, added = self._write(new, messages)
        if not written:
            return
        grown = {hour: self.held.get(hour, NOTHING).joined(each) for hour, each in added.items()}
        digests = {each.path: each.digest for each in written}
        known = (state.store_id, state.position) if is_last else (None, None)
        self._archive.commit(written, (), CommitMetadata(digests, grown, *known))
        self._read_back |= added.keys() - self.held.keys()
        self.held |= grown
        self.messages += sum(each.rows for each in written)
        self.files += len(written)

    def confirmed(self, hours: Iterable[int]) -> Fingerprints:
        """Return what the files hold of some hours; those that this has not written are read.

        Raises:
            PipelineError: a file is gone or cannot be read.
        """
        wanted = set(hours)
        days = {hour // DAY_NS for hour in wanted - self._read_back}
        found = fingerprints_of(self._session, self._archive.files(days), HOUR_NS)
        return {
            hour: self.held[hour] if hour in self._read_back else found.get(hour, NOTHING)
            for hour in wanted
        }

    def compact(self) -> int:
        """Compact small files; return how many are gone.

        Raises:
            PipelineError: files could not be read or written, they do not hold the same, or
                somebody else has committed.
        """
        gone = 0
        while files := self._archive.crowded():
            messages = sum(each.rows for each in files)
            with shown(self._session, self._say, "compact", messages):
                written, added = self._write(
                    read_files(self._session, files, NAMES), messages, by_hour=False
                )
                before = fingerprints_of(self._session, files, HOUR_NS)
            if added != before:
                raise PipelineError(
                    "Small files that were compacted did not hold the same, so they stay:"
                    " `storenode pipeline verify` says whether the archive is sound."
                )
            digests = {each.path: each.digest for each in written}
            metadata = CommitMetadata(digests)
            self._archive.commit(written, files, metadata, is_new=False)
            gone += len(files)
        return gone

    def begin_manifest(self) -> None:
        """Begin the manifest anew from what the files hold."""
        files = self._archive.files()
        written, hours = read_back(
            self._session, self._archive, {self._archive.within(each): each.rows for each in files}
        )
        self._archive.begin_manifest(written, hours)

    def _without_held(self, rows: DataFrame, hours: list[int]) -> DataFrame:
        files = self._archive.files({hour // DAY_NS for hour in hours})
        held = read_files(self._session, files, KEY, min(hours), max(hours) + HOUR_NS)
        return rows.join(held, list(KEY), "left_anti")

    def _write(
        self, rows: DataFrame, messages: int, *, by_hour: bool = True
    ) -> tuple[list[WrittenFile], Fingerprints]:
        """Write about so many messages, and read them back; few of them by one task."""
        wanted = max(1, messages // MIN_PORTION_ROWS)
        tasks = min(wanted, shuffle_partitions(self._session))
        try:
            done = write_files(rows, self._archive.messages, tasks, by_hour=by_hour)
            return read_back(self._session, self._archive, done)
        except SPARK_ERRORS as error:
            raise of_spark(error) from error


def read_back(
    session: SparkSession, archive: DeltaArchive, rows_of: Mapping[str, int]
) -> tuple[list[WrittenFile], Fingerprints]:
    """Read files by their paths in the table; return them, and what they hold by hour.

    Raises:
        PipelineError: this process does not see one, or it holds another number of rows than
            ``rows_of`` says.
    """
    if not rows_of:
        return [], {}
    require_visible(archive.path, [f"messages/{path}" for path in rows_of])
    files = {path: _data_file(archive, path, rows) for path, rows in rows_of.items()}
    digests = file_digests(session, files.values())
    ends = [F.min("ts").alias("low"), F.max("ts").alias("high")]
    rows = read_files(session, files.values(), (*KEY, PATH.name))
    try:
        found = rows.groupBy(PATH.name, start_of(HOUR_NS)).agg(*sums(), *ends).collect()
    except SPARK_ERRORS as error:
        raise of_spark(error) from error
    by_path: dict[str, list[Row]] = {}
    for row in found:
        by_path.setdefault(row["path"], []).append(row)
    written = []
    for path, file in sorted(files.items()):
        parts = by_path.get(file.path, [])
        if sum(row["count"] for row in parts) != file.rows or file.path not in digests:
            raise PipelineError(
                f"{file.path} does not hold what was written to it: nothing was committed."
            )
        low, high = min(row["low"] for row in parts), max(row["high"] for row in parts)
        size, digest = digests[file.path]
        written.append(WrittenFile(path, file.day, file.shard, size, file.rows, low, high, digest))
    return written, collected(found)


def _data_file(archive: DeltaArchive, path: str, rows: int) -> DataFile:
    day, shard = (part.split("=", 1)[1] for part in path.split("/")[:2])
    number = int(np.datetime64(day, "D").astype(np.int64))
    return DataFile(f"{archive.messages}/{path}", number, int(shard), 0, rows)
