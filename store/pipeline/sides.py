"""The two kinds of places that hold messages, seen alike: an archive, and a live database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.domain.partitioning import Bounds
from store.pipeline.columns import spark_schema
from store.pipeline.contents import KEY, fingerprints_of, known_hours, read_files
from store.pipeline.database import FOREVER, State, connected, read_state
from store.pipeline.fingerprints import LEVELS_NS, Fingerprints, coarser, start_of
from store.pipeline.lake import Lake, LakeFile
from store.pipeline.limits import DAY_NS, MAX_CONNECTIONS, MINUTE_NS
from store.pipeline.slices import Slice, good_slice_rows, plan_slices, to_text
from store.pipeline.source import FORMAT, read_options
from store.pipeline.tasks import good_tasks

ID_COLUMNS = (*KEY, "hash")
"""What an ID is made of: the timestamp, and the hash as words and as bytes."""


class Side(Protocol):
    """Something that holds messages; its answers are about one moment."""

    name: str

    def fingerprints(self, level: str, within: Iterable[int] | None) -> Fingerprints:
        """By slice of a level of `LEVELS_NS`, of those that begin in ``within``, which are starts
        of the next coarser level; None: of all.
        """

    def ids(self, starts: list[int], level: str) -> DataFrame:
        """`ID_COLUMNS` of the messages in some slices."""

    def messages(self, names: Sequence[str], low_ns: int, high_ns: int) -> DataFrame:
        """Some columns, ``ts`` among them, of the messages of a range of time."""


class LakeSide:
    """An archive as it was when this was made; read-only."""

    def __init__(self, session: SparkSession, lake: Lake) -> None:
        self.name = lake.path
        self.session = session
        self.lake = lake.open()
        self._hours = known_hours(session, lake, keep=False)

    def fingerprints(self, level: str, within: Iterable[int] | None) -> Fingerprints:
        """See `Side`."""
        if level == "day":
            found = coarser(self._hours, DAY_NS)
        elif level == "hour":
            found = self._hours
        else:
            hours = sorted(self._hours) if within is None else sorted(within)
            found = fingerprints_of(self.session, self._files(hours), LEVELS_NS[level])
        return _within(found, within, level)

    def ids(self, starts: list[int], level: str) -> DataFrame:
        """See `Side`."""
        files = self._files(starts)
        if not files:
            return self.session.createDataFrame([], spark_schema(ID_COLUMNS))
        length_ns = LEVELS_NS[level]
        wanted = self.session.createDataFrame(pa.table({"start_ns": pa.array(starts, pa.int64())}))
        rows = read_files(self.session, files, ID_COLUMNS, starts[0], starts[-1] + length_ns)
        rows = rows.withColumn("start_ns", start_of(length_ns))
        return rows.join(F.broadcast(wanted), "start_ns", "left_semi").select(*ID_COLUMNS)

    def messages(self, names: Sequence[str], low_ns: int, high_ns: int) -> DataFrame:
        """See `Side`."""
        files = self.files(low_ns, high_ns)
        if not files:
            return self.session.createDataFrame([], spark_schema(names))
        return read_files(self.session, files, names, low_ns, high_ns)

    def files(self, low_ns: int, high_ns: int) -> list[LakeFile]:
        """Those that have the messages of a range of time."""
        low, high = low_ns // DAY_NS, -(-high_ns // DAY_NS)
        return [each for each in self.lake.files() if low <= each.day < high]

    def _files(self, starts: Iterable[int]) -> list[LakeFile]:
        return self.lake.files({start // DAY_NS for start in starts})


class DatabaseSide:
    """A database as it was when this was made, but for what retention drops meanwhile."""

    def __init__(
        self, session: SparkSession, url: str, name: str, connections: int = MAX_CONNECTIONS
    ) -> None:
        self.name = name
        self._session = session
        self._url = url
        self._connections = min(connections, good_tasks(session))
        with connected(url, name) as connection:
            self._state: State = read_state(connection, level="minute")

    def fingerprints(self, level: str, within: Iterable[int] | None) -> Fingerprints:
        """See `Side`."""
        return _within(coarser(self._state.fingerprints, LEVELS_NS[level]), within, level)

    def ids(self, starts: list[int], level: str) -> DataFrame:
        """See `Side`."""
        length_ns, state = LEVELS_NS[level], self._state
        wanted = set(starts)
        minutes = {
            start: each
            for start, each in state.fingerprints.items()
            if start // length_ns * length_ns in wanted
        }
        rows = sum(each.messages for each in minutes.values())
        size = good_slice_rows(rows, self._connections)
        slices = plan_slices(minutes, state.partitions, Bounds(0, FOREVER), size, MINUTE_NS)
        return self._read(slices, ID_COLUMNS)

    def messages(self, names: Sequence[str], low_ns: int, high_ns: int) -> DataFrame:
        """See `Side`."""
        state = self._state
        size = good_slice_rows(state.messages, self._connections)
        within = Bounds(low_ns, high_ns)
        slices = plan_slices(state.fingerprints, state.partitions, within, size, MINUTE_NS)
        return self._read(slices, names)

    def _read(self, slices: list[Slice], names: Sequence[str]) -> DataFrame:
        options = read_options(
            self._url,
            columns=",".join(names),
            slices=to_text(slices),
            position=self._state.position,
            connections=self._connections,
        )
        return self._session.read.format(FORMAT).options(**options).load()


def _within(found: Fingerprints, within: Iterable[int] | None, level: str) -> Fingerprints:
    if within is None:
        return found
    lengths = list(LEVELS_NS.values())
    coarser_ns = lengths[max(0, lengths.index(LEVELS_NS[level]) - 1)]
    wanted = set(within)
    return {
        start: each for start, each in found.items() if start // coarser_ns * coarser_ns in wanted
    }
