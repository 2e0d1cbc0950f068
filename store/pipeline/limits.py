"""Limits of the data pipeline."""

from typing import Final

from storenode.message.limits import NS_PER_S

HOUR_NS: Final = 3_600 * NS_PER_S
DAY_NS: Final = 24 * HOUR_NS

OLDEST_JAVA: Final = 17

MAX_CONNECTIONS: Final = 8
"""Tasks that read from or write to one database at a time, of one job."""

MAX_SLICE_ROWS: Final = 1_000_000
MIN_SLICE_ROWS: Final = 20_000
"""Messages that are read in one transaction, as far as the summaries tell."""

STEP_SHARE: Final = 20
MIN_STEP_MESSAGES: Final = 1_000_000
MAX_STEP_MESSAGES: Final = 4_000_000
"""An archive is published in steps of whole hours: each a twentieth of all that is new, within
these bounds. What a job that is killed has committed stays, so it repeats one step at most."""

SHARD_PARTITIONS: Final = 64
"""Shards that have directories of their own in an archive. Strangers invent topics, not files."""

ARROW_BATCH_ROWS: Final = 100_000
ARROW_BATCH_BYTES: Final = 64 * 1024 * 1024
"""Rows, and bytes of them, that Spark sends to a worker in one piece, which is written as one row
group; a single row may have more."""

MIN_PORTION_ROWS: Final = 100_000
MAX_PORTION_ROWS: Final = 4_000_000
"""Messages in files that one task reads, where a file does not have more."""

COMPACT_AT_FILES: Final = 8
COMPACT_BELOW_BYTES: Final = 32 * 1024 * 1024
MAX_COMPACTED_BYTES: Final = 256 * 1024 * 1024
"""The size limit of a file into which smaller files of one day and shard are compacted."""

COMPACT_FILES_AT_ONCE: Final = 2_000
"""Files that one commit replaces by larger ones, those of a day and shard together. What they hold
of each hour, file by file, is in the job's memory meanwhile."""

VACUUM_AFTER_HOURS: Final = 7 * 24
"""The time that files of older states are kept for their readers."""

MAX_LISTED: Final = 100
"""Rows, hours or files that a report lists of each kind; the number of all is said."""

RESTORE_BATCH_MESSAGES: Final = 10_000
RESTORE_BATCH_BYTES: Final = 8 * 1024 * 1024
"""Messages, and about how many bytes of them, that a restore stores in one transaction."""
