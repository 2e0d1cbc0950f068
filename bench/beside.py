"""Two participants beside two of `@waku/sds`, the JavaScript library, in one channel.

In virtual time they say 60 lines; 15 % of the broadcasts are lost, some come twice or late.
Reported are the logs that are complete 15 minutes later, of ours and of theirs, and ours that lack
something without knowing it. The baseline, in the same run, does not compare filters, and names
neither heads nor what peers lack. ``--messages`` is the number of runs of each case. Without Node
and npm there is nothing to measure.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from bench.support import options, report
from tests.integration.javascript.world import OURS, THEIRS, Case, Library, World, installed

LINES: Final = 60
EVERY_MS: Final = 2_000
SETTLE_MS: Final = 900_000
HISTORIES: Final = (2, 200)
WITHOUT_HELP: Final[dict[str, Any]] = {
    "behind_after_ms": None,
    "filter_every": 1,
    "gap_entries": 0,
    "name_heads": False,
}


def ended(library: Library, case: Case) -> World:
    """A run of a case."""
    world = World(library, case)
    world.talk(LINES, EVERY_MS)
    world.run(SETTLE_MS)
    return world


def counted(worlds: list[World]) -> dict[str, int]:
    """Complete logs, and silent holes, in all runs of a case."""
    return {
        "ours_complete": sum(world.whole(name) for world in worlds for name in OURS),
        "ours_with_a_silent_hole": sum(
            world.has_silent_hole(name) for world in worlds for name in OURS
        ),
        "theirs_complete": sum(world.whole(name) for world in worlds for name in THEIRS),
    }


def main() -> None:
    """Report each history of the library, with a store and without."""
    given = options(__doc__ or "", messages=5)
    if not all(map(shutil.which, ("node", "npm"))):
        return
    with tempfile.TemporaryDirectory(prefix="sds-beside-") as name:
        folder = installed(Path(name) / "participants")
        for history in HISTORIES:
            for with_store in (True, False):
                rows = {
                    prefix: counted(_runs(folder, given.messages, history, with_store, chosen))
                    for prefix, chosen in (("", {}), ("baseline_", WITHOUT_HELP))
                }
                figures = {
                    prefix + what: count
                    for prefix, row in rows.items()
                    for what, count in row.items()
                }
                logs = given.messages * len(OURS)
                report(
                    benchmark="sds beside",
                    history=history,
                    with_store=with_store,
                    logs=logs,
                    **figures,
                )


def _runs(
    folder: Path, count: int, history: int, with_store: bool, chosen: dict[str, Any]
) -> list[World]:
    worlds = []
    for seed in range(1, count + 1):
        library = Library(folder)
        try:
            worlds.append(ended(library, Case(seed, history, with_store, options=chosen)))
        finally:
            library.close()
    return worlds


if __name__ == "__main__":
    main()
