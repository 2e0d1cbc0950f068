"""Further pages of a report: all channels, and all topics, in the order of their names.

They are in a folder beside the report. A page has at most `PER_PAGE` rows, and so has a page of
links to others; there are as many layers of these as it takes for one page to lead to all. Only
`PER_PAGE` rows, and the links of one layer, are in memory at a time.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from pyspark.sql import DataFrame, Row

from store.pipeline.errors import PipelineError
from store.pipeline.figures import names
from store.pipeline.figures.limits import PER_PAGE
from store.pipeline.figures.rendering import rendered

T = TypeVar("T")
_TEMPLATE: Final = "listed.html"
_MODE: Final = 0o755
_SUFFIX: Final = "-pages"
_NONE: Final = "\N{EN DASH}"
PASTS: Final = ("missing", "incomplete", "point_ts")
"""Columns of a channel that an audit adds."""


@dataclass(frozen=True, slots=True)
class Link:
    """To a page: its file, the names of its first and its last row, and how many it leads to."""

    file: str
    first: tuple[str, ...]
    last: tuple[str, ...]
    rows: int


def folder_of(output: Path) -> Path:
    """Where the further pages of a report are."""
    return output.with_name(output.stem + _SUFFIX)


class Pages:
    """The further pages of one report, in a temporary folder until they are `published`.

    ``pasts``: `PASTS` by channel, of all channels; None: there was no audit.
    """

    def __init__(self, output: Path, pasts: DataFrame | None = None) -> None:
        self.pasts = pasts
        self.links: dict[str, str] = {}
        """From the report to the first page, by what is listed."""

        self._output = output
        self._folder: Path | None = None

    def __enter__(self) -> Pages:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what has not been published."""
        if self._folder is not None:
            shutil.rmtree(self._folder)

    def publish(self) -> Path | None:
        """Give the folder its name; None: there are no pages.

        Raises:
            PipelineError: that cannot be done.
        """
        if self._folder is None:
            return None
        with _writing(self._output):
            self._folder.chmod(_MODE)
            found = self._folder.rename(folder_of(self._output))
        self._folder = None
        return found

    def write(self, what: str, rows: Iterator[Row], keys: Sequence[str]) -> None:
        """Write pages of ``what`` there is; ``rows``, at least one, are in the order of ``keys``.

        Raises:
            PipelineError: they cannot be written.
        """
        layer = [self._page(what, number, some, keys) for number, some in _cut(rows)]
        depth = 0
        while depth == 0 or len(layer) > 1:
            depth += 1
            layer = [
                self._contents(what, depth, number, some) for number, some in _cut(iter(layer))
            ]
        folder, (top,) = self._made(), layer
        with _writing(self._output):
            first = (folder / top.file).rename(folder / f"{what}s.html")
        self.links[what] = f"./{quote(folder_of(self._output).name)}/{first.name}"

    def _made(self) -> Path:
        if self._folder is None:
            prefix = f".{self._output.name[:64]}-"
            with _writing(self._output):
                self._folder = Path(tempfile.mkdtemp(prefix=prefix, dir=self._output.parent))
        return self._folder

    def _page(self, what: str, number: int, rows: list[Row], keys: Sequence[str]) -> Link:
        audited = "missing" in rows[0]
        shown = [(_names(row, keys), _figures(row, audited=audited)) for row in rows]
        link = Link(_file(what, 0, number), shown[0][0], shown[-1][0], len(rows))
        self._render(what, link, {"rows": shown, "audited": audited, "links": None})
        return link

    def _contents(self, what: str, depth: int, number: int, links: list[Link]) -> Link:
        rows = sum(each.rows for each in links)
        link = Link(_file(what, depth, number), links[0].first, links[-1].last, rows)
        self._render(what, link, {"rows": None, "audited": False, "links": links})
        return link

    def _render(self, what: str, link: Link, context: dict[str, Any]) -> None:
        report = f"../{quote(self._output.name)}"
        given = {**context, "what": what, "link": link, "report": report, "names": names}
        folder, page = self._made(), rendered(_TEMPLATE, given)
        with _writing(self._output):
            (folder / link.file).write_text(page, encoding="utf-8")


def unwritable(output: Path, error: OSError) -> PipelineError:
    """The sentence for a report that cannot be written."""
    return PipelineError(f"The report could not be written to {output} ({error.strerror}).")


@contextmanager
def _writing(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritable(output, error) from error


def _file(what: str, depth: int, number: int) -> str:
    return f"{what}s-{depth}-{number + 1:06}.html"


def _names(row: Row, keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(names.shown(row[key]) for key in keys)


def _figures(row: Row, *, audited: bool) -> tuple[str, ...]:
    found = (f"{row['messages']:,}", names.size(row["bytes"]), names.time(row["last_ns"]))
    if not audited:
        return found
    if row["missing"] is None:
        return (*found, _NONE, _NONE, _NONE)
    upto = "nowhere" if row["point_ts"] is None else names.time(row["point_ts"])
    return (*found, upto, f"{row['missing']:,}", f"{row['incomplete']:,}")


def _cut(items: Iterator[T]) -> Iterator[tuple[int, list[T]]]:
    """Numbered parts of at most `PER_PAGE`."""
    parts = iter(lambda: list(islice(items, PER_PAGE)), [])
    return enumerate(parts)
