"""Which rows of a transcript are on the screen: the newest, or where the user has scrolled to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prompt_toolkit.formatted_text import StyleAndTextTuples

from storenode.cli.chat.layout import laid_out, separator
from storenode.cli.chat.people import day_of
from storenode.cli.chat.transcript import Kind, Line, Mark, Transcript

Row = StyleAndTextTuples


@dataclass(frozen=True, slots=True)
class _LaidOut:
    """Rows of a line, and what they were made for."""

    width: int
    mark: Mark
    day: str
    rows: list[Row]


class View:
    """A window of rows over a transcript.

    While it is scrolled back, its last row stays the same whatever comes.
    """

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._laid_out: dict[Line, _LaidOut] = {}
        self._anchor: tuple[Line, int] | None = None
        self._size = 1, 1

    @property
    def scrolled(self) -> bool:
        """Whether the newest row is not shown."""
        return self._anchor is not None

    @property
    def below(self) -> int:
        """Messages and remarks below the window."""
        if self._anchor is None:
            return 0
        lines = self._transcript.lines
        return len(lines) - 1 - self._index(lines, self._anchor[0])

    def rows(self, width: int, height: int) -> list[Row]:
        """The rows of the window, as many as there are."""
        self._size = width, height
        self._forget()
        found = [row for _, _, row in self._upwards(height)]
        return found[::-1]

    def up(self, count: int) -> None:
        """Scroll back, at most to the first row."""
        _, height = self._size
        places = [(line, at) for line, at, _ in self._upwards(count + height)]
        if len(places) > height:
            self._anchor = places[len(places) - height]

    def down(self, count: int) -> None:
        """Scroll towards the newest row."""
        if self._anchor is None:
            return
        line, at = self._anchor
        lines = self._transcript.lines
        number = self._index(lines, line)
        at += count
        while number < len(lines) and at >= (high := len(self._rows(lines, number))):
            at -= high
            number += 1
        last = number >= len(lines) - 1 and (number >= len(lines) or self._at_end(number, at))
        self._anchor = None if last else (lines[number], at)

    def end(self) -> None:
        """Go to the newest row."""
        self._anchor = None

    def _at_end(self, number: int, at: int) -> bool:
        return at >= len(self._rows(self._transcript.lines, number)) - 1

    def _upwards(self, count: int) -> Iterator[tuple[Line, int, Row]]:
        """Rows from the last of the window on upwards, with the line and row that they are."""
        lines = self._transcript.lines
        number = len(lines) - 1
        below: int | None = None
        if self._anchor is not None:
            number, below = self._index(lines, self._anchor[0]), self._anchor[1]
        while number >= 0 and count > 0:
            rows = self._rows(lines, number)
            last = len(rows) - 1 if below is None else min(below, len(rows) - 1)
            for at in range(last, max(last - count, -1), -1):
                yield lines[number], at, rows[at]
            count -= last + 1
            number, below = number - 1, None

    def _rows(self, lines: list[Line], number: int) -> list[Row]:
        line, (width, _) = lines[number], self._size
        day = _new_day(lines, number)
        known = self._laid_out.get(line)
        if known is None or (known.width, known.mark, known.day) != (width, line.mark, day):
            rows = laid_out(line, width)
            rows = [separator(day, width), *rows] if day else rows
            known = self._laid_out[line] = _LaidOut(width, line.mark, day, rows)
        return known.rows

    def _index(self, lines: list[Line], line: Line) -> int:
        """Where a line is; 0 when it has made room for others."""
        return lines.index(line) if line in lines else 0

    def _forget(self) -> None:
        if len(self._laid_out) > 2 * len(self._transcript.lines):
            self._laid_out = {
                line: known
                for line in self._transcript.lines
                if (known := self._laid_out.get(line)) is not None
            }


def _new_day(lines: list[Line], number: int) -> str:
    """The day of a message, if the one before it was said on another."""
    line = lines[number]
    if line.kind is not Kind.MESSAGE:
        return ""
    day = day_of(line.when_ms)
    before = next((each for each in reversed(lines[:number]) if each.kind is Kind.MESSAGE), None)
    return day if before is None or day_of(before.when_ms) != day else ""
