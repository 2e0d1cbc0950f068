"""The screen of a real run at its smallest, held against what its reader's participant reports."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from store.demo.conversation import LOST, READER, SCRIPT
from store.demo.run import run
from store.demo.scene import Line, Scene
from store.demo.story import Plan
from store.demo.tap import Way
from store.demo.views import MIN_COLUMNS, MIN_ROWS, Screen, has_screen
from storenode.sds.aio.events import Message
from tests.integration.demo.test_demo import left_behind

PATIENCE_S = 200.0


class EnoughError(Exception):
    """The conversation is over, and with it the run."""


class Watched:
    """The screen of the demo until its conversation is over, and what the reader had then.

    The run goes on while the test reads the reader's log: everybody begins to talk. All had heard
    the whole script by then, so that what they say has its place in the log after it.
    """

    def __init__(self) -> None:
        self.file = io.StringIO()
        console = Console(
            file=self.file, width=MIN_COLUMNS, height=MIN_ROWS, force_terminal=True, highlight=False
        )
        assert has_screen(console)
        self._screen = Screen(console)
        self.log: list[Message] = []
        self.missed: set[str] = set()
        self.lost: set[str] = set()
        self.came: dict[str, Way] = {}

    @contextmanager
    def showing(self, scene: Scene) -> Iterator[None]:
        with self._screen.showing(scene):
            yield

    async def run(self, scene: Scene) -> None:
        over = asyncio.Event()

        def told(_: Line) -> None:
            # However late the next drawing by the clock is, each thing that happens is drawn.
            self._screen.draw(scene)
            if scene.conversation is not None and scene.conversation.over and not over.is_set():
                self._note(scene)
                over.set()

        scene.listeners.append(told)
        drawing = asyncio.create_task(self._screen.run(scene))
        try:
            await over.wait()
        finally:
            drawing.cancel()
        assert scene.people is not None
        self.log = (await scene.people[READER].log())[: len(SCRIPT)]
        raise EnoughError

    def _note(self, scene: Scene) -> None:
        assert scene.people is not None
        reader = scene.people[READER]
        self.missed = set(reader.missed)
        self.lost, self.came = set(reader.passage.lost), dict(reader.passage.came)

    def conclude(self, parts: Iterable[RenderableType]) -> None:
        raise AssertionError(list(parts))

    @property
    def frames(self) -> list[list[str]]:
        """What the terminal showed, one after the other."""
        body = self.file.getvalue().split("\x1b[?1049l")[0]
        return [
            re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frame).splitlines()
            for frame in body.split("\x1b[H")
        ]


@pytest.mark.timeout(PATIENCE_S + 20)
def test_the_screen_shows_a_gap_and_its_end_as_the_reader_had_them(tmp_path: Path) -> None:
    watched = Watched()
    plan = Plan(tmp_path / "run", 2.0, 60.0, PATIENCE_S, frozenset())
    plan.directory.mkdir()
    with pytest.raises(EnoughError):
        asyncio.run(run(plan, watched))

    said = [text for _, text in SCRIPT]
    assert [message.content.decode() for message in watched.log] == said
    lost = watched.log[LOST].message_id
    # Where the machine is slow, others may come out of order and be missing for a moment as well.
    assert watched.lost == {lost} <= watched.missed
    way = watched.came[lost]
    assert way not in {Way.LIVE, Way.SDS_REPAIR}

    frames = watched.frames
    assert max(map(len, frames)) <= MIN_ROWS
    assert max(len(line) for frame in frames for line in frame) <= MIN_COLUMNS
    came = re.compile(rf"{re.escape(said[LOST])}.*from a store node, by {way} *$")
    healed = next(at for at, frame in enumerate(frames) if any(map(came.search, frame)))
    gap = [frame for frame in frames[:healed] if any("missing for" in line for line in frame)]
    assert any(said[LOST - 1] in line for line in gap[-1])
    assert not any(said[LOST] in line for frame in gap for line in frame)
    assert not any("missing for" in line for line in frames[-1])
    assert left_behind(plan.directory) == [str(path) for path in plan.directory.iterdir()]
