"""Limits and times of the embedded Postgres, each with its unit in its name."""

from typing import Final

OLDEST_MAJOR: Final = 14
"""The oldest major version of Postgres that a node works with."""

MAX_LOG_BYTES: Final = 16 * 1024 * 1024
"""The size at which postgres.log becomes postgres.log.1, whose predecessor is dropped."""

MAX_TAIL_BYTES: Final = 16 * 1024
"""How much of a server's latest output is kept in memory to explain an exit."""

MAX_REASON_CHARS: Final = 400
"""The longest excerpt of a program's output that an error message repeats."""

LOG_READ_BYTES: Final = 64 * 1024

POLL_INTERVAL_S: Final = 0.02
"""How often a server that starts or a process that is not our child is looked at."""

TOOL_TIMEOUT_S: Final = 120.0
"""The longest run of initdb or of a single-user session."""

VERSION_TIMEOUT_S: Final = 20.0

OUTPUT_DRAIN_S: Final = 5.0
"""How long to wait for the last process of a dead server, which shows as the end of its output."""

QUIT_TIMEOUT_S: Final = 10.0
KILL_TIMEOUT_S: Final = 10.0
"""How long the steps after an orderly shutdown may take: SIGQUIT, then SIGKILL."""

MIN_BACKOFF_S: Final = 0.1
MAX_BACKOFF_S: Final = 10.0
STABLE_RUN_S: Final = 30.0
"""A server that was ready for this long is restarted with the shortest pause again."""

MAX_PID_FILE_BYTES: Final = 4096
