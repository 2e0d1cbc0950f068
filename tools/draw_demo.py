"""Draw docs/images/demo.svg: a real run of the demo, until its gap has healed."""

from __future__ import annotations

import argparse
import asyncio
import io
import re
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from rich.console import Console

from store.demo.report import ConsoleReport
from store.demo.run import run
from store.demo.story import SCRIPT, Plan

_ROOT: Final = Path(__file__).resolve().parents[1]
_COLUMNS: Final = 92
_FETCHED: Final = re.compile(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", re.DOTALL)


class _FirstLines(ConsoleReport):
    """A report that ends the run after the conversation."""

    def line(self, text: str, style: str = "") -> None:
        """Print a line, and end the run after the last one of the script."""
        super().line(text, style)
        if SCRIPT[-1][1] in text:
            signal.raise_signal(signal.SIGINT)


def main() -> None:
    """Run the demo, faster than usual, and write the drawing in the fonts that its reader has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", type=Path, default=_ROOT / "docs/images/demo.svg")
    target: Path = parser.parse_args().target
    console = Console(
        record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False
    )
    with tempfile.TemporaryDirectory(prefix="storenode-demo-") as directory:
        plan = Plan(Path(directory), 2.0, 120.0, 600.0, frozenset())
        with suppress(asyncio.CancelledError):
            asyncio.run(run(plan, _FirstLines(console=console)))
    drawing = _FETCHED.sub("", console.export_svg(title="storenode demo", unique_id="demo"))
    target.write_text(drawing, encoding="utf-8")


if __name__ == "__main__":
    main()
