"""Draw docs/images/demo.svg: the screen of a real run of the demo, when its gap has healed."""

from __future__ import annotations

import argparse
import asyncio
import io
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console, RenderableType

from store.demo.run import run
from store.demo.scene import Scene
from store.demo.story import Plan
from store.demo.views import MIN_COLUMNS, MIN_ROWS, picture

_ROOT: Final = Path(__file__).resolve().parents[1]
_LOOK_EVERY_S: Final = 0.1
_FETCHED: Final = re.compile(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", re.DOTALL)


class _Camera:
    """A view that keeps one picture of the run."""

    def __init__(self) -> None:
        self.drawing = ""

    @contextmanager
    def showing(self, scene: Scene) -> Iterator[None]:
        """Show nothing."""
        del scene
        yield

    async def run(self, scene: Scene) -> None:
        """Take the picture when the gap has healed and the whole conversation is there."""
        while not self.drawing:
            talk = scene.conversation
            if talk is not None and talk.gap is not None and talk.whole:
                self.drawing = drawn(picture(scene, MIN_COLUMNS, MIN_ROWS))
            await asyncio.sleep(_LOOK_EVERY_S)

    def conclude(self, parts: Iterable[RenderableType]) -> None:
        """Print nothing."""
        del parts


def drawn(screen: RenderableType) -> str:
    """Return a screen as SVG, in the fonts that its reader has: none is fetched."""
    console = Console(
        record=True, width=MIN_COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False
    )
    console.print(screen)
    return _FETCHED.sub("", console.export_svg(title="storenode demo", unique_id="demo"))


def main() -> None:
    """Run the demo, faster than usual, and write the drawing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", type=Path, default=_ROOT / "docs/images/demo.svg")
    target: Path = parser.parse_args().target
    camera = _Camera()
    with tempfile.TemporaryDirectory(prefix="storenode-demo-") as directory:
        plan = Plan(Path(directory), 2.0, 20.0, 110.0, frozenset())
        asyncio.run(run(plan, camera))
    target.write_text(camera.drawing, encoding="utf-8")


if __name__ == "__main__":
    main()
