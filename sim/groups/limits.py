"""Bounds of a run of a group: what a participant may keep, and how long anything may take."""

from typing import Final

MAX_GROUP: Final = 5_000
"""Participants of one group."""

MAX_GROUP_EVENTS: Final = 20_000_000
"""In one run; more means that something goes round in circles."""

CHECK_EVERY_EVENTS: Final = 512
"""After so many events the whole state of one participant is checked, of each in its turn."""

MAX_OUTBOX: Final = 64
"""Messages that wait to be published, past which only those are added that stores keep."""

MAX_QUESTS: Final = 256
"""Missing messages that one participant looks for; others are told to it again."""

MAX_LIVE: Final = 16
"""Messages that a store hands to a follower and does not keep; the oldest make room."""
