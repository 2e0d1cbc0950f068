"""Limits of the client: what it sends at once, and how long it tries again."""

from typing import Final

MAX_PUBLISH_REQUEST_BYTES: Final = 3_500_000
"""Messages of one request; with its other fields it stays below 4 MiB."""

MAX_PUBLISH_REQUEST_MESSAGES: Final = 1_000

MAX_REQUESTS_IN_FLIGHT: Final = 8
"""Requests of a ``PublishStream`` that are sent or ready, and not yet answered."""

MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
"""The largest response that a node may be set to send."""

MAX_PORT: Final = 65_535

DEFAULT_RETRY_ATTEMPTS: Final = 8
DEFAULT_RETRY_FIRST_DELAY_S: Final = 0.1
DEFAULT_RETRY_MAX_DELAY_S: Final = 5.0

MAX_RECONNECT_DELAY_MS: Final = 2_000
"""Longest pause of gRPC itself between two attempts to connect."""

KEEPALIVE_INTERVAL_MS: Final = 60_000
KEEPALIVE_TIMEOUT_MS: Final = 20_000
"""An idle stream whose node is gone without a word ends after both."""
