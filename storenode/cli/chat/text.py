"""Messages of strangers as rows of text: nothing moves the cursor, and emoji stay whole."""

from __future__ import annotations

import re
from typing import Final

from storenode.cli.chat.limits import MAX_TAG_CHARS, MAX_TEXT_CHARS, MAX_TEXT_ROWS
from storenode.cli.client.text import safe

_ROW_ENDS: Final = re.compile(r"\r\n|\r|\n")
_FLAG: Final = f"\U0001f3f4[\U000e0020-\U000e007e]{{1,{MAX_TAG_CHARS}}}\U000e007f"
_JOINED: Final = r"(?<=[^\x00-\x7f\s\u200c\u200d])[\u200c\u200d](?=[^\x00-\x7f\s\u200c\u200d])"
_INVISIBLE: Final = re.compile(f"({_FLAG}|{_JOINED})")
"""Characters without a picture of their own that belong to what is beside them: joiners between
two characters of a script or two emoji, and the letters of a region after a black flag."""

_TAB_COLUMNS: Final = 4


def rows_of(content: bytes) -> list[str]:
    """A message as rows that may be printed, at most 64,000 characters in 1,000 rows."""
    text = content.decode("utf-8", "replace")
    rows = _ROW_ENDS.split(text[:MAX_TEXT_CHARS].rstrip())
    shown = [_shown(row) for row in rows[:MAX_TEXT_ROWS]]
    left = [len(text) - MAX_TEXT_CHARS, len(rows) - MAX_TEXT_ROWS]
    said = [
        f"{count:,} more {noun}"
        for count, noun in zip(left, ("characters", "rows"), strict=True)
        if count > 0
    ]
    return [*shown, f"[{' and '.join(said)} not shown]"] if said else shown


def _shown(row: str) -> str:
    row = row.expandtabs(_TAB_COLUMNS)
    if row.isprintable():
        return row
    # Every second part is one that the pattern found.
    parts = _INVISIBLE.split(row)
    return "".join(part if at % 2 else safe(part) for at, part in enumerate(parts))
