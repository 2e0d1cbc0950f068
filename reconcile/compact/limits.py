"""Limits of the compact mode: what a peer can make grow."""

from typing import Final

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""One compact frame."""

MAX_FIRST_SLICES: Final = 64
"""Slices in the initiator's first frame."""

MAX_SLICES: Final = 65_536
"""Slices in the responder's answer."""

MAX_CELLS: Final = 1_048_576
"""Cells of one table, 8 MiB; about 900,000 differences."""

MAX_TABLES: Final = 3
"""Tables that one session may need."""

MAX_WINDOWS: Final = 128
"""Windows of one table."""

SIFTED_BYTES: Final = 4
"""Bytes of prints with which single differences are found: an ID that only seems to be one is then
as rare as other failures."""
