"""Limits of the chat."""

from typing import Final

MAX_SHOWN_LINES: Final = 500
"""Messages and remarks that are kept to be shown; older ones can be had from the log."""

MAX_TEXT_CHARS: Final = 64_000
MAX_TEXT_ROWS: Final = 1_000
"""What is shown of one message; how much is left out is said."""

MAX_TAG_CHARS: Final = 8
"""Invisible characters after a black flag, which make it the flag of a region."""

MAX_PEOPLE: Final = 500
"""Participants that are remembered; the one that was silent longest makes room."""

MAX_LISTED: Final = 20
"""Names or messages that one command lists; how many more there are is said."""

MAX_MARKED_LINES: Final = 3
"""Own lines whose marks are above the prompt."""

MAX_FORGED: Final = 100
"""Forged messages that /forged can list; the oldest makes room."""

MAX_QUOTED_CHARS: Final = 200
"""What a warning repeats of a forged message."""

FAR_UP_ENTRIES: Final = 10
"""A late message that is put so far up, or further, is pointed out."""

MAX_REPORTED_IDS: Final = 10_000
"""Missing messages that are remembered as reported; past it some may be reported again."""

AWAY_S: Final = 60.0
"""Without a key for so long, the user is taken not to read what comes."""

CATCH_UP_TIMEOUT_S: Final = 5.0
"""How long lines of a pipe wait for what was said before."""

CONNECT_TIMEOUT_S: Final = 3.0
"""How long lines of a pipe wait for a node while none is reachable."""

LEAVE_TIMEOUT_S: Final = 20.0
"""How long the end of the input waits for what is still on its way."""

REFRESH_S: Final = 0.5
"""How often the line of the status is drawn at least."""
