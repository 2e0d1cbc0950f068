"""The Spark data source `storenode`: a store node's database, or an archive, as rows of Spark.

Options: ``url`` of the database, or ``path`` of the archive; ``columns``, a list with commas (all
of `store.pipeline.columns.SOURCE`); ``from`` and ``to`` in nanoseconds, the end exclusive;
``tasks``, how many there should be. Of a database also ``position``, a commit position up to which
messages are read (the newest); ``slices``, made by `pipeline.slices.to_text`, instead of a range;
``connections``, how many tasks may read at a time; and ``reader``, one of
`store.pipeline.readers.READERS`. Of a stream ``start``, the offset behind which it begins, and
``maxrows``, how many messages a batch has, as far as commits allow.

A stream's offset is a commit position: below one that is visible no further commit appears, so no
message is passed over, and the messages between two offsets are the same whenever they are read.

Writing restores: see `store.pipeline.storing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from store.domain.partitioning import Bounds
from store.pipeline.columns import SOURCE, spark_schema
from store.pipeline.database import FOREVER, connected, read_state
from store.pipeline.errors import USAGE, PipelineError
from store.pipeline.filters import Conditions, Wanted
from store.pipeline.limits import HOUR_NS, MAX_CONNECTIONS, STREAM_BATCH_ROWS
from store.pipeline.readers import AUTO, READERS
from store.pipeline.reading import Cut, read_slices
from store.pipeline.slices import Slice, from_text, good_slice_rows, grouped, plan_slices
from store.pipeline.stream import Spans, end_of_batch, spans_between
from store.pipeline.tasks import spare_loaded

FORMAT: Final = "storenode"
_OPTIONS: Final = frozenset(
    {
        "url",
        "path",
        "columns",
        "from",
        "to",
        "position",
        "slices",
        "connections",
        "tasks",
        "maxrows",
        "start",
        "reader",
    }
)


class SlicesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, slices: list[Slice], cut: Cut) -> None:
        super().__init__(None)
        self.slices = slices
        self.cut = cut


class Options:
    """The options of the source, checked.

    Raises:
        PipelineError: one is missing, unknown or cannot be read.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        unknown = sorted(set(map(str.lower, given)) - _OPTIONS)
        if unknown:
            raise PipelineError(
                f"The data source storenode has no option {unknown[0]!r}: it has"
                f" {', '.join(sorted(_OPTIONS))}.",
                USAGE,
            )
        self._given = given
        if ("url" in given) == ("path" in given):
            raise PipelineError(
                "The data source storenode needs either the option `url` of a database or the path"
                " of an archive.",
                USAGE,
            )
        self.url = given.get("url", "")
        self.path = given.get("path", "")
        self.names = self._columns()
        self.schema = pa.schema([SOURCE.field(name) for name in self.names])
        self.low_ns = self._number("from", 0)
        self.high_ns = self._number("to", FOREVER)
        self.position = self._number("position", -1)
        self.start = self._number("start", 0)
        self.connections = self._number("connections", MAX_CONNECTIONS)
        self.tasks = self._number("tasks", self.connections)
        self.max_rows = self._number("maxrows", STREAM_BATCH_ROWS)
        self.reader = given.get("reader", AUTO)
        if self.reader not in READERS:
            raise PipelineError(
                f"The option `reader` must be one of {', '.join(READERS)}, not {self.reader!r}.",
                USAGE,
            )

    @property
    def slices(self) -> list[Slice] | None:
        """The slices that were given."""
        text = self._given.get("slices")
        try:
            return None if text is None else from_text(text)
        except ValueError as error:
            raise PipelineError(f"The option `slices` cannot be read: {error}.", USAGE) from error

    def read(self, partition: SlicesPartition, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        """The wanted rows of one partition of a database."""
        spare_loaded()
        found = read_slices(self.url, partition.slices, partition.cut, wanted.read, self.reader)
        return map(wanted.of, found)

    def _columns(self) -> tuple[str, ...]:
        text = self._given.get("columns")
        names = SOURCE.names if text is None else [name.strip() for name in text.split(",")]
        return known_columns(names)

    def _number(self, name: str, default: int) -> int:
        text = self._given.get(name)
        try:
            return default if text is None else int(text)
        except ValueError as error:
            raise PipelineError(
                f"The option `{name}` must be a whole number, not {text!r}.", USAGE
            ) from error


def known_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Columns of the data source.

    Raises:
        PipelineError: there is none of a name.
    """
    unknown = [name for name in names if name not in SOURCE.names]
    if unknown:
        raise PipelineError(
            f"The data source storenode has no column {unknown[0]!r}: it has"
            f" {', '.join(SOURCE.names)}.",
            USAGE,
        )
    return tuple(names)


class StorenodeSource(DataSource):
    """The data source."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        spare_loaded()

    @classmethod
    def name(cls) -> str:
        """What `spark.read.format` is given."""
        return FORMAT

    def schema(self) -> StructType:
        """The wanted columns, in the wanted order."""
        return spark_schema(Options(self.options).names)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads a range once; ``schema`` may have been given, with some columns only."""
        options = self._options(schema)
        if not options.path:
            return StorenodeReader(options)
        # Workers that read a database need not load what reads archives.
        from store.pipeline.archive_source import ArchiveReader  # noqa: PLC0415

        return ArchiveReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Reads what is committed, as it is."""
        options = self._options(schema)
        if not options.path:
            return StorenodeStreamReader(options)
        from store.pipeline.archive_source import ArchiveStreamReader  # noqa: PLC0415

        return ArchiveStreamReader(options)

    def _options(self, schema: StructType) -> Options:
        options = Options(self.options)
        known_columns(schema.names)
        options.schema = pa.schema(
            [SOURCE.field(each.name).with_nullable(each.nullable) for each in schema.fields]
        )
        return options

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Restores messages into the database.

        Raises:
            PipelineError: an overwrite was asked for.
        """
        if overwrite:
            raise PipelineError(
                "A store node's database is only added to: use the mode `append`.", USAGE
            )
        # Workers that read need not load what writes.
        from store.pipeline.storing import StoringWriter  # noqa: PLC0415

        options = Options(self.options)
        if options.path:
            raise PipelineError(
                "An archive is written by `storenode pipeline archive` alone: give the option `url`"
                " of a database.",
                USAGE,
            )
        return StoringWriter(options.url, schema.names)


class StorenodeReader(DataSourceReader):
    """Plans slices, and reads them."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._wanted = Wanted(options.schema, Conditions())

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take over what is judged here; times decide what is read, the rest what is passed on."""
        return self._wanted.conditions.push(filters)

    def partitions(self) -> Sequence[InputPartition]:
        """At most so many tasks as there may be connections."""
        options = self._options
        low_ns, high_ns = self._wanted.conditions.times()
        options.low_ns = max(options.low_ns, low_ns)
        options.high_ns = min(options.high_ns, high_ns)
        slices, position = options.slices, options.position
        if slices is None and options.low_ns >= options.high_ns:
            slices = []
        if slices is None or position < 0:
            with connected(options.url) as connection:
                state = read_state(connection, options.low_ns // HOUR_NS * HOUR_NS, options.high_ns)
            position = state.position if position < 0 else position
            if slices is None:
                slices = plan_slices(
                    state.fingerprints,
                    state.partitions,
                    Bounds(options.low_ns, options.high_ns),
                    good_slice_rows(state.messages, options.tasks),
                )
        cut = Cut(position)
        groups = grouped(slices, options.connections)
        # Without any partition Spark has one of its own read.
        return [SlicesPartition(group, cut) for group in groups or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        assert isinstance(partition, SlicesPartition)
        return self._options.read(partition, self._wanted)


class StorenodeStreamReader(DataSourceStreamReader):
    """Reads commit by commit; an offset is ``{"position": N}``."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._wanted = Wanted(options.schema, Conditions())

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Behind which the first batch begins."""
        return {"position": self._options.start}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How much a batch holds at most."""
        return ReadMaxRows(self._options.max_rows)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Up to where the next batch goes."""
        rows = FOREVER if isinstance(limit, ReadAllAvailable) else self._options.max_rows
        with connected(self._options.url) as connection:
            return {"position": end_of_batch(connection, start["position"], rows)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The same for the same offsets, as long as retention has dropped none of it."""
        low, high = start["position"], end["position"]
        if low >= high:
            return []
        with connected(self._options.url) as connection:
            spans: Spans = spans_between(connection, low, high)
        cut = Cut(high, start=low)
        return [SlicesPartition(group, cut) for group in grouped(spans, self._options.connections)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        assert isinstance(partition, SlicesPartition)
        return self._options.read(partition, self._wanted)


def read_options(url: str, **options: Any) -> dict[str, str]:  # noqa: ANN401 - shown as text
    """Options for `spark.read`; those that are None are left out."""
    given = {"url": url, **options}
    return {
        ("from" if name == "low_ns" else "to" if name == "high_ns" else name): str(value)
        for name, value in given.items()
        if value is not None
    }
