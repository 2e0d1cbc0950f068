"""Limits of the client: what it sends at once, and how long it tries again."""

from typing import Final

MAX_PUBLISH_REQUEST_BYTES: Final = 3_500_000
"""Messages of one request; with its other fields it stays below 4 MiB."""

MAX_PUBLISH_REQUEST_MESSAGES: Final = 1_000

MAX_REQUESTS_IN_FLIGHT: Final = 8
"""Requests of a ``PublishStream`` that are sent or ready, and not yet answered."""

DEFAULT_RETRY_ATTEMPTS: Final = 8
DEFAULT_RETRY_FIRST_DELAY_S: Final = 0.1
DEFAULT_RETRY_MAX_DELAY_S: Final = 5.0

HEDGE_DELAY_S: Final = 1.0
"""The silence of a node after which the next one is called too."""
