"""How much a causal walk reads in advance, and where: adapted to how much of it was used.

Two ways to read in advance. A *window* takes the channel's claims just before those read last: a
cheap row each, worth it while a good part is used. *Ahead* lets the database follow parents from
the keys that are needed: several times dearer, and nearly all of it is used. Windows come first
and grow; when two in a row were hardly used, or there is nothing more below, some rounds go
ahead; then a window is tried again, from the frontier on.
"""

from __future__ import annotations

from typing import Final

from store.domain.claims import Answer, Window
from store.domain.ports import SyncId

FIRST_CLAIMS: Final = 256
LARGEST_WINDOW_CLAIMS: Final = 4_096
MOST_AHEAD_CLAIMS: Final = 2_048
FEWEST_CLAIMS: Final = 64

WIDE_FRONTIER_KEYS: Final = 512
"""So many keys at a time make a read worth its while without anything in advance."""

LARGE_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Size of an answer beyond which the next one is made smaller."""

_GROWTH: Final = 4
_THIN_WINDOWS: Final = 2
_ROUNDS_AHEAD: Final = 16


class Pace:
    """What to read in advance at the next read."""

    def __init__(self) -> None:
        self._window_claims = FIRST_CLAIMS
        self._ahead_claims = FIRST_CLAIMS
        self._most_claims = LARGEST_WINDOW_CLAIMS
        self._below: SyncId | None = None  # where the next window begins; None: at the frontier
        self._thin = 0
        self._proven = False  # the last window was well used
        self._rounds_ahead = 0
        self._asked = 0
        self._asked_window = False
        self._taken = 0

    def plan(
        self, keys: int, newest: SyncId | None, taken: int, room: int
    ) -> tuple[Window | None, int]:
        """Choose a window, or a number of keys to go ahead, or neither.

        ``keys`` are needed now by children of which ``newest`` is the latest (None: by heads
        only); ``taken`` messages were taken so far and ``room`` more may be.
        """
        self._judge(taken - self._taken)
        self._taken, self._asked, self._asked_window = taken, 0, False
        if newest is None or not 0 < keys < WIDE_FRONTIER_KEYS or room <= 0:
            return None, 0
        most = max(FEWEST_CLAIMS, 2 * room)
        if self._rounds_ahead:
            self._rounds_ahead -= 1
            self._asked = min(self._ahead_claims, most)
            return None, self._asked
        self._asked, self._asked_window = min(self._window_claims, most), True
        following = 0
        if self._proven:
            following = min(_GROWTH * self._asked, self._most_claims, 2 * (room - self._asked))
        return Window(self._below or newest, self._asked, max(following, 0)), 0

    def note(self, answer: Answer, answer_bytes: int) -> None:
        """Learn from the answer how far the window came and how large claims are here."""
        if answer_bytes > LARGE_ANSWER_BYTES:
            self._window_claims = self._ahead_claims = FEWEST_CLAIMS
        if _GROWTH * answer_bytes > LARGE_ANSWER_BYTES:
            # As large as fits, and no attempt at more.
            fitting = LARGE_ANSWER_BYTES * len(answer.claims) // answer_bytes
            self._most_claims = min(max(fitting, FEWEST_CLAIMS), LARGEST_WINDOW_CLAIMS)
        if self._asked_window:
            self._below = answer.reached
            if answer.reached is None:
                self._go_ahead()

    def _judge(self, used: int) -> None:
        if not self._asked:
            return
        if self._asked_window:
            self._judge_window(used)
        elif 2 * used >= self._asked:
            self._ahead_claims = min(2 * self._ahead_claims, MOST_AHEAD_CLAIMS)
        else:
            self._ahead_claims = max(self._ahead_claims // 2, FEWEST_CLAIMS)

    def _judge_window(self, used: int) -> None:
        if 4 * used >= self._asked:
            self._thin, self._proven = 0, True
            self._window_claims = min(_GROWTH * self._window_claims, self._most_claims)
        elif 16 * used < self._asked:
            self._thin, self._proven = self._thin + 1, False
            self._window_claims = max(self._window_claims // 4, FIRST_CLAIMS)
            self._window_claims = min(self._window_claims, self._most_claims)
            if self._thin >= _THIN_WINDOWS:
                self._go_ahead()

    def _go_ahead(self) -> None:
        self._rounds_ahead = _ROUNDS_AHEAD
        self._below = None
        self._thin, self._proven = _THIN_WINDOWS - 1, False
