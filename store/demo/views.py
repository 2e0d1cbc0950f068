"""How a run is shown while it goes on: on a screen that is drawn anew, or line by line."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from store.demo.cluster import NODES
from store.demo.conversation import SCRIPT
from store.demo.limits import DRAW_EVERY_S, PLAIN_EVERY_S
from store.demo.people import CAST
from store.demo.scene import Line, Scene
from store.demo.tables import (
    LEGEND,
    conversation_now,
    legend,
    legend_line,
    line_text,
    nodes_now,
    people_now,
    sessions_now,
    story_now,
)
from storenode.message.printing import printable_lines

MIN_COLUMNS: Final = 80
MIN_ROWS: Final = 24
_WIDE_COLUMNS: Final = 132
_TABLES_COLUMNS: Final = 74
_CONVERSATION_ROWS: Final = 1 + (1 + len(NODES)) + 1 + (1 + len(SCRIPT)) + 1 + len(LEGEND) + 1
_TAKEN_ROWS: Final = 1 + (1 + len(NODES)) + 2 + (1 + len(CAST)) + 1


class View(Protocol):
    """Shows a run until its context ends."""

    def showing(self, scene: Scene) -> AbstractContextManager[None]:
        """Show what happens from now on."""

    async def run(self, scene: Scene) -> None:
        """Show how everything is, again and again."""

    def conclude(self, parts: Iterable[RenderableType]) -> None:
        """Print the end, below what was on the terminal before."""


def has_screen(console: Console) -> bool:
    """Whether a screen can be drawn on."""
    return (
        console.is_terminal
        and not console.is_dumb_terminal
        and console.width >= MIN_COLUMNS
        and console.height >= MIN_ROWS
    )


def view(*, plain: bool) -> View:
    """A screen where there is a terminal for it, unless plain lines are asked for."""
    console = _Console(highlight=False)
    return Plain(console) if plain or not has_screen(console) else Screen(console)


class _Console(Console):
    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The library lets most control characters of a text through."""
        for each in super().render(renderable, options):
            yield each if each.control else each._replace(text=printable_lines(each.text))

    def on_broken_pipe(self) -> None:
        # The library would exit at once, past everything that must be ended first.
        raise BrokenPipeError(errno.EPIPE, "nobody reads the output")


class Screen:
    """The whole terminal, which is given back as it was."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, screen=True, auto_refresh=False, transient=True)

    @contextmanager
    def showing(self, scene: Scene) -> Iterator[None]:
        """See `View`."""
        with self._live:
            self.draw(scene)
            yield

    async def run(self, scene: Scene) -> None:
        """See `View`."""
        while True:
            self.draw(scene)
            await asyncio.sleep(DRAW_EVERY_S)

    def conclude(self, parts: Iterable[RenderableType]) -> None:
        """See `View`."""
        self._console.print(*parts, sep="\n")

    def draw(self, scene: Scene) -> None:
        """Show how everything is now."""
        screen = picture(scene, self._console.width, self._console.height)
        self._live.update(screen, refresh=True)


def picture(scene: Scene, width: int, rows: int) -> RenderableType:
    """The screen, on a terminal of so many columns and rows."""
    talk = scene.conversation
    if talk is not None and not talk.over:
        story = story_now(scene, rows - _CONVERSATION_ROWS)
        parts = (nodes_now(scene), Text(), conversation_now(talk), Text(), legend(), Text())
        return Group(_title(scene, width), *parts, story)
    words = legend_line(scene.elapsed_s)
    tables = Group(nodes_now(scene), sessions_now(scene), words, people_now(scene))
    if width < _WIDE_COLUMNS:
        story = story_now(scene, rows - _TAKEN_ROWS)
        return Group(_title(scene, width), tables, Text(), story)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=_TABLES_COLUMNS)
    grid.add_column(width=width - _TABLES_COLUMNS - 2, no_wrap=True, overflow="ellipsis")
    grid.add_row(tables, story_now(scene, rows - 2))
    return Group(_title(scene, width), grid)


class Plain:
    """Lines, for a pipe, a file, or a terminal that can not do more."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def showing(self, scene: Scene) -> Iterator[None]:
        """See `View`."""
        self._console.print(legend())
        scene.listeners.append(self._told)
        yield
        scene.listeners.remove(self._told)

    async def run(self, scene: Scene) -> None:
        """See `View`."""
        while True:
            await asyncio.sleep(PLAIN_EVERY_S)
            if scene.people is not None and any(person.here for person in scene.people):
                self._told(Line(scene.elapsed_s, _in_short(scene)))

    def conclude(self, parts: Iterable[RenderableType]) -> None:
        """See `View`."""
        width = self._console.width
        for part in parts:
            # A table that is squeezed loses digits; one that the terminal wraps has them all.
            self._console.width = max(width, MIN_COLUMNS) if isinstance(part, Table) else width
            self._console.print(part)

    def _told(self, line: Line) -> None:
        self._console.print(line_text(line.at_s, line.text, chapter=line.chapter), soft_wrap=True)


def _title(scene: Scene, width: int) -> Text:
    title = Text(f" {scene.chapter}", "reverse", no_wrap=True, overflow="ellipsis")
    clock = f"{scene.elapsed_s:.0f} s "
    title.truncate(width - len(clock) - 1)
    title.pad_right(width - len(clock) - len(title))
    return title.append(clock)


def _in_short(scene: Scene) -> str:
    assert scene.auditor is not None
    held = ", ".join(f"{name} {len(node.held):,}" for name, node in scene.auditor.nodes.items())
    here = [person for person in scene.people or () if person.here]
    synced = sum(person.look().synced for person in here)
    missing = sum(person.status.missing for person in here)
    return f"held: {held}; {synced} of {len(here)} synced, {missing:,} missing"
