"""The status of a participant, which an application can show at any time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a participant in its channel.

    - ``node``: whose feed is read; None while offline.
    - ``live``: the feed's backlog, and the scan of what was missed, are through.
    - ``missing``: causes that are known by name only; ``waiting``: messages that wait for them.
    - ``lost``: causes that were given up.
    - ``unreadable``: packets, ever, that could not be decoded, so that what they hold was not
      delivered; one that comes again counts again. `Refused` events say what is wrong with them.
    - ``behind``: the least number of messages that a peer's filter proves and no history names.
    - ``incomparable``: peers whose newest filter cannot show that we lack something.
    - ``unpublished``: own messages that no node holds; ``unacknowledged``: by no participant.
    - ``trouble``: the last failure of a node or of the state, while it lasts.
    """

    node: str | None = None
    live: bool = False
    missing: int = 0
    waiting: int = 0
    lost: int = 0
    unreadable: int = 0
    behind: int = 0
    incomparable: int = 0
    unpublished: int = 0
    unacknowledged: int = 0
    trouble: str = ""

    @property
    def synced(self) -> bool:
        """True if all that the feed's node stores was delivered, with its causes.

        Messages of others beyond that are counted by ``behind``, and undecodable ones by
        ``unreadable``.
        """
        return self.node is not None and self.live and not self.missing and not self.waiting

    def __str__(self) -> str:
        parts = (
            (self.behind, "behind others by {:,} or more"),
            (self.incomparable, "{:,} with filters that cannot be compared"),
            (self.lost, "{:,} lost"),
            (self.unreadable, "{:,} unreadable"),
            (self.unpublished, "{:,} not sent"),
        )
        return ", ".join([self._state(), *(text.format(count) for count, text in parts if count)])

    def _state(self) -> str:
        if self.node is None:
            return "offline"
        if self.missing or self.waiting:
            return f"{max(self.missing, 1):,} missing"
        return "synced" if self.live else "catching up"
