"""Rows for a terminal: text is broken to its width, by what a terminal shows as one character.

Terminals disagree with one another, and with prompt_toolkit, on the width of an emoji that is made
of several characters. Such a cluster is drawn in one go, and the terminal's cursor is put where it
must be after it, so that the rest of the row is in its place everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.utils import get_cwidth
from wcwidth import iter_graphemes, wcswidth, wrap

from storenode.cli.chat.people import clock_of
from storenode.cli.chat.transcript import Kind, Line, Mark

RAW: Final = "[ZeroWidthEscape]"
DIM: Final = "fg:ansibrightblack"
_COLOURS: Final = (
    *("ansicyan", "ansigreen", "ansiyellow", "ansimagenta", "ansiblue", "ansibrightcyan"),
    *("ansibrightgreen", "ansibrightyellow", "ansibrightmagenta", "ansibrightblue"),
)
_STYLES: Final = {
    Kind.MESSAGE: "",
    Kind.REMARK: DIM,
    Kind.WARNING: "fg:ansired bold",
    Kind.UNREAD: "fg:ansired",
}
_MARK_STYLES: Final = {Mark.FAILED: "fg:ansired bold", Mark.ACKNOWLEDGED: "fg:ansigreen"}
_INDENT: Final = len("10:31 ✓ ")
_MIN_TEXT_COLUMNS: Final = 2


def colour_of(name: str) -> str:
    """The style of a name: the same one everywhere and always."""
    digest = blake2b(name.encode(), digest_size=1).digest()
    return f"fg:{_COLOURS[digest[0] % len(_COLOURS)]}"


def separator(text: str, width: int, style: str = DIM) -> StyleAndTextTuples:
    """A row with a text in the middle of a line."""
    return [(style, f" {text} ".center(width, "─"))]


def first_that_fits(texts: Sequence[str], columns: int) -> str:
    """The first text that a row has room for; when there is none, the last one, cut."""
    found = next((text for text in texts if wcswidth(text) <= columns), None)
    return found if found is not None else _broken(texts[-1], max(columns - 1, 1))[0] + "…"


def laid_out(line: Line, width: int) -> list[StyleAndTextTuples]:
    """A line of the transcript as rows of at most ``width`` columns."""
    if line.kind is Kind.UNREAD:
        return [separator("unread", width, _STYLES[line.kind])]
    head = f"{line.sender}: " if line.kind is Kind.MESSAGE else ""
    style = "bold" if line.mention else _STYLES[line.kind]
    columns = max(width - _INDENT, _MIN_TEXT_COLUMNS)
    parts = [
        part for row in (head + line.rows[0], *line.rows[1:]) for part in _broken(row, columns)
    ]
    rows: list[StyleAndTextTuples] = []
    for part in parts:
        # A name that is broken itself has no colour.
        name = line.sender if head and not rows and part.startswith(head.rstrip()) else ""
        row = [*_margin(line, first=not rows)]
        row += cells(name, _INDENT, f"{colour_of(line.sender)} bold")
        row += cells(part[len(name) :], _INDENT + get_cwidth(name), style)
        rows.append(row)
    return rows


def _broken(text: str, columns: int) -> list[str]:
    if text.isascii() and len(text) <= columns:
        return [text]
    return wrap(
        text,
        columns,
        control_codes="ignore",
        expand_tabs=False,
        replace_whitespace=False,
        break_on_hyphens=False,
        propagate_sgr=False,
    ) or [""]


def _margin(line: Line, *, first: bool) -> StyleAndTextTuples:
    if not first:
        return [("", " " * _INDENT)]
    if line.kind is not Kind.MESSAGE:
        return [(DIM, f"{clock_of(line.when_ms)} * ")]
    return [
        (DIM, f"{clock_of(line.when_ms)} "),
        (_MARK_STYLES.get(line.mark, DIM), f"{line.mark.value} "),
    ]


def cells(text: str, column: int, style: str) -> StyleAndTextTuples:
    """A text that begins at a column of the terminal, counted from 0, as fragments."""
    if text.isascii():
        return [(style, text)]
    shown: StyleAndTextTuples = []
    plain = after = ""
    for cluster in iter_graphemes(text):
        columns = max(wcswidth(cluster), 0)
        whole = columns == get_cwidth(cluster) or columns <= 0
        if whole and not after:
            plain += cluster
        elif whole:
            shown.append((f"{style} class:{after}", cluster))
            after = ""
        else:
            shown += [(style, plain)] if plain else []
            plain = ""
            after = _tag(cluster)
            shown += _cluster(cluster, column, columns, f"{style} class:{after}")
        column += columns
    shown += [(style, plain)] if plain else []
    # What follows is drawn anew together with the cluster, if only a blank that does not show.
    return [*shown, (f"{style} fg:ansidefault class:{after}", " ")] if after else shown


def _cluster(cluster: str, column: int, columns: int, style: str) -> StyleAndTextTuples:
    """One cell for the first character; the rest, and where to go on, before the next one."""
    first, rest = cluster[0], cluster[1:]
    resume = f"\x1b[{column + columns + 1}G"
    row: StyleAndTextTuples = [(RAW, f"\x1b[{columns}X"), (style, first), (RAW, rest + resume)]
    if get_cwidth(first) < columns:
        # This blank falls into the next cell, which is drawn after it.
        row += [(f"{style} fg:ansidefault", " "), (RAW, resume)]
    return row


def _tag(cluster: str) -> str:
    """A style without an effect: cells that belong to different clusters differ."""
    return "joined-" + "-".join(f"{ord(each):x}" for each in cluster)
