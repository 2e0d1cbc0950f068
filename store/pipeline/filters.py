"""Conditions on columns that Spark hands to the data source, on whole Arrow columns.

Pure: what a condition says of a range of time, of a file's directory and of a row group's least and
greatest values keeps files and parts of them from being read; what is read is filtered exactly, so
that Spark need not look again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from store.pipeline.columns import SOURCE
from store.pipeline.database import FOREVER
from store.pipeline.decode import shard_of
from store.pipeline.limits import DAY_NS

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_US_NS: Final = 1_000
_MAX_VALUES: Final = 10_000
"""Values of one condition; a longer list is left to Spark."""

_COMPARED: Final[dict[type[Filter], str]] = {
    EqualTo: "=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    StringStartsWith: "starts with",
}
_LOOK: Final[dict[str, Callable[[pa.Array, pa.Scalar], pa.Array]]] = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_TEXT: Final = (pa.string(), pa.binary())


@dataclass(frozen=True, slots=True)
class Condition:
    """What a column must be: ``values`` are of its type, as Python has them."""

    name: str
    op: str
    values: tuple[Any, ...] = ()

    def holds(self, rows: pa.RecordBatch) -> pa.Array:
        """Of which rows it is true; null counts as false."""
        column = rows[self.name]
        if self.op == "null":
            return column.is_null()
        if self.op == "not null":
            return column.is_valid()
        if self.op == "starts with":
            return pc.starts_with(column, self.values[0])
        kind = SOURCE.field(self.name).type
        if self.op == "in":
            return pc.is_in(column, pa.array(self.values, kind))
        return _LOOK[self.op](column, pa.scalar(self.values[0], kind))

    def may_hold(self, low: Any, high: Any) -> bool:  # noqa: ANN401 - of the column's type
        """Whether it can be true of a value between two, both included."""
        if self.op in {"=", "in"}:
            return any(low <= each <= high for each in self.values)
        if self.op == "<":
            return bool(low < self.values[0])
        if self.op == "<=":
            return bool(low <= self.values[0])
        if self.op == ">":
            return bool(high > self.values[0])
        if self.op == ">=":
            return bool(high >= self.values[0])
        return True

    def times(self) -> tuple[int, int]:
        """The range of time that it leaves, in nanoseconds, the end exclusive."""
        width = {"ts": 1, "timestamp": _US_NS, "day": DAY_NS}.get(self.name)
        if width is None or self.op not in {"=", "in", *_LOOK}:
            return 0, FOREVER
        starts = [_ns(self.name, each) for each in self.values]
        low, high = min(starts, default=0), max(starts, default=-1)
        return {
            "<": (0, low),
            "<=": (0, low + width),
            ">": (high + width, FOREVER),
            ">=": (high, FOREVER),
        }.get(self.op, (low, high + width))

    def shards(self) -> set[int] | None:
        """The directories that messages can be in of which it is true; None: any."""
        if self.op not in {"=", "in"} or self.name not in {"shard", "pubsub_topic"}:
            return None
        return {each if self.name == "shard" else shard_of(each) for each in self.values}


@dataclass(slots=True)
class Conditions:
    """Conditions that must all be true."""

    held: list[Condition] = field(default_factory=list)

    def push(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Take over what can be judged here; the rest comes back."""
        for each in filters:
            condition = condition_of(each)
            if condition is None:
                yield each
            else:
                self.held.append(condition)

    @property
    def names(self) -> set[str]:
        """The columns that must be read for them."""
        return {each.name for each in self.held}

    def times(self) -> tuple[int, int]:
        """The range of time that they leave, in nanoseconds, the end exclusive."""
        ranges = [each.times() for each in self.held] or [(0, FOREVER)]
        return max(low for low, _ in ranges), min(high for _, high in ranges)

    def wants(self, shard: int) -> bool:
        """Whether messages of a directory can be wanted."""
        wanted = [each.shards() for each in self.held]
        return all(shards is None or shard in shards for shards in wanted)

    def may_hold(self, part: pq.RowGroupMetaData) -> bool:
        """Whether a row group can hold a wanted message, by its own statistics."""
        columns = {
            part.column(place).path_in_schema: part.column(place)
            for place in range(part.num_columns)
        }
        for each in self.held:
            told = columns[each.name].statistics if each.name in columns else None
            if told is not None and told.has_min_max and not each.may_hold(told.min, told.max):
                return False
        return True

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of which all are true."""
        for each in self.held:
            rows = rows.filter(each.holds(rows))
        return rows


@dataclass(frozen=True, slots=True)
class Wanted:
    """Columns of `store.pipeline.columns.SOURCE`, of the messages that conditions are true of.

    ``schema`` is as Spark expects it: a column may be nullable that never is null.
    """

    schema: pa.Schema
    conditions: Conditions

    @property
    def names(self) -> list[str]:
        """The columns, in order."""
        return list(self.schema.names)

    @property
    def read(self) -> tuple[str, ...]:
        """The columns to read for that; ``timestamp`` is made of ``ts``."""
        needed = {*self.names, *self.conditions.names}
        if "timestamp" in needed:
            needed = needed - {"timestamp"} | {"ts"}
        return tuple(name for name in SOURCE.names if name in needed)

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """What is wanted of rows with all columns of ``read``."""
        if "timestamp" in {*self.names, *self.conditions.names}:
            micros = pc.divide(rows["ts"], _US_NS).cast(SOURCE.field("timestamp").type)
            rows = rows.append_column("timestamp", micros)
        found = self.conditions.of(rows)
        columns = [found[name] for name in self.names]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def condition_of(given: Filter) -> Condition | None:
    """A filter of Spark, if it is one on a plain column and its values are of the column's type."""
    path: tuple[str, ...] = getattr(given, "attribute", ())
    name = path[0] if len(path) == 1 else ""
    if name not in SOURCE.names or pa.types.is_nested(SOURCE.field(name).type):
        return None
    if isinstance(given, IsNull | IsNotNull):
        return Condition(name, "null" if isinstance(given, IsNull) else "not null")
    op = _COMPARED.get(type(given))
    values = given.value if isinstance(given, In) else (getattr(given, "value", None),)
    op = "in" if isinstance(given, In) else op
    if op is None or not 0 < len(values) <= _MAX_VALUES:
        return None
    found = [_value(name, each) for each in values if each is not None]
    if not found or None in found or (op == "starts with" and SOURCE.field(name).type not in _TEXT):
        return None
    return Condition(name, op, tuple(found))


def _value(name: str, value: Any) -> Any:  # noqa: ANN401 - whatever Spark hands over
    """A value of the column's type; None: it is none."""
    if isinstance(value, bytearray):
        value = bytes(value)
    if isinstance(value, datetime) and value.tzinfo is None:
        return None
    try:
        scalar = pa.scalar(value, SOURCE.field(name).type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return scalar.as_py()


def _ns(name: str, value: Any) -> int:  # noqa: ANN401 - of the column's type
    if name == "day":
        assert isinstance(value, date)
        return (value - date(1970, 1, 1)).days * DAY_NS
    if name == "timestamp":
        return int(pa.scalar(value, SOURCE.field(name).type).value) * _US_NS
    return int(value)
