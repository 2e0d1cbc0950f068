"""Limits of a report: a page stays readable, and small, whatever strangers publish."""

from typing import Final

from store.pipeline.limits import DAY_NS, HOUR_NS

TOP: Final = 15
MAX_RANKED: Final = 300
"""Channels and topics that are drawn as bars, and that are listed; the others are counted."""

MAX_NAME_CHARS: Final = 120
"""Of a channel's or topic's name; the rest is cut off."""

MAX_STEPS: Final = 168
"""Steps of a time axis: a week by the hour."""

STEPS_NS: Final = tuple(
    [hours * HOUR_NS for hours in (1, 2, 3, 6, 12)]
    + [days * DAY_NS for days in (1, 2, 7, 14, 28, 91, 182, 364, 728)]
)
"""How long a step may be; the last is enough for all times that a timestamp can name."""

OUTLIERS: Final = 0.005
"""Share of the messages at either end of time that is not drawn, where it would stretch the axis to
more than twice its length."""

MAX_GAPS: Final = 50
MIN_EXPECTED: Final = 10
"""Messages that a shard's silence must have cost, at its usual rate, to be a gap."""

MIN_ACTIVE_HOURS: Final = 12
MIN_ACTIVE_SHARE: Final = 2 / 3
MIN_SAMPLES: Final = 3
"""Hours with messages that a shard must have for its silence to mean something; of the hours like a
silent one, such as those of the same time of the week, how many there must be, and which share of
them has messages."""

MAX_AHEAD_SHARE: Final = 0.5
"""Of its length, by how much the time axis is extended beyond the last message, for a silence."""

LATE_S: Final = 60.0
LATE_SHARE: Final = 0.05
"""From which share of messages on, that are stored later than so many seconds, it is a warning."""

OUTLOOK_DAYS: Final = 28
"""Whole days, the newest, that a rate is the mean of."""

MAX_PEERS: Final = 100
