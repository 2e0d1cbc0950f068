"""Limits of a connection to a node."""

from typing import Final

MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
"""The largest response that a node may be set to send."""

MAX_PORT: Final = 65_535

MAX_RECONNECT_DELAY_MS: Final = 2_000
"""Longest pause of gRPC itself between two attempts to connect."""

KEEPALIVE_INTERVAL_MS: Final = 60_000
KEEPALIVE_TIMEOUT_MS: Final = 20_000
"""An idle stream whose node is gone without a word ends after both."""

STATUS_TIMEOUT_S: Final = 1.0
"""For the reason why a call has ended, where it comes after what follows from it."""

PROBE_TIMEOUT_S: Final = 1.0
"""For the reason why a listener closes a connection at once."""
