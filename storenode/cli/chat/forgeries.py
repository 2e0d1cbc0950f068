"""Messages whose ID is not theirs, and those that nothing proves, in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from storenode.cli.chat.limits import MAX_QUOTED_CHARS
from storenode.cli.chat.people import clock_of
from storenode.cli.chat.text import rows_of

if TYPE_CHECKING:
    from storenode.cli.chat.transcript import Line
    from storenode.sds.events import Forged

NOT_VERIFIED: Final = "(not verified)"
"""Below a message whose ID cannot be recomputed."""

MEANING: Final = (
    "Not verified: the ID of the line is not the hash of what it says, so somebody else may have "
    "made it. If the genuine line comes, it takes its place, and this one is shown as FORGED."
)


def rejected(event: Forged, genuine: Line | None) -> str:
    """A message came under the ID of another one."""
    quoted = _quoted(rows_of(event.content))
    which = "a line"
    if genuine is not None:
        which = f"the line of {genuine.sender} at {clock_of(genuine.when_ms)}"
    if event.certain:
        return f"FORGED: {quoted} came under the ID of {which}, and is not taken"
    return f"{quoted} came under the ID of {which}; which of the two is genuine cannot be told"


def replaced(forged: Line) -> str:
    """A line was shown whose ID is another message's."""
    rows = [row for row in forged.rows if row != NOT_VERIFIED]
    return f"FORGED: {_quoted(rows)} was not said by {forged.sender}: the genuine line follows"


def _quoted(rows: list[str]) -> str:
    text = " ".join(rows)
    cut = text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}…"
    return f'"{cut}"'
