"""An archive and a database as sets of messages, with the same methods, and `fingerprint`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from store.pipeline.database import ALL, FOREVER, Range, connected, read_state
from store.pipeline.delta import DeltaArchive
from store.pipeline.errors import PipelineError
from store.pipeline.fingerprints import NOTHING, Fingerprints, coarser
from store.pipeline.limits import DAY_NS, HOUR_NS, MAX_CONNECTIONS
from store.pipeline.parquet import read_files, shuffle_partitions
from store.pipeline.reports import JobReport, time_text
from store.pipeline.source import read_database

LEVELS_NS: Final[Mapping[str, int]] = {"day": DAY_NS, "hour": HOUR_NS}
"""Lengths of slices by name."""


class ArchiveMessages:
    """The messages of an archive as it was when this was made."""

    def __init__(self, session: SparkSession, archive: DeltaArchive) -> None:
        self.name = archive.path
        self.session = session
        self.archive = archive.open()
        self.count = sum(each.rows for each in self.archive.files())

    def messages(
        self, names: Sequence[str], within: Range = ALL, hours: Sequence[int] | None = None
    ) -> DataFrame:
        """Return some columns of messages ``within`` a time; ``hours``: of their days only."""
        files = self.archive.files_between(*within)
        if hours is not None:
            days = {hour // DAY_NS for hour in hours}
            files = [each for each in files if each.day in days]
        return read_files(self.session, files, names, *within)


class DatabaseMessages:
    """The messages of a database as it was when this was made, without what is dropped later."""

    def __init__(self, session: SparkSession, url: str, connections: int = MAX_CONNECTIONS) -> None:
        self.name = "the database"
        self.session = session
        self.url = url
        self._connections = min(connections, shuffle_partitions(session))
        with connected(url) as connection:
            state = read_state(connection)
        self.hours, self._position = state.hours, state.position
        self.count = sum(each.messages for each in state.hours.values())

    def messages(
        self, names: Sequence[str], within: Range = ALL, hours: Sequence[int] | None = None
    ) -> DataFrame:
        """Return some columns of messages ``within`` a time; ``hours``: of these only."""
        wanted = self.hours if hours is None else [hour for hour in hours if hour in self.hours]
        return read_database(
            self.session,
            self.url,
            names,
            position=self._position,
            within=within,
            hours=wanted,
            connections=self._connections,
        )


MessageSet = ArchiveMessages | DatabaseMessages
"""A set of messages, read as of one moment."""


@dataclass
class FingerprintReport(JobReport):
    """The fingerprints of a set by slice, and that of all its messages."""

    name: str
    level: str
    messages: int
    xor: str
    slices: list[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """Return the report for JSON, with all slices."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the report as a table."""
        total = {"start": "all", "messages": self.messages, "xor": self.xor}
        return [
            f"{each['start']:<20} {each['messages']:>12,} {each['xor']}"
            for each in (*self.slices, total)
        ]


def fingerprint(
    name: str, level: str, hours: Fingerprints, low_ns: int = 0, high_ns: int = FOREVER
) -> FingerprintReport:
    """Return the report of slices of a level that begin in a range of time."""
    total, slices = NOTHING, []
    for start, each in sorted(coarser(hours, LEVELS_NS[level]).items()):
        if low_ns <= start < high_ns:
            total = total.joined(each)
            times = {"start": time_text(start), "start_ns": start}
            slices.append({**times, "messages": each.messages, "xor": each.hex})
    return FingerprintReport(name, level, total.messages, total.hex, slices)


def recorded_in(archive: DeltaArchive) -> Fingerprints:
    """Return what the commits of an archive record by hour."""
    hours = archive.recorded_hours()
    if hours is None:
        raise PipelineError(
            f"The manifest of {archive.path} does not say what the archive holds: `storenode"
            " pipeline verify` says why."
        )
    return hours
