"""The Spark data source `storenode`: the messages of a store node's database.

Options of a read: ``url`` of the database; ``columns``, a list with commas (default: all of
`store.pipeline.columns.DEFAULT_NAMES`); ``from`` and ``to`` in nanoseconds, the end exclusive;
``position``, the commit up to which messages are read (default: the newest); ``slices``, made by
`store.pipeline.slices.to_text`, instead of a range; ``connections``, how many tasks may read at a
time. Options of a stream: ``start``, the offset after which it begins, and ``maxrows``, how many
messages a batch has, as far as commits allow.

The offset of a stream is a commit position. No commit appears below one that is visible, so no
message is skipped, and the messages between two offsets are the same whenever they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from store.domain.partitioning import Bounds
from store.pipeline.columns import DEFAULT_NAMES, SOURCE, spark_schema
from store.pipeline.database import FOREVER, connected, read_state
from store.pipeline.errors import USAGE, PipelineError
from store.pipeline.limits import DAY_NS, HOUR_NS, MAX_CONNECTIONS, STREAM_BATCH_ROWS
from store.pipeline.reading import EQUAL_COLUMNS, Cut, read_slices
from store.pipeline.slices import Slice, from_text, good_slice_rows, grouped, plan_slices
from store.pipeline.stream import end_of_batch, spans_between

FORMAT: Final = "storenode"
_OPTIONS: Final = (
    "columns",
    "connections",
    "from",
    "maxrows",
    "position",
    "slices",
    "start",
    "to",
    "url",
)
_AT_MOST: Final = (EqualTo, LessThan, LessThanOrEqual)
_AT_LEAST: Final = (EqualTo, GreaterThan, GreaterThanOrEqual)
_EPOCH: Final = date(1970, 1, 1)


class SlicesPartition(InputPartition):
    """The slices that one task reads."""

    def __init__(self, slices: list[Slice], cut: Cut) -> None:
        super().__init__(None)
        self.slices = slices
        self.cut = cut


class SourceOptions:
    """The options of a read or a write, checked.

    Raises:
        PipelineError: one is missing, unknown or cannot be parsed.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        unknown = sorted(set(map(str.lower, given)) - {*_OPTIONS})
        if unknown:
            raise PipelineError(
                f"The data source storenode has no option {unknown[0]!r}: it has"
                f" {', '.join(_OPTIONS)}.",
                USAGE,
            )
        if "url" not in given:
            raise PipelineError(
                "The data source storenode needs the option `url` of a database; an archive is read"
                " as a Delta table.",
                USAGE,
            )
        self._given = given
        self.url = given["url"]
        text = given.get("columns")
        names = DEFAULT_NAMES if text is None else [name.strip() for name in text.split(",")]
        self.names = known_columns(names)
        self.nullable: frozenset[str] = frozenset()
        self.low_ns = self._number("from", 0)
        self.high_ns = self._number("to", FOREVER)
        self.position = self._number("position", -1)
        self.start = self._number("start", 0)
        self.connections = self._number("connections", MAX_CONNECTIONS)
        self.max_rows = self._number("maxrows", STREAM_BATCH_ROWS)
        self.equal: dict[str, str] = {}

    @property
    def slices(self) -> list[Slice] | None:
        """The slices that were given, if any."""
        text = self._given.get("slices")
        try:
            return None if text is None else from_text(text)
        except ValueError as error:
            raise PipelineError(f"The option `slices` cannot be read: {error}.", USAGE) from error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one partition, with the nullability that Spark was given."""
        assert isinstance(partition, SlicesPartition)
        fields = [SOURCE.field(name) for name in self.names]
        schema = pa.schema(
            each.with_nullable(each.nullable or each.name in self.nullable) for each in fields
        )
        found = read_slices(self.url, partition.slices, partition.cut, self.names, self.equal)
        return (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in found)

    def narrow(self, condition: Filter) -> None:
        """Reduce what is read by a filter of Spark, which filters the rows again."""
        path: tuple[str, ...] = getattr(condition, "attribute", ())
        value = getattr(condition, "value", None)
        if len(path) != 1 or value is None:
            return
        if path[0] in EQUAL_COLUMNS and isinstance(condition, EqualTo) and "\0" not in value:
            self.equal[path[0]] = value
        span = _span_ns(path[0], value)
        if span is not None and isinstance(condition, _AT_LEAST):
            self.low_ns = max(self.low_ns, span[0])
        if span is not None and isinstance(condition, _AT_MOST):
            self.high_ns = min(self.high_ns, span[1])

    def _number(self, name: str, default: int) -> int:
        text = self._given.get(name)
        try:
            return default if text is None else int(text)
        except ValueError as error:
            raise PipelineError(
                f"The option `{name}` must be a whole number, not {text!r}.", USAGE
            ) from error


def _span_ns(name: str, value: object) -> tuple[int, int] | None:
    """Return the nanoseconds that a value of a time column spans, the end exclusive."""
    if name == "ts" and isinstance(value, int):
        return value, min(value + 1, FOREVER)
    if name == "day" and isinstance(value, date):
        start = (value - _EPOCH).days * DAY_NS
        return start, start + DAY_NS
    if name == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        start = int(pa.scalar(value, SOURCE.field("timestamp").type).value) * 1_000
        return start, start + 1_000
    return None


def known_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, all of which are columns of the data source.

    Raises:
        PipelineError: one is not.
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
    """The data source `storenode`."""

    @classmethod
    def name(cls) -> str:
        """Return what `spark.read.format` is given."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the wanted columns, in the wanted order."""
        return spark_schema(SourceOptions(self.options).names)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a range of time; ``schema`` may have some of the columns."""
        return StorenodeReader(self._options(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader of commits."""
        return StorenodeStreamReader(self._options(schema))

    def _options(self, schema: StructType) -> SourceOptions:
        options = SourceOptions(self.options)
        options.names = known_columns(schema.names)
        options.nullable = frozenset(each.name for each in schema if each.nullable)
        return options


