"""Durations and amounts of the demo."""

from typing import Final

READY_TIMEOUT_S: Final = 300.0
"""How long a node may take to start: on a busy machine several make their databases at once."""

STOP_TIMEOUT_S: Final = 20.0
"""How long a node may take to stop before it is killed."""

CALL_TIMEOUT_S: Final = 60.0
"""How long one answer of a node may take."""

LOOK_EVERY_S: Final = 0.1
"""How often a condition that is waited for is checked."""

LINE_S: Final = 1.2
"""Pause between two lines of the conversation that is shown."""

GAP_S: Final = 2.0
"""How long every copy of the lost line is lost: long enough to see the gap."""

TALK_S: Final = 10.0
PARTITION_S: Final = 14.0
OUTAGE_S: Final = 8.0
"""Lengths of the phases at pace 1."""

SAY_EVERY_S: Final = 0.06
"""Mean pause between two lines of all channels together."""

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

STATUS_EVERY_S: Final = 5.0
"""How often a line shows the state of nodes and participants."""

LOG_TAIL_LINES: Final = 12
"""Lines of a failed node's log that are shown."""

MAX_LOG_TAIL_BYTES: Final = 16 * 1024
MAX_METRICS_BYTES: Final = 4 * 1024 * 1024
