"""What `storenode db sizes` prints for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from store.db.maintenance.sizes import Column, Part, Sizes
from storenode.cli.options.units import format_size

_MIN_SHARE: Final = 0.01
"""Tables that take less are one line for people; JSON has all parts of all tables."""

_LEFT: Final = 2
"""Columns of a table that are text; the others are numbers."""


def lines_of(sizes: Sizes) -> Iterator[str]:
    """A table of all files, then the columns of the rows, then what is beside the store."""
    yield f"{sizes.messages:,} messages in {format_size(sizes.total_bytes)}"
    yield ""
    table = [("table", "part", "size", "share", "bytes per message"), *_rows_of(sizes)]
    yield from aligned(table, _LEFT)
    if sizes.columns:
        yield ""
        yield "Mean bytes of the columns of a row, in a sample:"
        yield from _columns_of(sizes.columns)
    yield ""
    yield f"System catalogs: {format_size(sizes.catalog_bytes)}."
    if sizes.log_bytes is not None:
        yield f"Write-ahead log of the whole server at present: {format_size(sizes.log_bytes)}."


def _rows_of(sizes: Sizes) -> Iterator[tuple[str, ...]]:
    for name, group in groupby(sizes.parts, attrgetter("table")):
        parts = list(group)
        yield name, "", *_numbers(sum(map(attrgetter("size_bytes"), parts)), sizes)
        if sum(map(attrgetter("size_bytes"), parts)) >= _MIN_SHARE * sizes.total_bytes:
            for part in parts:
                yield "", _named(part), *_numbers(part.size_bytes, sizes)
    yield "all", "", *_numbers(sizes.total_bytes, sizes)


def _named(part: Part) -> str:
    plain = {"": "rows", "out of line": "rows, out of line", "maps": "maps of free space"}
    return plain.get(part.part, f"index {part.part}")


def _numbers(size_bytes: int, sizes: Sizes) -> tuple[str, str, str]:
    share = size_bytes / sizes.total_bytes if sizes.total_bytes else 0.0
    mean = f"{size_bytes / sizes.messages:,.1f}" if sizes.messages else "-"
    return format_size(size_bytes), f"{share:.1%}", mean


def _columns_of(columns: Sequence[Column]) -> Iterator[str]:
    for name, group in groupby(columns, attrgetter("table")):
        said = ", ".join(f"{each.column} {each.mean_bytes:,.0f}" for each in group)
        yield f"  {name}: {said}"


def aligned(rows: Sequence[Sequence[str]], left: int) -> Iterator[str]:
    """Lines of a table; so many columns are text, and the others numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
