"""Times of the node's own work, each with its unit in its name."""

from typing import Final

from storenode.message.limits import NS_PER_S

MAX_CLOCK_LEAD_NS: Final = 3_600 * NS_PER_S
"""A node whose clock is further ahead of the database's drops nothing: what is new looks old."""

HEALTHY_CHECK_INTERVAL_S: Final = 2.0
"""How often the database is asked whether it answers, while it does."""

UNHEALTHY_CHECK_INTERVAL_S: Final = 0.25
"""How often while it does not."""

CHECK_TIMEOUT_S: Final = 5.0
"""A database that answers no sooner counts as away."""

COMMIT_TIMEOUT_S: Final = 10.0
"""A database that commits a small write no sooner counts as taking no writes."""

REASON_REST_S: Final = 2.0
"""The database is away for so long before another reason for it is told."""

POOL_ATTEMPTS: Final = 5
"""How often the pools are asked for a connection to ask on, where no other can be had."""

HOSTS_INTERVAL_S: Final = 2.0
"""How often every host of an external database's URL is asked whether it takes writes."""

HOSTS_TIMEOUT_S: Final = 15.0
"""How long all of that may take."""

HOSTS_KEEP_INTERVAL_S: Final = 10.0
"""How often the newest commit that was seen is written to the data directory."""

HOSTS_END_TIMEOUT_S: Final = 5.0
HOSTS_AWAY_END_TIMEOUT_S: Final = 1.0
"""How long a node that shuts down waits for the newest commit; the latter where no host served when
they were last asked."""

ONLINE_END_TIMEOUT_S: Final = 2.0
"""How long a node that shuts down tries to record until when it was online: the write waits for a
synchronous standby."""

CONNECT_RETRY_FIRST_S: Final = 0.1
CONNECT_RETRY_MOST_S: Final = 2.0
"""Pauses between attempts to reach the database at the start."""

SUMMARY_INTERVAL_S: Final = 10.0
"""How often the metrics and the horizon are taken from what the database holds."""

SUMMARY_AGE_S: Final = 1.0
"""Metrics that are asked for show what the database held this long ago, or later."""

SUMMARY_TIMEOUT_S: Final = 2.0
"""How long a request for metrics waits for that; then it shows older numbers."""

CONDITION_INTERVAL_S: Final = 30.0
"""How often sizes, dead rows, partitions ahead, standbys and what is archived are looked at, where
nobody asks for the metrics."""

STATUS_REST_S: Final = 1.0
"""How often the data of the status page is put together, however many look at it."""

STATUS_PATIENCE_S: Final = 2.0
"""How long it waits for the database; then it shows what was read before."""

TIMELINE_REST_S: Final = 3.0
COVERAGE_REST_S: Final = 15.0
UPKEEP_REST_S: Final = 15.0
"""How often it reads what is held by time, and how the database does."""

MAX_STATUS_TEXT_CHARS: Final = 300
MAX_STATUS_NOTES: Final = 5
MAX_STATUS_TOPICS: Final = 64
"""Of a text that a peer may have written, and of the notes of one session."""

TOKEN_CHECK_INTERVAL_S: Final = 2.0
"""How often the token file is looked at."""

TOKEN_REST_S: Final = 1.0
TOKEN_REST_LOOKS: Final = 3
"""A changed token file is taken over when it has been left alone for so long; after so many looks
in any case."""

TOKEN_READINGS: Final = 8
TOKEN_READ_AGAIN_S: Final = 0.02
"""How often a file that does not come to rest is read, and the pause between."""

CONNECTIONS_INTERVAL_S: Final = 1.0
"""How often connections of one host are counted."""

UNREAD_INTERVAL_S: Final = 600.0
"""How often a node without gossip deletes unread events that nobody waits for."""

DISK_INTERVAL_S: Final = 1.0
"""How often the disk of an embedded database is measured."""

PROBLEMS_INTERVAL_S: Final = 5.0
"""How often the node looks for what is wrong with it."""

RESERVED_DESCRIPTORS: Final = 256
"""Of the process, for all but connections of callers: the database, files, and calls of others."""

LOG_SUMMARY_INTERVAL_S: Final = 10.0
"""How often the count of suppressed log events is written."""

TRIM_INTERVAL_S: Final = 10.0
TRIM_GROWTH_BYTES: Final = 32 * 1024 * 1024
"""A node that is so much larger than it was at its smallest gives back what it has freed; looked at
this often."""

MAPPED_BYTES: Final = 8 * 1024 * 1024
"""A block of memory of this size or more goes back to the system as soon as it is freed."""

MAX_TRIM_PAUSE: Final = 32
"""Intervals between two attempts that each give little back."""

MAX_TOKEN_FILE_BYTES: Final = 4 * 1024 * 1024

DRAIN_NOTICE_S: Final = 0.2
"""Time between telling those that watch the node's health and ending their calls."""

TASK_RETRY_FIRST_S: Final = 1.0
TASK_RETRY_MOST_S: Final = 60.0
"""Pauses before a background task that failed is started again."""

TASK_CANCEL_AGAIN_S: Final = 1.0
"""How long a background task that was cancelled may take before it is cancelled again."""
