"""Bounds of a run: what a simulated node may come to, and how long anything may take."""

from typing import Final

NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000

START_NS: Final = 1_763_625_600 * NS_PER_S
"""The beginning of every run: a day of 2025, at 8 o'clock."""

TRACE_TAIL_LINES: Final = 60
"""Lines that a failure shows."""

CHECK_EVERY_EVENTS: Final = 256
"""The number of events after which everything is checked that is not checked as it changes."""

COLLECT_AFTER_OBJECTS: Final = 500_000
"""The number of new objects that may wait for the garbage collector: nearly all live on. The usual
threshold takes a fifth of the time of a run, and half of that of a group of 10,000."""

MAX_FRAME_IDS: Final = 1_024
"""IDs in a frame of gossip."""

MAX_EVENTS: Final = 300_000
"""The limit of events in one run; more indicate an endless loop."""

MAX_LARGE_EVENTS: Final = 20_000_000
CHECK_EVERY_LARGE_EVENTS: Final = 1_024
"""The same in runs with gossip or with participants, of which one is checked at a time."""

MAX_WAITING_EVENTS: Final = 5_000
"""Timers and frames under way at one moment, of all nodes together."""

STREAM_WINDOW_FRAMES: Final = 4
"""Frames of one direction of a call that are not read yet."""

MAX_CALLS_PER_NODE: Final = 32
"""Calls of or to a node that are open at one moment."""

COMMITS_AT_ONCE: Final = 20
"""Commits that a feed reads at a time."""

MAX_COLD_VIEWS: Final = 5
"""Views of one node that read from its database at one moment: four, and the warm-up."""

CLOSING_ROUNDS: Final = 4
"""Payloads that an initiator may send in a session of two nodes that hold the same set: one, and a
few where their horizons differ."""

MAX_GROUP: Final = 10_000
"""Participants of one group."""
