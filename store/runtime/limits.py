"""Times of the node's own work, each with its unit in its name."""

from typing import Final

HEALTHY_CHECK_INTERVAL_S: Final = 2.0
"""How often the database is asked whether it answers, while it does."""

UNHEALTHY_CHECK_INTERVAL_S: Final = 0.25
"""How often while it does not."""

CHECK_TIMEOUT_S: Final = 5.0
"""A database that answers no sooner counts as away."""

CONNECT_RETRY_FIRST_S: Final = 0.1
CONNECT_RETRY_MOST_S: Final = 2.0
"""Pauses between attempts to reach the database at the start."""

SUMMARY_INTERVAL_S: Final = 10.0
"""How often the metrics and the horizon are taken from what the database holds."""

TOKEN_CHECK_INTERVAL_S: Final = 2.0
"""How often the token file is looked at."""

LOG_SUMMARY_INTERVAL_S: Final = 10.0
"""How often the count of suppressed log events is written."""

MAX_TOKEN_FILE_BYTES: Final = 4 * 1024 * 1024

CLOSE_TIMEOUT_S: Final = 10.0
"""How long one part of the node may take to close, after the calls have ended."""
