"""An archive and a database as sets of messages, with the same methods, and `fingerprint`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.domain.partitioning import Bounds
from store.pipeline.columns import spark_schema
from store.pipeline.database import FOREVER, connected, read_state
from store.pipeline.delta import DeltaArchive
from store.pipeline.fingerprints import LEVELS_NS, NOTHING, Fingerprint, Fingerprints, coarser
from store.pipeline.limits import DAY_NS, HOUR_NS, MAX_CONNECTIONS, MINUTE_NS
from store.pipeline.parquet import KEY, fingerprints_of, read_files, shuffle_partitions, start_of
from store.pipeline.reports import time_text
from store.pipeline.source import good_slice_rows, plan_slices, read_database, to_text

ID_COLUMNS: Final = (*KEY, "hash")
"""The columns of an ID: the timestamp, and the hash as words and as bytes."""


def known_hours(session: SparkSession, archive: DeltaArchive) -> Fingerprints:
    """Return what an archive holds by hour, as its commits record it.

    Days that another program has changed are read.
    """
    manifest = archive.manifest
    unknown = manifest.unknown_days
    if manifest.version < archive.version or manifest.broken:
        unknown = {each.day for each in archive.files()}
    hours = {
        hour: each for hour, each in manifest.stored.items() if hour // DAY_NS not in unknown
    } | fingerprints_of(session, archive.files(unknown), HOUR_NS)
    return {hour: each for hour, each in hours.items() if each != NOTHING}


class MessageSet(Protocol):
    """A source of messages, read as of one moment."""

    name: str
    session: SparkSession

    def fingerprints(self, level: str, within: Iterable[int] | None) -> Fingerprints:
        """Return the fingerprints of the slices of a level of `LEVELS_NS`.

        ``within`` are starts of the next coarser level, whose slices are returned; None: all.
        """

    def ids(self, starts: list[int], level: str) -> DataFrame:
        """Return the `ID_COLUMNS` of the messages in some slices."""

    def messages(self, names: Sequence[str], low_ns: int, high_ns: int) -> DataFrame:
        """Return some columns of the messages of a range of time, the end exclusive."""


class ArchiveMessages:
    """The messages of an archive as it was when this was made."""

    def __init__(self, session: SparkSession, archive: DeltaArchive) -> None:
        self.name = archive.path
        self.session = session
        self.archive = archive.open()
        self._hours = known_hours(session, archive)

    def fingerprints(self, level: str, within: Iterable[int] | None) -> Fingerprints:
        """Return fingerprints by slice, see `MessageSet`."""
        length_ns = LEVELS_NS[level]
        if length_ns >= HOUR_NS:
            return _within(coarser(self._hours, length_ns), within, level)
        hours = self._hours if within is None else within
        files = self.archive.files({hour // DAY_NS for hour in hours})
        return _within(fingerprints_of(self.session, files, length_ns), within, level)

    def ids(self, starts: list[int], level: str) -> DataFrame:
        """Return IDs, see `MessageSet`."""
        length_ns = LEVELS_NS[level]
        files = self.archive.files({start // DAY_NS for start in starts})
        if not files:
            return self.session.createDataFrame([], spark_schema(ID_COLUMNS))
        wanted = self.session.createDataFrame(pa.table({"start_ns": pa.array(starts, pa.int64())}))
        rows = read_files(self.session, files, ID_COLUMNS, starts[0], starts[-1] + length_ns)
        rows = rows.withColumn("start_ns", start_of(length_ns))
        return rows.join(F.broadcast(wanted), "start_ns", "left_semi").select(*ID_COLUMNS)

    def messages(self, names: Sequence[str], low_ns: int, high_ns: int) -> DataFrame:
        """Return messages, see `MessageSet`."""
        files = self.archive.files_between(low_ns, high_ns)
        if not files:
            return self.session.createDataFrame([], spark_schema(names))
        return read_files(self.session, files, names, low_ns, high_ns)


class DatabaseMessages:
    """The messages of a database as it was when this was made, without what is dropped later."""

    def __init__(
        self, session: SparkSession, url: str, name: str, connections: int = MAX_CONNECTIONS
    ) -> None:
        self.name = name
        self.session = session
        self._url = url
        self._connections = min(connections, shuffle_partitions(session))
        with connected(url, name) as connection:
            self._state = read_state(connection, level="minute")

    def fingerprints(self, level: str, within: Iterable[int] | None) -> Fingerprints:
        """Return fingerprints by slice, see `MessageSet`."""
        return _within(coarser(self._state.fingerprints, LEVELS_NS[level]), within, level)

    def ids(self, starts: list[int], level: str) -> DataFrame:
        """Return IDs, see `MessageSet`."""
        length_ns, wanted = LEVELS_NS[level], set(starts)
        minutes = {
            start: each
            for start, each in self._state.fingerprints.items()
            if start // length_ns * length_ns in wanted
        }
        return self._read(minutes, Bounds(0, FOREVER), ID_COLUMNS)

    def messages(self, names: Sequence[str], low_ns: int, high_ns: int) -> DataFrame:
        """Return messages, see `MessageSet`."""
        return self._read(self._state.fingerprints, Bounds(low_ns, high_ns), names)

    def _read(self, minutes: Fingerprints, within: Bounds, names: Sequence[str]) -> DataFrame:
        rows = sum(each.messages for each in minutes.values())
        size = good_slice_rows(rows, self._connections)
        slices = plan_slices(minutes, self._state.partitions, within, size, MINUTE_NS)
        return read_database(
            self.session,
            self._url,
            columns=",".join(names),
            slices=to_text(slices),
            position=self._state.position,
            connections=self._connections,
        )


def _within(found: Fingerprints, within: Iterable[int] | None, level: str) -> Fingerprints:
    if within is None:
        return found
    lengths = list(LEVELS_NS.values())
    coarser_ns = lengths[max(0, lengths.index(LEVELS_NS[level]) - 1)]
    wanted = set(within)
    return {
        start: each for start, each in found.items() if start // coarser_ns * coarser_ns in wanted
    }


@dataclass(frozen=True)
class FingerprintReport:
    """The fingerprints of a set by slice."""

    name: str
    level: str
    slices: Fingerprints

    @property
    def sound(self) -> bool:
        """True: there is nothing to find wrong."""
        return True

    @property
    def total(self) -> Fingerprint:
        """The fingerprint of all messages."""
        total = NOTHING
        for each in self.slices.values():
            total = total.joined(each)
        return total

    def as_json(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "name": self.name,
            "level": self.level,
            "messages": self.total.messages,
            "xor": self.total.hex,
            "slices": [
                {"start": time_text(start), "start_ns": start, "messages": each.messages}
                | {"xor": each.hex}
                for start, each in sorted(self.slices.items())
            ],
        }

    def lines(self) -> list[str]:
        """Return the report as a table."""
        found = [
            f"{time_text(start)} {each.messages:>12,} {each.hex}"
            for start, each in sorted(self.slices.items())
        ]
        return [*found, f"{'all':<20} {self.total.messages:>12,} {self.total.hex}"]


def fingerprint(
    messages: MessageSet, level: str, low_ns: int = 0, high_ns: int = FOREVER
) -> FingerprintReport:
    """Return the slices of a level of `LEVELS_NS` that begin in a range of time."""
    return sliced(messages.name, level, messages.fingerprints(level, None), low_ns, high_ns)


def sliced(
    name: str, level: str, found: Fingerprints, low_ns: int = 0, high_ns: int = FOREVER
) -> FingerprintReport:
    """Return the report of fingerprints that are known, of a range of time."""
    wanted = {start: each for start, each in found.items() if low_ns <= start < high_ns}
    return FingerprintReport(name, level, wanted)


def recorded_in(archive: DeltaArchive, level: str) -> Fingerprints | None:
    """Return what the commits of an archive record, without Spark; None: it must be computed."""
    manifest, length_ns = archive.manifest, LEVELS_NS[level]
    is_current = manifest.version == archive.version and not manifest.broken
    if length_ns < HOUR_NS or manifest.unknown_days or not is_current:
        return None
    return coarser(manifest.stored, length_ns)


def recorded_by(url: str, level: str) -> Fingerprints:
    """Return the summaries of a database, without Spark."""
    with connected(url) as connection:
        return read_state(connection, level=level).fingerprints
