"""Messages that others ask for, that have left memory, and that the application may still have.

Eight a second at most are recalled, whatever is asked for: a participant asks for three a second.
"""

from __future__ import annotations

from storenode.sds.limits import MAX_PENDING_RECALLS, MAX_RECALLED_AT_ONCE, RECALL_EVERY_MS


class Recalls:
    """IDs of messages to recall, by when their answer is due."""

    __slots__ = ("_next_ms", "due")

    def __init__(self) -> None:
        self.due: dict[str, int] = {}
        self._next_ms = 0

    def add(self, message_id: str, due_ms: int) -> bool:
        """Have a message recalled later; False when too many wait for that."""
        if len(self.due) >= MAX_PENDING_RECALLS:
            return False
        self.due[message_id] = due_ms
        return True

    def take(self, now_ms: int) -> tuple[str, ...]:
        """Return what is to be recalled now, the longest due first."""
        if not self.due or now_ms < self._next_ms:
            return ()
        due = sorted((at, key) for key, at in self.due.items() if at <= now_ms)
        taken = tuple(key for _, key in due[:MAX_RECALLED_AT_ONCE])
        for message_id in taken:
            del self.due[message_id]
        if taken:
            self._next_ms = now_ms + RECALL_EVERY_MS
        return taken

    def next_due_ms(self) -> int | None:
        """Return when something is to be recalled next."""
        return max(min(self.due.values()), self._next_ms) if self.due else None
