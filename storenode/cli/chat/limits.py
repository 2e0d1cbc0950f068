"""Limits of the chat."""

from typing import Final

MAX_SHOWN_LINES: Final = 500
"""Lines that are kept to be shown; older ones can be had from the log."""

MAX_TEXT_CHARS: Final = 2_000
"""What is shown of one message."""

CATCH_UP_TIMEOUT_S: Final = 5.0
"""How long lines of a pipe wait for what was said before."""

LEAVE_TIMEOUT_S: Final = 20.0
"""How long the end of the input waits for what is still on its way."""

REFRESH_S: Final = 0.5
"""How often the line of the status is drawn at least."""

FILTER_IDS: Final = 500
FILTER_ERROR_RATE: Final = 0.01
"""The filter of a chat: 632 bytes in each message. The same for everybody."""
