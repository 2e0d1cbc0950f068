"""The lines and tables that the demo prints."""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from chaos.demo.cluster import WAYS
from storenode.message.text import printable_lines

LEGEND: Final = (
    ("SDS message", "a line of a conversation, with the IDs of its parents"),
    ("parent", "a message that the sender of this one saw last"),
    ("missing", "named as a parent, and not here; what names it waits"),
    ("store node", "n1 to n3: keeps every message, and serves it to those who lack it"),
    ("gossip", "store nodes announce new messages to each other at once"),
    ("sync", "reconciliation: two store nodes compare, and send the differences"),
    ("resume", "a store node that was down reads what it missed from another"),
    ("SDS-Repair", "a participant sends again what no store node has"),
)
"""Words of the output, at most 76 columns with their meaning."""

_MIN_COLUMNS: Final = 80
_GOOD, _BAD, _FAINT = "green", "bold red", "dim"


@dataclass(frozen=True, slots=True)
class Incident:
    """The messages that a node lacked when a fault ended, and how it recovered them.

    ``ways`` counts what the node stored from then on, new messages included, by source.
    """

    node: str
    what: str
    lacked: int
    ways: Counter[str]
    seconds: float
    is_whole: bool


class SafeConsole(Console):
    """A console that escapes control characters, and raises when the output is no longer read."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render without the control characters of a text, most of which the library lets pass."""
        for each in super().render(renderable, options):
            yield each if each.control else each._replace(text=printable_lines(each.text))

    def on_broken_pipe(self) -> None:
        """Raise, where the library would exit past everything that must be ended first."""
        raise BrokenPipeError(errno.EPIPE, "nobody reads the output")


class ConsoleReport:
    """The output of one run, line by line."""

    def __init__(self, *, no_color: bool = False, console: Console | None = None) -> None:
        self._console = console or SafeConsole(highlight=False, no_color=no_color or None)
        self._began_s = time.monotonic()

    def legend(self) -> None:
        """Print what the words mean."""
        table = Table.grid(padding=(0, 2, 0, 0))
        for word, meaning in LEGEND:
            table.add_row(Text(word, "bold"), Text(meaning))
        self._print(table)

    def chapter(self, text: str) -> None:
        """Print the heading of a phase."""
        self._line(text, "bold")

    def line(self, text: str, style: str = "") -> None:
        """Print something that happened."""
        self._line(f"  {text}", style)

    def incidents(self, incidents: Iterable[Incident]) -> None:
        """Print what the nodes lacked when a fault ended, and how it came back."""
        heads = ("lacked", "gossip", "sync", "resume", "took")
        table = _table("node", "what", *(f">{head}" for head in heads), "all back")
        for each in incidents:
            table.add_row(
                Text(each.node),
                Text(each.what),
                _number(each.lacked),
                *(_number(each.ways[way]) for way in WAYS),
                Text(f"{each.seconds:.1f} s"),
                Text("yes", _GOOD) if each.is_whole else Text("no", _BAD),
            )
        self._print(Text("What the nodes lacked when a fault ended, and how it came back", "bold"))
        self._print(table)
        self._print(Text("Messages that were new meanwhile are counted too.\n", _FAINT))

    def recoveries(self, ways: Counter[str], gone: int) -> None:
        """Print how the participants got what their links lost or others named."""
        table = _table("came by", ">lines")
        for way, count in ways.most_common():
            table.add_row(Text(way), _number(count))
        table.add_row(Text("not at all"), _number(gone))
        self._print(Text("How participants got the lines that they missed", "bold"))
        self._print(table)
        self._print(Text())

    def failure(
        self, violations: Iterable[str], given_up: Iterable[str], *, is_late: bool = False
    ) -> None:
        """Print what differs, and which waits were given up."""
        reason = "The demo ran out of time" if is_late else "Nothing changed any more"
        for title, sentences in (
            ("Not everything is everywhere:", violations),
            (f"{reason}; these waits were given up:", given_up),
        ):
            for number, sentence in enumerate(sentences):
                if not number:
                    self._print(Text(title, _BAD))
                self._print(Text(f"  {sentence}", _BAD))

    def success(self, *sentences: str) -> None:
        """Print what was found to be equal."""
        for sentence in sentences:
            self._print(Text(sentence, _GOOD))

    def _line(self, text: str, style: str) -> None:
        line = Text(f"{time.monotonic() - self._began_s:6.1f} s  ", _FAINT)
        self._console.print(line.append(text, style), soft_wrap=True)

    def _print(self, part: RenderableType) -> None:
        # A table that is squeezed loses digits; one that the terminal wraps has them all.
        width = self._console.width
        self._console.width = max(width, _MIN_COLUMNS)
        self._console.print(part)
        self._console.width = width


def _table(*heads: str) -> Table:
    """Return a table without lines; a head that begins with ``>`` is over numbers."""
    columns = [
        Column(
            head.removeprefix(">"),
            justify="right" if head.startswith(">") else "left",
            no_wrap=True,
            header_style=_FAINT,
        )
        for head in heads
    ]
    return Table(*columns, box=None, padding=(0, 2, 0, 0), pad_edge=False)


def _number(value: int) -> Text:
    return Text(f"{value:,}" if value else "-", "" if value else _FAINT)
