"""How long the demo's phases are, how much is said in them, and how long it waits for anything."""

from typing import Final

READY_PATIENCE_S: Final = 60.0
"""How long a node may take to start: on a busy machine several make their databases at once."""

STOP_PATIENCE_S: Final = 20.0
"""How long a node may take to stop before it is killed."""

CALL_TIMEOUT_S: Final = 20.0
"""How long one answer of a node may take."""

LINE_S: Final = 1.2
"""Pause between two lines of the conversation that is shown."""

GAP_S: Final = 2.0
"""How long its reader's link loses every copy of the lost line: long enough to see the gap."""

READ_S: Final = 4.0
"""How long it stays on the screen once it is whole."""

TALK_S: Final = 10.0
PARTITION_S: Final = 14.0
OUTAGE_S: Final = 8.0
"""Lengths of the phases at pace 1."""

ROAM_AFTER: Final = 0.4
"""The share of the partition after which a participant leaves the side that is cut off."""

SAY_EVERY_S: Final = 0.06
"""Mean pause between two lines of the conversation, of all channels together."""

READINGS_PER_S: Final = 150
"""Messages without SDS that a device publishes all the time, beside the conversations."""

READING_BYTES: Final = 120
READINGS_PER_REQUEST: Final = 50

BURST_CUT_OFF: Final = 12_000
"""Readings that come at once while a node is cut off: more than the 8,192 that gossip announces to
a peer which joins, so that reconciliation has something to find."""

BURST_OUTAGE: Final = 10_000
"""Readings that come at once while a node is down."""

LOSS: Final = 0.2
"""The share of messages that a bad link loses."""

FILTER_IDS: Final = 1_000
FILTER_ERROR_RATE: Final = 0.01

WATCH_EVERY_S: Final = 1.0
"""How often metrics and statuses of the nodes are read."""

DRAW_EVERY_S: Final = 0.25
"""How often the screen is drawn."""

PLAIN_EVERY_S: Final = 5.0
"""How often the plain output says how everything is."""

LOG_TAIL_LINES: Final = 12
"""Lines of a failed node's log that are shown."""

MAX_LOG_TAIL_BYTES: Final = 16 * 1024
MAX_METRICS_BYTES: Final = 4 * 1024 * 1024
MAX_STORY_LINES: Final = 200