class StorenodeReader(DataSourceReader):
    """A reader of a range of time, which plans slices of it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Read less where filters bound the time, or name a topic or a channel."""
        for each in filters:
            self._options.narrow(each)
            yield each

    def partitions(self) -> Sequence[InputPartition]:
        """Plan at most as many tasks as there may be connections."""
        options = self._options
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
                    good_slice_rows(state.messages, options.connections),
                )
        cut = Cut(position)
        groups = grouped(slices, options.connections)
        # Without any partition Spark has one of its own read.
        return [SlicesPartition(group, cut) for group in groups or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one partition."""
        return self._options.read(partition)


class StorenodeStreamReader(DataSourceStreamReader):
    """A reader of commits; an offset is ``{"position": N}``."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the offset after which the first batch begins."""
        return {"position": self._options.start}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much a batch holds at most."""
        return ReadMaxRows(self._options.max_rows)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return the offset at which the next batch ends."""
        rows = FOREVER if isinstance(limit, ReadAllAvailable) else self._options.max_rows
        with connected(self._options.url) as connection:
            return {"position": end_of_batch(connection, start["position"], rows)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Plan the same tasks for the same offsets, as long as retention has dropped nothing."""
        low, high = start["position"], end["position"]
        if low >= high:
            return []
        with connected(self._options.url) as connection:
            spans = spans_between(connection, low, high)
        cut = Cut(high, start=low)
        return [SlicesPartition(group, cut) for group in grouped(spans, self._options.connections)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one partition."""
        return self._options.read(partition)


def read_options(url: str, **options: Any) -> dict[str, str]:  # noqa: ANN401 - shown as text
    """Return options for `spark.read` without those that are None."""
    return {
        name: str(value) for name, value in {"url": url, **options}.items() if value is not None
    }
