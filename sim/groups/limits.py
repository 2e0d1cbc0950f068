"""Bounds of a run of a group: what a participant may keep, and how long anything may take."""

from typing import Final

MAX_GROUP: Final = 10_000
"""Participants of one group."""

MAX_GROUP_EVENTS: Final = 20_000_000
"""In one run; more means that something goes round in circles."""

CHECK_EVERY_EVENTS: Final = 512
"""After so many events the whole state of one participant is checked, of each in its turn."""
