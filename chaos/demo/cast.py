"""The participants of the demo: their channels, nodes and links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from storenode.sds.bloom import FilterShape
from storenode.sds.config import ChannelConfig, RepairConfig

SEND_EVERY_S: Final = 0.06
"""Mean pause between two lines of all channels together."""

LOSS: Final = 0.2
"""The share of messages that a bad link loses."""

_REPAIR: Final = RepairConfig(request_min_ms=500, request_max_ms=1_500, requests_per_message=16)


@dataclass(frozen=True, slots=True)
class Character:
    """A participant of the cast: the node that it reaches first, and whether its link is bad."""

    name: str
    channel_id: str
    home: str
    has_bad_link: bool = False

    def configure(self, *, repairs: bool) -> ChannelConfig:
        """Return a configuration with short intervals, with or without SDS-Repair."""
        return ChannelConfig(
            self.channel_id,
            self.name,
            filter=FilterShape(1_000, 0.01),
            history_entries=6,
            sync_min_ms=1_500,
            sync_max_ms=3_000,
            repair=_REPAIR if repairs else None,
        )


READER: Final = "bela"
"""The reader of the conversation of which her link loses a line."""

NEIGHBOUR: Final = "lena"
"""The sender behind the node that is cut off."""

ROAMER: Final = "kim"
"""The only reader of these lines, who then moves to the other side."""

LISTENER: Final = "joe"
"""The participant of the same channel on the other side."""

LEAVER: Final = "hugo"
"""The participant that leaves, and joins again on the same state."""

CAST: Final = (
    Character("ada", "atlas", "n1"),
    Character(READER, "atlas", "n2", has_bad_link=True),
    Character("cora", "atlas", "n3"),
    Character("dan", "birch", "n1", has_bad_link=True),
    Character("elsa", "birch", "n2"),
    Character("finn", "birch", "n3"),
    Character("gina", "cedar", "n1"),
    Character(LEAVER, "cedar", "n2"),
    Character("ines", "cedar", "n3", has_bad_link=True),
    Character(LISTENER, "delta", "n1"),
    Character(ROAMER, "delta", "n3"),
    Character(NEIGHBOUR, "delta", "n3"),
)
